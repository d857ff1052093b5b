package watch

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"tidemark/fsm"
	"tidemark/index"
	_ "tidemark/internal/testing/draws"
	"tidemark/manager/api/v1"
	"tidemark/partition"
	"tidemark/statecontext"
	"tidemark/timestamp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a state machine with a hub whose Run is simulated by hand, and the model: all events so far.
type world struct {
	t       rapid.TB
	machine *fsm.FSM
	hub     *Hub
	index   uint64
	epoch   uint64
	history []statecontext.Event
	names   int
}

func newWorld(t rapid.TB) *world {
	w := &world{t: t, machine: fsm.New(hclog.NewNullLogger(), func(err error) { t.Fatalf("%v", err) }), epoch: 1}
	w.hub = New(w.machine, hclog.NewNullLogger())
	w.apply(&statecontext.LeaderStarted{Term: 1, Manager: statecontext.Manager{ID: "m"}},
		&statecontext.BootstrapCluster{ClusterID: "c.1", Epoch: 1},
		&statecontext.RegisterIndexer{Indexer: statecontext.Indexer{UUID: "i"}}, &statecontext.SetBucket{Name: "b", UUID: "u",
			VBuckets: 2})
	w.hub.pull()
	return w
}

// apply applies one entry and records its events as the model of what watchers must see.
func (w *world) apply(bodies ...statecontext.Body) {
	var commands []statecontext.Command
	for _, b := range bodies {
		commands = append(commands, statecontext.Command{Body: b, TimeMS: int64(w.index)})
	}
	data, err := statecontext.Encode(commands...)
	if err != nil {
		w.t.Fatalf("%v", err)
	}
	w.index++
	_, _, events, err := statecontext.Apply(w.machine.State(), w.index, data)
	if err != nil {
		w.t.Fatalf("%v", err)
	}
	w.history = append(w.history, events...)
	if _, ok := w.machine.Apply(&raft.Log{Index: w.index, Term: 1, Data: data}).([]statecontext.Result); !ok {
		w.t.Fatalf("not applied")
	}
}

func (w *world) create() statecontext.Body {
	w.names++
	return &statecontext.CreateIndex{
		Definition: index.Definition{Name: fmt.Sprint("x", w.names), Bucket: "b", BucketUUID: "u",
			Keys: []index.KeyExpr{{Expr: "a"}}, Partitions: 1},
		Layout: partition.Layout{Scheme: partition.HashDocID, Partitions: 1}, Placement: []statecontext.Placement{{}}}
}

func (w *world) promote() statecontext.Body {
	b := w.machine.State().Bucket("b")
	v := b.Stability.Vector.Clone()
	v.Set(0, timestamp.Position{VBUUID: 1, Seqno: v.Seqnos[0] + 1})
	a, err := statecontext.NewBucketAdvance(b, v, v, nil)
	if err != nil {
		w.t.Fatalf("%v", err)
	}
	return &statecontext.AdvanceStability{Buckets: []statecontext.BucketAdvance{a}}
}

// replace restores the state from its own snapshot, as on a follower that was away for long.
func (w *world) replace() {
	var b bytes.Buffer
	if err := statecontext.WriteSnapshot(&b, w.machine.State()); err != nil {
		w.t.Fatalf("%v", err)
	}
	if err := w.machine.Restore(io.NopCloser(&b)); err != nil {
		w.t.Fatalf("%v", err)
	}
}

// message is a server-sent event as a client reads it.
type message struct {
	id, event string
	data      []byte
}

// parse parses server-sent events; the id carries over from one to the next.
func parse(t rapid.TB, id string, stream []byte) (messages []message, last string) {
	m := message{id: id}
	s := bufio.NewScanner(bytes.NewReader(stream))
	for s.Buffer(nil, 16<<20); s.Scan(); {
		field, value, _ := strings.Cut(s.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "id":
			m.id = value
		case "event":
			m.event = value
		case "data":
			m.data = []byte(value)
		case "":
			if s.Text() == "" {
				if len(m.data) > 0 {
					messages = append(messages, m)
				}
				m = message{id: m.id}
			}
		default:
			t.Fatalf("line %q", s.Text())
		}
	}
	return messages, m.id
}

