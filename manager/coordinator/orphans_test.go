package coordinator

import (
	"slices"
	"testing"
	"time"

	"tidemark/index"
	"tidemark/manager/coordinator/core"
	"tidemark/statecontext"
	"tidemark/wire"
)

// TestOrphans checks that, of the orphans that an indexer reports, exactly those are dropped whose grace period is
// over and that the state does not place on it, and none without a check of leadership or during a restore.
func TestOrphans(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(2)
		o := w.create("a", "", 2, 0)
		w.until("READY", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		i1 := w.indexers["http://i1"]
		var own, other index.CopyID
		for _, c := range w.log.State().Index(o.ID).Topology.Copies {
			if c.Node == i1.node {
				own = c.ID
			} else {
				other = c.ID
			}
		}
		drops := func() [][]wire.OrphanRef {
			i1.mu.Lock()
			defer i1.mu.Unlock()
			return slices.Clone(i1.drops)
		}
		w.log.mu.Lock()
		w.log.lost = true
		w.log.mu.Unlock()
		report := func(all ...wire.Orphan) {
			i1.mu.Lock()
			i1.orphans = all
			i1.mu.Unlock()
			w.until("status", 2*time.Second, func() bool {
				s, _ := w.leader().Status()
				at := slices.IndexFunc(s.Indexers, func(n core.IndexerStatus) bool { return n.Name == "i1" })
				return at >= 0 && s.Indexers[at].OrphanCount == len(all) && len(s.Indexers[at].Orphans) == len(all)
			})
		}
		all := []wire.Orphan{{Copy: 900, Index: 77, Bytes: 5}, {Copy: own, Index: o.ID}, {Copy: other, Index: o.ID},
			{Copy: 901, Index: 77, LeftMS: 9000},
			{Copy: 902, Index: 77, LeftMS: -1}}
		report(all...)
		time.Sleep(5 * time.Second)
		if a := drops(); len(a) != 0 {
			t.Fatalf("without leadership: %v", a)
		}
		report()
		time.Sleep(2 * time.Second) // what waited has failed
		w.log.mu.Lock()
		w.log.lost = false
		w.log.mu.Unlock()
		propose := func(body statecontext.Body) {
			t.Helper()
			res, err := w.log.Propose(w.ctx, statecontext.Command{Body: body})
			if err != nil || res.Err() != nil {
				t.Fatal(err, res.Err())
			}
		}
		propose(&statecontext.BeginRestore{ID: "r", Mode: statecontext.RestoreInPlace, Bytes: 10})
		report(all...)
		time.Sleep(5 * time.Second)
		if a := drops(); len(a) != 0 {
			t.Fatalf("in a restore: %v", a)
		}
		propose(&statecontext.AbortRestore{ID: "r"})
		w.until("commanded", 5*time.Second, func() bool { return len(drops()) > 0 })
		if a, want := drops()[0], []wire.OrphanRef{{Copy: 900, Index: 77}, {Copy: other, Index: o.ID}}; !slices.Equal(a,
			want) {
			t.Errorf("commanded to drop %v, want %v", a, want)
		}
		time.Sleep(5 * time.Second)
		if a := drops(); len(a) != 1 {
			t.Errorf("commanded again: %v", a)
		}
	})
}
