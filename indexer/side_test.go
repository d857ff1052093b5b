package indexer

import (
	"slices"
	"testing"
	"time"

	"tidemark/index"
	"tidemark/ingest"
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
	want := placed(list, 3)
	w.x.expect(want)
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