// viewer is a watcher that compares what it sees with the model.
type viewer struct {
	w      *world
	stream *Watcher
	kinds  Kinds
	id     string
	seen   uint64 // cas up to which it has seen everything
}

func (v *viewer) join() {
	req := Request{Kinds: v.kinds, From: "a"}
	if v.id != "" {
		p, err := ParsePosition(v.id)
		if err != nil {
			v.w.t.Fatalf("%v", err)
		}
		req.Since = &p
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	stream, err := v.w.hub.Join(ctx, req)
	if err != nil {
		v.w.t.Fatalf("join at %s: %v", v.id, err)
	}
	v.stream = stream
}

func (v *viewer) leave() {
	v.stream.Close()
	v.stream.Close() // closing twice is harmless
	v.stream = nil
}

// step takes one batch, if there is one.
func (v *viewer) step() (more bool) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	chunks, err := v.stream.Next(ctx)
	switch {
	case errors.Is(err, context.Canceled):
		chunks = [][]byte{v.stream.heartbeat()} // as after an idle time
	case errors.Is(err, ErrSlow):
		messages, _ := parse(v.w.t, v.id, v.stream.Marker("slow", "x"))
		var marker struct {
			LastCAS uint64 `json:"last_cas"`
		}
		if len(messages) != 1 || messages[0].event != "end" || json.Unmarshal(messages[0].data, &marker) != nil ||
			marker.LastCAS > v.seen && len(v.expected(v.seen, marker.LastCAS)) > 0 {
			v.w.t.Fatalf("marker %+v, seen up to %d", messages, v.seen)
		}
		v.leave()
		v.join()
		return true
	case err != nil:
		v.w.t.Fatalf("%v", err)
	}
	var messages []message
	messages, v.id = parse(v.w.t, v.id, bytes.Join(chunks, nil))
	for _, m := range messages {
		v.take(m)
	}
	p, _ := ParsePosition(v.id)
	if lost := v.expected(v.seen, p.CAS); len(lost) > 0 {
		v.w.t.Fatalf("the position moved from %d to %d over %d: %.600q", v.seen, p.CAS, len(lost), chunks)
	}
	v.seen = p.CAS
	return len(messages) > 0
}

// expected returns the model's events with cas values in (from, to] of the viewer's kinds.
func (v *viewer) expected(from, to uint64) (events []statecontext.Event) {
	for _, e := range v.w.history {
		if e.CAS > from && e.CAS <= to && v.kinds.Has(e.Kind) {
			events = append(events, e)
		}
	}
	return events
}

func (v *viewer) take(m message) {
	t := v.w.t
	switch m.event {
	case "snapshot":
		var s struct {
			Reason, Detail string
			v1.WatchState
		}
		if err := json.Unmarshal(m.data, &s); err != nil || s.Reason == "" || s.Detail == "" {
			t.Fatalf("snapshot %s: %v", m.data, err)
		}
		if s.Reason != "start" && s.CAS < v.seen {
			t.Fatalf("a snapshot of cas %d after cas %d", s.CAS, v.seen)
		}
		v.seen = s.CAS
		v.checkSnapshot(&s.WatchState)
	case "change":
		var c struct {
			CAS    uint64
			Events []statecontext.Event
		}
		if err := json.Unmarshal(m.data, &c); err != nil {
			t.Fatalf("change %s: %v", m.data, err)
		}
		want, _ := json.Marshal(v.expected(v.seen, c.CAS)) // one whole unit, with nothing before it left out
		got, _ := json.Marshal(c.Events)
		if !bytes.Equal(want, got) {
			t.Fatalf("after cas %d came\n%s\nwant\n%s", v.seen, got, want)
		}
		if p, _ := ParsePosition(m.id); p.CAS != c.CAS {
			t.Fatalf("id %s of cas %d", m.id, c.CAS)
		}
		v.seen = c.CAS
	default:
		t.Fatalf("event %q", m.event)
	}
}

