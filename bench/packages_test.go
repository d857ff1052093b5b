package bench

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// figure identifies a number that a package's benchmark prints: Benchmark is the name without its prefix, Unit the
// name of the metric.
type figure struct{ benchmark, unit string }

// measure is one line of docs/performance.md whose figure comes from a package's own benchmarks.
type measure struct {
	name string
	pkg  string   // folder
	run  string   // pattern for -bench
	args []string // further arguments of go test
	of   figure
	over figure // divisor, from the same run, if set
	// The limit of the figure, or of the quotient. 0: there is no bar, the figure is for information.
	atMost, atLeast float64
}

// packageMeasures lists all of them, from the bottom of the data way up.
var packageMeasures = []measure{
	{name: "feed-against-gocbcore", pkg: "projector/feed", run: "^BenchmarkAgainstRivals$/^1024B$",
		of: figure{"AgainstRivals/1024B", "gocbcore/native"}, atLeast: 4},
	{name: "feed-against-gomemcached", pkg: "projector/feed", run: "^BenchmarkAgainstRivals$/^1024B$",
		of: figure{"AgainstRivals/1024B", "gomemcached/native"}, atLeast: 10},
	{name: "feed-against-gocbcore-128B", pkg: "projector/feed", run: "^BenchmarkAgainstRivals$/^128B$",
		of: figure{"AgainstRivals/128B", "gocbcore/native"}, atLeast: 4},
	{name: "feed-against-gomemcached-128B", pkg: "projector/feed", run: "^BenchmarkAgainstRivals$/^128B$",
		of: figure{"AgainstRivals/128B", "gomemcached/native"}, atLeast: 10},
	{name: "expression-document-5-indexes", pkg: "expression", run: "^BenchmarkEvaluate$/^paths-5$",
		of: figure{"Evaluate/paths-5", "cpu-ns/op"}},
	{name: "projector-per-document-5-indexes", pkg: "projector", run: "^BenchmarkProjection$/^indexes=5$",
		of: figure{"Projection/indexes=5", "cpu-ns/op"}},
	{name: "projector-per-keyversion", pkg: "projector", run: "^BenchmarkProjection$/^indexes=5$",
		of: figure{"Projection/indexes=5", "cpu-ns/keyversion"}, atMost: 1000},
	{name: "projector-allocations", pkg: "projector", run: "^BenchmarkProjection$/^indexes=5$",
		of: figure{"Projection/indexes=5", "allocs/op"}, atMost: 0.99},
	{name: "router-per-mutation-5-indexes", pkg: "projector/router", run: "^BenchmarkMutation$/^indexes=5$",
		of: figure{"Mutation/indexes=5", "ns/op"}},
	{name: "router-to-indexer-per-keyversion", pkg: "projector/router", run: "^BenchmarkToIndexer$",
		of: figure{"ToIndexer", "cpu-ns/kv"}},
	{name: "keyversion-encode", pkg: "keyversion", run: "^BenchmarkEncode$/^mixed$", of: figure{"Encode/mixed", "ns/op"}},
	{name: "keyversion-decode", pkg: "keyversion", run: "^BenchmarkDecode$/^mixed$", of: figure{"Decode/mixed", "ns/op"}},
	{name: "transport-batch-64", pkg: "indexer/transport", run: "^Benchmark(Stream|BareTCP)$/^batch=64$",
		of: figure{"Stream/batch=64", "cpu-ns/kv"}},
	{name: "transport-against-bare-TCP", pkg: "indexer/transport", run: "^Benchmark(Stream|BareTCP)$/^batch=64$",
		of: figure{"Stream/batch=64", "cpu-ns/kv"}, over: figure{"BareTCP/batch=64", "cpu-ns/kv"}},
	{name: "indexer-per-mutation-2-copies", pkg: "indexer/copies", run: "^BenchmarkBucket$", of: figure{"Bucket", "ns/op"}},
	{name: "indexer-rollback-1024-vbuckets-12-copies", pkg: "indexer/copies", run: "^BenchmarkRollback$",
		args: []string{"-benchtime", "5x"}, of: figure{"Rollback", "ns/op"}, atMost: 2e9},
	{name: "indexer-246-copies-against-6", pkg: "indexer/copies", run: "^BenchmarkCopies$/^mutations$",
		args: []string{"-benchtime", "600x"}, of: figure{"Copies/mutations/246", "cpu-µs/doc"},
		over: figure{"Copies/mutations/6", "cpu-µs/doc"}, atMost: 1.3},
	{name: "storage-bare-pebble-over-flush", pkg: "indexer/storage", run: "^Benchmark(Flush|Bare)$",
		args: []string{"-benchtime", "100x"}, of: figure{"Bare", "cpu-ns/doc"}, over: figure{"Flush", "cpu-ns/doc"},
		atLeast: 0.8},
	{name: "storage-bare-pebble-reading-over-flush", pkg: "indexer/storage", run: "^Benchmark(Flush|BareRead)$",
		args: []string{"-benchtime", "100x"}, of: figure{"BareRead", "cpu-ns/doc"}, over: figure{"Flush", "cpu-ns/doc"},
		atLeast: 0.8},
	{name: "stability-100-buckets", pkg: "stability", run: "^BenchmarkNext$", of: figure{"Next/sync", "ns/op"},
		atMost: 5e6},
	{name: "statecontext-snapshot", pkg: "statecontext", run: "^BenchmarkSnapshot$", of: figure{"Snapshot/write", "ns/op"},
		atMost: 1e9},
	{name: "statecontext-restore", pkg: "statecontext", run: "^BenchmarkSnapshot$", of: figure{"Snapshot/read", "ns/op"},
		atMost: 1e9},
	{name: "statecontext-apply-create-p99", pkg: "statecontext", run: "^BenchmarkApply$/^create$",
		of: figure{"Apply/create", "p99-µs"}, atMost: 1000},
	{name: "statecontext-apply-promote-p99", pkg: "statecontext", run: "^BenchmarkApply$/^promote$",
		of: figure{"Apply/promote", "p99-µs"}, atMost: 1000},
	{name: "consensus-sequential-against-bare", pkg: "manager/consensus", run: "^Benchmark(Propose|Bare)$/^sequential$",
		of: figure{"Propose/sequential", "p50-µs"}, over: figure{"Bare/sequential", "p50-µs"}, atMost: 1.15},
	{name: "consensus-64-against-bare", pkg: "manager/consensus", run: "^Benchmark(Propose|Bare)$/^64$",
		of: figure{"Propose/64", "ops/s"}, over: figure{"Bare/64", "ops/s"}, atLeast: 0.8},
	{name: "consensus-read-p50", pkg: "manager/consensus", run: "^BenchmarkRead$/^sequential$",
		of: figure{"Read/sequential", "p50-µs"}, atMost: 250},
	{name: "rebalance-plan-1000x3-on-64", pkg: "rebalance", run: "^BenchmarkPlace$", of: figure{"Place", "ns/op"},
		atMost: 100e6},
}

