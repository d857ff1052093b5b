package scan

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/scanport"
	"tidemark/wire"
)

// seenAt is what a session has seen that got rows of a timestamp.
func seenAt(f *fakeCluster, number uint64) scanport.Seen {
	return scanport.Seen{Cluster: f.view.Era.Cluster, Epoch: f.view.Era.Epoch, Bucket: testBucket, At: refOf(number).Ref}
}

// parted is a cluster whose index has two slices; both copies of each hold 3 to 5, and nobody more than told.
func parted() *fakeCluster {
	f := newCluster(2, 2, 3)
	f.view.Era = Era{Cluster: scanport.ClusterKey("c"), Epoch: 7}
	return f
}

// hold has what is known of a copy be of a timestamp.
func (f *fakeCluster) hold(copies []index.CopyID, number uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.view.Held {
		if slices.Contains(copies, f.view.Held[i].Copy) {
			f.view.Held[i].Ref = refOf(number)
		}
	}
}

// TestASessionNeverGoesBack: a copy of the index lags, on which a scan would take an older timestamp than was seen;
// with the token the scan waits until it has the newer one, also where that was passed over by then.
func TestASessionNeverGoesBack(t *testing.T) {
	f := parted()
	all := []index.CopyID{1, 2, 3, 4}
	f.hold(all, 3) // as far as this coordinator knows
	spec := openSpec()
	spec.WantTimestamp = false
	c := NewCoordinator(f, f, f, Options{Wait: time.Minute})
	var sink collect
	got, err := c.Scan(t.Context(), spec, &sink)
	if err != nil || got.Ref != refOf(3) || got.Seen != seenAt(f, 3) {
		t.Fatalf("without a token: %+v, %v", got, err)
	}
	spec.Seen = []scanport.Seen{seenAt(f, 2), seenAt(f, 4)}
	sink = collect{}
	got, err = c.Scan(t.Context(), spec, &sink)
	if err != nil || got.Ref != refOf(4) || got.Seen != seenAt(f, 4) ||
		!slices.Equal(sink.rows, f.expect(4, spec.Ranges, false, 0)) {
		t.Errorf("with one: %+v, %v", got, err)
	}
	// Nobody has made 4, and 5 comes only after a while.
	for _, id := range all {
		f.has[id] = map[uint64]errcode.Code{3: "", 4: errcode.SnapshotSkipped, 5: ""}
	}
	asked := 0
	f.request = func(r NodeRequest) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if r.Ref.Number < 4 {
			t.Errorf("timestamp %d is asked for", r.Ref.Number)
		}
		if asked++; asked == 5 {
			for i := range f.view.Held {
				f.view.Held[i].Ref = refOf(5)
			}
		}
	}
	got, err = c.Scan(t.Context(), spec, new(collect))
	if err != nil || got.Ref != refOf(5) || got.Seen != seenAt(f, 5) || asked < 5 {
		t.Errorf("where 4 was skipped: %+v, %v, asked %d times", got, err, asked)
	}
	if got, err = c.Count(t.Context(), spec); err != nil || got.Ref != refOf(5) {
		t.Errorf("a count: %+v, %v", got, err)
	}
	if f.asked.Load() != 0 {
		t.Error("the leader was asked")
	}
}

