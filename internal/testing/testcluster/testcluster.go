// Package testcluster runs the product as users do, from its own binary and `tidemark up`, for tests with real
// processes. It starts, kills, stops and inspects them.
package testcluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/internal/leash"
	"tidemark/internal/localcluster"
	"tidemark/internal/testing/contract"
	"tidemark/internal/testing/ports"
	"tidemark/kv/kvclient"
)

// Timeouts.
const (
	upTimeout   = 3 * time.Minute
	stopTimeout = time.Minute // detects a hang
	poll        = 20 * time.Millisecond
	logTail     = 4 << 10
	longTail    = 96 << 10
	stackTime   = time.Second

	restartTimeout = 2 * time.Minute // until `up` has restarted a process that was ended
)

var build struct {
	once sync.Once
	path string
	err  error
}

// Binary builds the product, with failpoints (-tags failpoints), for a test process, and returns its path.
// TIDEMARK_TEST_BINARY names an existing binary instead, which must be built likewise. With -short it skips the test:
// such tests take longest, and the race detector does not see the processes that they start.
func Binary(t testing.TB) string {
	t.Helper()
	if testing.Short() {
		t.Skip("starts processes of the product")
	}
	if path := os.Getenv("TIDEMARK_TEST_BINARY"); path != "" {
		return path
	}
	build.once.Do(func() {
		dir, err := os.MkdirTemp("", "tidemark-bin-") //nolint:usetesting // it outlives the test
		if err != nil {
			build.err = err
			return
		}
		build.path = filepath.Join(dir, "tidemark")
		// `go run` keeps the executable in the build cache, so all packages of a test run link it once; `go build`
		// links each time. -exec makes it run `cp PRODUCT PATH`.
		out, err := exec.Command("go", "run", "-tags", "failpoints", "-exec", "cp", "tidemark/cmd/tidemark", build.path).
			CombinedOutput()
		if err != nil {
			build.err = fmt.Errorf("go run -exec cp: %w\n%s", err, out)
		}
	})
	if build.err != nil {
		t.Fatal(build.err)
	}
	return build.path
}

// Cleanup removes the binary. TestMain calls it.
func Cleanup() {
	if build.path != "" {
		_ = os.RemoveAll(filepath.Dir(build.path))
	}
}

// Cluster is a running `tidemark up`.
type Cluster struct {
	t       testing.TB
	Dir     string
	cmd     *exec.Cmd
	out     *syncBuffer
	ended   chan struct{}
	waitErr error
	tail    int // bytes of each log that a failed test prints
}

// Start runs `tidemark up --data dir` with additional arguments, waits until all children answer, and stops it at the
// end of the test.
func Start(t testing.TB, dir string, args ...string) *Cluster {
	t.Helper()
	c := Launch(t, dir, args...)
	c.waitManifest()
	return c
}

// waitManifest waits until `up` reports that all children answer.
func (c *Cluster) waitManifest() {
	c.t.Helper()
	deadline := time.Now().Add(upTimeout)
	for {
		if m, err := localcluster.ReadManifest(c.Dir); err == nil && m.PID == c.cmd.Process.Pid {
			return
		}
		select {
		case <-c.ended:
			c.t.Fatalf("up ended: %v\n%s", c.waitErr, c.out)
		case <-time.After(poll):
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("no %s after %s\n%s", localcluster.ClusterFile, upTimeout, c.out)
		}
	}
}

// StartWith is Start with additional environment variables, each NAME=VALUE.
func StartWith(t testing.TB, env []string, dir string, args ...string) *Cluster {
	t.Helper()
	c := launch(t, env, dir, args...)
	c.waitManifest()
	return c
}

// Launch runs `tidemark up` without waiting for it.
func Launch(t testing.TB, dir string, args ...string) *Cluster {
	t.Helper()
	return launch(t, nil, dir, args...)
}

func launch(t testing.TB, env []string, dir string, args ...string) *Cluster {
	t.Helper()
	c := &Cluster{t: t, Dir: dir, out: &syncBuffer{}, ended: make(chan struct{}), tail: logTail}
	c.cmd = exec.Command(Binary(t), append([]string{"up", "--data", dir, "--rest-port", fmt.Sprint(ports.Range(t))},
		args...)...)
	c.cmd.Env = append(os.Environ(), env...)
	c.cmd.Stdout, c.cmd.Stderr = c.out, c.out
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	held, err := leash.New(c.cmd) // a test that is killed or times out leaves no process behind
	if err == nil {
		err = c.cmd.Start()
		held.Started()
	}
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		c.waitErr = c.cmd.Wait()
		held.Close()
		close(c.ended)
	}()
	t.Cleanup(func() {
		if t.Failed() {
			c.dump()
		}
		c.Stop()
		used := c.cmd.ProcessState // includes the children, which it has waited for
		t.Logf("the cluster took %s of CPU", (used.UserTime() + used.SystemTime()).Round(10*time.Millisecond))
	})
	return c
}

