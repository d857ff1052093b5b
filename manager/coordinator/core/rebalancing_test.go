package core

import (
	"slices"
	"strings"
	"testing"
	"time"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/rebalance"
	"tidemark/statecontext"
	"tidemark/wire"
)

// TestLargePlanBeginsInPieces checks that only as much of a plan is begun as one command carries.
func TestLargePlanBeginsInPieces(t *testing.T) {
	p, from := &rebalance.Plan{}, index.NodeID(1)
	for i := range 30_000 {
		p.Steps = append(p.Steps, rebalance.Step{Index: index.ID(1<<20 + i), Slice: 63, Old: index.CopyID(1<<34 + i),
			From: &from, To: 2, Bytes: 1 << 40})
	}
	steps, left := Begun(p, func(y *rebalance.Step) bool { return y.Index > 1<<20 })
	data, err := statecontext.Encode(statecontext.Command{Body: &statecontext.StartRebalance{Cause: "test", Sends: 1,
		Receives: 1, Steps: steps}})
	if err != nil || len(steps) != rebalance.MaxBegun || left != 30_000-1-len(steps) ||
		steps[0].Index != 1<<20+1 || len(data) > commandBytes {
		t.Errorf("%d steps in %d bytes: %v", len(steps), len(data), err)
	}
}

// TestFilled checks that a copy's progress is that of the files sent for it, else that of its side streams.
func TestFilled(t *testing.T) {
	for _, c := range []struct {
		is   wire.CopyReport
		want float64
	}{
		{},
		{wire.CopyReport{Done: 5, Total: 10}, 0.5},
		{wire.CopyReport{Done: 5, Total: 10, Received: 1, Expected: 4}, 0.25},
		{wire.CopyReport{Received: 5, Expected: 4}, 1},
		{wire.CopyReport{Done: 11, Total: 10}, 1},
	} {
		if got := filled(c.is); got != c.want {
			t.Errorf("%+v: %v, want %v", c.is, got, c.want)
		}
	}
}

// TestWaitingRepairDelaysNoOther checks that a copy of a bucket whose KV is away waits for KV, while another
// indexer's copies of another bucket are made anew.
func TestWaitingRepairDelaysNoOther(t *testing.T) {
	s := indexersOf(t, 5)
	s.pass(5 * time.Second)
	s.state.do(&statecontext.SetBucket{Name: "sick", UUID: "u", VBuckets: 8})
	sick := s.state.do(&statecontext.CreateIndex{Placement: []statecontext.Placement{{Node: 0}},
		Layout: partition.Layout{Scheme: partition.HashDocID, Partitions: 1}, Definition: index.Definition{Name: "y",
			Bucket: "sick", BucketUUID: "u", Keys: []index.KeyExpr{{Expr: "a"}}, Partitions: 1}}).Index
	was := s.state.state.Topology(sick).Copies[0].ID
	well := s.state.state.Topology(1).Copies[1]
	s.exact = func(c partition.Copy) bool {
		return c.ID == was || s.state.state.Topology(1).Copies[0].ID != c.ID && !slices.ContainsFunc(
			s.state.state.Topology(sick).Copies, func(o partition.Copy) bool { return o.ID == c.ID })
	}
	s.step(Changed{})
	s.pass(20 * time.Second)
	s.there[0] = false
	s.pass(17 * time.Minute)
	s.there[well.Node] = false
	s.pass(17 * time.Minute)
	if len(s.began) != 2 {
		t.Fatalf("%d times something was begun: %+v", len(s.began), s.began)
	}
	for _, c := range s.state.state.Topology(1).Copies {
		if c.ID == well.ID {
			t.Errorf("copy %+v is not made anew, steps %+v", c, slices.Collect(s.state.state.RebalanceSteps()))
		}
	}
	if r := s.state.state.RebalanceUnderWay(); r == nil || r.Steps < 3 || r.Done == 0 {
		t.Errorf("the repair is %+v", r)
	}
}