// TestASessionWaitsNoLongerThanOthers: what it has seen does not come; the error says what is waited for.
func TestASessionWaitsNoLongerThanOthers(t *testing.T) {
	f := parted()
	for id := range f.has {
		f.has[id][6] = errcode.Timeout
	}
	spec := openSpec()
	spec.Seen = []scanport.Seen{seenAt(f, 6)}
	c := NewCoordinator(f, f, f, Options{Wait: 120 * time.Millisecond})
	_, err := c.Scan(t.Context(), spec, new(collect))
	if CodeOf(err) != errcode.Timeout || !strings.Contains(fmt.Sprint(err), "the session has seen timestamp 6") {
		t.Error(err)
	}
	for name, newer := range map[string]func(*scanport.Seen){
		"a restore":  func(s *scanport.Seen) { s.Epoch++ },
		"a bucket":   func(s *scanport.Seen) { s.At.Generation++ },
		"a rollback": func(s *scanport.Seen) { s.At.RollbackID++ },
	} {
		spec.Seen = []scanport.Seen{seenAt(f, 5)}
		newer(&spec.Seen[0])
		if _, err := c.Scan(t.Context(), spec, new(collect)); CodeOf(err) != errcode.Unavailable ||
			!strings.Contains(fmt.Sprint(err), "has not heard yet") {
			t.Errorf("%s that this indexer has not heard of: %v", name, err)
		}
	}
	// It is heard of while the scan waits.
	spec.Seen = []scanport.Seen{seenAt(f, 5)}
	spec.Seen[0].Epoch++
	c = NewCoordinator(f, f, f, Options{Wait: time.Minute})
	go func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.view.Era.Epoch++
	}()
	if got, err := c.Scan(t.Context(), spec, new(collect)); err != nil || got.SessionLost != "" || got.Seen.Epoch != 8 {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestWhatASessionLost: what was seen is undone, made anew or of elsewhere: the scan says so and shows all that KV has,
// once; the token that it gives is as good as any.
func TestWhatASessionLost(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*scanport.Seen)
		lost   string
	}{
		"rolled back":     {func(s *scanport.Seen) { s.At.RollbackID--; s.At.Number = 99 }, lostRollback},
		"made anew":       {func(s *scanport.Seen) { s.At.Generation--; s.At.RollbackID, s.At.Number = 9, 99 }, lostBucket},
		"restored":        {func(s *scanport.Seen) { s.Epoch--; s.At.Number = 99 }, lostEpoch},
		"another cluster": {func(s *scanport.Seen) { s.Cluster++; s.Epoch, s.At.Number = 99, 99 }, lostCluster},
		"none":            {func(*scanport.Seen) {}, ""},
	} {
		for _, consistency := range []Consistency{Any, AtPlus, Session} {
			t.Run(name+" "+string(consistency), func(t *testing.T) {
				f := parted()
				f.hold([]index.CopyID{1, 2, 3, 4}, 4) // KV is at 5
				spec := openSpec()
				spec.WantTimestamp, spec.Consistency = false, consistency
				if consistency == AtPlus {
					spec.Tokens = []Token{{VBucket: 1, VBUUID: 77, Seqno: 40}}
				}
				spec.Seen = []scanport.Seen{seenAt(f, 4)}
				c.change(&spec.Seen[0])
				co := NewCoordinator(f, f, f, Options{Wait: time.Minute})
				got, err := co.Scan(t.Context(), spec, new(collect))
				if err != nil || got.SessionLost != c.lost || (c.lost != "" || consistency == Session) && got.Ref != refOf(5) ||
					got.Seen != seenAt(f, got.Ref.Number) {
					t.Fatalf("%+v, %v", got, err)
				}
				spec.Seen, spec.Consistency, spec.Tokens = []scanport.Seen{got.Seen}, Any, nil
				if again, err := co.Scan(t.Context(), spec, new(collect)); err != nil || again.SessionLost != "" ||
					again.Ref.Compare(got.Ref.Ref) < 0 {
					t.Errorf("the next scan: %+v, %v", again, err)
				}
			})
		}
	}
	// Who names a timestamp wants to see that, and has seen the newer one all the same.
	f := parted()
	spec := openSpec()
	at := refOf(3)
	spec.Stability, spec.At, spec.WantTimestamp, spec.Seen = QueryStability, &at, false, []scanport.Seen{seenAt(f, 5)}
	got, err := f.coordinator().Scan(t.Context(), spec, new(collect))
	if err != nil || got.Ref != refOf(3) || got.Seen != seenAt(f, 5) {
		t.Errorf("at a timestamp: %+v, %v", got, err)
	}
}

// TestSessionsOfRequests: tokens come in the body and beside it; those of other buckets do not count; what is none is
// named.
func TestSessionsOfRequests(t *testing.T) {
	def := &index.Definition{ID: 5, Bucket: testBucket, Keys: []index.KeyExpr{{Expr: "a"}}}
	mine, other := scanport.Seen{Bucket: testBucket, Epoch: 1}, scanport.Seen{Bucket: "other", Epoch: 2}
	r, err := ParseRequest(fmt.Appendf(nil, `{"session":%q}`, scanport.Tokens([]scanport.Seen{other, mine})))
	if err == nil {
		mine.Epoch++
		err = r.Continue(mine.Token())
	}
	if err != nil {
		t.Fatal(err)
	}
	spec, err := r.Compile(def)
	if err != nil || len(spec.Seen) != 2 || spec.Seen[0].Epoch != 1 || spec.Seen[1] != mine {
		t.Errorf("%+v, %v", spec.Seen, err)
	}
	_, err = ParseRequest([]byte(`{"session":"abc"}`))
	if CodeOf(err) != errcode.BadRequest || !errors.Is(err, scanport.ErrSession) ||
		!strings.Contains(err.Error(), "session:") {
		t.Error(err)
	}
	if err := r.Continue("abc"); CodeOf(err) != errcode.BadRequest {
		t.Error(err)
	}
}

