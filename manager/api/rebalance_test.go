package api

import (
	"fmt"
	"testing"

	"tidemark/index"
	"tidemark/manager/coordinator/core"
	"tidemark/partition"
	"tidemark/statecontext"
)

// TestRunningSplits: splits under way are listed beside the rebalances, up to a bound, and the rest is counted.
func TestRunningSplits(t *testing.T) {
	s := statecontext.New()
	must := func(b statecontext.Body) statecontext.Result {
		t.Helper()
		next, results, _ := statecontext.ApplyCommands(s, s.AppliedIndex()+1,
			[]statecontext.Command{{TimeMS: 1, Body: b}})
		if err := results[0].Err(); err != nil {
			t.Fatal(err)
		}
		s = next
		return results[0]
	}
	must(&statecontext.LeaderStarted{Term: 1, Manager: statecontext.Manager{ID: "m1",
		FormatLevel: statecontext.FormatLevel}})
	must(&statecontext.BootstrapCluster{ClusterID: "c", Epoch: 1, FormatLevel: statecontext.FormatLevel})
	must(&statecontext.RegisterIndexer{Indexer: statecontext.Indexer{UUID: "u", Name: "i1"}})
	must(&statecontext.SetBucket{Name: "b", UUID: "bu", VBuckets: 4})
	layout := func(n uint16) partition.Layout { return partition.Layout{Scheme: partition.HashDocID, Partitions: n} }
	for i := range mostSplits + 3 {
		id := must(&statecontext.CreateIndex{Definition: index.Definition{Name: fmt.Sprintf("x%d", i), Bucket: "b",
			BucketUUID: "bu", Using: index.UsingOrdered, ExprType: index.ExprN1QL, IsPrimary: true, Partitions: 1},
			Layout: layout(1), Placement: []statecontext.Placement{{}}}).Index
		must(&statecontext.SetCopyStates{Revision: s.DefinitionsRevision(), Copies: []statecontext.CopyChange{{Index: id,
			Copy: s.Topology(id).Copies[0].ID, State: partition.Allocated}}})
		must(&statecontext.SetIndexState{ID: id, From: index.Pending, To: index.Backfill})
		must(&statecontext.SetIndexState{ID: id, From: index.Backfill, To: index.Maintenance})
		if i > 0 {
			must(&statecontext.SplitIndex{ID: id, Partitions: 2, Layout: layout(2),
				Placement: []statecontext.Placement{{}, {Slice: 1}}})
		}
	}
	all, more := runningSplits(s, &core.Status{})
	if len(all) != mostSplits || more != 2 || all[0].Name != "x1" || all[0].Split.Partitions != 2 ||
		all[0].Split.ID != s.Successor(s.Definition(all[0].ID)).Definition.ID {
		t.Errorf("%d splits and %d more, the first %+v", len(all), more, all[0])
	}
}
