package simulation

import (
	"errors"
	"slices"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/core"
	"tidemark/partition"
	"tidemark/statecontext"
	"tidemark/wire"
)

// This file moves slices: it starts rebalances, which the leader's duty carries out.

// moveTries is how many times a free place is looked for.
const moveTries = 8

// movesAtOnce is the most moves that concern a node at a time.
const movesAtOnce = 4

// placeBeside starts a move of a random copy of the bucket.
func (s *Sim) placeBeside(b *kvBucket) {
	if s.mix[stalePlans] {
		if s.dice.plan.Intn(evictRarely) == 0 {
			s.evictNode()
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
		if n.id < 0 || c.State != partition.Allocated {
			continue
		}
		r := s.commit(&statecontext.StartRebalance{Cause: s.moveCause(), Sends: movesAtOnce, Receives: movesAtOnce,
			Steps: []partition.Rebalance{{Index: x.Definition.ID, Slice: c.Slice, Replica: c.Replica, Old: c.ID,
				Src: partition.Shard{Node: c.Node}, Dst: partition.Shard{Node: index.NodeID(n.id)}}}})
		if !r.Changed { // the node has or will have another copy of the slice, or another rebalance runs
			continue
		}
		s.ev("slice %d of index %v, copy %d, is to move to n%d", c.Slice, x.Definition.ID, c.ID, n.num)
		return true
	}
	return false
}

// moveCause returns the cause of this seed's moves: repairs, which may begin while others are in progress, or
// rebalances, which may not.
func (s *Sim) moveCause() string {
	if s.opt.Seed%4 == 3 {
		return "simulation"
	}
	return statecontext.RepairCause
}

// evictRarely is the number of plans per removal of a node.
const evictRarely = 4

// planLate plans moves of the bucket's copies, at most one per slice, and begins them later, as a user does who
// reviews the plan first. By then other plans may have been carried out.
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

// fewestNodes is the lowest number of nodes at which one may be removed: each replica still has a node of its own.
const fewestNodes = 3

// evictNode starts the permanent removal of a node: the leader moves its copies elsewhere, whatever else moves
// meanwhile.
func (s *Sim) evictNode() {
	n := s.nodes[s.dice.plan.Intn(len(s.nodes))]
	i := s.state.Indexer(index.NodeID(n.id))
	if n.id < 0 || i == nil || len(s.nodes) < fewestNodes || s.evicting() != nil {
		return
	}
	r := s.commit(&statecontext.EvictIndexer{Node: i.Node, UUID: i.UUID, Revision: s.state.DefinitionsRevision()})
	if r.Changed {
		s.ev("n%d is to be removed", n.num)
	}
}

// evicting returns the node that is being removed, nil if there is none.
func (s *Sim) evicting() *statecontext.Indexer {
	for i := range s.state.Indexers() {
		if i.Evicting {
			return i
		}
	}
	return nil
}

// replace puts a new, empty node in the place of one that was removed.
func (s *Sim) replace(n *node) {
	if n.id < 0 || s.state.Indexer(index.NodeID(n.id)) != nil {
		return
	}
	s.crashNode(n)
	for id := range n.stores {
		s.lost[id] = true
	}
	s.ev("n%d was removed, a new one takes its place", n.num)
	s.Report.Evicted++
	n.id, n.life = -1, n.life+1
	n.who, n.stored, n.stores = core.Identity{}, wire.Definitions{}, map[index.CopyID]*store{}
	s.startNode(n)
}

// cancelEvery is the number of steps with a move in progress of which one cancels it.
const cancelEvery = 100

// cancelMove sometimes cancels the rebalance in progress. The leader's duty carries the cancellation out.
func (s *Sim) cancelMove() {
	if r := s.state.RebalanceUnderWay(); r != nil && !s.healing && s.dice.plan.Intn(cancelEvery) == 0 {
		s.commit(&statecontext.CancelRebalance{ID: r.ID})
	}
}

// countMove counts slices that have moved.
func (s *Sim) countMove(body statecontext.Body, r statecontext.Result) {
	if c, is := body.(*statecontext.StepRebalance); is && r.Rejection == nil && c.To == partition.RebalanceDone {
		s.Report.Moved++
	}
}

// checkSteps checks that each step of a rebalance is carried out once: a step that is over stays over and counts
// once. The new copy of a completed step has been exact, unless the index is not ready yet; it becomes ready only
// when all its copies have been.
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

// checkDoubles checks that a replica of a slice has two copies only while a step moves it from one to the other.
func (s *Sim) checkDoubles(now *statecontext.State) {
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

// raiseEpoch simulates a recovery: terms begin again.
func (s *Sim) raiseEpoch() {
	s.depose()
	s.commit(&statecontext.RaiseEpoch{Epoch: s.state.Epoch() + 1, SkipNumbers: s.dice.plan.Intn(2) == 0})
	s.term = 0
	s.ev("EPOCH %d", s.state.Epoch())
	s.elect()
}
