package scan

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/scanport"
	"tidemark/internal/rpc"
	"tidemark/wire"
)

// seenAt returns what a session has seen that got rows of a timestamp.
func seenAt(f *fakeCluster, number uint64) scanport.Seen {
	return scanport.Seen{Cluster: f.view.Era.Cluster, Epoch: f.view.Era.Epoch, Bucket: testBucket, At: refOf(number).Ref}
}

// parted is a cluster whose index has two slices; both copies of each hold 3 to 5.
func parted() *fakeCluster {
	f := newCluster(2, 2, 3)
	f.view.Era = Era{Cluster: scanport.ClusterKey("c"), Epoch: 7}
	return f
}

// hold sets the timestamp that copies are known to hold.
func (f *fakeCluster) hold(copies []index.CopyID, number uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.view.Held {
		if slices.Contains(copies, f.view.Held[i].Copy) {
			f.view.Held[i].Ref = refOf(number)
		}
	}
}

// TestSessionNeverGoesBack: a copy of the index lags, so that a scan would use an older timestamp than was seen;
// with the token the scan waits for the newer one, even if copies have passed that by then.
func TestSessionNeverGoesBack(t *testing.T) {
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
	// No copy has made 4, and 5 comes only after a while.
	for _, id := range all {
		f.has[id] = map[uint64]errcode.Code{3: "", 4: errcode.SnapshotSkipped, 5: ""}
	}
	requests := 0
	f.request = func(r NodeRequest) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if r.Ref.Number < 4 {
			t.Errorf("timestamp %d is requested", r.Ref.Number)
		}
		if requests++; requests == 5 {
			for i := range f.view.Held {
				f.view.Held[i].Ref = refOf(5)
			}
		}
	}
	got, err = c.Scan(t.Context(), spec, new(collect))
	if err != nil || got.Ref != refOf(5) || got.Seen != seenAt(f, 5) || requests < 5 {
		t.Errorf("where 4 was skipped: %+v, %v, %d requests", got, err, requests)
	}
	if got, err = c.Count(t.Context(), spec); err != nil || got.Ref != refOf(5) {
		t.Errorf("a count: %+v, %v", got, err)
	}
	if f.requests.Load() != 0 {
		t.Error("the leader was queried")
	}
}

