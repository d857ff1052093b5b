package statecontext

import (
	"bytes"
	"errors"
	"testing"

	"pgregory.net/rapid"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/partition"
)

// third registers one more indexer and returns its node id.
func (n *node) third() index.NodeID {
	return n.must(&RegisterIndexer{Indexer: Indexer{UUID: "u3", Name: "i3", Zone: "z", Capacity: 2}}).Node
}

func (n *node) steps() (all []partition.Rebalance) {
	for y := range n.state.RebalanceSteps() {
		all = append(all, *y)
	}
	return all
}

func (n *node) allocate(id index.ID, c index.CopyID) {
	n.t.Helper()
	n.must(&AllocateCopies{ID: id, Revision: n.state.DefinitionsRevision(), Copies: []index.CopyID{c}})
}

// One slice moves: each state follows only the preceding one, and the old copy leaves once the new one is whole.
func TestRebalance(t *testing.T) {
	n := cluster(t)
	id := n.must(create("x", 1, 0, 1)).Index
	n.ready(id)
	to := n.third()
	old := n.state.Topology(id).Copies[1]
	step := partition.Rebalance{Index: id, Replica: 1, Old: old.ID, Src: partition.Shard{Node: 1},
		Dst: partition.Shard{Node: to}, Bytes: 7}
	start := func(change func(*partition.Rebalance)) *StartRebalance {
		y := step
		if change != nil {
			change(&y)
		}
		return &StartRebalance{Cause: "test", Sends: 1, Receives: 1, Steps: []partition.Rebalance{y}}
	}
	for _, change := range []func(*partition.Rebalance){
		func(y *partition.Rebalance) { y.Old = 99 },
		func(y *partition.Rebalance) { y.Src.Node = 0 },
		func(y *partition.Rebalance) { y.Dst.Node = 0 }, // two replicas on one node
		func(y *partition.Rebalance) { y.Dst.Node = 9 },
		func(y *partition.Rebalance) { y.Slice = 1 },
		func(y *partition.Rebalance) { y.Replica = 0 },
		func(y *partition.Rebalance) { y.Replica = 2 },
		func(y *partition.Rebalance) { y.Index = 99 },
	} {
		n.refuse(start(change), errcode.StalePlan)
	}
	n.refuse(&StartRebalance{Cause: "test", Sends: 1, Receives: 1}, errcode.InvalidArgument)
	n.refuse(&StartRebalance{Cause: "test", Sends: 1, Receives: 1, Steps: []partition.Rebalance{step, step}},
		errcode.InvalidArgument)
	n.refuse(&StartRebalance{Sends: 1, Receives: 1, Steps: []partition.Rebalance{step}}, errcode.InvalidArgument)
	r := n.must(start(nil)).Number
	n.refuse(start(nil), errcode.RebalanceRunning)
	move := func(from, to partition.RebalanceState) *StepRebalance {
		return &StepRebalance{ID: r, Step: 1, From: from, To: to, Reason: "why"}
	}
	n.refuse(move(partition.RebalanceStart, partition.RebalanceCatchup), errcode.IllegalTransition)
	n.refuse(move(partition.RebalanceStart, partition.RebalanceDone), errcode.IllegalTransition)
	n.refuse(move(partition.RebalancePending, partition.RebalanceCatchup), errcode.StepMismatch)
	n.refuse(&EndRebalance{ID: r}, errcode.StepMismatch)
	n.must(move(partition.RebalanceStart, partition.RebalancePending))
	n.refuse(move(partition.RebalanceStart, partition.RebalancePending), errcode.StepMismatch) // applied a second time
	n.refuse(move(partition.RebalancePending, partition.RebalanceCatchup), errcode.StateMismatch)
	y := n.steps()[0]
	if c := n.state.Topology(id).Copies[2]; y.New != c.ID || c.Node != to || c.Replica != 1 ||
		c.State != partition.Placed {
		t.Fatalf("step %+v, copy %+v", y, c)
	}
	n.refuse(&AlterIndex{ID: id, Replicas: 0, Drop: []partition.Replica{1}}, errcode.RebalanceRunning)
	if len(n.state.RebalancesOf(id)) != 1 {
		t.Fatal("the topology lists no rebalance")
	}
	n.allocate(id, y.New)
	n.must(move(partition.RebalancePending, partition.RebalanceCatchup))
	n.must(move(partition.RebalanceCatchup, partition.RebalanceDone))
	if c := n.state.Topology(id).Copies[1]; c.ID != old.ID || c.State != partition.Leaving {
		t.Fatalf("the old copy is %+v", c)
	}
	n.refuse(move(partition.RebalanceDone, partition.RebalanceGivenUp), errcode.StepMismatch)
	if len(n.state.RebalancesOf(id)) != 0 || n.state.MaySplit(n.state.Definition(id)) != nil {
		t.Fatal("what has been done still keeps the index from other things")
	}
	n.must(&EndRebalance{ID: r})
	got := n.state.Rebalance(r)
	if got.Phase != RebalanceFinished || got.Done != 1 || got.Bytes != 7 || got.DoneBytes != 7 || len(n.steps()) != 0 ||
		n.state.RebalanceUnderWay() != nil {
		t.Fatalf("%+v", got)
	}
	n.refuse(&CancelRebalance{ID: r}, errcode.UnknownRebalance)
	n.refuse(&EndRebalance{ID: r}, errcode.UnknownRebalance)
}