func (m *measure) command() []string {
	return append([]string{"go", "test", "../" + m.pkg, "-run", "^$", "-count", "1", "-bench", m.run}, m.args...)
}

// verdict returns the text that says whether a value meets the bar.
func (m *measure) verdict(v float64) string {
	switch {
	case m.atMost > 0 && v > m.atMost:
		return fmt.Sprintf("MISSED, want at most %g", m.atMost)
	case m.atMost > 0:
		return fmt.Sprintf("met, at most %g", m.atMost)
	case m.atLeast > 0 && v < m.atLeast:
		return fmt.Sprintf("MISSED, want at least %g", m.atLeast)
	case m.atLeast > 0:
		return fmt.Sprintf("met, at least %g", m.atLeast)
	}
	return "no bar"
}

// BenchmarkPackages runs the packages' own benchmarks and compares what they print with the bars.
func BenchmarkPackages(b *testing.B) {
	runs := map[string]map[figure]float64{} // lines of one command share its run
	for _, m := range packageMeasures {
		b.Run(m.name, func(b *testing.B) {
			args := m.command()
			command := strings.Join(args, " ")
			if runs[command] == nil {
				out, err := exec.CommandContext(b.Context(), args[0], args[1:]...).CombinedOutput()
				if err != nil {
					b.Fatalf("%s: %v\n%s", command, err, out)
				}
				runs[command] = parseFigures(string(out))
			}
			printed := runs[command]
			v, ok := printed[m.of]
			if over := printed[m.over]; m.over.unit != "" {
				ok = ok && over > 0
				v /= over
			}
			if !ok {
				b.Fatalf("%s printed no %v or %v, but %v", command, m.of, m.over, printed)
			}
			b.Logf("%s: %.4g, %s", m.name, v, m.verdict(v))
			b.ReportMetric(v, m.of.unit)
			b.ReportMetric(0, "ns/op") // the duration of the run itself is not a figure
		})
	}
}

// parseFigures reads the lines that `go test -bench` prints.
func parseFigures(out string) map[figure]float64 {
	all := map[figure]float64{}
	for line := range strings.Lines(out) {
		rest, ok := strings.CutPrefix(line, "Benchmark")
		if !ok {
			continue
		}
		f := strings.Fields(rest)
		name := ""
		if len(f) > 0 {
			name = f[0]
			if i := strings.LastIndexByte(name, '-'); i > 0 {
				if _, err := strconv.Atoi(name[i+1:]); err == nil { // GOMAXPROCS
					name = name[:i]
				}
			}
		}
		for i := 2; i+1 < len(f); i += 2 {
			if v, err := strconv.ParseFloat(f[i], 64); err == nil {
				all[figure{name, f[i+1]}] = v
			}
		}
	}
	return all
}

func TestParseFigures(t *testing.T) {
	out := `goos: linux
BenchmarkEvaluate/paths-5-2         	  846212	      1382 ns/op	       884.4 cpu-ns/op	       0 allocs/op
BenchmarkNext/sync-2 	 100	 1.5e+06 ns/op
Benchmark
PASS`
	want := map[figure]float64{{"Evaluate/paths-5", "ns/op"}: 1382, {"Evaluate/paths-5", "cpu-ns/op"}: 884.4,
		{"Evaluate/paths-5", "allocs/op"}: 0,
		{"Next/sync", "ns/op"}:            1.5e6}
	if got := parseFigures(out); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestPackageMeasuresExist checks that the table names existing benchmarks, and names each line once.
func TestPackageMeasuresExist(t *testing.T) {
	functions := map[string][]string{}
	seen := map[string]bool{}
	for _, m := range packageMeasures {
		if seen[m.name] {
			t.Errorf("%s stands twice in the table", m.name)
		}
		seen[m.name] = true
		if functions[m.pkg] == nil {
			functions[m.pkg] = benchmarksOf(t, filepath.Join("..", m.pkg))
		}
		for _, f := range []figure{m.of, m.over} {
			name, _, _ := strings.Cut(f.benchmark, "/")
			if name != "" && !slices.Contains(functions[m.pkg], "Benchmark"+name) {
				t.Errorf("%s: package %s has no Benchmark%s", m.name, m.pkg, name)
			}
		}
	}
}

func benchmarksOf(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %v, %d test files", dir, err, len(files))
	}
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && strings.HasPrefix(f.Name.Name, "Benchmark") {
				names = append(names, f.Name.Name)
			}
		}
	}
	return names
}
