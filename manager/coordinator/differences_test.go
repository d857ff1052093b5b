package coordinator

import (
	"slices"
	"testing"
	"time"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/statecontext"
	"tidemark/wire"
)

// TestDifferences: a copy that its indexer finds to differ from KV becomes known, also to a new leader, and is known to
// be right again when the indexer has compared all its copies and lists it no more; not before.
func TestDifferences(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(2)
		o := w.create("a", "", 2, 0)
		w.until("READY", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		i1 := w.indexers["http://i1"]
		copies := w.log.State().Index(o.ID).Topology.Copies
		c := copies[slices.IndexFunc(copies, func(c partition.Copy) bool { return c.Node == i1.node })]
		report := func(rounds uint64, all ...wire.CopyDifference) {
			i1.mu.Lock()
			defer i1.mu.Unlock()
			i1.differing, i1.rounds = all, rounds
		}
		known := func() *statecontext.DifferingCopy { return w.log.State().Difference(c.ID) }
		report(0, wire.CopyDifference{Index: o.ID, Copy: c.ID, Documents: 2, Kind: wire.MissingRow, TakenAnew: true},
			wire.CopyDifference{Index: o.ID, Copy: 999, Documents: 2, Kind: wire.MissingRow})
		time.Sleep(3 * time.Second)
		if known() != nil {
			t.Fatal("at this format level there is no such command")
		}
		w.level()
		w.until("it is known", 5*time.Second, func() bool { return known() != nil })
		if d := known(); d.Index != o.ID || d.Node != i1.node || d.Documents != 2 ||
			d.Kind != string(wire.MissingRow) || !d.TakenAnew {
			t.Errorf("%+v", d)
		}
		report(0) // the process has begun anew, and compared nothing yet
		time.Sleep(5 * time.Second)
		if known() == nil {
			t.Fatal("nobody has compared the copy since")
		}
		w.depose()
		w.lead()
		report(1)
		w.until("it is right again", 20*time.Second, func() bool { return known() == nil })
		report(1, wire.CopyDifference{Index: o.ID, Copy: c.ID, Documents: 7, Kind: wire.LostOnWay})
		w.until("it is wrong again", 5*time.Second, func() bool { return known() != nil && known().Documents == 7 })
		if _, err := w.leader().DropIndex(w.ctx, DropRequest{ID: o.ID}); err != nil {
			t.Fatal(err)
		}
		w.until("the index is gone, and what was known of it", 20*time.Second, func() bool { return known() == nil })
	})
}

// TestDifferencesRightFirst: a copy that is right again makes room before others take it.
func TestDifferencesRightFirst(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(1)
		o := w.create("a", "", 2*maxProposals, 0)
		w.until("READY", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		w.level()
		i1 := w.indexers["http://i1"]
		var all []wire.CopyDifference
		for _, c := range w.log.State().Index(o.ID).Topology.Copies {
			all = append(all, wire.CopyDifference{Index: o.ID, Copy: c.ID, Documents: 1, Kind: wire.MissingRow})
		}
		report := func(all []wire.CopyDifference) {
			i1.mu.Lock()
			defer i1.mu.Unlock()
			i1.differing, i1.rounds = all, 1
		}
		known := func() []*statecontext.DifferingCopy { return slices.Collect(w.log.State().Differences()) }
		report(all[:1])
		w.until("one is known", 5*time.Second, func() bool { return len(known()) == 1 })
		report(all[1:])
		w.until("the first of the others are known", 10*time.Second, func() bool { return len(known()) >= maxProposals/2 })
		time.Sleep(differEvery / 2 * time.Millisecond) // of virtual time: what was proposed with them is committed
		if n := len(known()); n > maxProposals {
			t.Errorf("%d are known after the first step", n)
		}
		if w.log.State().Difference(all[0].Copy) != nil {
			t.Error("the copy that is right again waits behind those that are not")
		}
		w.until("all are known", 10*time.Second, func() bool { return len(known()) == len(all)-1 })
	})
}

// TestSilent: a list that is full says nothing of copies behind its last.
func TestSilent(t *testing.T) {
	d := differing{}
	if d.silent(1) {
		t.Error("nothing was compared yet")
	}
	d.rounds = 1
	if !d.silent(1) {
		t.Error("an empty list after a round")
	}
	for i := range wire.MaxDifferingCopies {
		d.copies = append(d.copies, wire.CopyDifference{Copy: index.CopyID(2 * (i + 1))})
	}
	last := index.CopyID(2 * wire.MaxDifferingCopies)
	if d.silent(2) || !d.silent(3) || d.silent(last) || d.silent(last+1) {
		t.Error("a full list")
	}
}