// twoMoves begins a rebalance r that moves two indexes, of which a is the first, to a third indexer.
func (n *node) twoMoves() (a index.ID, r uint64) {
	a = n.must(create("a", 0, 0)).Index
	b := n.must(create("b", 0, 0)).Index
	n.ready(a)
	n.ready(b)
	to := n.third()
	var steps []partition.Rebalance
	for _, id := range []index.ID{a, b} {
		steps = append(steps, partition.Rebalance{Index: id, Old: n.state.Topology(id).Copies[0].ID,
			Dst: partition.Shard{Node: to}})
	}
	return a, n.must(&StartRebalance{Cause: "test", Sends: 1, Receives: 1, Steps: steps}).Number
}

// A cancelled rebalance begins no step, and the steps that have begun are undone.
func TestRebalanceIsCancelled(t *testing.T) {
	n := cluster(t)
	a, r := n.twoMoves()
	n.must(&StepRebalance{ID: r, Step: 1, From: partition.RebalanceStart, To: partition.RebalancePending})
	n.must(&CancelRebalance{ID: r, Reason: "others come first"})
	if y := n.steps()[1]; y.State != partition.RebalanceGivenUp || y.Reason != "others come first" ||
		n.steps()[0].State != partition.RebalancePending || n.state.Rebalance(r).GivenUp != 1 {
		t.Fatalf("steps %+v", n.steps())
	}
	n.must(&CancelRebalance{ID: r})
	n.must(&StepRebalance{ID: r, Step: 1, From: partition.RebalancePending, To: partition.RebalanceGivenUp,
		Reason: "cancelled"})
	if copies := n.state.Topology(a).Copies; len(copies) != 1 || copies[0].Node != 0 {
		t.Fatalf("copies %+v", copies)
	}
	n.must(&EndRebalance{ID: r})
	if got := n.state.Rebalance(r); got.Phase != RebalanceCancelled || got.GivenUp != 2 ||
		got.Reason != "others come first" {
		t.Fatalf("%+v", got)
	}
}

// A rebalance with a step given up before it was cancelled for another reason reports the step's reason.
func TestCancelledRebalanceHasAReason(t *testing.T) {
	for reason, want := range map[string]string{"others come first": "others come first", "": "its node is away"} {
		n := cluster(t)
		_, r := n.twoMoves()
		n.must(&StepRebalance{ID: r, Step: 1, From: partition.RebalanceStart, To: partition.RebalanceGivenUp,
			Reason: "its node is away"})
		n.must(&CancelRebalance{ID: r, Reason: reason})
		if got := n.state.Rebalance(r).Reason; got != want {
			t.Errorf("cancelled as %q: %q, want %q", reason, got, want)
		}
	}
}