// TestLostTargetDoesNotEndABuild checks that a step which moves a copy in backfill to an indexer that disappears is
// given up, and that the build, whose own indexers are alive, continues.
func TestLostTargetDoesNotEndABuild(t *testing.T) {
	s := buildersOf(t, 2)
	s.exact = func(partition.Copy) bool { return false }
	s.pass(20 * time.Second)
	if d := s.state.state.Definition(1); d.State != index.Backfill {
		t.Fatalf("the index is %s", d.State)
	}
	s.commit(&statecontext.RegisterIndexer{Indexer: statecontext.Indexer{UUID: "u2", Name: "i2", BootID: "boot",
		Admin: "http://i"}})
	s.there[2] = true
	s.step(Changed{})
	old := s.state.state.Topology(1).Copies[0]
	s.commit(&statecontext.StartRebalance{Cause: "an operator", Sends: 1, Receives: 1, Steps: []partition.Rebalance{{
		Index: 1, Slice: old.Slice, Old: old.ID, Src: partition.Shard{Node: old.Node}, Dst: partition.Shard{Node: 2}}}})
	s.step(Changed{})
	s.pass(10 * time.Second)
	if y := slices.Collect(s.state.state.RebalanceSteps()); len(y) != 1 || y[0].New == 0 {
		t.Fatalf("steps %+v", y)
	}
	s.there[2] = false
	s.pass(12 * time.Minute)
	if r := s.state.state.Rebalance(1); r.Phase != statecontext.RebalanceFailed || r.GivenUp != 1 {
		t.Errorf("the rebalance is %+v", r)
	}
	if d := s.state.state.Definition(1); d.State != index.Backfill {
		t.Errorf("the index is %s: %s", d.State, d.Reason)
	}
	s.there[0], s.there[1] = false, false // its own, and all that could replace them
	s.pass(12 * time.Minute)
	if d := s.state.state.Definition(1); d.State != index.Error {
		t.Errorf("without any indexer the index is %s", d.State)
	}
}

// TestUncreatedCopyIsPlacedElsewhere checks a CREATE INDEX right after an indexer has died unnoticed: its copies
// are placed elsewhere once it is offline, and the index is built; copies that the indexer has made stay its own.
func TestUncreatedCopyIsPlacedElsewhere(t *testing.T) {
	s := indexersOf(t, 3)
	s.exact = func(partition.Copy) bool { return true }
	s.pass(20 * time.Second)
	s.there[2] = false
	second := s.state.do(&statecontext.CreateIndex{Placement: []statecontext.Placement{{Slice: 0, Node: 1},
		{Slice: 1, Node: 2}}, Layout: partition.Layout{Scheme: partition.HashDocID, Partitions: 2},
		Definition: index.Definition{Name: "y", Bucket: "b", BucketUUID: "u", Keys: []index.KeyExpr{{Expr: "a"}},
			Partitions: 2}}).Index
	s.step(Changed{})
	s.pass(20 * time.Second)
	if d := s.state.state.Definition(second); d.State == index.Pending {
		t.Errorf("the index is %s, topology %+v", d.State, s.state.state.Topology(second))
	}
	for _, c := range s.state.state.Topology(second).Copies {
		if c.Node == 2 && c.State != partition.Leaving {
			t.Errorf("copy %+v is still to be made by an indexer that is offline", c)
		}
	}
	if c := s.state.state.Topology(1).Copies[2]; c.Node != 2 || c.State != partition.Allocated {
		t.Errorf("copy %+v was moved: it is repaired when its indexer stays away", c)
	}
	if r := s.state.state.RebalanceUnderWay(); r != nil {
		t.Errorf("the repair goes on: %+v, steps %+v", r, slices.Collect(s.state.state.RebalanceSteps()))
	}
}

// TestBuildOfALostIndexerMoves checks that the copies that an absent indexer was building are built elsewhere, however
// long that takes, and the index becomes ready without it. An indexer that is back within 30 s continues.
func TestBuildOfALostIndexerMoves(t *testing.T) {
	s := buildersOf(t, 3)
	exact := false
	s.exact = func(partition.Copy) bool { return exact }
	s.pass(20 * time.Second)
	s.there[2] = false
	s.pass(25 * time.Second)
	s.there[2] = true
	s.pass(5 * time.Second)
	if d := s.state.state.Definition(1); d.State != index.Backfill || len(s.began) != 0 {
		t.Fatalf("the index is %s, and began %+v", d.State, s.began)
	}
	s.there[2] = false
	s.pass(20 * time.Minute) // longer than BuildTimeout and RepairAfter
	if d := s.state.state.Definition(1); d.State != index.Backfill || len(s.began) != 1 {
		t.Fatalf("the index is %s, and began %+v", d.State, s.began)
	}
	exact = true
	s.pass(10 * time.Second)
	for _, c := range s.state.state.Topology(1).Copies {
		if c.Node == 2 && c.State != partition.Leaving {
			t.Errorf("copy %+v is still there", c)
		}
	}
	if d := s.state.state.Definition(1); d.State != index.Maintenance {
		t.Errorf("the index is %s", d.State)
	}
}

