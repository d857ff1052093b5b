package simulation

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"tidemark/internal/testing/garbage"
	"tidemark/internal/testing/planted"
)

var hunt = flag.Int64("hunt", 0,
	"count the seeds that show each planted bug, among so many, and write testdata/planted.txt")

// plant is a planted bug: rules of the protocol that are switched off.
type plant struct {
	bug, rules, faults string
	rate, steps        int    // 0: the default
	less               string // a class of steps that are rare, see Options.Less
	one                bool   // Options.OneSequence: hardly any seed shows the bug
	says               string // part of the expected violation, if only one check should find the bug
	// backs are rules that repair the effects of the bug: the seed must show nothing when only these are off.
	backs string
}

// bugs must each be found within reach seeds.
var bugs = []plant{
	{bug: "a stability timestamp in the middle of a snapshot", rules: "snapshotEnds", faults: "streamEnds"},
	{bug: "a stability timestamp published before its commit", rules: "commitFirst", faults: "leaderChanges"},
	{bug: "restart at the coordinator's own timestamp", rules: "lowestHW,gapRule", faults: "streamEnds"},
	{bug: "an old incarnation accepted", rules: "incarnation"},
	{bug: "a second owner accepted", rules: "ownerFence,sameBranch", faults: "failovers,streamEnds,lostRequests"},
	{bug: "events skipped by the node's HW instead of the slice's position", rules: "slicePos", faults: "tornFiles,streamEnds,stalls", less: fewWrites},
	{bug: "events not skipped by the slice's position", rules: "posSkip"},
	{bug: "no floor after a side stream", rules: "sideFloor", faults: "ddl", rate: 8},
	{bug: "a straddling window not skipped", rules: "straddle", faults: "streamEnds,brokenConnections,ddl"},
	{bug: "the branch rule by seqno only", rules: "windowRule", faults: "failovers,failovers,lostRequests,nodeCrashes", rate: 30, steps: 500},
	{bug: "BEGIN not checked against the log", rules: "beginCheck", faults: "failovers,failovers,flushes,lostRequests,nodeCrashes,nodeCrashes", rate: 8},
	{bug: "a stale log accepted", rules: "staleLog,newestMap,sameBranch", faults: "failovers,leaderChanges,streamEnds", backs: "newestMap,sameBranch", one: true},
	{bug: "the committed stability timestamp no participant of the branch rule", rules: "committedToo", faults: "failovers,nodeCrashes,streamEnds"},
	{bug: "tombstones dropped early", rules: "tombstones", faults: "ddl,nodeCrashes"},
	{bug: "DropData without its closing BEGIN", rules: "dropBegin", faults: "drops"},
	{bug: "DropData not heeded", rules: "dropData", faults: "drops"},
	{bug: "an idle bucket not republished", rules: "republish", faults: "lostRequests"},
	{bug: "UpsertDeletion left out", rules: "upsertDeletion", faults: "ddl"},
	{bug: "a rollback not scoped", rules: "scoped", faults: "failovers"},
	{bug: "a checkpoint without memtables", rules: "memtables", faults: "failovers", rate: 8},
	{bug: "SYNC overtaking events", rules: "inOrder", faults: "brokenConnections"},
	{bug: "a deposed leader's late commands obeyed", rules: "fence,revisions,freshLead,projInc", faults: "ddl,leaderChanges,lateRequests"},
	{bug: "a gap not filled", rules: "gapRule", faults: "nodeCrashes,tornFiles"},
	{bug: "A of a range that is deleted stays behind", rules: "rangeA", faults: "purges,tornFiles,nodeCrashes,ddl"},
	{bug: "a side stream of another branch", rules: "sideBranch", faults: "failovers,nodeCrashes,ddl"},
	{bug: "an older version written over a newer one", rules: "seqCheck,posSkip", faults: "nodeCrashes,streamEnds,brokenConnections"},
	{bug: "a copy that is created again after its stream's BEGIN", rules: "awaited", faults: "nodeCrashes,lostSlices"},
	{bug: "a copy that becomes whole on an idle bucket", rules: "resettle", faults: "ddl"},
	{bug: "two replicas on one node", rules: "apart", faults: "ddl", says: "are both on node"},
	{bug: "DDL acknowledged before its commit", rules: "committed", faults: "ddl,lostProposals", says: "as acknowledged"},
	{bug: "a leader that lacks what was committed", rules: "newestLog", faults: "ddl,leaderChanges", says: "as acknowledged"},
	{bug: "the state's time set by the leader's wall clock", rules: "pacedTime", faults: "leaderChanges", says: "state's time"},
	{bug: "a lower term obeyed", rules: "fence", faults: "leaderChanges,lateRequests", says: "obeys epoch"},
	{bug: "a projector that started obeys before it has asked", rules: "askFirst,meant", faults: "leaderChanges,projectorCrashes,lateRequests", says: "obeys epoch", backs: "meant"},
	{bug: "a queue that grows over its bound", rules: "bounded", faults: "fullDisks", says: "queues"},
	{bug: "an irreversible command is sent without a check of leadership", rules: "freshLead,fence", faults: "ddl,leaderChanges"},
	{bug: "a deletion that was purged missed by a side stream", rules: "purgeSide,purgeRows", faults: "purges,tornFiles,nodeCrashes,ddl"},
	{bug: "DEACTIVATE not heeded", rules: "deactivate", faults: "ddl,moves"},
	{bug: "a stream that an indexer has fenced off is taken over", rules: "fencedAdopted", faults: "leaderChanges,lostRequests", says: "stuck"},
	{bug: "a stability timestamp of the lost branch obeyed", rules: "sBranch,sRollback", faults: "failovers,lateRequests"},
	{bug: "copies fed before their hosts have them", rules: "allocateFirst,awaited", faults: "ddl,lostRequests", backs: "awaited"},
	{bug: "a stream from below the purge seqno accepted by a copy", rules: "purgeBegin", faults: "purges,streamEnds,stalls,stalls"},
	{bug: "no floor at the purge seqno", rules: "purgeFloor", faults: "purges,streamEnds,stalls,stalls,takeovers"},
	{bug: "no floor where a window was applied ahead", rules: "aheadFloor", faults: "streamEnds,brokenConnections"},
	{bug: "an older list obeyed", rules: "revisions,meant", faults: "ddl,nodeCrashes,lateRequests", backs: "meant"},
	{bug: "two owners under one incarnation", rules: "oneOwner,sameBranch", faults: "failovers,streamEnds", says: "has two owners", backs: "sameBranch"},
	{bug: "promotion goes over to another branch", rules: "onBranch,committedToo", faults: "failovers,streamEnds", says: "goes over from", backs: "committedToo"},
	{bug: "a poll that fences nothing off", rules: "fencePoll,beginCheck", faults: "failovers", backs: "beginCheck"},
	{bug: "a side stream that counts beyond its end", rules: "sideEnd,sidePast", faults: "purges,tornFiles,nodeCrashes,ddl", backs: "sidePast"},
	{bug: "a document in parts counts with the first of them", rules: "wholeParts", faults: "ddl"},
	{bug: "a session scan shows what a flush has undone", rules: "emptyBranch", faults: "flushes", says: "a session scan"},
	{bug: "files of a source that changes meanwhile", rules: "pinned", faults: "moves"},
	{bug: "a copy that serves before it is whole", rules: "wholeFirst", faults: "moves", says: "scan"},
	{bug: "an old copy dropped before the commit", rules: "dropAfter", faults: "moves", says: "which is placed there"},
	{bug: "a name given to an index that is being built", rules: "switchWhenWhole", faults: "splits", says: "by name"},
	{bug: "a merge that loses events during it", rules: "mergedSlices", faults: "splits", says: "has 0@0, the oracle"},
	{bug: "a merge that has the name before the events during it", rules: "mergedExact", faults: "splits",
		says: "has never been exact"},
	{bug: "requested slices merged", rules: "asked", faults: "splits,sizes", says: "were asked for"},
	{bug: "an automatic split or merge beside another", rules: "alone", faults: "splits,sizes,ddl",
		says: "by itself while"},
	{bug: "positions kept of rows that are not durable", rules: "keptRows", faults: "commonFiles,tornFiles", rate: 3},
	{bug: "requests for side streams that count when they are over", rules: "sideRoom",
		faults: "askedSides,ddl,drops,failovers", says: "stuck"},
	{bug: "a copy that a side stream leaves out counts as filled by it", rules: "sideCopies",
		faults: "partSides,ddl", less: fewWrites},
	{bug: "a snapshot below one that was cut short is complete", rules: "cutEnd"},
	{bug: "an unknown purge seqno counts as zero", rules: "blind",
		faults: "noStats,purges,tornFiles,nodeCrashes,ddl"},
	{bug: "a plan on a stale placement", rules: "planFits,stepFits,stepLacks", faults: "stalePlans,moves",
		says: "no step moves it", backs: "stepFits,stepLacks"},
	{bug: "a step that begins on another placement than it was planned on", rules: "stepFits,stepLacks",
		faults: "stalePlans,moves", says: "no step moves it", backs: "stepLacks"},
	{bug: "a step that cannot begin is never given up", rules: "stepLacks", faults: "stalePlans,moves",
		says: "stuck: rebalance"},
	{bug: "a step applied twice", rules: "caughtUp,stepOnce", faults: "stalePlans,moves,moves,moves,leaderChanges",
		says: "that are given up, and counts", backs: "caughtUp"},
	{bug: "an old copy that leaves before the new one is whole", rules: "stepWhole", faults: "stalePlans,moves",
		says: "is done, and its copy"},
	{bug: "an index that is ready with a copy placed since", rules: "readyPlaced", faults: "stalePlans,moves,ddl",
		says: "has never been exact"},
	{bug: "promotion that waits for no indexer", rules: "paced", faults: "pauses", says: "does not wait"},
}