// checkSnapshot compares the indexes of a snapshot with the result of the model's events.
func (v *viewer) checkSnapshot(s *v1.WatchState) {
	if (s.Indexes != nil) != v.kinds.Has(statecontext.EventIndex) ||
		(s.Stability != nil) != v.kinds.Has(statecontext.EventStability) ||
		(s.Managers != nil) != v.kinds.Has(statecontext.EventManager) {
		v.w.t.Fatalf("kinds %b: %+v", v.kinds, s)
	}
	if s.Indexes == nil {
		return
	}
	have := map[index.ID]index.State{}
	for _, e := range v.w.history {
		switch {
		case e.CAS > s.CAS || e.Kind != statecontext.EventIndex:
		case e.Removed:
			delete(have, e.Index)
		default:
			have[e.Index] = e.Definition.State
		}
	}
	got := map[index.ID]index.State{}
	for _, d := range s.Indexes {
		got[d.ID] = d.State
	}
	if !reflect.DeepEqual(have, got) {
		v.w.t.Fatalf("snapshot of cas %d has %v, want %v", s.CAS, got, have)
	}
}

// TestWatchersSeeTheHistory: whatever happens, and however watchers come, go and lag, each one sees a snapshot and
// the history after it.
func TestWatchersSeeTheHistory(t *testing.T) {
	sets := []string{"", "all", "index", "stability", "index,stability", "topology", "leader,manager", "cluster,backfill"}
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		w.hub.quiet.maxUnits, w.hub.loud.maxUnits = 6, 4
		var clock time.Time
		w.hub.now = func() time.Time { return clock }
		var viewers []*viewer
		present := func() *viewer {
			if len(viewers) == 0 {
				t.Skip("without watchers")
			}
			return rapid.SampledFrom(viewers).Draw(t, "viewer")
		}
		t.Repeat(map[string]func(*rapid.T){
			"create":  func(*rapid.T) { w.apply(w.create()) },
			"promote": func(*rapid.T) { w.apply(w.promote()) },
			"burst":   func(*rapid.T) { w.apply(w.create(), w.create(), w.create()) },
			"drop": func(t *rapid.T) {
				w.apply(&statecontext.DropIndex{ID: index.ID(rapid.IntRange(1, max(1, w.names)).Draw(t, "id"))})
			},
			"remove": func(t *rapid.T) {
				w.apply(&statecontext.RemoveIndex{ID: index.ID(rapid.IntRange(1, max(1, w.names)).Draw(t, "id"))})
			},
			"leader": func(*rapid.T) { // two events with one cas
				w.index++
				w.apply(&statecontext.LeaderStarted{Term: w.machine.State().Term() + 1,
					Manager: statecontext.Manager{ID: "m", Raft: fmt.Sprint(w.index)}})
			},
			"epoch":   func(*rapid.T) { w.epoch++; w.apply(&statecontext.RaiseEpoch{Epoch: w.epoch}) },
			"restore": func(*rapid.T) { w.replace() },
			"pull":    func(*rapid.T) { w.hub.pull() },
			"time":    func(*rapid.T) { clock = clock.Add(snapshotFor / 2) },
			"watch": func(t *rapid.T) {
				kinds, err := ParseKinds(rapid.SampledFrom(sets).Draw(t, "kinds"))
				if err != nil {
					t.Fatalf("%v", err)
				}
				v := &viewer{w: w, kinds: kinds}
				v.join()
				viewers = append(viewers, v)
			},
			"read":  func(t *rapid.T) { present().step() },
			"again": func(t *rapid.T) { v := present(); v.leave(); v.join() },
		})
		w.hub.pull()
		for _, v := range viewers {
			for range 1000 {
				if !v.step() {
					break
				}
			}
			if missing := v.expected(v.seen, w.machine.State().CAS()); len(missing) > 0 {
				t.Fatalf("at the end a watcher has not seen %+v", missing)
			}
			v.leave()
		}
		if w.hub.Watchers() != 0 || len(w.hub.from) != 0 {
			t.Fatalf("%d watchers are left, addresses %v", w.hub.Watchers(), w.hub.from)
		}
		if w.hub.lent != 0 {
			t.Fatalf("%d bytes are held by no watcher", w.hub.lent)
		}
	})
}

