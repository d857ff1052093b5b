package ingest

import "testing"

// TestRulesNeeded: with a rule off the simulation must find a violation, or it could not see one.
func TestRulesNeeded(t *testing.T) {
	if *simReplay != 0 || *simOff != 0 {
		t.Skip("one run was asked for")
	}
	// Not found by themselves in 3,000 seeds, because another rule does the same work there: staleLog, fencePoll,
	// deactivate, sBranch, sRollback, purgeFloor, purgeBegin, purgeSide, aheadFloor. Tables and scripts show those.
	cases := []struct {
		name string
		off  Rules
		from int64
	}{
		{"posSkip", posSkip, 900}, {"gapRule", gapRule, 1}, {"straddle", straddle, 1}, {"sideFloor", sideFloor, 1},
		{"tombstones", tombstones, 1}, {"windowRule", windowRule, 300}, {"beginCheck", beginCheck, 415},
		{"ownerFence", ownerFence, 60},
		{"incarnation", incarnation, 1}, {"dropData", dropData, 1}, {"snapshotEnds", snapshotEnds, 1},
		{"resettle", resettle, 1}, {"rangeA", rangeA, 1}, {"purgeRows", purgeRows, 100}, {"sideBranch", sideBranch, 100},
		{"upsertDeletion", upsertDeletion, 1}, {"awaited", awaited, 1},
		{"sideEnd", sideEnd, 1}, {"wholeParts", wholeParts, 1}, {"commonRows", commonRows, 20},
	}
	for _, c := range cases {
		found := ""
		seed := c.from
		for ; seed < c.from+100 && found == ""; seed++ {
			found = newSim(seed, c.off).run(1500)
		}
		if found == "" {
			t.Errorf("without %s nothing was found", c.name)
		}
		t.Logf("-%s: seed %d: %.120s", c.name, seed-1, found)
	}
}