// Copies lost during a running repair are added to it as steps: what the repair waits for blocks nothing else. None
// of the steps uses a node or replica that a step in progress uses.
func TestRunningRepairTakesMoreCopies(t *testing.T) {
	n := cluster(t)
	a, b := n.must(create("a", 1, 0, 1)).Index, n.must(create("b", 0, 1)).Index
	n.ready(a)
	n.ready(b)
	to := n.third()
	of := func(id index.ID, copy int, to index.NodeID) *StartRebalance {
		c := n.state.Topology(id).Copies[copy]
		return &StartRebalance{Cause: RepairCause, Sends: 8, Receives: 8, Steps: []partition.Rebalance{{Index: id,
			Slice: c.Slice, Replica: c.Replica, Old: c.ID, Src: partition.Shard{Node: c.Node}, Dst: partition.Shard{Node: to},
			Bytes: 5}}}
	}
	r := n.must(of(a, 0, to)).Number
	n.must(&StepRebalance{ID: r, Step: 1, From: partition.RebalanceStart, To: partition.RebalancePending})
	n.refuse(of(a, 1, to), errcode.StalePlan) // the new copy exists already
	n.refuse(of(b, 0, 9), errcode.StalePlan)  // there is no such node
	if got := n.must(of(b, 0, to)).Number; got != r {
		t.Fatalf("rebalance %d, want more of %d", got, r)
	}
	n.refuse(of(b, 0, 0), errcode.InvalidArgument) // it is to be moved already
	other := of(b, 0, 0)
	other.Cause = "an operator"
	n.refuse(other, errcode.RebalanceRunning)
	n.must(&StepRebalance{ID: r, Step: 2, From: partition.RebalanceStart, To: partition.RebalancePending})
	if j := n.state.Rebalance(r); j.Steps != 2 || j.Bytes != 10 || n.steps()[1].State != partition.RebalancePending {
		t.Fatalf("%+v, steps %+v", j, n.steps())
	}
	n.must(&CancelRebalance{ID: r})
	n.refuse(of(b, 0, 0), errcode.RebalanceRunning)
}

// A rebalance is done if all steps given up belonged to a deleted bucket.
func TestRebalanceOfADeletedBucket(t *testing.T) {
	n := cluster(t)
	id := n.must(create("x", 0, 0)).Index
	n.ready(id)
	c := n.state.Topology(id).Copies[0]
	r := n.must(&StartRebalance{Cause: "test", Sends: 1, Receives: 1, Steps: []partition.Rebalance{{Index: id, Old: c.ID,
		Dst: partition.Shard{Node: n.third()}}}}).Number
	n.must(&BucketGone{Name: "b", UUID: n.state.Bucket("b").UUID})
	n.must(&StepRebalance{ID: r, Step: 1, From: partition.RebalanceStart, To: partition.RebalanceGivenUp, Reason: "gone"})
	n.must(&EndRebalance{ID: r})
	if got := n.state.Rebalance(r); got.Phase != RebalanceFinished || got.Reason != "gone" {
		t.Fatalf("%+v", got)
	}
}

