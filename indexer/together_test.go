package indexer

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemark/index"
	"tidemark/indexer/core"
	"tidemark/indexer/sides"
	"tidemark/ingest"
	"tidemark/partition"
	"tidemark/wire"
)

// TestCopiesCreatedTogetherShareASideStream checks that KV is read once for all copies that one list brings. They are
// made one after the other, and the stream that feeds them may be there earlier. None of them is requested or
// reported before all of them are there.
func TestCopiesCreatedTogetherShareASideStream(t *testing.T) {
	w := newWorld(t)
	disk := newStuck(w)
	tweak := w.tweak
	w.tweak = func(c *Config) { tweak(c); c.listWait = time.Hour }
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
	disk.hang(w, "30")
	ctx, cancel := context.WithCancel(t.Context())
	var asked sync.WaitGroup
	defer asked.Wait()
	defer cancel()
	asked.Go(func() { _, _ = w.admin.Definitions(ctx, w.endpoint.Admin, list) })
	w.until("one is there", func() bool { return w.x.places.of(20) == k })
	<-disk.begun
	if r := w.x.fullReport(t.Context(), func(string) bool { return false }); len(r.Copies) != 1 {
		t.Errorf("reported: %+v, want copy 10 alone", r.Copies)
	}
	o := w.x.sideOptions()
	o.Registry = prometheus.NewRegistry()
	l := sides.New(o)
	l.Look(t.Context(), k)
	ended, end := context.WithCancel(t.Context())
	end()
	if err := l.Run(ended); err != nil { // its requests are answered
		t.Fatal(err)
	}
	disk.free()
	w.until("both are there", func() bool { return w.x.places.of(30) == k && len(w.x.unsettled()) == 0 })
	w.promote(t.Context())
	w.held(20, 30)
	all := w.calls()[before:]
	if len(all) != 1 || !slices.Equal(all[0].Side.Copies, []index.CopyID{20, 30}) {
		for i := range all {
			t.Errorf("side stream %s of copies %v, want one of both", all[i].Topic, all[i].Side.Copies)
		}
	}
}
