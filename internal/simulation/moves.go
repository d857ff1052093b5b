package simulation

import (
	"slices"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/statecontext"
)

// Copies that change their node: a new one is placed beside the old one, fills itself from KV, and takes over.

// moveTries is how often a free place is looked for.
const moveTries = 4

// placeBeside begins a move of some copy of the bucket.
func (s *Sim) placeBeside(b *kvBucket) {
	for range moveTries {
		if s.placeOne(b) {
			s.Report.Moves++
			return
		}
	}
}

func (s *Sim) placeOne(b *kvBucket) bool {
	for x := range s.state.IndexesOf(b.name) {
		if x.Definition.State != index.Maintenance || s.r.Intn(2) == 0 {
			continue
		}
		c := x.Topology.Copies[s.r.Intn(len(x.Topology.Copies))]
		n := s.nodes[s.r.Intn(len(s.nodes))]
		taken := func(o partition.Copy) bool { return o.Slice == c.Slice && o.Replica == c.Replica && o.ID != c.ID }
		if n.id < 0 || c.State != partition.Allocated || slices.ContainsFunc(x.Topology.Copies, taken) {
			continue
		}
		r := s.commit(&statecontext.PlaceCopies{ID: x.Definition.ID, IfTopology: x.TopologyCAS,
			Add: []statecontext.Placement{{Slice: c.Slice, Replica: c.Replica, Node: index.NodeID(n.id)}}})
		if !r.Changed { // the node has a copy of that slice: it is the state that refuses that
			continue
		}
		s.ev("a copy of index %v slice %d is placed on n%d beside copy %d", x.Definition.ID, c.Slice, n.num, c.ID)
		return true
	}
	return false
}

// goOnMoving lets old copies leave whose successors are whole, and forgets those that left.
func (s *Sim) goOnMoving(b *kvBucket) {
	for x := range s.state.IndexesOf(b.name) {
		if x.Definition.State != index.Maintenance {
			continue
		}
		for _, c := range x.Topology.Copies {
			if c.State == partition.Leaving {
				s.commit(&statecontext.PlaceCopies{ID: x.Definition.ID, IfTopology: x.TopologyCAS, Remove: []index.CopyID{c.ID}})
				return
			}
			if old := predecessor(x, c); old != 0 && s.whole(c) {
				s.commit(&statecontext.SetCopyStates{Revision: s.state.DefinitionsRevision(),
					Copies: []statecontext.CopyChange{{Index: x.Definition.ID, Copy: old, State: partition.Leaving}}})
				return
			}
		}
	}
}

// predecessor is the copy that c is to take the place of, 0 for none.
func predecessor(x *statecontext.Index, c partition.Copy) index.CopyID {
	if c.State != partition.Allocated {
		return 0
	}
	for _, o := range x.Topology.Copies {
		if o.Slice == c.Slice && o.Replica == c.Replica && o.ID < c.ID && o.State == partition.Allocated {
			return o.ID
		}
	}
	return 0
}

// whole tells whether a copy has been exact.
func (s *Sim) whole(c partition.Copy) bool {
	n := s.nodes[s.nodeAt(c.Node)]
	st := n.stores[c.ID]
	return n.up && st != nil && st.ready
}

// raiseEpoch is a recovery: terms begin again.
func (s *Sim) raiseEpoch() {
	s.depose()
	s.commit(&statecontext.RaiseEpoch{Epoch: s.state.Epoch() + 1, SkipNumbers: s.r.Intn(2) == 0})
	s.term = 0
	s.ev("EPOCH %d", s.state.Epoch())
	s.elect()
}