// If the old node is removed during a move, the new copy is the only one and stays, whatever becomes of the step.
func TestRebalanceLosesItsSource(t *testing.T) {
	n := cluster(t)
	id := n.must(create("x", 0, 0)).Index
	n.ready(id)
	to := n.third()
	r := n.must(&StartRebalance{Cause: "test", Sends: 1, Receives: 1,
		Steps: []partition.Rebalance{{Index: id, Old: n.state.Topology(id).Copies[0].ID,
			Dst: partition.Shard{Node: to}}}}).Number
	n.must(&StepRebalance{ID: r, Step: 1, From: partition.RebalanceStart, To: partition.RebalancePending})
	n.must(&SetIndexerGoing{Node: 0, UUID: "u0", Going: true})
	n.refuse(&SetIndexerGoing{Node: 0, UUID: "other", Going: true}, errcode.UnknownNode)
	n.must(&EvictIndexer{Node: 0, UUID: "u0", Revision: n.state.DefinitionsRevision()})
	n.must(&EvictCopies{Node: 0, UUID: "u0", Indexes: []Eviction{{ID: id, IfTopology: n.state.Index(id).TopologyCAS}}})
	n.must(&RemoveIndexer{Node: 0, UUID: "u0"})
	if n.state.Going(0) {
		t.Fatal("a node that is gone is still to go")
	}
	n.must(&StepRebalance{ID: r, Step: 1, From: partition.RebalancePending, To: partition.RebalanceGivenUp, Reason: "why"})
	if copies := n.state.Topology(id).Copies; len(copies) != 1 || copies[0].Node != to {
		t.Fatalf("copies %+v", copies)
	}
	n.must(&EndRebalance{ID: r})
}

// Neither a step nor an altered index places copies on a node that is being removed.
func TestNothingMovesToAnEvictedNode(t *testing.T) {
	n := cluster(t)
	id, other := n.must(create("x", 0, 0)).Index, n.must(create("y", 0, 0)).Index
	n.ready(id)
	n.ready(other)
	to := n.third()
	r := n.must(&StartRebalance{Cause: "test", Sends: 1, Receives: 1,
		Steps: []partition.Rebalance{{Index: id, Old: n.state.Topology(id).Copies[0].ID,
			Dst: partition.Shard{Node: to}}}}).Number
	n.must(&EvictIndexer{Node: to, UUID: n.state.Indexer(to).UUID, Revision: n.state.DefinitionsRevision()})
	n.refuse(&StepRebalance{ID: r, Step: 1, From: partition.RebalanceStart, To: partition.RebalancePending},
		errcode.UnknownNode)
	n.refuse(&AlterIndex{ID: other, Replicas: 1, Add: []Placement{{Replica: 1, Node: to}}}, errcode.IndexChanged)
	n.must(&AlterIndex{ID: other, Replicas: 1, Add: []Placement{{Replica: 1, Node: 1}}})
	n.must(&StepRebalance{ID: r, Step: 1, From: partition.RebalanceStart, To: partition.RebalanceGivenUp,
		Reason: "its target is being removed"})
	n.must(&EndRebalance{ID: r})
	n.must(&RemoveIndexer{Node: to, UUID: n.state.Indexer(to).UUID})
}

