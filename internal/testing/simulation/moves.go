package simulation

import (
	"slices"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/statecontext"
)

// Slices that change their place: a rebalance of one step begins, and the leader's duty carries it out.

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
		if x.Definition.State != index.Maintenance || s.dice.plan.Intn(2) == 0 {
			continue
		}
		c := x.Topology.Copies[s.dice.plan.Intn(len(x.Topology.Copies))]
		n := s.nodes[s.dice.plan.Intn(len(s.nodes))]
		taken := func(o partition.Copy) bool { return o.Slice == c.Slice && o.Replica == c.Replica && o.ID != c.ID }
		if n.id < 0 || c.State != partition.Allocated || slices.ContainsFunc(x.Topology.Copies, taken) {
			continue
		}
		if s.byHand() {
			r := s.commit(&statecontext.PlaceCopies{ID: x.Definition.ID, IfTopology: x.TopologyCAS,
				Add: []statecontext.Placement{{Slice: c.Slice, Replica: c.Replica, Node: index.NodeID(n.id)}}})
			if !r.Changed { // the node has a copy of that slice: it is the state that refuses that
				continue
			}
			s.ev("a copy of index %v slice %d is placed on n%d beside copy %d", x.Definition.ID, c.Slice, n.num, c.ID)
			return true
		}
		r := s.commit(&statecontext.StartRebalance{Cause: "simulation", Sends: 1, Receives: 1,
			Steps: []partition.Rebalance{{Index: x.Definition.ID, Slice: c.Slice, Replica: c.Replica, Old: c.ID,
				Src: partition.Shard{Node: c.Node}, Dst: partition.Shard{Node: index.NodeID(n.id)}}}})
		if !r.Changed {
			continue
		}
		s.ev("slice %d of index %v, copy %d, is to move to n%d", c.Slice, x.Definition.ID, c.ID, n.num)
		return true
	}
	return false
}

// byHand tells whether moves of this seed (three of four) are placed and ended command by command, as a repair once
// did, or are rebalances that the leader's duty carries out.
func (s *Sim) byHand() bool { return s.opt.Seed%4 != 3 }

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

// whole tells whether a copy has been exact.
func (s *Sim) whole(c partition.Copy) bool {
	n := s.nodes[s.nodeAt(c.Node)]
	st := n.stores[c.ID]
	return n.up && st != nil && st.ready
}

// cancelEvery is how rarely a move that is under way is cancelled.
const cancelEvery = 100

// cancelMove cancels the rebalance that is under way, now and then. The leader's duty carries it out and ends it.
func (s *Sim) cancelMove() {
	if r := s.state.RebalanceUnderWay(); r != nil && s.dice.plan.Intn(cancelEvery) == 0 {
		s.commit(&statecontext.CancelRebalance{ID: r.ID})
	}
}

// countMove counts slices that have changed their place.
func (s *Sim) countMove(body statecontext.Body, r statecontext.Result) {
	if c, is := body.(*statecontext.StepRebalance); is && r.Rejection == nil && c.To == partition.RebalanceDone {
		s.Report.Moved++
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

// raiseEpoch is a recovery: terms begin again.
func (s *Sim) raiseEpoch() {
	s.depose()
	s.commit(&statecontext.RaiseEpoch{Epoch: s.state.Epoch() + 1, SkipNumbers: s.dice.plan.Intn(2) == 0})
	s.term = 0
	s.ev("EPOCH %d", s.state.Epoch())
	s.elect()
}
