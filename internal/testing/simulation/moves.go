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

// Slices that change their place: a rebalance of one step begins, and the leader's duty carries it out.

// moveTries is how often a free place is looked for.
const moveTries = 8

// movesAtOnce is how many moves concern a node at a time.
const movesAtOnce = 4

// placeBeside begins a move of some copy of the bucket.
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
		if !r.Changed { // there is another one of the slice on the node or on its way, or another rebalance
			continue
		}
		s.ev("slice %d of index %v, copy %d, is to move to n%d", c.Slice, x.Definition.ID, c.ID, n.num)
		return true
	}
	return false
}

// moveCause is what moves of this seed are for: repairs, of which one more may begin while others are under way, or
// rebalances, of which none may.
func (s *Sim) moveCause() string {
	if s.opt.Seed%4 == 3 {
		return "simulation"
	}
	return statecontext.RepairCause
}

// evictRarely is how many plans are made for each node that is removed.
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

// fewestNodes is how many nodes there are at least where one may be removed: each replica still has a node of its own.
const fewestNodes = 3

// evictNode begins to remove a node for good: the leader takes its copies off it, whatever moves meanwhile, and has
// others made elsewhere.
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

// evicting is a node that is being removed, nil when none is.
func (s *Sim) evicting() *statecontext.Indexer {
	for i := range s.state.Indexers() {
		if i.Evicting {
			return i
		}
	}
	return nil
}

// replace puts a new node in the place of one that was removed, with nothing of what that one held.
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

// checkDoubles: a replica of a slice has two copies only while a step moves it from the one to the other.
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

// raiseEpoch is a recovery: terms begin again.
func (s *Sim) raiseEpoch() {
	s.depose()
	s.commit(&statecontext.RaiseEpoch{Epoch: s.state.Epoch() + 1, SkipNumbers: s.dice.plan.Intn(2) == 0})
	s.term = 0
	s.ev("EPOCH %d", s.state.Epoch())
	s.elect()
}
