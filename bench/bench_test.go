package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/index"
	"tidemark/internal/localcluster"
	"tidemark/internal/testing/testcluster"
	"tidemark/manager/api/v1"
)

// How much is measured.
var (
	rounds        = flag.Int("rounds", 3, "rounds of a comparison: yardstick, product, yardstick, …")
	burst         = flag.Duration("burst", 4*time.Second, "length of one round on each side")
	freshFor      = flag.Duration("fresh", 20*time.Second, "length of the freshness measurement at each rate")
	documents     = flag.Int("documents", 300_000, "documents of the end-to-end measurement")
	fairDocuments = flag.Int("fair", 200_000, "documents of the bucket in which BenchmarkScansBesideABuild builds indexes")
	creates       = flag.Int("creates", 10, "indexes that BenchmarkCreateIndex creates, each on an empty bucket and "+
		"over ten documents")
	kills = flag.Int("kills", 10, "leaders killed")
)

// profileEnv names the folder that profiles are written to.
const profileEnv = "TIDEMARK_PROFILE_DIR"

var programs struct {
	dir      string
	bareraft string
	err      error
}

// TestMain builds the programs only if a benchmark was requested.
func TestMain(m *testing.M) {
	flag.Parse()
	if b := flag.Lookup("test.bench"); b != nil && b.Value.String() != "" {
		programs.err = buildPrograms()
	}
	code := m.Run()
	testcluster.Cleanup()
	if programs.dir != "" {
		_ = os.RemoveAll(programs.dir)
	}
	os.Exit(code)
}

func buildPrograms() (err error) {
	if programs.dir, err = os.MkdirTemp("", "tidemark-bench-"); err != nil {
		return err
	}
	programs.bareraft = filepath.Join(programs.dir, "bareraft")
	list := map[string]string{programs.bareraft: "tidemark/bench/bareraft"}
	if os.Getenv(profileEnv) != "" {
		profiled := filepath.Join(programs.dir, "tidemark")
		list[profiled] = "tidemark/bench/profiled"
		if err := os.Setenv("TIDEMARK_TEST_BINARY", profiled); err != nil {
			return err
		}
	}
	for path, pkg := range list {
		if out, err := exec.Command("go", "build", "-o", path, pkg).CombinedOutput(); err != nil {
			return fmt.Errorf("go build %s: %w\n%s", pkg, err, out)
		}
	}
	return nil
}

// within returns a context for one benchmark.
func within(b *testing.B, d time.Duration) context.Context {
	b.Helper()
	if programs.err != nil {
		b.Fatal(programs.err)
	}
	ctx, cancel := context.WithTimeout(b.Context(), d)
	b.Cleanup(cancel)
	return ctx
}

// quantile returns the q-quantile of the values.
func quantile(d []time.Duration, q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(d))
	return s[min(len(s)-1, int(q*float64(len(s))))]
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// caller sends requests with prepared bodies over kept connections.
type caller struct{ http *http.Client }

func newCaller(connections int) *caller {
	return &caller{&http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections,
		MaxConnsPerHost: connections}}}
}

func (c *caller) close() { c.http.CloseIdleConnections() }

// call sends one request and returns the answer's body; a status other than 2xx is an error.
func (c *caller) call(ctx context.Context, method, url, key string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %s: %.300s", method, url, resp.Status, b)
	}
	return b, err
}

// start runs `tidemark up` on a folder and waits until all components and the bucket are registered. The first DDL on
// a bucket registers it, so start creates an index and drops it.
func start(ctx context.Context, b *testing.B, dir string, args ...string) (*testcluster.Cluster, *client.Client) {
	b.Helper()
	up := testcluster.Start(b, dir, args...)
	c := up.Client()
	for {
		s, err := c.Status(ctx)
		if err == nil && s.Leader.REST != "" && activeIndexers(s) == len(up.Manifest().Indexers) &&
			len(s.Projectors) == len(up.Manifest().Projectors) {
			break
		}
		select {
		case <-ctx.Done():
			b.Fatalf("the cluster is not complete: %v %+v", err, s)
		case <-time.After(20 * time.Millisecond):
		}
	}
	first, err := c.Create(ctx, createRequest("first"))
	if err == nil {
		err = c.Drop(ctx, first.ID.String(), 0)
	}
	if err != nil {
		b.Fatal(err)
	}
	return up, c
}

func activeIndexers(s v1.Status) (n int) {
	for _, i := range s.Indexers {
		if i.State == "active" {
			n++
		}
	}
	return n
}

