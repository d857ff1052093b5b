package api

import (
	"fmt"
	"testing"

	"tidemark/index"
	"tidemark/manager/coordinator/core"
	"tidemark/partition"
	"tidemark/statecontext"
)

// TestMovingSlices checks that each index has its moving slices, without those that have moved.
func TestMovingSlices(t *testing.T) {
	b := newWritten(t)
	b.must(&statecontext.RegisterIndexer{Indexer: statecontext.Indexer{UUID: "v", Name: "i2"}})
	var steps []partition.Rebalance
	for i := range 3 {
		x := b.must(&statecontext.CreateIndex{Definition: index.Definition{Name: fmt.Sprintf("x%d", i), Bucket: "b",
			BucketUUID: "bu", Using: index.UsingOrdered, ExprType: index.ExprN1QL, IsPrimary: true, Partitions: 2},
			Layout:    partition.Layout{Scheme: partition.HashDocID, Partitions: 2},
			Placement: []statecontext.Placement{{}, {Slice: 1}}}).Index
		for _, c := range b.s.Topology(x).Copies[:i] {
			steps = append(steps, partition.Rebalance{Index: x, Slice: c.Slice, Old: c.ID,
				Src: partition.Shard{Node: c.Node}, Dst: partition.Shard{Node: 1}})
		}
	}
	r := b.must(&statecontext.StartRebalance{Cause: "test", Sends: 1, Receives: 1, Steps: steps}).Number
	b.must(&statecontext.StepRebalance{ID: r, Step: 1, From: partition.RebalanceStart, To: partition.RebalanceGivenUp,
		Reason: "test"})
	all := movingSlices(b.s)
	if x := steps[1].Index; len(all) != 1 || len(all[x]) != 2 || all[x][1].Slice != 1 ||
		all[x][1].State != partition.RebalanceStart {
		t.Errorf("%+v", all)
	}
}

// TestRunningSplits checks that running splits are listed beside the rebalances, up to a limit, and the rest is
// counted.
func TestRunningSplits(t *testing.T) {
	b := newWritten(t)
	must := b.must
	layout := func(n uint16) partition.Layout { return partition.Layout{Scheme: partition.HashDocID, Partitions: n} }
	for i := range mostSplits + 3 {
		id := must(&statecontext.CreateIndex{Definition: index.Definition{Name: fmt.Sprintf("x%d", i), Bucket: "b",
			BucketUUID: "bu", Using: index.UsingOrdered, ExprType: index.ExprN1QL, IsPrimary: true, Partitions: 1},
			Layout: layout(1), Placement: []statecontext.Placement{{}}}).Index
		must(&statecontext.AllocateCopies{ID: id, Revision: b.s.DefinitionsRevision(),
			Copies: []index.CopyID{b.s.Topology(id).Copies[0].ID}})
		must(&statecontext.SetIndexState{ID: id, From: index.Pending, To: index.Backfill})
		must(&statecontext.SetIndexState{ID: id, From: index.Backfill, To: index.Maintenance})
		if i > 0 {
			must(&statecontext.SplitIndex{ID: id, Partitions: 2, Layout: layout(2),
				Placement: []statecontext.Placement{{}, {Slice: 1}}})
		}
	}
	all, more := runningSplits(b.s, &core.Status{})
	if len(all) != mostSplits || more != 2 || all[0].Name != "x1" || all[0].Split.Partitions != 2 ||
		all[0].Split.ID != b.s.Successor(b.s.Definition(all[0].ID)).Definition.ID {
		t.Errorf("%d splits and %d more, the first %+v", len(all), more, all[0])
	}
}