func TestAlterIndex(t *testing.T) {
	n := cluster(t)
	id := n.must(create("x", 1, 0, 1)).Index
	n.refuse(&AlterIndex{ID: id, Replicas: 0, Drop: []partition.Replica{1}}, errcode.StateMismatch)
	n.ready(id)
	to := n.third()
	for _, c := range []*AlterIndex{
		{ID: id, Replicas: 1, Drop: []partition.Replica{1}},
		{ID: id, Replicas: 0, Drop: []partition.Replica{2}},
		{ID: id, Replicas: 0, Drop: []partition.Replica{0, 1}},
		{ID: id, Replicas: 0, Drop: []partition.Replica{1}, Add: []Placement{{Replica: 1, Node: to}}},
	} {
		n.refuse(c, errcode.InvalidArgument)
	}
	n.refuse(&AlterIndex{ID: id, Replicas: 2}, errcode.PlacementInconsistent)
	n.refuse(&AlterIndex{ID: id, Replicas: 2, Add: []Placement{{Replica: 2, Node: 1}}}, errcode.PlacementInconsistent)
	n.refuse(&AlterIndex{ID: id, Replicas: 1, IfMatch: 1}, errcode.CASMismatch)
	full := n.state.Limits()
	full.Indexes, full.IndexesPerBucket = 1, 1
	n.must(&SetLimits{Limits: full}) // no further index is allowed
	n.must(&AlterIndex{ID: id, Replicas: 2, Add: []Placement{{Replica: 2, Node: to}}, Nodes: []string{"u0"},
		Statement: "CREATE INDEX anew"})
	x := n.state.Index(id)
	if len(x.Topology.Copies) != 3 || x.Definition.Replicas != 2 || x.PlacedCAS != n.state.CAS() ||
		len(x.Definition.Nodes) != 1 || x.Definition.Statement != "CREATE INDEX anew" {
		t.Fatalf("%+v", x)
	}
	n.must(&AlterIndex{ID: id, Replicas: 1, Drop: []partition.Replica{1}}) // replica 0 stays
	n.refuse(&AlterIndex{ID: id, Replicas: 0, Drop: []partition.Replica{0}}, errcode.StateMismatch)
	n.allocate(id, x.Topology.Copies[2].ID)
	n.must(&AlterIndex{ID: id, Replicas: 0, Drop: []partition.Replica{0}})
	copies := n.state.Topology(id).Copies
	if copies[0].State != partition.Leaving || copies[1].State != partition.Leaving || copies[2].Replica != 0 {
		t.Fatalf("replica 0 was dropped: %+v", copies)
	}
	n.must(&ForgetCopies{ID: id, Copies: []index.CopyID{copies[0].ID}})
}

// After any commands in any order the state is sound, each slice keeps a copy of each replica that is not leaving,
// and a snapshot reads back as the same state.
func TestRebalancesAreSound(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := cluster(t)
		ids := []index.ID{n.must(create("a", 1, 0, 0, 1, 1)).Index, n.must(create("b", 0, 0)).Index}
		n.third()
		nodes := []index.NodeID{0, 1, 2}
		for range rapid.IntRange(1, 40).Draw(rt, "commands") {
			id := rapid.SampledFrom(ids).Draw(rt, "index")
			x := n.state.Index(id)
			r := uint64(0)
			if u := n.state.RebalanceUnderWay(); u != nil {
				r = u.ID
			}
			var body Body
			switch rapid.IntRange(0, 9).Draw(rt, "what") {
			case 0:
				c := &StartRebalance{Cause: rapid.SampledFrom([]string{"test", RepairCause}).Draw(rt, "cause"), Sends: 1,
					Receives: 1}
				for range rapid.IntRange(1, 2).Draw(rt, "steps") {
					o := rapid.SampledFrom(x.Topology.Copies).Draw(rt, "copy")
					c.Steps = append(c.Steps, partition.Rebalance{Index: id, Slice: o.Slice, Replica: o.Replica, Old: o.ID,
						Src: partition.Shard{Node: o.Node},
						Dst: partition.Shard{Node: rapid.SampledFrom(nodes).Draw(rt, "to")}})
				}
				body = c
			case 1:
				body = &CancelRebalance{ID: r}
			case 2:
				body = &EndRebalance{ID: r}
			case 3:
				c := AllocateCopies{ID: id}
				c.Revision = n.state.DefinitionsRevision()
				for _, o := range x.Topology.Copies {
					if o.State == partition.Placed {
						c.Copies = append(c.Copies, o.ID)
					}
				}
				body = &c
			case 4:
				body = &ForgetCopies{ID: id, Copies: leaving(x)}
			case 5:
				if x.Definition.State == index.Pending && len(leaving(x)) == 0 { // one whose copies leave does not come back
					n.ready(id)
				}
				continue
			case 6:
				body = &SetIndexerGoing{Node: 2, UUID: "u3", Going: rapid.Bool().Draw(rt, "going")}
			case 7:
				who := n.seen(index.NodeID(rapid.IntRange(0, 2).Draw(rt, "who")))
				if body = (&NoteAbsences{Offline: who}); rapid.Bool().Draw(rt, "back") {
					body = &NoteAbsences{Back: who}
				}
			default:
				steps := n.steps()
				if len(steps) == 0 {
					continue
				}
				y := rapid.SampledFrom(steps).Draw(rt, "step")
				body = &StepRebalance{ID: r, Step: y.Step, From: y.State,
					To: partition.RebalanceState(rapid.IntRange(1, 5).Draw(rt, "to")), Reason: "why"}
			}
			n.apply(Command{Body: body})
			if err := Check(n.state); err != nil {
				rt.Fatalf("after %T %+v: %v", body, body, err)
			}
		}
		var file bytes.Buffer
		if err := WriteSnapshot(&file, n.state); err != nil {
			rt.Fatal(err)
		}
		again, err := ReadSnapshot(&file)
		if err != nil || Hash(again) != Hash(n.state) {
			rt.Fatalf("through a snapshot: %v", err)
		}
	})
}