// TestUncreatedCopiesDoNotCancelARebalance checks that an operator's rebalance continues, and that copies which
// its steps give to an absent indexer wait for it as long as usual.
func TestUncreatedCopiesDoNotCancelARebalance(t *testing.T) {
	s := indexersOf(t, 3)
	s.exact = func(partition.Copy) bool { return true }
	s.pass(20 * time.Second)
	old := s.state.state.Topology(1).Copies[0]
	s.there[2] = false
	s.commit(&statecontext.StartRebalance{Cause: "an operator", Sends: 1, Receives: 1, Steps: []partition.Rebalance{{
		Index: 1, Slice: old.Slice, Old: old.ID, Src: partition.Shard{Node: old.Node}, Dst: partition.Shard{Node: 2}}}})
	s.state.do(&statecontext.CreateIndex{Placement: []statecontext.Placement{{Node: 2}}, Layout: partition.Layout{
		Scheme: partition.HashDocID, Partitions: 1}, Definition: index.Definition{Name: "y", Bucket: "b", BucketUUID: "u",
		Keys: []index.KeyExpr{{Expr: "a"}}, Partitions: 1}})
	s.step(Changed{})
	s.pass(time.Minute)
	if r := s.state.state.RebalanceUnderWay(); r == nil || r.Cause != "an operator" ||
		r.Phase != statecontext.RebalanceRunning {
		t.Errorf("the rebalance is %+v", r)
	}
	s.pass(10 * time.Minute) // the step is given up, and so the rebalance is over
	if c := s.state.state.Topology(2).Copies; len(c) != 1 || c[0].Node == 2 {
		t.Errorf("the copies of the new index are %+v", c)
	}
}

// TestCancelledRepairOfUncreatedCopies checks that a cancelled repair begins again when the indexer has been away
// for RepairAfter.
func TestCancelledRepairOfUncreatedCopies(t *testing.T) {
	s := indexersOf(t, 3)
	s.pass(20 * time.Second)
	s.there[2] = false
	s.state.do(&statecontext.CreateIndex{Placement: []statecontext.Placement{{Node: 2}}, Layout: partition.Layout{
		Scheme: partition.HashDocID, Partitions: 1}, Definition: index.Definition{Name: "y", Bucket: "b", BucketUUID: "u",
		Keys: []index.KeyExpr{{Expr: "a"}}, Partitions: 1}})
	s.step(Changed{})
	s.pass(20 * time.Second)
	if len(s.began) != 1 {
		t.Fatalf("%d repairs began", len(s.began))
	}
	s.commit(&statecontext.CancelRebalance{ID: s.state.state.RebalanceUnderWay().ID})
	s.step(Changed{})
	s.pass(9 * time.Minute) // BuildTimeout is not over
	if len(s.began) != 1 {
		t.Fatalf("%d repairs began after it was cancelled", len(s.began))
	}
	s.pass(8 * time.Minute)
	if len(s.began) != 2 {
		t.Errorf("%d repairs began in all", len(s.began))
	}
}

// TestQueuedBuildDoesNotFail checks that a build does not fail while copies of it wait for their turn to be built
// on other indexers, which takes as long as the copies before them take.
func TestQueuedBuildDoesNotFail(t *testing.T) {
	s := buildersOf(t, 3)
	s.exact = func(partition.Copy) bool { return false }
	var on []statecontext.Placement
	for i := range 60 {
		on = append(on, statecontext.Placement{Slice: index.SliceID(i), Node: index.NodeID(i % 3)})
	}
	id := s.state.do(&statecontext.CreateIndex{Placement: on, Layout: partition.Layout{Scheme: partition.HashDocID,
		Partitions: 60}, Definition: index.Definition{Name: "y", Bucket: "b", BucketUUID: "u",
		Keys: []index.KeyExpr{{Expr: "a"}}, Partitions: 60}}).Index
	s.step(Changed{})
	s.pass(20 * time.Second)
	s.there[2] = false
	s.pass(15 * time.Minute)
	waiting := 0
	for y := range s.state.state.RebalanceSteps() {
		if y.State == partition.RebalanceStart {
			waiting++
		}
	}
	if d := s.state.state.Definition(id); d.State != index.Backfill || waiting == 0 {
		t.Errorf("%d steps wait, and the index is %s: %s", waiting, d.State, d.Reason)
	}
}

