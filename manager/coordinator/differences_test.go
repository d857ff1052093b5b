package coordinator

import (
	"slices"
	"strings"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/manager/coordinator/core"
	"tidemark/partition"
	"tidemark/statecontext"
	"tidemark/wire"
)

// TestDifferences checks that a differing copy is recorded, also by a new leader, and that the difference is removed
// when the indexer has compared the copy again and no longer lists it; not before, whatever happens to other copies.
func TestDifferences(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(2)
		o := w.create("a", "", 2, 0)
		w.until("READY", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		i1 := w.indexers["http://i1"]
		copies := w.log.State().Index(o.ID).Topology.Copies
		c := copies[slices.IndexFunc(copies, func(c partition.Copy) bool { return c.Node == i1.node })]
		report := func(compared bool, all ...wire.CopyDifference) {
			i1.mu.Lock()
			defer i1.mu.Unlock()
			i1.differing = all
			i1.compared = func(id index.CopyID) bool { return id == c.ID == compared } // the other copies the other way round
		}
		known := func() *statecontext.DifferingCopy { return w.log.State().Difference(c.ID) }
		report(false, wire.CopyDifference{Index: o.ID, Copy: c.ID, Documents: 2, Kind: wire.MissingRow, TakenAnew: true},
			wire.CopyDifference{Index: o.ID, Copy: 999, Documents: 2, Kind: wire.MissingRow})
		w.until("it is known", 5*time.Second, func() bool { return known() != nil })
		if d := known(); d.Index != o.ID || d.Node != i1.node || d.Documents != 2 ||
			d.Kind != string(wire.MissingRow) || !d.TakenAnew {
			t.Errorf("%+v", d)
		}
		report(false) // the process has restarted, and has compared other copies
		time.Sleep(5 * time.Second)
		if known() == nil {
			t.Fatal("no indexer has compared the copy since")
		}
		w.depose()
		w.lead()
		report(true) // this copy alone
		w.until("it is right again", 20*time.Second, func() bool { return known() == nil })
		report(true, wire.CopyDifference{Index: o.ID, Copy: c.ID, Documents: 7, Kind: wire.LostOnWay})
		w.until("it is wrong again", 5*time.Second, func() bool { return known() != nil && known().Documents == 7 })
		i1.mu.Lock()
		i1.differingOmitted = 3 // others that it does not list
		i1.mu.Unlock()
		w.until("all of them are counted", 5*time.Second, func() bool {
			s, ok := w.leader().Status()
			at := slices.IndexFunc(s.Indexers, func(i core.IndexerStatus) bool { return i.Node == i1.node })
			return ok && at >= 0 && s.Indexers[at].Differing == 4 && s.Indexers[at].DifferingOmitted == 3
		})
		if _, err := w.leader().DropIndex(w.ctx, DropRequest{ID: o.ID}); err != nil {
			t.Fatal(err)
		}
		w.until("the index is gone, and what was known of it", 20*time.Second, func() bool { return known() == nil })
	})
}

// TestDifferencesRightFirst checks that copies that are right again are removed before others take their room.
func TestDifferencesRightFirst(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(1)
		o := w.create("a", "", 2*core.MaxProposals, 0)
		w.until("READY", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		i1 := w.indexers["http://i1"]
		var all []wire.CopyDifference
		for _, c := range w.log.State().Index(o.ID).Topology.Copies {
			all = append(all, wire.CopyDifference{Index: o.ID, Copy: c.ID, Documents: 1, Kind: wire.MissingRow})
		}
		report := func(all []wire.CopyDifference) {
			i1.mu.Lock()
			defer i1.mu.Unlock()
			i1.differing, i1.compared = all, func(index.CopyID) bool { return true }
		}
		known := func() []*statecontext.DifferingCopy { return slices.Collect(w.log.State().Differences()) }
		report(all[:1])
		w.until("one is known", 5*time.Second, func() bool { return len(known()) == 1 })
		report(all[1:])
		w.until("the first of the others are known", 10*time.Second, func() bool {
			return len(known()) >= core.MaxProposals/2
		})
		time.Sleep(500 * time.Millisecond) // of virtual time: proposals made together with them are committed
		if n := len(known()); n > core.MaxProposals {
			t.Errorf("%d are known after the first step", n)
		}
		if w.log.State().Difference(all[0].Copy) != nil {
			t.Error("the copy that is right again waits behind those that are not")
		}
		w.until("all are known", 10*time.Second, func() bool { return len(known()) == len(all)-1 })
	})
}

// TestDifferencesThatAreRefused checks that a difference that the state rejects is proposed again with growing
// pauses.
func TestDifferencesThatAreRefused(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(1)
		o := w.create("a", "", 2, 0)
		w.until("READY", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		i1 := w.indexers["http://i1"]
		c := w.log.State().Index(o.ID).Topology.Copies
		report := func(kind wire.DifferenceKind) {
			i1.mu.Lock()
			defer i1.mu.Unlock()
			i1.differing = []wire.CopyDifference{{Index: o.ID, Copy: c[0].ID, Documents: 1, Kind: kind}}
		}
		report(wire.DifferenceKind(strings.Repeat("x", 1000)))
		time.Sleep(2 * time.Minute)
		if n := w.log.counted("*statecontext.NoteDifference"); n < 2 || n > 10 {
			t.Errorf("it was proposed %d times in two minutes", n)
		}
		report(wire.MissingRow)
		w.until("it is known", 5*time.Minute, func() bool { return w.log.State().Difference(c[0].ID) != nil })
		time.Sleep(10 * time.Second) // earlier rejections are dropped
		// nor is it proposed that it is right again
		refused := 0
		w.log.mu.Lock()
		w.log.refuse = func(c statecontext.Command) error {
			if _, ok := c.Body.(*statecontext.NoteDifference); ok {
				refused++
				return &statecontext.Rejection{Code: errcode.LimitExceeded, Message: "not now"}
			}
			return nil
		}
		w.log.mu.Unlock()
		i1.mu.Lock()
		i1.differing, i1.compared = nil, func(index.CopyID) bool { return true }
		i1.mu.Unlock()
		time.Sleep(2 * time.Minute)
		w.log.mu.Lock()
		if w.log.refuse = nil; refused < 2 || refused > 10 {
			t.Errorf("that it is right was proposed %d times in two minutes", refused)
		}
		w.log.mu.Unlock()
		w.until("it is right again", 10*time.Minute, func() bool { return w.log.State().Difference(c[0].ID) == nil })
	})
}