func leaving(x *Index) (all []index.CopyID) {
	for _, c := range x.Topology.Copies {
		if c.State == partition.Leaving {
			all = append(all, c.ID)
		}
	}
	return all
}

// Only keptRebalances ended rebalances are remembered.
func TestRebalancesAreForgotten(t *testing.T) {
	n := cluster(t)
	id := n.must(create("x", 0, 0)).Index
	n.third()
	for range keptRebalances + 5 {
		r := n.must(&StartRebalance{Cause: "test", Sends: 1, Receives: 1,
			Steps: []partition.Rebalance{{Index: id, Old: n.state.Topology(id).Copies[0].ID,
				Dst: partition.Shard{Node: 2}}}}).Number
		n.must(&StepRebalance{ID: r, Step: 1, From: partition.RebalanceStart, To: partition.RebalanceGivenUp, Reason: "why"})
		n.must(&EndRebalance{ID: r})
	}
	count := 0
	for range n.state.Rebalances() {
		count++
	}
	if count > keptRebalances+1 || n.state.Rebalance(1) != nil {
		t.Fatalf("%d are remembered", count)
	}
	if err := errors.Join(Check(n.state)); err != nil {
		t.Fatal(err)
	}
}

// The old copy stays while the bucket is being rolled back, and while the node of the new copy is being removed.
func TestOldCopyStaysDuringRollback(t *testing.T) {
	n := cluster(t)
	id := n.must(create("x", 0, 0)).Index
	n.ready(id)
	to := n.third()
	r := n.must(&StartRebalance{Cause: "test", Sends: 1, Receives: 1,
		Steps: []partition.Rebalance{{Index: id, Old: n.state.Topology(id).Copies[0].ID,
			Dst: partition.Shard{Node: to}}}}).Number
	move := func(from, to partition.RebalanceState) *StepRebalance {
		return &StepRebalance{ID: r, Step: 1, From: from, To: to, Reason: "why"}
	}
	n.must(move(partition.RebalanceStart, partition.RebalancePending))
	n.allocate(id, n.steps()[0].New)
	n.must(move(partition.RebalancePending, partition.RebalanceCatchup))
	n.must(&SetRollbackStep{Bucket: "b", Generation: 1, To: Started})
	n.refuse(move(partition.RebalanceCatchup, partition.RebalanceDone), errcode.RollbackMismatch)
	n.must(&EvictIndexer{Node: to, UUID: n.state.Indexer(to).UUID, Revision: n.state.DefinitionsRevision()})
	n.refuse(move(partition.RebalanceCatchup, partition.RebalanceDone), errcode.StateMismatch)
	n.must(move(partition.RebalanceCatchup, partition.RebalanceGivenUp))
	if copies := n.state.Topology(id).Copies; len(copies) != 1 || copies[0].Node != 0 {
		t.Fatalf("copies %+v", copies)
	}
}