// TestOverrun: if more updates come at once than the state machine keeps, watchers get a new snapshot.
func TestOverrun(t *testing.T) {
	w := newWorld(t)
	v := &viewer{w: w, kinds: AllKinds()}
	v.join()
	defer v.leave()
	for v.step() {
	}
	for i := range 9 {
		var bodies []statecontext.Body
		for n := range 1000 {
			bodies = append(bodies, &statecontext.RegisterProjector{Projector: statecontext.Projector{ID: "p",
				Admin: fmt.Sprint(i, n)}})
		}
		w.apply(bodies...)
	}
	w.hub.pull()
	chunks, err := v.stream.Next(context.Background())
	if err != nil || !bytes.Contains(bytes.Join(chunks, nil), []byte(`"reason":"overrun"`)) {
		t.Fatalf("%.300q, %v", chunks, err)
	}
}

func TestJoin(t *testing.T) {
	w := newWorld(t)
	done, cancel := context.WithCancel(context.Background())
	cancel()
	cas := w.machine.State().CAS()
	w.hub.quiet.maxUnits = 2
	w.apply(w.create(), w.create(), w.create())
	w.hub.pull()
	cas += 3
	for _, tc := range []struct {
		since, reason string
		err           error
	}{
		{since: "", reason: "start"},
		{since: "0", reason: "start"},
		{since: fmt.Sprint(cas)},
		{since: fmt.Sprintf("%d@c.1.1", cas)},
		{since: "1", reason: "not_held"},
		{since: "7@other.1", reason: "other_cluster"},
		{since: "3@c.1.0", reason: "epoch"},
		{since: "3@c.1.2", err: ErrBehind},
		{since: fmt.Sprintf("%d@c.1.1", cas+1), err: ErrBehind},
	} {
		req := Request{Kinds: AllKinds()}
		if tc.since != "" {
			p, err := ParsePosition(tc.since)
			if err != nil || p.String() != tc.since {
				t.Fatalf("%s: %v, %v", tc.since, p, err)
			}
			req.Since = &p
		}
		s, err := w.hub.Join(done, req)
		if !errors.Is(err, tc.err) {
			t.Errorf("%q: %v", tc.since, err)
		}
		if err != nil {
			continue
		}
		if got := s.needs; (got == nil) != (tc.reason == "") || got != nil && got.code != tc.reason {
			t.Errorf("%q: snapshot because of %+v, want %q", tc.since, got, tc.reason)
		}
		s.Close()
	}
	// A future position without a cluster: after a wait, a snapshot.
	future := Position{CAS: cas + 5}
	s, err := w.hub.Join(context.Background(), Request{Since: &future, Kinds: AllKinds()})
	if err != nil || s.needs == nil || s.needs.code != "future" {
		t.Fatalf("%+v, %v", s, err)
	}
	s.Close()
}

// TestBehindWaits: a watcher with a newer position than this manager is served as soon as the manager has caught up.
func TestBehindWaits(t *testing.T) {
	w := newWorld(t)
	p := Position{CAS: w.machine.State().CAS() + 2, Lineage: Lineage{"c.1", 1}}
	joined := make(chan error, 1)
	go func() {
		s, err := w.hub.Join(context.Background(), Request{Since: &p, Kinds: AllKinds()})
		if err == nil {
			if s.needs != nil {
				err = fmt.Errorf("a snapshot: %+v", s.needs)
			}
			s.Close()
		}
		joined <- err
	}()
	for range 2 {
		w.apply(w.create())
		w.hub.pull()
	}
	if err := <-joined; err != nil {
		t.Fatal(err)
	}
}

