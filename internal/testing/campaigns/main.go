// Command campaigns runs the tests that take minutes to hours, one after the other, and prints for each a row of the
// table of last runs in docs/campaigns.md. The test command runs them short or not at all.
//
//	go run ./internal/testing/campaigns -list
//	go run ./internal/testing/campaigns truth matrix
//	go run ./internal/testing/campaigns all
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// campaign is one command.
type campaign struct {
	name  string
	about string // a short description
	test  string // the arguments of `go test`
	needs string // what the machine must have; such a campaign is not part of "all"
}

// campaigns is in the order of docs/campaigns.md.
var campaigns = []campaign{
	{"namespaces", "DDL while hosts in network namespaces are cut, stopped and replaced",
		"./internal/testing/ddlhistory -run TestNamespaces -ddl.namespaces 300 -timeout 3h", "root and iproute2"},
	{"history", "DDL on loopback, with links that proxies cut", "./internal/testing/ddlhistory -run TestHistory " +
		"-ddl.ops 50000 -timeout 1h", ""},
	{"differential", "random indexes under writes, kills and failovers, compared row by row",
		"./internal/testing/e2e/data -run TestDifferential -differential.rounds 100 -timeout 3h", ""},
	{"operators", "what operators of a cluster do, in any order, under writes and faults",
		"./internal/testing/e2e/data -run TestOperators -operators.rounds 50 -timeout 3h", ""},
	{"schemes", "scans and counts of random indexes of every scheme", "./internal/testing/e2e/data -run " +
		"TestPartitionSchemes -schemes.rows 1000000 -timeout 3h", ""},
	{"truth", "session scans under 2,000 writes a second, each compared",
		"./internal/testing/e2e/data -run TestTruth -truth.for 5m -timeout 1h", ""},
	{"scans", "random scans of hand-made indexes", "./internal/testing/e2e/data -run TestScansAgainstOracle -scans.each " +
		"1000 -timeout 3h", ""},
	{"flips", "a flipped bit in every kind of file", "./internal/testing/e2e/data -run TestFlippedBits -flips -timeout 1h",
		""},
	{"memory", "indexes of twice the memory quota", "./internal/testing/e2e/data -run TestMemoryQuota " +
		"-memory.documents 60000 -timeout 2h", ""},
	{"slow", "an indexer that is overloaded", "./internal/testing/e2e/data -run TestSlowIndexer -slow.for 2m " +
		"-timeout 1h", ""},
	{"engine", "CREATE INDEX beside a real engine", "./internal/testing/e2e/engine -rounds 30 -timeout 50m",
		"ENGINE_DIR, which names a built engine"},
	{"faults", "faults of every role while DDL, writes and scans go on", "./internal/testing/e2e -run TestHundredFaults " +
		"-faults 100 -timeout 4h", ""},
	{"restores", "the leader killed while it restores a backup", "./internal/testing/e2e -run TestLeaderKilledInRestore " +
		"-restore.rounds 100 -timeout 3h", ""},
	{"kills", "the leader killed again and again under load", "./internal/testing/e2e -run TestLeaderKilled -kills 100 " +
		"-kills.writes 500 -timeout 2h", ""},
	{"watchers", "a thousand watchers of one cluster", "./internal/testing/e2e -run TestManyWatchers -watchers 1000 " +
		"-timeout 1h", ""},
	{"hangs", "each role hangs beside each duty",
		"./internal/testing/e2e/matrix -run TestHangs -hangs all -hang-most 20s -timeout 40m",
		""},
	{"matrix", "every fault in every state of the cluster", "./internal/testing/e2e/matrix -run TestKillMatrix -matrix " +
		"all -timeout 6h", ""},
	{"observer", "streams of one projector in every mood of the embedded KV",
		"./projector -run TestObserver/every -observe 10m -timeout 1h", ""},
	{"fire", "kills, halts, moves and failovers of embedded KV nodes", "./kv -run TestClusterUnderFire -fire 300 " +
		"-timeout 2h", ""},
	{"consensus", "leader losses and faults of Raft in virtual time",
		"./manager/consensus -run TestLeaderLosses|TestFaultsKeepHistory -consensus.losses 1000 -consensus.faults 20 " +
			"-consensus.seed 0 -timeout 2h", ""},
	{"simulation", "the whole system from seeds", "./internal/testing/simulation -run TestSimulation -from 1 -seeds " +
		"100000 -timeout 0", ""},
	{"planted", "how many seeds show each planted bug; writes the table",
		"./internal/testing/simulation -run TestPlantedBugs -hunt 1000 -timeout 0", ""},
	{"grow", "3, then 5, then 4 indexers under updates and scans: bytes, time and scans, by files; -grow.kv: from KV",
		"./internal/testing/e2e/data -run TestGrow -grow.docs 1000000 -grow.rate 5000 -timeout 3h", ""},
	{"moves", "each process killed at each transition of a slice that moves",
		"./internal/testing/e2e/data -run TestMoves -moves all -timeout 2h", ""},
	{"properties", "expressions and scans on what was never drawn before, against the slow interpreter",
		"./expression ./collate ./wire ./rebalance ./stability ./statecontext ./kv/clustermap ./kv/store ./indexer/scan " +
			"-rapid.seed 0 -rapid.checks 10000 -timeout 5h", ""},
	{"scale", "250 indexers and 64 projectors against real managers",
		"./bench/scale -timeout 60m -scale.indexers 250 -scale.projectors 64 -scale.buckets 20 -scale.vbuckets 1024", ""},
}

func main() {
	list := flag.Bool("list", false, "print the campaigns and their commands")
	logs := flag.String("logs", ".", "folder for the output of each, NAME.log")
	flag.Parse()
	if *list || flag.NArg() == 0 {
		for _, c := range campaigns {
			fmt.Printf("%-13s %s\n%-13s go test %s\n", c.name, c.about, "", c.test)
		}
		return
	}
	chosen, err := choose(flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	failed := false
	for _, c := range chosen {
		if ctx.Err() == nil && run(ctx, c, *logs) != nil {
			failed = true
		}
	}
	stop()
	if failed {
		os.Exit(1)
	}
}

// choose returns the campaigns of these names; "all" means those that every machine can run.
func choose(names []string) (chosen []campaign, err error) {
	for _, name := range names {
		i := slices.IndexFunc(campaigns, func(c campaign) bool { return c.name == name })
		switch {
		case i >= 0:
			chosen = append(chosen, campaigns[i])
		case name == "all":
			chosen = append(chosen, slices.DeleteFunc(slices.Clone(campaigns),
				func(c campaign) bool { return c.needs != "" })...)
		default:
			return nil, fmt.Errorf("no campaign %q; -list lists them", name)
		}
	}
	return chosen, nil
}

// run runs one campaign and prints its row.
func run(ctx context.Context, c campaign, logs string) error {
	path := filepath.Join(logs, c.name+".log")
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	defer out.Close()
	args := append([]string{"test", "-v", "-count=1"}, strings.Fields(c.test)...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Stdout, cmd.Stderr = out, out
	began := time.Now()
	err = cmd.Run()
	result := "passed"
	if err != nil {
		result = fmt.Sprintf("**failed** (%v), see %s", err, path)
	}
	fmt.Printf("| %s | %s | %s | %s |\n", c.name, began.Format(time.DateOnly), time.Since(began).Round(time.Second),
		result)
	return err
}
