package cli

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"tidemark/client"
	"tidemark/index"
	"tidemark/internal/sample"
	"tidemark/internal/testing/atonce"
	"tidemark/internal/testing/ports"
	"tidemark/internal/testing/testcluster"
	"tidemark/manager/api/v1"
)

const (
	scripts      = "testdata/script"
	sampleWait   = 3 * time.Minute
	scriptsPause = 50 * time.Millisecond
)

// TestScripts runs testdata/script/*.txtar with the real binary on one real cluster with the sample data. Scripts
// may use $DATA (its folder), $SERVERS, $TIDEMARK_SERVER (its first manager) and these commands:
//
//	exits CODE tidemark ARGS...      checks the exit code; stdout and stderr then check its output
//	waitfor FILE [TEXT]              waits until the file exists, and contains the text
//	damage FOLDER                    overwrites the store of the manager in the folder
func TestScripts(t *testing.T) {
	bin := testcluster.Binary(t)
	dir := t.TempDir()
	cluster := testcluster.Start(t, dir, "--managers", "3", "--kv", "1", "--indexers", "2", "--sample", "--log-level",
		"info")
	waitSample(t, cluster)
	servers := cluster.Manifest().Servers()
	for _, path := range pages() {
		t.Run("page_"+strings.TrimSuffix(filepath.Base(path), ".md"),
			func(t *testing.T) { (&page{t: t, cluster: cluster, bin: bin, servers: servers}).run(path) })
	}
	t.Run("stats", func(t *testing.T) { checkStats(t, cluster.Client()) })
	t.Run("metrics", func(t *testing.T) { checkMetrics(t, cluster) })
	testscript.Run(t, testscript.Params{
		Dir: scripts, RequireExplicitExec: true, RequireUniqueNames: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("PATH", filepath.Dir(bin)+string(os.PathListSeparator)+e.Getenv("PATH"))
			e.Setenv("DATA", dir)
			e.Setenv("SERVERS", strings.Join(servers, ","))
			e.Setenv("TIDEMARK_SERVER", servers[0])
			first := ports.Range(t)
			e.Setenv("PORTS", strconv.Itoa(first))
			e.Setenv("SPARE", strconv.Itoa(first+ports.Size-10)) // ports of the same range, beyond those that a cluster uses
			e.Setenv("GOCOVERDIR", os.Getenv("GOCOVERDIR"))
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){"exits": exits, "waitfor": waitFor,
			"soon": soon, "damage": damage},
	})
}

// checkStats checks that, while nothing is written, the figures of each sample index are exact: its entries are those
// that a scan counts, nothing is pending or queued, and each scan is counted.
func checkStats(t *testing.T, c *client.Client) {
	ctx, cancel := context.WithTimeout(t.Context(), sampleWait)
	defer cancel()
	tick := time.NewTicker(scriptsPause)
	defer tick.Stop()
	var before v1.Stats
	for idle := false; !idle; { // the tests of pages have written documents and dropped indexes
		var err error
		if before, err = c.Stats(ctx, "world"); err != nil {
			t.Fatal(err)
		}
		idle = len(before.Indexes) > 0 && len(before.Indexers) == 2
		for _, i := range before.Indexes {
			idle = idle && i.State != index.Dropping && i.NumDocsPending+i.NumDocsQueued == 0 && i.PendingUnknown == "" &&
				i.CopiesReported == i.Copies
		}
		select {
		case <-ctx.Done():
			t.Fatalf("still not idle: %+v", before)
		case <-tick.C:
		}
	}
	for _, i := range before.Indexes {
		if i.State != index.Maintenance {
			continue
		}
		n, err := c.Count(ctx, i.ID.String(), v1.ScanRequest{Consistency: "session"})
		if err != nil || n.Count != i.ItemsCount || i.BuildProgress != 100 || i.DataSize == 0 {
			t.Errorf("%+v, but count returns %d, %v", i, n.Count, err)
		}
		checkStatistics(ctx, t, c, &i)
	}
	after, err := c.Stats(ctx, "world")
	if err != nil || len(after.Indexes) != len(before.Indexes) {
		t.Fatalf("%+v, %v", after, err)
	}
	for k, i := range after.Indexes {
		if i.State == index.Maintenance && (i.NumRequests != before.Indexes[k].NumRequests+1 || i.AvgScanLatency == 0 ||
			i.NumScanErrors != before.Indexes[k].NumScanErrors) {
			t.Errorf("after one count %+v, before %+v", i, before.Indexes[k])
		}
	}
	checkFaults(ctx, t, c)
	for _, n := range after.Indexers {
		if n.State != "active" || n.MemoryQuota == 0 || n.MemoryUsed == 0 || n.MemoryRSS == 0 || n.UptimeMS == 0 {
			t.Errorf("%+v", n)
		}
	}
}

