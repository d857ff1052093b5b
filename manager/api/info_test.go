package api

import (
	"testing"

	"tidemark/index"
	"tidemark/manager/coordinator/core"
	"tidemark/partition"
	"tidemark/statecontext"
	"tidemark/wire"
)

// TestInfoReportsUnknownValues checks that entries of slices without a report, and faults that a component has left
// out, are not shown as none.
func TestInfoReportsUnknownValues(t *testing.T) {
	ready := statecontext.Index{Definition: index.Definition{ID: 1, State: index.Maintenance, Partitions: 2}}
	ready.Topology.Layout.Partitions = 2
	ready.Topology.Copies = []partition.Copy{{ID: 1}, {ID: 2, Slice: 1}}
	building := ready
	building.Definition.State = index.Backfill
	for name, c := range map[string]struct {
		x                 *statecontext.Index
		p                 core.Progress
		incomplete, fault bool
	}{
		"being built":               {x: &building},
		"no component was asked":    {x: &ready, incomplete: true},
		"a slice is not reported":   {x: &ready, p: core.Progress{Items: 7, Slices: 1}, incomplete: true},
		"all slices are reported":   {x: &ready, p: core.Progress{Items: 9, Slices: 2}},
		"a component omits indexes": {x: &ready, p: core.Progress{Slices: 2, FaultsIncomplete: true}, fault: true},
	} {
		i := info(c.x, &core.Status{Progress: map[index.ID]core.Progress{1: c.p}})
		if i.Items != c.p.Items || i.ItemsIncomplete != c.incomplete {
			t.Errorf("%s: %d entries, incomplete: %v", name, i.Items, i.ItemsIncomplete)
		}
		if (i.Faults != nil) != c.fault || c.fault && (!i.Faults.Incomplete || i.Faults.Sample != nil) {
			t.Errorf("%s: faults %+v", name, i.Faults)
		}
	}
	progress := core.Progress{Slices: 2, Faults: wire.IndexFaults{TooLong: 3, Sample: wire.FaultSample{DocID: "k"}}}
	s := &core.Status{Progress: map[index.ID]core.Progress{1: progress}}
	if f := info(&ready, s).Faults; f == nil || f.TooLong != 3 ||
		f.Incomplete || f.Sample == nil || f.Sample.DocID != "k" {
		t.Errorf("faults %+v", f)
	}
}