// TestEndsTellSessions: in the last line, and with each place.
func TestEndsTellSessions(t *testing.T) {
	f := parted()
	want := seenAt(f, 5)
	f.view.Definition.Keys = nil // rows whose keys are the empty one
	for s := range f.rows[5] {
		for i := range f.rows[5][s] {
			f.rows[5][s][i].Key = nil
		}
		slices.SortFunc(f.rows[5][s], Row.Compare)
	}
	var p portion
	if err := p.answer(f, Request{Consistency: Any, Stability: ScanStability}, 50, 2); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	if got, _, err := scanport.CutSeen(p.resume); err != nil || got != want {
		t.Errorf("a place tells %+v, %v", got, err)
	}
	r := Result{Rows: 2, Ref: wire.StabilityRef{Ref: want.At}, Seen: want}
	tail := `,"session":"` + want.Token() + `"`
	if got := string(appendEnd(nil, r)); !strings.HasSuffix(got, tail+"}") {
		t.Error(got)
	}
	r.SessionLost = lostRollback
	if got := string(AppendCount(nil, r)); !strings.HasSuffix(got, tail+`,"session_lost":"`+lostRollback+"\"}\n") {
		t.Error(got)
	}
}

// TestALossWhileKVIsAway: who is content with what is held gets it, and is told; who wants all that KV has does not.
func TestALossWhileKVIsAway(t *testing.T) {
	f := parted()
	f.current = f.newest + 1
	f.refuse = func(int64) error { return Errorf(errcode.VBucketsUnavailable, "nobody has vbucket 0") }
	c := NewCoordinator(f, f, f, Options{Wait: time.Minute})
	spec := openSpec()
	spec.WantTimestamp, spec.Seen = false, []scanport.Seen{seenAt(f, 4)}
	spec.Seen[0].Epoch--
	got, err := c.Scan(t.Context(), spec, new(collect))
	if err != nil || got.SessionLost != lostEpoch+lostUnasked || got.Ref != refOf(5) {
		t.Errorf("%+v, %v", got, err)
	}
	spec.Consistency = Session
	if _, err := c.Scan(t.Context(), spec, new(collect)); CodeOf(err) != errcode.VBucketsUnavailable {
		t.Error(err)
	}
}

// TestANamedTimestampLeavesASessionAsItIs: what was lost is said with the next scan that does not name one.
func TestANamedTimestampLeavesASessionAsItIs(t *testing.T) {
	f := parted()
	spec := openSpec()
	at, lost := refOf(3), seenAt(f, 5)
	lost.Epoch--
	spec.Stability, spec.At, spec.WantTimestamp, spec.Seen = QueryStability, &at, false, []scanport.Seen{lost}
	got, err := f.coordinator().Scan(t.Context(), spec, new(collect))
	if err != nil || got.Ref != at || got.Seen != lost || got.SessionLost != "" {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestLaggingCopiesLeaveRoom: so many scans wait for copies that lag behind their sessions, and no more; others go on.
func TestLaggingCopiesLeaveRoom(t *testing.T) {
	f := parted()
	f.hold([]index.CopyID{1, 2, 3, 4}, 3)
	c := f.coordinator()
	spec := openSpec()
	spec.Seen = []scanport.Seen{seenAt(f, 4)}
	c.lagging.Store(maxLagging)
	if _, err := c.Scan(t.Context(), spec, new(collect)); CodeOf(err) != errcode.Busy ||
		!strings.Contains(fmt.Sprint(err), "lags behind timestamp 4") {
		t.Error(err)
	}
	spec.Seen = []scanport.Seen{seenAt(f, 3)}
	if _, err := c.Scan(t.Context(), spec, new(collect)); err != nil {
		t.Error(err)
	}
	c.lagging.Store(maxLagging - 1)
	spec.Seen = []scanport.Seen{seenAt(f, 4)}
	if _, err := c.Scan(t.Context(), spec, new(collect)); err != nil || c.lagging.Load() != maxLagging-1 {
		t.Errorf("%v, %d wait", err, c.lagging.Load())
	}
}