// checkStatistics checks that each entry is counted once for each component, and, if all were examined, that each
// document has a value.
func checkStatistics(ctx context.Context, t *testing.T, c *client.Client, of *v1.IndexStats) {
	st, err := c.Statistics(ctx, of.ID.String(), v1.StatisticsRequest{Bins: 5})
	if err != nil || st.Items != of.ItemsCount || st.Exact != (st.Sampled == st.Items) || len(st.Components) == 0 {
		t.Errorf("%d entries, of which %d were sampled (exact: %v), %v; want %+v", st.Items, st.Sampled, st.Exact, err, of)
	}
	for _, x := range st.Components {
		sum := x.Missing + x.Null
		for _, b := range x.Histogram {
			sum += b.Items
		}
		if sum != st.Items || len(x.Histogram) > 5 || x.Distinct > st.Items {
			t.Errorf("%s: %+v, of %d entries", x.Expression, x, st.Items)
		}
	}
}

// checkFaults checks that documents on which an expression fails are counted and have no entry, and that one of them is
// reported as a sample.
func checkFaults(ctx context.Context, t *testing.T, c *client.Client) {
	made, err := c.Create(ctx, v1.CreateRequest{Name: "beyond", Bucket: "world",
		Keys: []index.KeyExpr{{Expr: "elevation_ft * 1e308"}}})
	if err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(scriptsPause)
	defer tick.Stop()
	for {
		st, err := c.Stats(ctx, "world")
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(st.Indexes, func(i v1.IndexStats) bool { return i.ID == made.ID })
		if i < 0 {
			t.Fatalf("there are no figures of index %s: %+v", made.ID, st)
		}
		if f := st.Indexes[i].Faults; f != nil && f.Expression > 0 && f.Sample.DocID != "" && f.Sample.Error != "" {
			break
		}
		select {
		case <-ctx.Done():
			t.Fatalf("no fault is reported: %+v", st.Indexes[i])
		case <-tick.C:
		}
	}
	if err := c.Drop(ctx, made.ID.String(), 0); err != nil {
		t.Error(err)
	}
}

// waitSample waits until the sample indexes are ready.
func waitSample(t *testing.T, cluster *testcluster.Cluster) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), sampleWait)
	defer cancel()
	c := cluster.Client()
	tick := time.NewTicker(scriptsPause)
	defer tick.Stop()
	for {
		list, err := c.Indexes(ctx, "")
		if err != nil {
			t.Fatal(err)
		}
		ready := 0
		for _, i := range list.Indexes {
			if i.State == index.Maintenance {
				ready++
			}
		}
		if ready == len(sample.Statements("world")) {
			if _, err := c.Count(ctx, client.Ref("world", "places_by_name"),
				v1.ScanRequest{Consistency: "session"}); err != nil {
				t.Fatal(err)
			}
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the sample indexes are not ready: %+v", list)
		case <-tick.C:
		}
	}
}

// exits runs a command and checks its exit code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE command...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	var exit *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// waitFor waits until a file exists and contains a text.
func waitFor(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 || len(args) > 2 {
		ts.Fatalf("usage: waitfor FILE [TEXT]")
	}
	text := ""
	if len(args) == 2 {
		text = args[1]
	}
	deadline := time.After(sampleWait)
	tick := time.NewTicker(scriptsPause)
	defer tick.Stop()
	for {
		if b, err := os.ReadFile(ts.MkAbs(args[0])); err == nil && strings.Contains(string(b), text) {
			return
		}
		select {
		case <-deadline:
			ts.Fatalf("%s does not contain %q", args[0], text)
		case <-tick.C:
		}
	}
}

// soon repeats a command until its output matches.
func soon(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: soon REGEXP command...")
	}
	want, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	for deadline := time.Now().Add(sampleWait); ; time.Sleep(scriptsPause) {
		err := ts.Exec(args[1], args[2:]...)
		if out := ts.ReadFile("stdout"); want.MatchString(out) {
			return
		} else if time.Now().After(deadline) {
			ts.Fatalf("%v: no match of %s in:\n%s", err, args[0], out)
		}
	}
}

// damage overwrites the beginning of each file of a manager's store.
func damage(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: damage FOLDER")
	}
	files, err := filepath.Glob(filepath.Join(ts.MkAbs(args[0]), "raft", "*.db"))
	ts.Check(err)
	if len(files) == 0 {
		ts.Fatalf("%s has no store", args[0])
	}
	for _, name := range files {
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		ts.Check(err)
		_, err = f.WriteAt(bytes.Repeat([]byte("damage"), 4000), 0)
		ts.Check(errors.Join(err, f.Close()))
	}
}

// TestEveryCommandHasAScript checks that each command is used in a script.
func TestEveryCommandHasAScript(t *testing.T) {
	var all strings.Builder
	files, err := filepath.Glob(filepath.Join(scripts, "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(b)
	}
	// Commands that another test covers, and its name.
	otherTests := map[string]string{}
	everyCommand(func(c *cobra.Command) {
		if !c.Runnable() || !c.HasParent() || c.HasSubCommands() && c.Annotations[roleKey] == "" ||
			otherTests[c.CommandPath()] != "" {
			return
		}
		if !strings.Contains(all.String(), c.CommandPath()+" ") && !strings.Contains(all.String(), c.CommandPath()+"\n") {
			t.Errorf("no script in internal/cli/%s runs %q: add one", scripts, c.CommandPath())
		}
	})
}

func TestMain(m *testing.M) {
	atonce.Tests(3) // tests spend much of their time waiting
	code := m.Run()
	testcluster.Cleanup()
	os.Exit(code)
}