// TestSessionWaitIsBounded: what the session has seen does not arrive; the error names what the scan waits
// for.
func TestSessionWaitIsBounded(t *testing.T) {
	f := parted()
	for id := range f.has {
		f.has[id][6] = errcode.Timeout
	}
	spec := openSpec()
	spec.Seen = []scanport.Seen{seenAt(f, 6)}
	c := NewCoordinator(f, f, f, Options{Wait: 120 * time.Millisecond})
	_, err := c.Scan(t.Context(), spec, new(collect))
	if CodeOf(err) != errcode.Timeout || !strings.Contains(fmt.Sprint(err), "the session has already read timestamp 6") {
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
			!strings.Contains(fmt.Sprint(err), "does not have yet") {
			t.Errorf("%s that this indexer does not know: %v", name, err)
		}
	}
	// It arrives while the scan waits.
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

// TestSessionReportsLostState: what was seen was undone, recreated or is of another cluster: the scan reports that
// and shows everything that KV has, once; its token is as good as any.
func TestSessionReportsLostState(t *testing.T) {
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
	// A client that names a timestamp wants to see that, and has nevertheless seen the newer one.
	f := parted()
	spec := openSpec()
	at := refOf(3)
	spec.Stability, spec.At, spec.WantTimestamp, spec.Seen = QueryStability, &at, false, []scanport.Seen{seenAt(f, 5)}
	got, err := f.coordinator().Scan(t.Context(), spec, new(collect))
	if err != nil || got.Ref != refOf(3) || got.Seen != seenAt(f, 5) {
		t.Errorf("at a timestamp: %+v, %v", got, err)
	}
}

// TestSessionsOfRequests: tokens come in the body and in the header; those of other buckets do not count; invalid
// ones are named.
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

// TestEndsContainSessions: the token is in the last line, and in each place.
func TestEndsContainSessions(t *testing.T) {
	f := parted()
	want := seenAt(f, 5)
	f.view.Definition.Keys = nil // rows with empty keys
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
		t.Errorf("a place contains %+v, %v", got, err)
	}
	// A failure contains it, too, if rows may have been sent.
	why := Errorf(errcode.Damaged, "no")
	why.lose(Token{1, 2, 3})
	for _, begun := range []bool{false, true} {
		var line, text strings.Builder
		e := NewEncoder(&line, nil, nil, openSpec())
		spec := openSpec()
		k := NewPacker(func(message []byte) error {
			var a scanport.Answer
			if err := a.Read(message); err != nil || a.Tail != scanport.Failure {
				t.Errorf("%d, %v", a.Tail, err)
			}
			text.Write(a.Text)
			return nil
		}, nil, &spec)
		token := ""
		if begun {
			e.At(refOf(5), want)
			k.At(refOf(5), want)
			token = `,"session":"` + want.Token() + `"`
		}
		if err := errors.Join(e.Fail(why), k.Fail(ProblemOf(why))); err != nil {
			t.Fatal(err)
		}
		const lost = `"lost":[{"vbucket":1,"vbuuid":"2","seqno":3}]`
		if !strings.HasSuffix(line.String(), lost+"}"+token+"}\n") || !strings.HasSuffix(text.String(), lost+token+"}") {
			t.Errorf("begun %v: %s and %s", begun, &line, &text)
		}
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

// TestLossWhileKVIsUnreachable: a scan that accepts what is held gets it, with a notice; a scan that wants everything
// KV has fails.
func TestLossWhileKVIsUnreachable(t *testing.T) {
	f := parted()
	f.current = f.newest + 1
	f.refuse = func(int64) error { return Errorf(errcode.VBucketsUnavailable, "no node has vbucket 0") }
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

// TestNamedTimestampLeavesSessionUnchanged: what was lost is reported by the next scan that does not name a timestamp.
func TestNamedTimestampLeavesSessionUnchanged(t *testing.T) {
	f := parted()
	spec := openSpec()
	at, lost := refOf(3), seenAt(f, 5)
	lost.Epoch--
	spec.Stability, spec.At, spec.WantTimestamp, spec.Seen = QueryStability, &at, false, []scanport.Seen{lost}
	got, err := f.coordinator().Scan(t.Context(), spec, new(collect))
	if err != nil || got.Ref != at || got.Seen != lost || got.SessionLost != "" {
		t.Errorf("%+v, %v", got, err)
	}
	// Of several tokens, the one that includes the others counts.
	elsewhere := seenAt(f, 99)
	elsewhere.Cluster++
	spec.Seen = []scanport.Seen{lost, seenAt(f, 5), lost, elsewhere}
	got, err = f.coordinator().Scan(t.Context(), spec, new(collect))
	if err != nil || got.Ref != at || got.Seen != seenAt(f, 5) || got.SessionLost != "" {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestLaggingCopiesLeaveRoom: a bounded number of scans waits, from attempt to attempt, for copies that lag behind
// their sessions; other scans continue, and so do those that find at once what they have seen.
func TestLaggingCopiesLeaveRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := parted()
		f.hold([]index.CopyID{1, 2, 3, 4}, 3)
		for id := range f.has {
			f.has[id][6] = errcode.Timeout
		}
		c := NewCoordinator(f, f, f, Options{Wait: time.Minute})
		spec := openSpec()
		spec.Seen = []scanport.Seen{seenAt(f, 6)}
		for range maxLagging {
			if err := c.lagging.Enter(rpc.Anonymous); err != nil {
				t.Fatal(err)
			}
		}
		var requests []int64 // for how long nodes may wait
		f.request = func(r NodeRequest) {
			f.mu.Lock()
			defer f.mu.Unlock()
			requests = append(requests, r.WaitMS)
		}
		if _, err := c.Scan(t.Context(), spec, new(collect)); CodeOf(err) != errcode.Busy ||
			!strings.Contains(fmt.Sprint(err), "is behind the session") || slices.Max(requests) > lagWait.Milliseconds() {
			t.Errorf("%v, nodes could wait %d ms", err, requests)
		}
		spec.Seen[0].Epoch++ // which this indexer has not received
		_, err := c.Scan(t.Context(), spec, new(collect))
		if CodeOf(err) != errcode.Busy || !strings.Contains(fmt.Sprint(err), "does not have yet") {
			t.Error(err)
		}
		spec.Seen = []scanport.Seen{seenAt(f, 4)} // which no node has reported yet, and all have
		if got, err := c.Scan(t.Context(), spec, new(collect)); err != nil || got.Ref != refOf(4) {
			t.Errorf("%+v, %v", got, err)
		}
		spec.Seen = []scanport.Seen{seenAt(f, 3)}
		if _, err := c.Scan(t.Context(), spec, new(collect)); err != nil {
			t.Error(err)
		}
		for range maxLagging {
			c.lagging.Leave(rpc.Anonymous)
		}
		spec.Seen = []scanport.Seen{seenAt(f, 6)}
		attempts := map[int]int{}
		f.request = func(NodeRequest) {
			f.mu.Lock()
			defer f.mu.Unlock()
			if attempts[c.lagging.Taken()]++; attempts[1] == 8 { // of two slices, so that the fourth attempt has it
				for id := range f.has {
					f.has[id][6] = ""
				}
				f.rows[6] = f.rows[5]
			}
		}
		got, err := c.Scan(t.Context(), spec, new(collect))
		if err != nil || got.Ref != refOf(6) || attempts[1] < 8 || len(attempts) > 1 || c.lagging.Taken() != 0 {
			t.Errorf("%+v, %v: while so many were counted copies were queried %v times, and %d are left", got, err, attempts,
				c.lagging.Taken())
		}
		if got.Waited < 2*recheck { // three attempts in vain, with pauses
			t.Errorf("it has waited for %v", got.Waited)
		}
		f.has[1][7], f.has[2][7] = errcode.Timeout, errcode.Timeout
		spec.Seen = []scanport.Seen{seenAt(f, 7)}
		c = NewCoordinator(f, f, f, Options{Wait: 120 * time.Millisecond})
		late, err := c.Scan(t.Context(), spec, new(collect))
		if CodeOf(err) != errcode.Timeout || c.lagging.Taken() != 0 || late.Waited < recheck {
			t.Errorf("%+v, %v, and %d are left", late, err, c.lagging.Taken())
		}
	})
}

// TestPagesWithoutStabilityNeverGoBack: after a page, what is known of the copies is older, because one of them has
// gone elsewhere: the later pages have no older timestamp; an indexer that continues the answer respects that, too.
// What a rollback between two pages has undone is reported with the end.
func TestPagesWithoutStabilityNeverGoBack(t *testing.T) {
	const rows = 2*PageRows + 500
	all := []index.CopyID{1, 2, 3, 4}
	cluster := func() *fakeCluster {
		f := parted()
		for n := range f.rows {
			f.rows[n] = make([][]Row, 2)
			for i := range rows {
				f.rows[n][i%2] = append(f.rows[n][i%2], Row{fmt.Appendf(nil, "%06d", i), fmt.Appendf(nil, "doc-%d", n)})
			}
		}
		return f
	}
	spec := openSpec()
	spec.Stability, spec.WantTimestamp = NoStability, false
	between := func(f *fakeCluster, change func()) {
		pages := 0
		f.request = func(NodeRequest) {
			f.mu.Lock()
			defer f.mu.Unlock()
			if pages++; pages == 2 { // both nodes are queried for the first page
				change()
			}
		}
	}
	f := cluster()
	between(f, func() {
		for i := range f.view.Held {
			f.view.Held[i].Ref = refOf(3)
		}
	})
	c := NewCoordinator(f, f, f, Options{Wait: time.Minute})
	var sink collect
	got, err := c.Scan(t.Context(), spec, &sink)
	if err != nil || got.Ref != refOf(5) || got.Seen != seenAt(f, 5) || len(sink.rows) != rows ||
		!strings.HasSuffix(sink.rows[rows-1], "doc-5") {
		t.Errorf("%+v, %v, %d rows", got, err, len(sink.rows))
	}

	f = cluster()
	f.hold(all, 3)
	seen := seenAt(f, 5)
	last := f.rows[5][0][7]
	req := Request{Consistency: Any, Stability: NoStability, Limit: 20,
		Resume: (&Resume{Index: 5, Ref: refOf(4), Rows: 15, Last: last}).appendTo(nil, &seen)}
	rest, err := f.coordinator().Prepare(5, req)
	if err != nil {
		t.Fatal(err)
	}
	for id := range f.has { // the previous timestamp is passed over
		f.has[id] = map[uint64]errcode.Code{3: "", 5: errcode.SnapshotSkipped}
	}
	if _, err := f.coordinator().Scan(t.Context(), rest, new(collect)); CodeOf(err) != errcode.Timeout {
		t.Errorf("the rest is of an older timestamp: %v", err)
	}

	f = cluster()
	between(f, func() {
		f.view.Bucket.RollbackID++
		for i := range f.view.Held {
			f.view.Held[i].Ref.RollbackID++
		}
	})
	f.refuse = func(int64) error { return Errorf(errcode.VBucketsUnavailable, "no node has vbucket 0") }
	f.current = f.newest + 1
	c = NewCoordinator(f, f, f, Options{Wait: time.Minute})
	got, err = c.Scan(t.Context(), spec, new(collect))
	if err != nil || got.SessionLost != lostRollback+lostUnasked || got.Seen.At.RollbackID != refOf(5).RollbackID+1 {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestContinuedAnswerReportsLosses: the end of an answer that another indexer has continued reports what the first
// one would have reported.
func TestContinuedAnswerReportsLosses(t *testing.T) {
	f := parted()
	f.view.Definition.Keys = nil
	lost := seenAt(f, 5)
	lost.Epoch--
	place := seenAt(f, 4)
	req := Request{Consistency: Any, Stability: ScanStability, seen: []scanport.Seen{lost},
		Resume: (&Resume{Index: 5, Ref: refOf(4), Rows: 1, Last: Row{DocID: []byte("doc000")}}).appendTo(nil, &place)}
	for _, stability := range []RowStability{ScanStability, QueryStability} {
		req.Stability = stability
		spec, err := f.coordinator().Prepare(5, req)
		if err != nil {
			t.Fatal(err)
		}
		got, err := f.coordinator().Scan(t.Context(), spec, new(collect))
		if err != nil || got.SessionLost != lostEpoch || got.Seen != seenAt(f, 4) || got.Ref != refOf(4) {
			t.Errorf("%s: %+v, %v", stability, got, err)
		}
	}
	req.Timestamp = TimestampID(refOf(4))
	spec, err := f.coordinator().Prepare(5, req)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := f.coordinator().Scan(t.Context(), spec, new(collect)); err != nil || got.SessionLost != "" ||
		got.Seen != lost {
		t.Errorf("at a timestamp: %+v, %v", got, err)
	}
}

// TestForeignPlacesAreRefused: a place in an answer is returned by a client, which may have modified it or may send it
// to another cluster: that is the caller's fault, and no row is of another state than the earlier ones.
func TestForeignPlacesAreRefused(t *testing.T) {
	f := parted()
	seen := seenAt(f, 4)
	other := seen
	other.Bucket = "other"
	key, foreign := []byte{0xff, 1}, refOf(4)
	foreign.Hash++
	place := func(r Resume, seen *scanport.Seen) []byte { return r.appendTo(nil, seen) }
	for name, c := range map[string]struct {
		place []byte
		want  errcode.Code
	}{
		"whole":          {place(Resume{Index: 5, Ref: refOf(4), Rows: 1}, &seen), ""},
		"another index":  {place(Resume{Index: 4, Ref: refOf(4), Rows: 1}, &seen), errcode.SnapshotTooOld},
		"another bucket": {place(Resume{Index: 5, Ref: refOf(4), Rows: 1}, &other), errcode.BadRequest},
		"no key": {place(Resume{Index: 5, Ref: refOf(4), Rows: 1, Last: Row{Key: key}}, &seen),
			errcode.BadRequest},
		"another state": {place(Resume{Index: 5, Ref: foreign, Rows: 1}, &seen), errcode.SnapshotTooOld},
	} {
		for n := range f.rows {
			f.rows[n] = [][]Row{{}, {}}
		}
		spec, err := f.coordinator().Prepare(5, Request{Consistency: Any, Stability: ScanStability, Distinct: true,
			Resume: c.place})
		if err == nil {
			_, err = f.coordinator().Scan(t.Context(), spec, new(collect))
		}
		if (err != nil) != (c.want != "") || err != nil && CodeOf(err) != c.want {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestLostWritesAreNamed: an error names all of them at once, so that the client can leave them out.
func TestLostWritesAreNamed(t *testing.T) {
	f := parted()
	spec := openSpec()
	spec.Consistency = AtPlus
	lost := []Token{{VBucket: 0, VBUUID: 66, Seqno: 6}, {VBucket: 1, VBUUID: 66, Seqno: 9}}
	spec.Tokens = append([]Token{{VBucket: 1, VBUUID: 77, Seqno: 4}}, lost...)
	none := []Token{{VBucket: testVBs, VBUUID: 77, Seqno: 1}, {VBucket: testVBs + 1, VBUUID: 77, Seqno: 1}}
	for _, c := range []struct {
		tokens, lost []Token
		code         errcode.Code
	}{{spec.Tokens, lost, errcode.TokenLost}, {append(none, spec.Tokens...), none, errcode.BadRequest}} {
		spec.Tokens = c.tokens
		_, err := f.coordinator().Scan(t.Context(), spec, new(collect))
		var got []Token
		for _, w := range ProblemOf(err).Lost {
			got = append(got, Token(w))
		}
		if CodeOf(err) != c.code || !slices.Equal(got, c.lost) {
			t.Errorf("%v names %v, want %v", err, got, c.lost)
		}
	}
	var many Error
	for i := range MaxTokens {
		many.lose(Token{VBucket: uint16(i)})
	}
	if len(many.Lost) != wire.MaxLost {
		t.Errorf("%d are named", len(many.Lost))
	}
}
