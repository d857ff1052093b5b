package simulation

import (
	"errors"
	"slices"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/partition"
	"tidemark/statecontext"
)

// Slices that change their place: a rebalance of one step begins, and the leader's duty carries it out.

// moveTries is how often a free place is looked for.
const moveTries = 4

// placeBeside begins a move of some copy of the bucket.
func (s *Sim) placeBeside(b *kvBucket) {
	if s.mix[stalePlans] {
		if s.dice.plan.Intn(evictRarely) == 0 {
			s.evictCopy(b)
		} else {
			s.planLate(b)
		}
		return
	}
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

// byHand tells whether moves of this seed (most of three of four) are placed and ended command by command, as a repair
// once did, or are rebalances that the leader's duty carries out.
func (s *Sim) byHand() bool { return s.opt.Seed%4 != 3 && !s.mix[stalePlans] }

// evictRarely is how many plans are made for each copy that is taken off its node.
const evictRarely = 4

// planLate plans moves of the bucket's copies, one of each slice at most, and begins them some time later, as somebody
// does who looks at the plan first. By then other plans may have been carried out.
func (s *Sim) planLate(b *kvBucket) {
	var steps []partition.Rebalance
	for x := range s.state.IndexesOf(b.name) {
		taken := map[index.SliceID]bool{}
		for _, c := range x.Topology.Copies {
			n := s.nodes[s.dice.plan.Intn(len(s.nodes))]
			on := func(o partition.Copy) bool { return o.Slice == c.Slice && int(o.Node) == n.id }
			if x.Definition.State != index.Maintenance || c.State != partition.Allocated || taken[c.Slice] || n.id < 0 ||
				slices.ContainsFunc(x.Topology.Copies, on) || s.dice.plan.Intn(2) == 0 {
				continue
			}
			taken[c.Slice] = true
			steps = append(steps, partition.Rebalance{Index: x.Definition.ID, Slice: c.Slice, Replica: c.Replica, Old: c.ID,
				Src: partition.Shard{Node: c.Node}, Dst: partition.Shard{Node: index.NodeID(n.id)}})
		}
	}
	if len(steps) == 0 {
		return
	}
	s.ev("a plan of %d moves is made in %s", len(steps), b.name)
	s.delay(func() {
		r := s.commit(&statecontext.StartRebalance{Cause: "simulation", Sends: 1, Receives: 1, Steps: steps})
		if r.Changed {
			s.Report.Moves += len(steps)
		} else if errors.Is(r.Err(), errcode.StalePlan) {
			s.Report.Stale++
		}
	})
}

// evictCopy takes a copy off its node, as a removal of the node does, whatever moves meanwhile: another one is placed
// elsewhere, unless the copy is moving, or has been moved to, another place.
func (s *Sim) evictCopy(b *kvBucket) {
	for x := range s.state.IndexesOf(b.name) {
		if x.Definition.State != index.Maintenance || s.dice.plan.Intn(2) == 0 {
			continue
		}
		c := x.Topology.Copies[s.dice.plan.Intn(len(x.Topology.Copies))]
		n := s.nodes[s.dice.plan.Intn(len(s.nodes))]
		other := func(o partition.Copy) bool {
			return o.ID != c.ID && o.Slice == c.Slice && o.Replica == c.Replica && o.State != partition.Leaving
		}
		evict := &statecontext.PlaceCopies{ID: x.Definition.ID, IfTopology: x.TopologyCAS, Remove: []index.CopyID{c.ID}}
		if c.State != partition.Leaving && !slices.ContainsFunc(x.Topology.Copies, other) {
			if n.id < 0 || n.id == int(c.Node) {
				continue
			}
			evict.Add = []statecontext.Placement{{Slice: c.Slice, Replica: c.Replica, Node: index.NodeID(n.id)}}
		}
		if r := s.commit(evict); r.Changed {
			s.ev("copy %d of index %v is taken off its node, %d instead", c.ID, x.Definition.ID, len(evict.Add))
			return
		}
	}
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
	if r := s.state.RebalanceUnderWay(); r != nil && !s.healing && s.dice.plan.Intn(cancelEvery) == 0 {
		s.commit(&statecontext.CancelRebalance{ID: r.ID})
	}
}

// countMove counts slices that have changed their place.
func (s *Sim) countMove(body statecontext.Body, r statecontext.Result) {
	if c, is := body.(*statecontext.StepRebalance); is && r.Rejection == nil && c.To == partition.RebalanceDone {
		s.Report.Moved++
	}
}

// checkSteps: each step of a rebalance is carried out once. What is over stays over, and counts once; and what is done
// has a new copy that has been exact, unless the index is not ready yet: it will not be before all its copies are.
func (s *Sim) checkSteps(body statecontext.Body, result statecontext.Result) {
	c, is := body.(*statecontext.StepRebalance)
	r := s.state.RebalanceUnderWay()
	if !is || result.Rejection != nil || r == nil {
		return
	}
	var done, givenUp uint32
	for y := range s.state.RebalanceSteps() {
		switch y.State {
		case partition.RebalanceDone:
			done++
			d := s.state.Definition(y.Index)
			if y.Step == c.Step && d != nil && d.State == index.Maintenance && !s.wasExact(y.Dst.Node, y.New) {
				s.fail("step %d of rebalance %d is done, and its copy %d on node %d has never been exact", y.Step, r.ID, y.New,
					y.Dst.Node)
			}
		case partition.RebalanceGivenUp:
			givenUp++
		}
	}
	if r.Done != done || r.GivenUp != givenUp {
		s.fail("rebalance %d has %d steps that are done and %d that are given up, and counts %d and %d", r.ID, done,
			givenUp, r.Done, r.GivenUp)
	}
}

// checkDoubles: a replica of a slice has two copies only while a step moves it from the one to the other. Moves by hand
// have no steps.
func (s *Sim) checkDoubles(now *statecontext.State) {
	if s.byHand() {
		return
	}
	type replica struct {
		index index.ID
		slice index.SliceID
		no    partition.Replica
	}
	moving := map[[2]index.CopyID]bool{}
	for y := range now.RebalanceSteps() {
		if !y.State.Over() {
			moving[[2]index.CopyID{y.Old, y.New}] = true
		}
	}
	for x := range now.Indexes() {
		has := map[replica]index.CopyID{}
		for _, c := range x.Topology.Copies {
			if c.State == partition.Leaving {
				continue
			}
			at := replica{x.Definition.ID, c.Slice, c.Replica}
			other, twice := has[at]
			if pair := [2]index.CopyID{min(other, c.ID), max(other, c.ID)}; twice && !moving[pair] {
				s.fail("replica %d of index %v slice %d has copies %d and %d, and no step moves it from one to the other",
					c.Replica, x.Definition.ID, c.Slice, pair[0], pair[1])
			}
			has[at] = c.ID
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

// raiseEpoch is a recovery: terms begin again.
func (s *Sim) raiseEpoch() {
	s.depose()
	s.commit(&statecontext.RaiseEpoch{Epoch: s.state.Epoch() + 1, SkipNumbers: s.dice.plan.Intn(2) == 0})
	s.term = 0
	s.ev("EPOCH %d", s.state.Epoch())
	s.elect()
}
