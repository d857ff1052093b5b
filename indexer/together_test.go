package indexer

import (
	"context"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"tidemark/index"
	"tidemark/indexer/core"
	"tidemark/indexer/sides"
	"tidemark/ingest"
	"tidemark/partition"
	"tidemark/wire"
)

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
		if err := k.Do(t.Context(), func(st *core.Bucket) {
			all = !slices.ContainsFunc(st.Accepted(), func(a ingest.Accepted) bool { return a.Incarnation != inc })
		}); err != nil {
			t.Fatal(err)
		}
		return all
	})
	want := core.Placed(list, 3)
	w.x.catalog.Expect(list, want, w.x.has(want))
	for _, id := range []index.CopyID{20, 30} {
		if err := w.x.ensureCopy(t.Context(), id, want[id]); err != nil {
			t.Fatal(err)
		}
		o := w.x.sideOptions()
		o.Registry = prometheus.NewRegistry()
		l := sides.New(o)
		l.Look(t.Context(), k)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := l.Run(ended); err != nil { // what it has asked is answered
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
