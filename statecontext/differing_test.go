package statecontext

import (
	"testing"

	"tidemark/errcode"
	"tidemark/index"
)

// TestDifferences: a differing copy is recorded until its indexer reports that it agrees, or the copy is gone.
// Recording the present state is not an update; each change emits one event with copy, index and indexer.
func TestDifferences(t *testing.T) {
	n := cluster(t)
	id := n.must(create("x", 1, 0, 1)).Index
	c := n.state.Topology(id).Copies[0]
	found := &NoteDifference{Index: id, Copy: c.ID, Node: c.Node, Documents: 3, Kind: "missing_row", TakenAnew: true}
	for _, bad := range []NoteDifference{{Index: 99, Copy: c.ID, Node: c.Node, Documents: 1, Kind: "k"},
		{Index: id, Copy: 99, Node: c.Node, Documents: 1, Kind: "k"}, {Index: id, Copy: c.ID, Node: 1 - c.Node, Documents: 1, Kind: "k"}} {
		code := errcode.UnknownCopy
		if bad.Index == 99 {
			code = errcode.UnknownIndex
		}
		n.refuse(&bad, code)
	}
	n.refuse(&NoteDifference{Index: id, Copy: c.ID, Node: c.Node, Documents: 1}, errcode.InvalidArgument)
	note := func(body NoteDifference, changed bool, want DifferingCopy) {
		t.Helper()
		state, results, events := ApplyCommands(n.state, n.state.AppliedIndex()+1,
			[]Command{{TimeMS: n.now, WallMS: 77, Body: &body}})
		n.state = state
		if results[0].Rejection != nil || results[0].Changed != changed || len(events) != map[bool]int{true: 1}[changed] {
			t.Fatalf("%+v: %+v, %d events", body, results[0], len(events))
		}
		if !changed {
			return
		}
		e := events[0]
		got := *e.Difference
		got.ModifiedCAS = 0
		if e.Kind != EventDifference || e.Name != "x" || e.Bucket != "b" || e.Index != id || e.Node != c.Node ||
			e.Removed != (want.Documents == 0) || got != want {
			t.Errorf("%+v: event %+v with %+v, want %+v", body, e, got, want)
		}
		if err := Check(n.state); err != nil {
			t.Error(err)
		}
	}
	want := DifferingCopy{Index: id, Copy: c.ID, Slice: c.Slice, Replica: c.Replica, Node: c.Node,
		Indexer: n.state.Indexer(c.Node).Name, Documents: 3, Kind: "missing_row", TakenAnew: true, SinceMS: 77}
	note(*found, true, want)
	note(*found, false, want)
	found.Documents, want.Documents = 5, 5
	note(*found, true, want)
	back, err := ReadSnapshot(newReader(snapshot(t, n.state)))
	if err != nil || Hash(back) != Hash(n.state) || *back.Difference(c.ID) != *n.state.Difference(c.ID) {
		t.Errorf("a snapshot gives %+v, %v", back.Difference(c.ID), err)
	}
	want.Documents, want.TakenAnew = 0, false
	note(NoteDifference{Index: id, Copy: c.ID}, true, want)
	note(NoteDifference{Index: id, Copy: c.ID}, false, want)
	if n.state.Difference(c.ID) != nil {
		t.Error("it is known to differ still")
	}
}

// TestDifferencesAreBounded: recording more copies than the maximum is rejected; recorded ones can still change.
func TestDifferencesAreBounded(t *testing.T) {
	n := cluster(t)
	id := n.must(create("x", 1, 0, 1)).Index
	c := n.state.Topology(id).Copies[0]
	for i := range MaxDifferences {
		n.state.differences.Set(index.CopyID(1000+i), &DifferingCopy{Copy: index.CopyID(1000 + i), Documents: 1, Kind: "k"})
	}
	n.refuse(&NoteDifference{Index: id, Copy: c.ID, Node: c.Node, Documents: 3, Kind: "k"}, errcode.LimitExceeded)
	n.must(&NoteDifference{Copy: 1000})
	n.must(&NoteDifference{Index: id, Copy: c.ID, Node: c.Node, Documents: 3, Kind: "k"})
}
