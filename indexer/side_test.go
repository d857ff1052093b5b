package indexer

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"tidemark/index"
	"tidemark/indexer/core"
	"tidemark/ingest"
	"tidemark/keyversion"
	"tidemark/partition"
	"tidemark/wire"
)

// TestSatisfiedWantsForgetFailures: a vbucket whose side streams have all come is asked for at once, and of its owner,
// when something new is wanted; one that still wants or streams keeps its pause, and so does another bucket's.
func TestSatisfiedWantsForgetFailures(t *testing.T) {
	later := time.Unix(1000, 0)
	l := &sideLoop{state: map[sideKey]*sideAttempt{
		{"b", 1}: {tries: 3, waits: 6, after: later}, {"b", 2}: {tries: 1, waits: 4, after: later},
		{"other", 1}: {tries: 2, waits: 5, after: later},
	}}
	l.satisfied("b", map[int]bool{2: true})
	for key, want := range map[sideKey]sideAttempt{
		{"b", 1}: {}, {"b", 2}: {tries: 1, waits: 4, after: later}, {"other", 1}: {tries: 2, waits: 5, after: later},
	} {
		if got := *l.state[key]; got != want {
			t.Errorf("%v: %+v, want %+v", key, got, want)
		}
	}
}

// TestOneSideStreamForWhatIsMadeTogether: copies that one list of definitions brings are made one after the other, and
// the stream that feeds them may be there before. None of them is asked for before all are there: KV is read once for
// all.
func TestOneSideStreamForWhatIsMadeTogether(t *testing.T) {
	w := newWorld(t)
	w.write(docs(0, 50, 1)...)
	w.serve(10)
	var list *wire.Definitions
	w.locked(func() {
		for _, id := range []index.CopyID{20, 30} {
			w.copies = append(w.copies, partition.Copy{ID: id, Node: 3, State: partition.Allocated})
		}
		w.revision++
		list = w.definitionsLocked()
	})
	before := len(w.calls())
	w.begin(nil)
	k := w.x.bucketNamed(testBucket)
	w.until("the stream has begun", func() (all bool) {
		inc := w.stream.inc
		if err := k.do(t.Context(), func() {
			all = !slices.ContainsFunc(k.st.Accepted(), func(a ingest.Accepted) bool { return a.Incarnation != inc })
		}); err != nil {
			t.Fatal(err)
		}
		return all
	})
	want := core.Placed(list, 3)
	w.x.catalog.Expect(want, w.x.has)
	for _, id := range []index.CopyID{20, 30} {
		if err := w.x.ensureCopy(t.Context(), id, want[id]); err != nil {
			t.Fatal(err)
		}
		l := newSideLoop(w.x)
		l.look(t.Context(), k)
		if err := l.calls.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.admin.Definitions(t.Context(), w.endpoint.Admin, list); err != nil {
		t.Fatal(err)
	}
	w.promote(t.Context())
	w.held(20, 30)
	all := w.calls()[before:]
	if len(all) != 1 || !slices.Equal(all[0].Side.Copies, []index.CopyID{20, 30}) {
		for i := range all {
			t.Errorf("side stream %s of copies %v, want one of both", all[i].Topic, all[i].Side.Copies)
		}
	}
}

// TestAProjectorThatHangsKeepsNoOthersWaiting: the loop that asks for side streams, and gives silent ones up, does not
// wait for requests that a projector does not answer, however many: what is wanted of that one waits, and nobody else.
func TestAProjectorThatHangsKeepsNoOthersWaiting(t *testing.T) {
	now := time.Unix(1000, 0)
	x := &Indexer{now: func() time.Time { return now }, sides: make(chan struct{}, 1)}
	l := newSideLoop(x)
	hangs := make(chan struct{})
	ends := sync.OnceFunc(func() { close(hangs) })
	t.Cleanup(func() { ends(); _ = l.calls.Wait() })
	const one, two = "http://127.0.0.1:1", "http://127.0.0.1:2"
	for range sideRequests {
		if !l.room(one) {
			t.Fatal("there is no room")
		}
		l.call(t.Context(), one, func(context.Context) { <-hangs })
	}
	st, err := core.NewBucket(&wire.Bucket{Name: "b"}, 4, func(*keyversion.Event) []byte { return nil })
	if err != nil {
		t.Fatal(err)
	}
	k := &bucket{name: "b", st: st}
	groups := map[groupKey]*sideGroup{}
	for vb, p := range []string{one, two} {
		d := &wire.Definitions{Revision: 1, Projectors: []wire.ProjectorEndpoint{{ID: index.ProjectorID(p), Admin: p}}}
		l.group(k, ingest.Want{VBucket: vb, To: 10}, d, groups, now)
	}
	if len(groups) != 1 || groups[groupKey{projector: two}] == nil {
		t.Errorf("asked for: %v, want what the other projector has, and nothing of the one that hangs", groups)
	}
	if a := l.attempt("b", 0); a.tries != 0 || a.waits != 0 {
		t.Errorf("what waits for room counts as asked for: %+v", a)
	}
	// What one owns is asked of two only when one hangs: while it is busy there will be room in a moment.
	both := &wire.Definitions{Revision: 1, Projectors: []wire.ProjectorEndpoint{{ID: one, Admin: one},
		{ID: two, Admin: two}}}
	for vb, late := range map[int]time.Duration{2: sidePatience, 3: sidePatience + 1} {
		clear(groups)
		l.group(k, ingest.Want{VBucket: vb, To: 10}, both, groups, now.Add(late))
		a, g := l.attempt("b", vb), groups[groupKey{projector: two}]
		if hung := late > sidePatience; hung && (g == nil || len(g.wants) != 1 || a.tries != 2 || a.waits != 1) ||
			!hung && (g != nil || a.tries != 0 || a.waits != 0) {
			t.Errorf("%v after the last answer of one, two is asked for %+v, %+v", late, g, a)
		}
	}
	select { // whatever is in it
	case <-x.sides:
	default:
	}
	ends()
	_ = l.calls.Wait()
	if !l.room(one) || len(l.under) != 0 {
		t.Errorf("%v are under way", l.under)
	}
}