// leader returns the leader's base URL.
func leader(ctx context.Context, b *testing.B, c *client.Client) string {
	b.Helper()
	for {
		s, err := c.Status(ctx)
		if err == nil && s.Leader.REST != "" {
			return s.Leader.REST
		}
		select {
		case <-ctx.Done():
			b.Fatalf("no leader: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// createIndex creates an index by DDL and waits until it is ready.
func createIndex(ctx context.Context, b *testing.B, c *client.Client, statement string) {
	b.Helper()
	r, err := c.Statement(ctx, statement)
	if err == nil {
		err = c.WaitReady(ctx, []index.ID{r[0].ID}, nil)
	}
	if err != nil {
		b.Fatalf("%s: %v", statement, err)
	}
}

// roles lists the pids of a cluster's processes by role.
func roles(m *localcluster.Manifest) map[string][]int {
	r := map[string][]int{}
	for _, e := range m.Managers {
		r["manager"] = append(r["manager"], e.PID)
	}
	for _, e := range m.KV {
		r["kv"] = append(r["kv"], e.PID)
	}
	for _, e := range m.Projectors {
		r["projector"] = append(r["projector"], e.PID)
	}
	for _, e := range m.Indexers {
		r["indexer"] = append(r["indexer"], e.PID)
	}
	return r
}

// usage is the processor time by role at one moment; the role of the benchmark's own process is generator.
type usage struct {
	at   time.Time
	role map[string]time.Duration
	host time.Duration // of the whole machine
}

func usageOf(m *localcluster.Manifest) usage {
	u := usage{at: time.Now(), role: map[string]time.Duration{"generator": processCPU(os.Getpid())}, host: hostCPU()}
	for role, pids := range roles(m) {
		for _, pid := range pids {
			u.role[role] += processCPU(pid)
		}
	}
	return u
}

// report reports the processor time that each role has used since before, per operation, in µs (with n = seconds x
// 10,000: in percent of one processor), and that of all other processes on this machine, in percent of one processor:
// if the latter is high, latencies mean little.
func (u usage) report(b *testing.B, before usage, n int, unit string) {
	others := u.host - before.host
	for role, d := range u.role {
		d -= before.role[role]
		others -= d
		b.ReportMetric(float64(d.Microseconds())/float64(n), role+"-"+unit)
	}
	b.ReportMetric(100*others.Seconds()/u.at.Sub(before.at).Seconds(), "others-%cpu")
}

// hostCPU returns the time for which the machine's processors have been busy since it was started.
func hostCPU() time.Duration {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(b), "\n")
	var busy int64
	for i, f := range strings.Fields(line) { // cpu user nice system idle iowait irq softirq steal guest…
		if i == 0 || i == 4 || i == 5 || i > 8 {
			continue
		}
		n, _ := strconv.ParseInt(f, 10, 64)
		busy += n
	}
	return time.Duration(busy) * clockTick
}

// clockTick is the unit of /proc/PID/stat (USER_HZ, 100 on every Linux that Go runs on).
const clockTick = 10 * time.Millisecond

// processCPU returns the user and system time of a process, 0 if the process has ended.
func processCPU(pid int) time.Duration {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(b), ") ")
	f := strings.Fields(after) // from field 3, the state
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(f[11], 10, 64)
	system, _ := strconv.ParseInt(f[12], 10, 64)
	return time.Duration(user+system) * clockTick
}

// rss returns the resident memory of a process in bytes.
func rss(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kb << 10, err
		}
	}
	return 0, errors.New("no VmRSS")
}

// profile starts CPU profiles in all processes, if profiles were requested, and returns the function that ends them.
func profile(b *testing.B, m *localcluster.Manifest) (end func()) {
	dir := os.Getenv(profileEnv)
	if dir == "" {
		return func() {}
	}
	var all []int
	for _, pids := range roles(m) {
		all = append(all, pids...)
	}
	signal := func(s syscall.Signal) {
		for _, pid := range all {
			_ = syscall.Kill(pid, s) // the process may have ended: then it has no profile
		}
	}
	signal(syscall.SIGUSR1)
	return func() {
		signal(syscall.SIGUSR2)
		b.Logf("profiles are in %s", dir)
	}
}

// spawn starts a program, and ends it with SIGTERM at the end of the benchmark, or earlier by the returned function.
func spawn(b *testing.B, path string, args ...string) (pid int, stop func()) {
	b.Helper()
	cmd := exec.Command(path, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			<-ended
			b.Errorf("%s did not stop:\n%s", path, out.Bytes())
		}
	}
	b.Cleanup(stop)
	return cmd.Process.Pid, stop
}

// awaitOK waits until an URL answers 200.
func awaitOK(ctx context.Context, b *testing.B, url string) {
	b.Helper()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			b.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return
			}
		}
		select {
		case <-ctx.Done():
			b.Fatalf("%s does not answer", url)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // cannot fail: the request is built here
	}
	return b
}
