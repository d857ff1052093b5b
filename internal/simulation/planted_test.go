package simulation

import (
	"flag"
	"strings"
	"testing"
)

var hunt = flag.Int64("hunt", 0, "look for seeds that show the planted bugs, among so many")

// planted are bugs: rules of the protocol switched off. Each must be seen within 10^4 seeds; seed is the first one that
// shows it, so that the test runs these alone.
var planted = []struct {
	bug, rules string
	seed       int64
}{
	{"a stability timestamp in the middle of a snapshot", "snapshotEnds", 0},
	{"a stability timestamp published before its commit", "commitFirst", 0},
	{"restart at the coordinator's own timestamp", "lowestHW,gapRule", 0},
	{"an old incarnation accepted", "incarnation", 0},
	{"a second owner accepted", "ownerFence", 0},
	{"events skipped by the node's HW instead of the slice's position", "slicePos", 0},
	{"events not skipped by the slice's position", "posSkip", 0},
	{"no floor after a side stream", "sideFloor", 0},
	{"a straddling window not skipped", "straddle", 0},
	{"the branch rule by seqno only", "windowRule", 0},
	{"BEGIN not checked against the log", "beginCheck", 0},
	{"a stale log believed", "staleLog,newestMap", 0},
	{"the committed stability timestamp no participant of the branch rule", "committedToo", 0},
	{"tombstones dropped early", "tombstones", 0},
	{"DropData without its closing BEGIN", "dropBegin", 0},
	{"DropData not heeded", "dropData", 0},
	{"an idle bucket not republished", "republish,resettle", 0},
	{"UpsertDeletion left out", "upsertDeletion", 0},
	{"a rollback not scoped", "scoped", 0},
	{"a checkpoint without memtables", "memtables", 0},
	{"SYNC overtaking events", "inOrder", 0},
	{"a deposed leader's late commands obeyed", "fence,revisions,freshLead,projInc", 0},
	{"a gap not filled", "gapRule", 0},
	{"A of a range that is deleted stays behind", "rangeA", 0},
	{"rows that a purged deletion may have removed are kept", "purgeRows", 0},
	{"a side stream of another branch", "sideBranch", 0},
	{"an older version written over a newer one", "seqCheck,posSkip", 0},
	{"a copy fed before it is allocated", "allocateFirst,awaited", 0},
	{"a copy that is made anew after its stream's BEGIN", "awaited", 0},
	{"a copy that becomes whole on an idle bucket", "resettle", 0},
	{"a stream that was fenced off adopted", "fencedAdopted", 0},
}

// TestPlantedBugs: the simulation sees what it is for.
func TestPlantedBugs(t *testing.T) {
	for _, p := range planted {
		t.Run(strings.ReplaceAll(p.bug, " ", "-"), func(t *testing.T) {
			first, last := p.seed, p.seed
			if *hunt > 0 {
				first, last = *from, *from+*hunt-1
			}
			for n := first; n <= last; n++ {
				s, why := run(t, Options{Seed: n, Without: strings.Split(p.rules, ",")})
				if why != "" {
					t.Logf("seed %d step %d: %.160s", n, s.step, why)
					return
				}
			}
			t.Errorf("without %s nothing was seen", p.rules)
		})
	}
}