// reach is how many seeds are tried for a planted bug, from the seed in seedsFile on. The first few seeds show most
// bugs, so a change of what a seed does needs no new search.
const reach = 3000

var built struct {
	once sync.Once
	dir  string
	path string
}

// program returns the program of these tests in which rules can be switched off. It is built once.
func program(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		dir, err := os.MkdirTemp("", "tidemark-planted-") //nolint:usetesting // it outlives the test
		if err != nil {
			t.Fatal(err)
		}
		built.dir = dir
		built.path = planted.BuildIn(t, dir)
	})
	if built.path == "" {
		t.Fatal("the program with planted rules was not built")
	}
	return built.path
}

func TestMain(m *testing.M) {
	garbage.Rarely()
	code := m.Run()
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// TestPlantedBugs checks that the simulation finds each planted bug. Each search runs in a process of its own, of a
// program in which rules can be switched off (package planted).
func TestPlantedBugs(t *testing.T) {
	if planted.Built {
		for _, p := range bugs {
			t.Run(p.name(), p.search)
		}
		return
	}
	program, lines := program(t), make([]string, len(bugs))
	t.Cleanup(func() { // after all searches
		if *hunt == 0 || slices.Contains(lines, "") {
			return
		}
		if err := os.WriteFile(seedsFile, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
			t.Error(err)
		}
	})
	for i, p := range bugs {
		t.Run(p.name(), func(t *testing.T) {
			t.Parallel()
			out, err := planted.Run(t, program, "-test.run=^TestPlantedBugs$/^"+regexp.QuoteMeta(p.name())+"$", "-test.v",
				fmt.Sprint("-hunt=", *hunt), fmt.Sprint("-from=", *from))
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			_, line, _ := strings.Cut(out, found)
			lines[i], _, _ = strings.Cut(line, "\n")
			t.Log(lines[i])
		})
	}
}

// found precedes the result in the other process's output.
const found = "found: "

// search tries one seed after the other until one shows the bug or, for a hunt, all of them.
func (p *plant) search(t *testing.T) {
	begin := max(readSeeds(t)[p.name()], 1)
	if *hunt > 0 {
		p.count(t, begin)
		return
	}
	for n := begin; n < begin+reach; n++ {
		if step, why := p.shows(t, n); why != "" {
			t.Logf("%sseed %d step %d: %.160s", found, n, step, why)
			return
		}
	}
	t.Errorf("without %s nothing was seen in %d seeds", p.rules, reach)
}

// count counts the seeds that show the bug, and logs the bug's line of seedsFile.
func (p *plant) count(t *testing.T, before int64) {
	first, shown := int64(0), 0
	for n := *from; n < *from+*hunt; n++ {
		if _, why := p.shows(t, n); why != "" {
			if shown++; first == 0 {
				first = n
			}
		}
	}
	t.Logf("%s%d %d/%d %s", found, cmp.Or(first, before), shown, *hunt, p.name())
}

func (p *plant) name() string { return strings.ReplaceAll(p.bug, " ", "-") }

// shows runs a seed without the rules. It returns the violation if the lack of these rules explains it.
func (p *plant) shows(t *testing.T, seed int64) (step int, why string) {
	s, why := p.run(t, seed, p.rules)
	if !strings.Contains(why, p.says) || why == "" {
		return 0, ""
	}
	if _, also := p.run(t, seed, ""); also != "" {
		t.Errorf("seed %d goes wrong with all rules as well: %s", seed, also)
	}
	if p.backs != "" {
		if _, also := p.run(t, seed, p.backs); also != "" {
			return 0, ""
		}
	}
	return s.step, why
}

func (p *plant) run(t *testing.T, seed int64, without string) (*Sim, string) {
	return run(t, Options{Seed: seed, Without: names(without), Faults: names(p.faults), Rate: p.rate, Steps: p.steps,
		Less: p.less, OneSequence: p.one})
}

// seedsFile has a line for each planted bug: a seed that shows it, how many of how many seeds show it, and its name.
const seedsFile = "testdata/planted.txt"

func readSeeds(t *testing.T) map[string]int64 {
	t.Helper()
	text, err := os.ReadFile(seedsFile)
	if err != nil {
		t.Fatal(err)
	}
	first := map[string]int64{}
	for l := range strings.Lines(string(text)) {
		var seed int64
		var share, name string
		if _, err := fmt.Sscan(l, &seed, &share, &name); err != nil {
			t.Fatalf("%s: %q: %v", seedsFile, l, err)
		}
		first[name] = seed
	}
	return first
}

// TestEveryRuleIsPlanted checks that each rule has a planted bug that shows why the rule is needed.
func TestEveryRuleIsPlanted(t *testing.T) {
	shown := map[string]bool{}
	for _, p := range bugs {
		for _, r := range names(p.rules) {
			shown[r] = true
		}
	}
	for _, r := range allRules() {
		elsewhere := strings.HasPrefix(r, "consumer") || // covered by projector/feed
			r == sharing // covered by TestSharedPositionsEqualOwnLists
		if !shown[r] && !elsewhere {
			t.Errorf("no planted bug switches %s off", r)
		}
	}
}
