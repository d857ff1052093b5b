package ingest

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"tidemark/internal/testing/planted"
)

// simRules are those of the parts that the simulation stands in for; package planted has the rules of the product.
var simRules = map[string]string{
	"upsertDeletion": "the router tells hosts of slices that a document's key is not in so",
	"snapshotEnds":   "a projector's SYNC names only sequence numbers that end a DCP snapshot",
	"useOlder":       "the store's rollbacks use snapshots and checkpoints (off: always to nothing)",
	"commonRows":     "what the store keeps of where copies stand together is of rows that are durable, and of no others",
}

// simOffs are the rules that are switched off.
type simOffs map[string]bool

// others reports whether rules but this one are switched off.
func (o simOffs) others(than string) bool { return len(o) > 1 || len(o) == 1 && !o[than] }

// switchOff switches these rules off, and all others on. It panics where there is none of a name.
func switchOff(names []string) simOffs {
	o := simOffs{}
	for _, n := range names {
		o[n] = true
	}
	if err := planted.Switch(slices.DeleteFunc(slices.Clone(names), func(n string) bool {
		return simRules[n] != ""
	})...); err != nil {
		panic(err)
	}
	return o
}

// offs are the rules that were asked for.
func offs() []string {
	if *simOff == "" {
		return nil
	}
	return strings.Split(*simOff, ",")
}

func ofProduct(names []string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return simRules[n] == "" })
}

// needed are rules whose lack the simulation shows within 100 seeds from the one named. Not found by themselves in
// 3,000 seeds, because another rule does the same work there: staleLog, fencePoll, deactivate, sBranch, sRollback,
// purgeFloor, purgeBegin, purgeSide, aheadFloor. Tables and scripts show those.
var needed = []struct {
	rule string
	from int64
}{
	{"posSkip", 900}, {"gapRule", 1}, {"straddle", 1}, {"sideFloor", 1}, {"tombstones", 1}, {"windowRule", 300},
	{"beginCheck", 415}, {"ownerFence", 100}, {"incarnation", 1}, {"dropData", 1}, {"snapshotEnds", 1}, {"resettle", 1},
	{"rangeA", 1}, {"purgeRows", 100}, {"sideBranch", 100}, {"upsertDeletion", 1}, {"awaited", 1}, {"sideEnd", 1},
	{"wholeParts", 1}, {"commonRows", 600},
}

// TestRulesNeeded: with a rule off the simulation must find a violation, or it could not see one. Each is looked for in
// a process of its own, of a program whose rules can be switched off.
func TestRulesNeeded(t *testing.T) {
	if *simReplay != 0 || *simOff != "" {
		t.Skip("one run was asked for")
	}
	if planted.Built {
		for _, c := range needed {
			t.Run(c.rule, func(t *testing.T) { lack(t, c.rule, c.from) })
		}
		return
	}
	program := planted.Build(t)
	for _, c := range needed {
		t.Run(c.rule, func(t *testing.T) {
			t.Parallel()
			out, err := planted.Run(t, program, "-test.run=^TestRulesNeeded$/^"+regexp.QuoteMeta(c.rule)+"$", "-test.v")
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			_, seen, _ := strings.Cut(out, "rules_test.go")
			t.Log(seen)
		})
	}
}

func lack(t *testing.T, rule string, from int64) {
	for seed := from; seed < from+100; seed++ {
		if found := newSim(seed, rule).run(1500); found != "" {
			t.Logf("-%s: seed %d: %.120s", rule, seed, found)
			return
		}
	}
	t.Errorf("without %s nothing was found", rule)
}