// TestReturningBuilderContinues checks that a build continues where it was when its indexer is back, although another
// indexer has begun to build what it had.
func TestReturningBuilderContinues(t *testing.T) {
	s := buildersOf(t, 4)
	exact := map[index.CopyID]bool{}
	s.exact = func(c partition.Copy) bool { return exact[c.ID] }
	s.pass(20 * time.Second)
	s.there[2] = false
	s.pass(45 * time.Second)
	if len(s.began) != 1 {
		t.Fatalf("%d repairs began", len(s.began))
	}
	s.there[2] = true
	for _, c := range s.state.state.Topology(1).Copies[:4] {
		exact[c.ID] = true
	}
	s.pass(10 * time.Second)
	if d := s.state.state.Definition(1); d.State != index.Maintenance {
		t.Errorf("the index is %s", d.State)
	}
	if r := s.state.state.RebalanceUnderWay(); r != nil {
		t.Errorf("the repair goes on: %+v", r)
	}
}

// TestSecondLostBuilderIsReplaced checks that a copy of a build is placed once more if the indexer that builds it in
// the place of a lost one is lost as well.
func TestSecondLostBuilderIsReplaced(t *testing.T) {
	s := buildersOf(t, 4)
	s.exact = func(partition.Copy) bool { return false }
	s.pass(20 * time.Second)
	s.there[2] = false
	s.pass(time.Minute)
	for y := range s.state.state.RebalanceSteps() {
		s.there[y.Dst.Node] = false
	}
	s.pass(13 * time.Minute)
	if d := s.state.state.Definition(1); d.State != index.Backfill {
		t.Errorf("the index is %s: %s", d.State, d.Reason)
	}
	for y := range s.state.state.RebalanceSteps() {
		if !y.State.Over() && !s.there[y.Dst.Node] {
			t.Errorf("step %+v waits for an indexer that is away", y)
		}
	}
}

// TestPendingStepsAreReplanned checks that steps of a repair that wait for their turn are given up when their
// target goes, with the reason, and that their copies are planned anew on others at once, while what the target has
// begun waits for it.
func TestPendingStepsAreReplanned(t *testing.T) {
	s := indexersOf(t, 4)
	s.exact = func(partition.Copy) bool { return true }
	var on []statecontext.Placement
	for i := range 60 {
		on = append(on, statecontext.Placement{Slice: index.SliceID(i)})
	}
	id := s.state.do(&statecontext.CreateIndex{Placement: on, Layout: partition.Layout{Scheme: partition.HashDocID,
		Partitions: 60}, Definition: index.Definition{Name: "y", Bucket: "b", BucketUUID: "u",
		Keys: []index.KeyExpr{{Expr: "a"}}, Partitions: 60}}).Index
	s.step(Changed{})
	s.pass(20 * time.Second)
	if d := s.state.state.Definition(id); d.State != index.Maintenance {
		t.Fatalf("the index is %s", d.State)
	}
	lost := map[index.CopyID]bool{}
	for _, c := range s.state.state.Topology(id).Copies {
		lost[c.ID] = true
	}
	s.exact = func(c partition.Copy) bool { return lost[c.ID] || s.state.state.Topology(1).Copies[0].ID == c.ID }
	s.there[0] = false
	s.pass(17 * time.Minute)
	begun, waiting := 0, 0
	for y := range s.state.state.RebalanceSteps() {
		if y.Dst.Node == 1 && y.State == partition.RebalanceStart {
			waiting++
		} else if y.Dst.Node == 1 {
			begun++
		}
	}
	if begun == 0 || waiting == 0 {
		t.Fatalf("%d steps to a node have begun, and %d wait: %+v", begun, waiting, s.state.state.RebalanceUnderWay())
	}
	s.there[1] = false
	s.pass(2 * time.Minute)
	var stay, reasoned int
	planned := map[index.CopyID]bool{}
	for y := range s.state.state.RebalanceSteps() {
		switch to := y.Dst.Node; {
		case y.State == partition.RebalanceGivenUp && to == 1 && strings.Contains(y.Reason, "node 1 has been offline"):
			reasoned++
		case y.State == partition.RebalanceStart && to == 1:
			t.Errorf("step %+v waits for an indexer that is away", y)
		case !y.State.Over():
			planned[y.Old] = true
			if to == 1 {
				stay++
			}
		}
	}
	if stay != begun || reasoned != waiting {
		t.Errorf("%d steps to the node stay, want %d that had begun; %d are given up, want %d", stay, begun, reasoned,
			waiting)
	}
	for old := range lost {
		if !planned[old] {
			t.Errorf("copy %d is not made anew", old)
		}
	}
}
