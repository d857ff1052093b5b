package simulation

import (
	"time"

	"tidemark/index"
	"tidemark/statecontext"
	"tidemark/wire"
)

// This file gives indexes more or fewer slices: on a user's request or, in seeds with sizes, automatically. The
// automatic path is the product's, from the indexers' reports of their copies' sizes to the command; the size of a
// copy is a function of the time, not of its rows.

const (
	// mostSlices is the highest number of slices of an index.
	mostSlices = 4
	// sizeBound is the bytes above which a slice is too large, and splitAfter for how long it must be. An index is
	// left alone for six times that.
	sizeBound  = 1000
	splitAfter = 150 * time.Millisecond
	// sizeMS is for how long slices are large; they are then small for twice as long.
	sizeMS = 1500
)

// splitIndex starts building a successor of an index, or cancels a split. The successor has more slices, fewer (a
// merge), or as many on other nodes.
func (s *Sim) splitIndex(b *kvBucket) {
	for x := range s.state.IndexesOf(b.name) {
		d := &x.Definition
		if d.State != index.Maintenance || s.dice.load.Intn(2) == 0 {
			continue
		}
		if next := s.state.Successor(d); next != nil {
			if s.dice.load.Intn(64) == 0 && s.ddl(&statecontext.CancelSplit{ID: d.ID}) {
				s.ev("the split of index %v is cancelled", d.ID)
			}
			return
		}
		// an index whose slices a user chose no longer merges by itself
		if s.mix[sizes] && s.dice.load.Intn(askedRarely) > 0 {
			return
		}
		n := 1 + s.dice.load.Intn(mostSlices)
		if placement := s.places(n, int(d.Replicas), s.dice.load.Intn(len(s.nodes))); placement != nil {
			s.ev("index %v of %d slices is to have %d", d.ID, d.Partitions, n)
			s.ddl(&statecontext.SplitIndex{ID: d.ID, Partitions: uint16(n), Layout: layout(n), Placement: placement})
		}
		return
	}
}

// askedRarely is the number of splits by users of which one is carried out where indexes also split automatically.
const askedRarely = 32

// sized writes sizes of copies into a report: above the bound, small enough for a merge, or, while everything heals,
// neither. It draws nothing from the dice.
func (s *Sim) sized(copies []wire.CopyReport) {
	if !s.mix[sizes] {
		return
	}
	for i := range copies {
		copies[i].Bytes = s.size(copies[i].Index)
	}
}

func (s *Sim) size(id index.ID) uint64 {
	x := s.state.Index(id)
	switch {
	case s.healing:
		return sizeBound / 2
	case x == nil || s.nowMS/sizeMS%3 > 0 || 2*x.Definition.Partitions > mostSlices:
		return 0
	}
	return 2 * sizeBound
}

// checkSlices checks that an index changes its number of slices automatically only while nothing else goes on, and
// never to fewer slices than a user requested.
func (s *Sim) checkSlices(old *statecontext.State, body statecontext.Body, r statecontext.Result) {
	if !r.Changed || r.Rejection != nil {
		return
	}
	switch c := body.(type) {
	case *statecontext.CreateIndex:
		s.newest = max(s.newest, r.Index)
		s.wanted[r.Index] = c.Definition.Partitions
	case *statecontext.SplitIndex:
		s.newest = max(s.newest, r.Index)
		if c.Cause == "" {
			s.wanted[r.Index] = c.Partitions
			return
		}
		s.ev("index %v is to have %d slices by itself: %s", c.ID, c.Partitions, c.Cause)
		if s.wanted[r.Index] = s.wanted[c.ID]; c.Partitions < s.wanted[c.ID] {
			s.fail("index %v gets %d slices by itself, of which %d were asked for", c.ID, c.Partitions, s.wanted[c.ID])
		}
		if why := besides(old, s.state.Index(c.ID)); why != "" {
			s.fail("index %v gets %d slices by itself while %s", c.ID, c.Partitions, why)
		}
	}
}

// besides returns the activity during which no index splits automatically, "" if there is none.
func besides(old *statecontext.State, x *statecontext.Index) string {
	if b := old.Bucket(x.Definition.Bucket); b.Rollback != nil {
		return "its bucket is being rolled back"
	}
	if old.RebalanceUnderWay() != nil {
		return "slices change their places"
	}
	for o := range old.Indexes() {
		if d := &o.Definition; d.Replaces != 0 && d.State != index.Dropping {
			return "another one is being split"
		}
	}
	return ""
}

// countSplit counts a successor that has taken the name; next is its state before that.
func (s *Sim) countSplit(was, next *statecontext.Index) {
	s.Report.Splits++
	if next.Definition.Partitions < was.Definition.Partitions {
		s.Report.Merges++
		if next.Definition.SplitCause != "" {
			s.Report.Alone++
		}
	}
}

// checkSame checks that the slices of an index and those of its successor hold the same rows, taken together, at each
// stability timestamp that all of them hold.
func (s *Sim) checkSame(was, is *statecontext.Index) {
	before, after := s.heldBy(was), s.heldBy(is)
	for ref, of := range after {
		from := before[ref]
		if len(of) < int(is.Definition.Partitions) || len(from) < int(was.Definition.Partitions) {
			continue
		}
		if want, got := rowsOf(from), rowsOf(of); got != want {
			s.fail("at S%d index %v, of %d slices, has keys %v of documents, and index %v, of %d, which it replaces, %v",
				ref.Number, is.Definition.ID, len(of), got, was.Definition.ID, len(from), want)
		}
	}
}

// rowsOf merges the rows of an index's slices.
func rowsOf(all map[index.SliceID]holder) (rows [docs]int) {
	for _, h := range all {
		for d, r := range h.c.rows {
			rows[d] += r.key // no document is in two slices
		}
	}
	return rows
}
