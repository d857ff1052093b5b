package sides

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"tidemark/index"
	"tidemark/indexer/copies"
	"tidemark/indexer/core"
	"tidemark/ingest"
	"tidemark/keyversion"
	"tidemark/wire"
)

// TestSatisfiedWantsForgetFailures: a vbucket whose side streams have all come is asked for at once, and of its owner,
// when something new is wanted; one that still wants or streams keeps its pause, and so does another bucket's.
func TestSatisfiedWantsForgetFailures(t *testing.T) {
	later := time.Unix(1000, 0)
	l := &Loop{state: map[sideKey]*sideAttempt{
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

// TestAProjectorThatHangsKeepsNoOthersWaiting: the loop that asks for side streams, and gives silent ones up, does not
// wait for requests that a projector does not answer, however many: what is wanted of that one waits, and nobody else.
func TestAProjectorThatHangsKeepsNoOthersWaiting(t *testing.T) {
	now := time.Unix(1000, 0)
	l := New(Options{Origins: NewOrigins(false), Registry: prometheus.NewRegistry(), Log: hclog.NewNullLogger(),
		Now: func() time.Time { return now }})
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
	k, err := copies.NewBucket(&copies.Node{Log: hclog.NewNullLogger()}, wire.Bucket{Name: "b", VBuckets: 4})
	if err != nil {
		t.Fatal(err)
	}
	groups := map[groupKey]*sideGroup{}
	for vb, p := range []string{one, two} {
		d := &wire.Definitions{Revision: 1, Projectors: []wire.ProjectorEndpoint{{ID: index.ProjectorID(p), Admin: p}}}
		l.group(k, st, ingest.Want{VBucket: vb, To: 10}, d, groups, now)
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
		l.group(k, st, ingest.Want{VBucket: vb, To: 10}, both, groups, now.Add(late))
		a, g := l.attempt("b", vb), groups[groupKey{projector: two}]
		if hung := late > sidePatience; hung && (g == nil || len(g.wants) != 1 || a.tries != 2 || a.waits != 1) ||
			!hung && (g != nil || a.tries != 0 || a.waits != 0) {
			t.Errorf("%v after the last answer of one, two is asked for %+v, %+v", late, g, a)
		}
	}
	select { // whatever is in it
	case <-l.wake:
	default:
	}
	ends()
	_ = l.calls.Wait()
	if !l.room(one) || len(l.under) != 0 {
		t.Errorf("%v are under way", l.under)
	}
}

// TestSidePauses: when the owner of a vbucket's stream could not open a side stream for a while, however long and
// whoever else was asked meanwhile, it is asked again soon after it can.
func TestSidePauses(t *testing.T) {
	all := make([]wire.ProjectorEndpoint, 64)
	for i := range all {
		all[i].ID = index.ProjectorID(strconv.Itoa(i))
	}
	for unable := time.Duration(0); unable < time.Minute; unable += 77 * time.Millisecond {
		at, tries := time.Duration(0), 0
		for ; at < unable || core.ChooseProjector(all, "40", tries).ID != "40"; tries++ {
			at += sidePause(tries)
		}
		if late := at - unable; late > 2*sideMost {
			t.Fatalf("unable for %s: asked again %s later, at most %s are due", unable, late, 2*sideMost)
		}
	}
}