// A change of nodes and the rebalance that carries it out are one update: both take effect, or neither does.
func TestAlterIndexStartsARebalance(t *testing.T) {
	n := cluster(t)
	id := n.must(create("x", 1, 0, 1)).Index
	n.ready(id)
	to, old := n.third(), n.state.Topology(id).Copies[1]
	step := partition.Rebalance{Index: id, Replica: 1, Old: old.ID,
		Src: partition.Shard{Node: 1}, Dst: partition.Shard{Node: to}}
	alter := &AlterIndex{ID: id, Replicas: 1, Nodes: []string{"u0", "u3"},
		Start: &StartRebalance{Cause: "ALTER INDEX", Sends: 1, Receives: 1, Steps: []partition.Rebalance{step}}}
	cas := n.state.CAS()
	res := n.must(alter)
	r := n.state.RebalanceUnderWay()
	if res.CAS != cas+1 || r == nil || res.Number != r.ID || r.Steps != 1 || res.Index != id ||
		len(n.state.Definition(id).Nodes) != 2 {
		t.Fatalf("%+v, rebalance %+v, definition %+v", res, r, n.state.Definition(id))
	}
	n.must(&CancelRebalance{ID: r.ID})
	n.must(&EndRebalance{ID: r.ID})
	alter.Nodes, alter.Start.Steps[0].Old = []string{"u3"}, 99
	n.refuse(alter, errcode.IndexChanged)
	if d := n.state.Definition(id); len(d.Nodes) != 2 {
		t.Errorf("the change was refused, and is there: %v", d.Nodes)
	}
}

// A rebalance is done if its only unfinished steps belong to an index that is gone, here because its split has ended.
// It has failed if another step was given up, and is cancelled if it was cancelled.
func TestRebalanceOfADroppedIndex(t *testing.T) {
	for name, want := range map[string]RebalancePhase{"": RebalanceFinished, "other step": RebalanceFailed,
		"cancelled": RebalanceCancelled} {
		n := splittingNode(t)
		n.must(createByKey("y", n.state.Index(1).Definition.PartitionBy, 0, 0, 1))
		n.ready(3)
		to := n.third()
		var steps []partition.Rebalance
		for _, id := range []index.ID{1, 3} {
			c := n.state.Topology(id).Copies[0]
			steps = append(steps, partition.Rebalance{Index: id, Old: c.ID, Src: partition.Shard{Node: c.Node},
				Dst: partition.Shard{Node: to}})
		}
		r := n.must(&StartRebalance{Cause: "test", Sends: 1, Receives: 1, Steps: steps}).Number
		n.must(&StepRebalance{ID: r, Step: 1, From: partition.RebalanceStart, To: partition.RebalancePending})
		n.ready(2) // it takes over the name: index 1 is dropped
		n.must(&StepRebalance{ID: r, Step: 1, From: partition.RebalancePending, To: partition.RebalanceGivenUp,
			Reason: "gone"})
		given := uint32(1)
		if name == "other step" {
			given++
			n.must(&StepRebalance{ID: r, Step: 2, From: partition.RebalanceStart, To: partition.RebalanceGivenUp, Reason: "why"})
		} else {
			n.must(&StepRebalance{ID: r, Step: 2, From: partition.RebalanceStart, To: partition.RebalancePending})
			x := n.state.Index(3)
			n.must(&AllocateCopies{ID: 3, Revision: n.state.DefinitionsRevision(),
				Copies: []index.CopyID{x.Topology.Copies[len(x.Topology.Copies)-1].ID}})
			n.must(&StepRebalance{ID: r, Step: 2, From: partition.RebalancePending, To: partition.RebalanceCatchup})
			n.must(&StepRebalance{ID: r, Step: 2, From: partition.RebalanceCatchup, To: partition.RebalanceDone})
		}
		if name == "cancelled" {
			n.must(&CancelRebalance{ID: r})
		}
		n.must(&EndRebalance{ID: r})
		if job := n.state.Rebalance(r); job.Phase != want || job.GivenUp != given || job.Reason != "gone" {
			t.Errorf("%q: %+v, want %s", name, job, want)
		}
	}
}
