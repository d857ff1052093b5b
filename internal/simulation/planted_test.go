package simulation

import (
	"flag"
	"strings"
	"testing"
)

var hunt = flag.Int64("hunt", 0, "look for seeds that show the planted bugs, among so many")

// plant is a bug: rules of the protocol switched off.
type plant struct {
	bug, rules, faults string
	rate               int
	seed               int64  // the first one that shows it, so that the test runs it and a few more
	says               string // in what is seen, where one check is meant and no other
	// backs are those of the rules that repair what comes of the others' absence: without them alone the seed does not show it.
	backs string
}

// planted must each be seen within 10^4 seeds.
var planted = []plant{
	{"a stability timestamp in the middle of a snapshot", "snapshotEnds", "streamEnds", 0, 1, "", ""},
	{"a stability timestamp published before its commit", "commitFirst", "leaderChanges", 0, 1, "", ""},
	{"restart at the coordinator's own timestamp", "lowestHW,gapRule", "streamEnds", 0, 1, "", ""},
	{"an old incarnation accepted", "incarnation", "", 0, 215, "", ""},
	{"a second owner accepted", "ownerFence,sameBranch", "failovers,streamEnds,lostRequests", 0, 199, "", ""},
	{"events skipped by the node's HW instead of the slice's position", "slicePos", "tornFiles,streamEnds,ddl,brokenConnections", 0, 62, "", ""},
	{"events not skipped by the slice's position", "posSkip", "", 0, 370, "", ""},
	{"no floor after a side stream", "sideFloor", "ddl,nodeCrashes", 0, 141, "", ""},
	{"a straddling window not skipped", "straddle", "streamEnds,brokenConnections,ddl", 0, 98, "", ""},
	{"the branch rule by seqno only", "windowRule", "failovers,nodeCrashes", 8, 994, "", ""},
	{"BEGIN not checked against the log", "beginCheck", "failovers,lostRequests,nodeCrashes", 0, 64, "", ""},
	{"a stale log believed", "staleLog,newestMap,sameBranch", "failovers,leaderChanges,streamEnds", 0, 1227, "", "newestMap,sameBranch"},
	{"the committed stability timestamp no participant of the branch rule", "committedToo", "failovers,nodeCrashes,streamEnds", 0, 2, "", ""},
	{"tombstones dropped early", "tombstones", "ddl,nodeCrashes", 0, 1, "", ""},
	{"DropData without its closing BEGIN", "dropBegin", "drops", 0, 3, "", ""},
	{"DropData not heeded", "dropData", "drops", 0, 1, "", ""},
	{"an idle bucket not republished", "republish", "lostRequests", 0, 7, "", ""},
	{"UpsertDeletion left out", "upsertDeletion", "ddl", 0, 1, "", ""},
	{"a rollback not scoped", "scoped", "failovers", 0, 3, "", ""},
	{"a checkpoint without memtables", "memtables", "failovers", 8, 190, "", ""},
	{"SYNC overtaking events", "inOrder", "brokenConnections", 0, 1, "", ""},
	{"a deposed leader's late commands obeyed", "fence,revisions,freshLead,projInc", "ddl,leaderChanges,lateRequests", 0, 1, "", ""},
	{"a gap not filled", "gapRule", "nodeCrashes,tornFiles", 0, 1, "", ""},
	{"A of a range that is deleted stays behind", "rangeA", "purges,tornFiles,nodeCrashes,ddl", 0, 8, "", ""},
	{"a side stream of another branch", "sideBranch", "failovers,nodeCrashes,ddl", 0, 757, "", ""},
	{"an older version written over a newer one", "seqCheck,posSkip", "nodeCrashes,streamEnds,brokenConnections", 0, 1, "", ""},
	{"a copy that is made anew after its stream's BEGIN", "awaited", "nodeCrashes,lostSlices", 0, 1, "", ""},
	{"a copy that becomes whole on an idle bucket", "resettle", "ddl", 0, 1, "", ""},
	{"two replicas on one node", "apart", "moves", 0, 1, "are both on node", ""},
	{"DDL acknowledged before its commit", "committed", "ddl,lostProposals", 0, 1, "as acknowledged", ""},
	{"a leader that lacks what was committed", "newestLog", "ddl,leaderChanges", 0, 1, "as acknowledged", ""},
	{"the state's time set by the leader's wall clock", "pacedTime", "leaderChanges", 0, 1, "state's time", ""},
	{"a lower term obeyed", "fence", "leaderChanges,lateRequests", 0, 1, "obeys epoch", ""},
	{"a projector that started obeys before it has asked", "askFirst", "leaderChanges,projectorCrashes,lateRequests", 0, 8, "obeys epoch", ""},
	{"a queue that grows over its bound", "bounded", "fullDisks", 0, 1, "queues", ""},
	{"what cannot be undone is told without a check of leadership", "freshLead,fence", "ddl,leaderChanges", 0, 1, "", ""},
	{"a deletion that was purged missed by a side stream", "purgeSide,purgeRows", "purges,tornFiles,nodeCrashes,ddl", 0, 2, "", ""},
	{"DEACTIVATE not heeded", "deactivate", "ddl,moves", 0, 394, "", ""},
	{"a stream that an indexer has fenced off is taken over", "fencedAdopted", "leaderChanges,lostRequests", 0, 259, "stuck", ""},
	{"a stability timestamp of the lost branch obeyed", "sBranch,sRollback", "failovers,lateRequests", 0, 578, "", ""},
	{"copies fed before their hosts have them", "allocateFirst,awaited", "ddl,lostRequests", 0, 1, "", "awaited"},
	{"a stream from below the purge seqno passes a copy by", "purgeBegin", "purges,streamEnds", 0, 3160, "", ""},
	{"no floor at the purge seqno", "purgeFloor", "purges,streamEnds", 0, 2524, "", ""},
	{"no floor where a window was applied ahead", "aheadFloor", "streamEnds,brokenConnections", 0, 1014, "", ""},
	{"an older list obeyed", "revisions", "ddl,nodeCrashes,lateRequests", 0, 49, "", ""},
	{"two owners under one incarnation", "oneOwner,sameBranch", "failovers,streamEnds", 0, 3, "has two owners", "sameBranch"},
	{"promotion goes over to another branch", "onBranch,committedToo", "failovers,streamEnds", 0, 1, "goes over from", "committedToo"},
	{"a poll that fences nothing off", "fencePoll,beginCheck", "failovers", 0, 130, "", "beginCheck"},
	{"a side stream that counts beyond its end", "sideEnd", "purges,tornFiles,nodeCrashes,ddl", 0, 1, "", ""},
	{"a document in parts counts with the first of them", "wholeParts", "ddl", 0, 1, "", ""},
	{"a session scan shows what a flush has undone", "emptyBranch", "flushes", 0, 1, "a session scan", ""},
	{"promotion that waits for nobody", "paced", "pauses", 0, 1, "does not wait", ""},
}