// Manifest reads cluster.json.
func (c *Cluster) Manifest() *localcluster.Manifest {
	c.t.Helper()
	m, err := localcluster.ReadManifest(c.Dir)
	if err != nil {
		c.t.Fatal(err)
	}
	return m
}

// Client returns a client of all managers. It is closed at the end of the test.
func (c *Cluster) Client() *client.Client {
	m := c.Manifest()
	conf, err := m.UserTLS()
	if err != nil {
		c.t.Fatal(err)
	}
	cl := client.Open(client.Options{Servers: m.Servers(), TLS: conf, RetryFor: -1})
	if os.Getenv("TIDEMARK_CONTRACT") != "" { // check every exchange against the OpenAPI document
		checker, err := contract.New()
		if err != nil {
			c.t.Fatal(err)
		}
		cl.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return checker.Transport(next, func(err error) { c.t.Errorf("against the contract: %v", err) })
		})
	}
	c.t.Cleanup(cl.Close)
	return cl
}

// KV returns a client of the KV nodes. It is closed at the end of the test.
func (c *Cluster) KV(ctx context.Context) *kvclient.Client {
	c.t.Helper()
	m := c.Manifest()
	var seeds []string
	for _, e := range m.KV {
		seeds = append(seeds, e.Memcached)
	}
	k, err := kvclient.Connect(ctx, seeds, kvclient.Options{User: m.KVUser, Password: m.KVPassword, Bucket: m.Bucket,
		Name: "test"})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = k.Close() })
	return k
}

// Output returns the output of `up` so far.
func (c *Cluster) Output() string { return c.out.String() }

// Ended returns a channel that is closed when `up` has ended.
func (c *Cluster) Ended() <-chan struct{} { return c.ended }

// PID returns the process id of `up` itself.
func (c *Cluster) PID() int { return c.cmd.Process.Pid }

// Stop ends `up` with SIGTERM and returns how long that took. It fails the test after stopTimeout.
func (c *Cluster) Stop() time.Duration {
	started := time.Now()
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.ended:
	case <-time.After(stopTimeout):
		_ = c.cmd.Process.Kill()
		<-c.ended
		c.t.Errorf("up did not stop within %s", stopTimeout)
	}
	return time.Since(started)
}

// Kill sends SIGKILL to a child, whose pid the function pid reads from the manifest, and waits until the manifest has
// a new pid for it.
func (c *Cluster) Kill(pid func(m *localcluster.Manifest) int) {
	c.t.Helper()
	old := pid(c.Manifest())
	if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
		c.t.Fatalf("kill %d: %v", old, err)
	}
	c.WaitRestart(old, pid)
}

// WaitRestart waits until the pid differs from old.
func (c *Cluster) WaitRestart(old int, pid func(m *localcluster.Manifest) int) {
	c.t.Helper()
	for over := time.After(restartTimeout); pid(c.Manifest()) == old; {
		select {
		case <-time.After(poll):
		case <-c.ended:
			c.t.Fatalf("up ended before pid %d was replaced: %v\n%s", old, c.waitErr, c.out)
		case <-over:
			c.tail = longTail
			_ = syscall.Kill(old, syscall.SIGQUIT) // the goroutine dump goes to its log
			<-time.After(stackTime)
			c.t.Fatalf("pid %d was not replaced within %s", old, restartTimeout)
		}
	}
}

// Leader requests the leader from a manager and returns the leader's position in the manifest, -1 if that manager
// knows none. It compares ports, because processes may use another host for each other than the manifest.
func (c *Cluster) Leader(ctx context.Context, asked int) int {
	c.t.Helper()
	managers := c.Manifest().Managers
	var s struct{ Leader struct{ REST string } }
	if err := GetJSON(ctx, managers[asked].REST+"/v1/status", &s); err != nil {
		return -1
	}
	return slices.IndexFunc(managers,
		func(m localcluster.ManagerEntry) bool { return port(m.REST) == port(s.Leader.REST) })
}

func port(address string) string { return address[strings.LastIndexByte(address, ':')+1:] }

// GetJSON decodes the JSON at a URL into v.
func GetJSON(ctx context.Context, url string, v any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %.200s", url, resp.Status, b)
	}
	return json.Unmarshal(b, v)
}

// dump prints the ends of the logs of a failed test.
func (c *Cluster) dump() {
	c.t.Logf("up printed:\n%s", c.out)
	logs, _ := filepath.Glob(filepath.Join(c.Dir, "logs", "*.log"))
	for _, path := range logs {
		b, err := os.ReadFile(path)
		if err == nil {
			c.t.Logf("%s ends with:\n%s", filepath.Base(path), b[max(0, len(b)-c.tail):])
		}
	}
}

// syncBuffer is a buffer that a test may read while the process writes.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
