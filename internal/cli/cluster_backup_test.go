package cli

import (
	"testing"

	"tidemark/statecontext"
)

// TestRestorePlanIsPrinted checks that each action has one line with its indexes, in a fixed order, and the number of
// those left out.
func TestRestorePlanIsPrinted(t *testing.T) {
	p := statecontext.RestorePlan{Kept: 1, Differing: 2, Rebuilt: 1, Waiting: 1, Dropped: 3, Splits: 1,
		Named: []statecontext.PlannedIndex{
			{Keyspace: "b", Name: "d", Fate: statecontext.FateDropped},
			{Keyspace: "b", Name: "r", Fate: statecontext.FateRebuilt, Note: "2 of 6 copies are made anew"},
			{Keyspace: "b", Name: "o", Fate: statecontext.FateDiffering, Note: "num_replica 1, in the backup 0"},
			{Keyspace: "b.s.c", Name: "k", Fate: statecontext.FateKept},
			{Keyspace: "b", Name: "w", Fate: statecontext.FateWaiting},
		}}
	if got, want := planText(p), "3 indexes stay, 0 come back with what their hosts hold, 1 is built, 0 come back in "+
		"state error, 3 are dropped, 1 waits for BUILD INDEX, 1 split ends"; got != want {
		t.Errorf("text %q, want %q", got, want)
	}
	if got, want := planNames(p), "  b.s.c/k stays as it is\n"+
		"  b/o stays as it is now (num_replica 1, in the backup 0)\n"+
		"  and 1 more: stays as it is now\n"+
		"  b/r is built (2 of 6 copies are made anew)\n"+
		"  b/w comes back and waits for BUILD INDEX\n"+
		"  b/d is dropped\n  and 2 more: is dropped\n"; got != want {
		t.Errorf("names %q, want %q", got, want)
	}
}