// near is how many seeds beside the one in the table are tried, so that a change that shifts them need not find new ones.
const near = 60

// TestPlantedBugs: the simulation sees what it is for.
func TestPlantedBugs(t *testing.T) {
	for _, p := range planted {
		t.Run(strings.ReplaceAll(p.bug, " ", "-"), func(t *testing.T) {
			first, last := p.seed, p.seed+near
			if *hunt > 0 {
				first, last = *from, *from+*hunt-1
			}
			for n := first; n <= last; n++ {
				s, why := p.run(t, n, p.rules)
				if why == "" {
					continue
				}
				if _, also := p.run(t, n, ""); also != "" {
					t.Errorf("seed %d goes wrong with all rules as well: %s", n, also)
				}
				if p.backs != "" {
					if _, also := p.run(t, n, p.backs); also != "" {
						continue
					}
				}
				t.Logf("seed %d step %d: %.160s", n, s.step, why)
				return
			}
			t.Errorf("without %s nothing was seen", p.rules)
		})
	}
}

// run runs a seed without some rules; what it says is left out when another check is meant.
func (p *plant) run(t *testing.T, seed int64, without string) (*Sim, string) {
	s, why := run(t, Options{Seed: seed, Without: names(without), Faults: names(p.faults), Rate: p.rate})
	if without != "" && !strings.Contains(why, p.says) {
		why = ""
	}
	return s, why
}

// TestEveryRuleIsPlanted: there is no rule that nothing shows the need of.
func TestEveryRuleIsPlanted(t *testing.T) {
	shown := map[string]bool{}
	for _, p := range planted {
		for _, r := range names(p.rules) {
			shown[r] = true
		}
	}
	for _, r := range allRules() {
		if !shown[r] {
			t.Errorf("no planted bug switches %s off", r)
		}
	}
}