func TestLimits(t *testing.T) {
	w := newWorld(t)
	var all []*Watcher
	join := func(from string) error {
		s, err := w.hub.Join(context.Background(), Request{Kinds: AllKinds(), From: from})
		if err == nil {
			all = append(all, s)
		}
		return err
	}
	for range MaxPerAddress {
		if err := join("a"); err != nil {
			t.Fatal(err)
		}
	}
	if err := join("a"); !errors.Is(err, ErrAddressFull) {
		t.Fatalf("%v", err)
	}
	for i := range MaxWatchers - MaxPerAddress {
		if err := join(fmt.Sprint("b", i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := join("c"); !errors.Is(err, ErrFull) {
		t.Fatalf("%v", err)
	}
	all[0].Close()
	if err := join("c"); err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		s.Close()
	}
}

// TestSnapshotsOfSlowWatchers: snapshots count until they are taken, a shared one once. Beyond the bound no watcher
// gets another one; a watcher that resumes needs none, and one that has to start again keeps its position.
func TestSnapshotsOfSlowWatchers(t *testing.T) {
	w := newWorld(t)
	clock := time.Now()
	w.hub.now = func() time.Time { return clock }
	at := Position{CAS: w.machine.State().CAS(), Lineage: Lineage{"c.1", 1}}
	join := func(since *Position) (*Watcher, error) {
		return w.hub.Join(t.Context(), Request{Kinds: AllKinds(), Since: since})
	}
	joined := func(since *Position) *Watcher {
		t.Helper()
		s, err := join(since)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return s
	}
	given := func(s *Watcher) int {
		t.Helper()
		chunks, err := s.Next(t.Context())
		if err != nil || !bytes.Contains(chunks[0], []byte("event: snapshot")) {
			t.Fatalf("%q, %v", chunks, err)
		}
		return len(chunks[1])
	}
	first, second, later := joined(nil), joined(nil), joined(nil)
	one := given(first)
	given(second)
	if w.hub.lent != one {
		t.Fatalf("of one snapshot, of %d bytes, for two %d are lent", one, w.hub.lent)
	}
	clock = clock.Add(2 * snapshotFor)
	if another := given(later); w.hub.lent != one+another {
		t.Fatalf("of two snapshots, of %d and %d bytes, %d are lent", one, another, w.hub.lent)
	}

	waiting, resumes := joined(nil), joined(&at)
	others := MaxLent - w.hub.lent
	w.hub.lent += others
	if _, err := join(nil); !errors.Is(err, ErrFull) {
		t.Errorf("one more: %v", err)
	}
	joined(&at) // it needs no snapshot
	given(waiting)
	clock = clock.Add(2 * snapshotFor)
	w.apply(&statecontext.RaiseEpoch{Epoch: 2})
	w.hub.pull()
	if chunks, err := resumes.Next(t.Context()); !errors.Is(err, ErrFull) || resumes.Position() != at {
		t.Errorf("%q, %v; it is at %s, want %s", chunks, err, resumes.Position(), at)
	}
	for _, s := range []*Watcher{first, second, later, waiting} {
		s.Close()
	}
	if w.hub.lent -= others; w.hub.lent != 0 {
		t.Errorf("%d bytes are held by no watcher", w.hub.lent)
	}
	given(resumes)
	if _, err := resumes.Next(canceled(t)); !errors.Is(err, context.Canceled) || w.hub.lent != 0 {
		t.Errorf("%v; %d bytes are held by watchers that have taken them", err, w.hub.lent)
	}
}

// TestSnapshotsOfOneAddress: snapshots held by the slow watchers of one address take no room from other addresses,
// and are released with them.
func TestSnapshotsOfOneAddress(t *testing.T) {
	w := newWorld(t)
	join := func(from string) (*Watcher, error) {
		return w.hub.Join(t.Context(), Request{Kinds: AllKinds(), From: from})
	}
	hold := func(from string) *Watcher {
		t.Helper()
		s, err := join(from)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		if _, err := s.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
		return s
	}
	held := []*Watcher{hold("a"), hold("a"), hold("b")}
	one := w.hub.lent
	if w.hub.lentAt["a"] != one || w.hub.lentAt["b"] != one {
		t.Fatalf("of one snapshot of %d bytes for all three %v are lent", one, w.hub.lentAt)
	}
	w.hub.lentAt["a"] += MaxLentPerAddress - one
	if _, err := join("a"); !errors.Is(err, ErrAddressFull) {
		t.Errorf("one more at a: %v", err)
	}
	held = append(held, hold("b"), hold("c"))
	w.hub.lentAt["a"] -= MaxLentPerAddress - one
	for _, s := range held {
		s.Close()
	}
	if w.hub.lent != 0 || len(w.hub.lentAt) != 0 {
		t.Errorf("%d bytes are held by no watcher, %v", w.hub.lent, w.hub.lentAt)
	}
}

// canceled returns a cancelled context.
func canceled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// TestRun: updates arrive while Run runs, loud updates do not wake watchers of quiet kinds, and the end is reported.
func TestRun(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.hub.Run(ctx) }()
	kinds, _ := ParseKinds("")
	p := Position{CAS: w.machine.State().CAS()}
	s, err := w.hub.Join(context.Background(), Request{Kinds: kinds, Since: &p})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	got := make(chan [][]byte, 1)
	go func() {
		chunks, _ := s.Next(context.Background())
		got <- chunks
	}()
	w.apply(w.promote())
	w.apply(w.create())
	messages, _ := parse(t, "", bytes.Join(<-got, nil))
	if len(messages) != 1 || !bytes.Contains(messages[0].data, []byte(`"kind":"index"`)) || bytes.Contains(messages[0].data, []byte("stability")) {
		t.Fatalf("%q", messages)
	}
	go func() {
		_, err := s.Next(context.Background())
		ended <- err
	}()
	cancel()
	if err1, err2 := <-ended, <-ended; !errors.Is(errors.Join(err1, err2), ErrClosed) {
		t.Fatal(err1, err2)
	}
}

func TestRequests(t *testing.T) {
	for _, text := range []string{"x", "-1", "1@", "1@c", "1@.1", "1@c.x", strings.Repeat("1", 400)} {
		if _, err := ParsePosition(text); !errors.Is(err, ErrRequest) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := ParseKinds("index,wat"); !errors.Is(err, ErrRequest) || !strings.Contains(err.Error(), "stability") {
		t.Errorf("%v", err)
	}
	if k, err := ParseKinds(" index, topology"); err != nil || !k.Has(statecontext.EventIndex) ||
		k.Has(statecontext.EventLeader) {
		t.Errorf("%b, %v", k, err)
	}
	if k, err := ParseKinds(""); err != nil || k&LoudKinds() != 0 || k|LoudKinds() != AllKinds() {
		t.Errorf("%b, %v", k, err)
	}
}

func TestRingBytes(t *testing.T) {
	r := ring{maxUnits: 1000, maxBytes: 100}
	for i := range 500 {
		r.push(unit{cas: uint64(i + 1), data: make([]byte, 30)})
		if n := len(r.live()); n > 3 || r.bytes != 30*n || uint64(i+1)-r.floor != uint64(n) {
			t.Fatalf("%d units of %d bytes above %d", n, r.bytes, r.floor)
		}
	}
	r.push(unit{cas: 501, data: make([]byte, 1000)}) // too large by itself: kept nevertheless
	if len(r.live()) != 1 || len(r.units) > 200 {
		t.Fatalf("%d of %d", len(r.live()), len(r.units))
	}
}
