package simulation

import (
	"time"

	"tidemark/index"
	"tidemark/statecontext"
	"tidemark/wire"
)

// Indexes that get more or fewer slices: because somebody asks for it, or, in seeds with sizes, by themselves. The
// latter is what the product does, from what indexers report of their copies to the command; a copy's size is that of
// the hour here, and not of its rows.

const (
	// mostSlices is how many an index has at most.
	mostSlices = 4
	// sizeBound is how many bytes a slice may have, and splitAfter for how long one has to have more. An index is left
	// alone for six times that.
	sizeBound  = 1000
	splitAfter = 150 * time.Millisecond
	// sizeMS is for how long slices are large, and then twice as long small.
	sizeMS = 1500
)

// splitIndex has a successor built for an index, or takes a split back. The successor has more slices, or fewer: then
// it is a merge, or as many, elsewhere.
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
		if s.mix[sizes] && s.dice.load.Intn(askedRarely) > 0 { // what is asked for is no longer merged by itself
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

// askedRarely is how rarely somebody splits an index that is split by itself, too.
const askedRarely = 32

// sized puts into a report how large copies are: larger than they may be, so small that they are merged, or, when
// everything heals, neither. It takes no chance from the seed.
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

// checkSlices: an index gets more or fewer slices by itself only where nothing else goes on, and never fewer than
// somebody has asked for.
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

// besides says what goes on beside which no index is split by itself.
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

// countSplit counts a successor that has the name now; next is what it was before that.
func (s *Sim) countSplit(was, next *statecontext.Index) {
	s.Report.Splits++
	if next.Definition.Partitions < was.Definition.Partitions {
		s.Report.Merges++
		if next.Definition.SplitCause != "" {
			s.Report.Alone++
		}
	}
}

// checkSame: the slices of an index and those of its successor have the same rows, all together, at each stability
// timestamp that all of both hold.
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

// rowsOf puts the rows of an index's slices together.
func rowsOf(all map[index.SliceID]holder) (rows [docs]int) {
	for _, h := range all {
		for d, r := range h.c.rows {
			rows[d] += r.key // no document is in two of them
		}
	}
	return rows
}
