package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"tidemark/internal/localcluster"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/wire"
)

// problem sends a request and decodes the error that it must return.
func problem(ctx context.Context, t *testing.T, method, url, body string) (int, wire.Problem) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var p wire.Problem
	if err := json.Unmarshal(b, &p); err != nil || resp.Header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("%s %s: %s %q is no problem JSON: %.300s", method, url, resp.Status, resp.Header.Get("Content-Type"), b)
	}
	return resp.StatusCode, p
}

// TestBadInput checks that bad input gets a clear error that names what and where, without a panic, a hang or a loss.
func TestBadInput(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	dir := t.TempDir()
	up := testcluster.Start(t, dir, "--vbuckets", "32")
	c, m := up.Client(), up.Manifest()
	rest := m.Managers[1].REST
	w := harness.NewWorkloadOf(ctx, t, up.KV(ctx), 8)
	harness.CreateSampleIndexes(ctx, t, c, m.Bucket)
	if _, err := c.Statement(ctx, `CREATE INDEX waits ON world(name) WITH {"defer_build": true}`); err != nil {
		t.Fatal(err)
	}

	statement := func(text string) string { return `{"statement":` + harness.Quote(text) + `}` }
	for _, tc := range []struct {
		name, method, path, body string
		status                   int
		want                     string // part of code or detail
	}{
		{"unknown bucket", "POST", "/v1/statements", statement("CREATE INDEX i ON nowhere(a)"), 404, "nowhere"},
		{"duplicate name", "POST", "/v1/statements", statement("CREATE INDEX places_by_name ON world(a)"), 409,
			"places_by_name"},
		{"syntax error", "POST", "/v1/statements", statement("CREATE INDEX i\nON world(a,,b)"), 400, "line 2"},
		{"no statement", "POST", "/v1/statements", `{"statement":""}`, 400, "statement"},
		{"unknown function", "POST", "/v1/statements", statement("CREATE INDEX i ON world(NOW())"), 400, "NOW"},
		{"unknown key in WITH", "POST", "/v1/statements", statement(`CREATE INDEX i ON world(a) WITH {"replicas":1}`), 400, "num_replica"},
		{"more replicas than indexers", "POST", "/v1/statements", statement(`CREATE INDEX i ON world(a) WITH {"num_replica":9}`), 400, "replica"},
		{"bad JSON", "POST", "/v1/statements", `{"statement": `, 400, "JSON"},
		{"unknown field", "POST", "/v1/statements", `{"statment":"x"}`, 400, "statment"},
		{"oversized body", "POST", "/v1/statements", statement(strings.Repeat("x", 2<<20)), 413, "1048576"},
		{"wrong method", "PUT", "/v1/statements", "{}", 405, "POST"},
		{"unknown path", "GET", "/v1/nothing", "", 404, "/v1/nothing"},
		{"unknown id", "GET", "/v1/indexes/424242", "", 404, "424242"},
		{"unknown name", "GET", "/v1/indexes/world/nothing", "", 404, "nothing"},
		{"drop of an unknown id", "DELETE", "/v1/indexes/424242", "", 404, "424242"},
		{"scan of an index that is not built", "POST", "/v1/indexes/world/waits:scan", "{}", 409, "NOT_READY"},
		{"scan of an unknown index", "POST", "/v1/indexes/424242:scan", "{}", 404, "424242"},
		{"scan with an unknown field", "POST", "/v1/indexes/world/places_by_name:scan", `{"limt":1}`, 400, "limt"},
		{"scan with an unknown consistency", "POST", "/v1/indexes/world/places_by_name:scan", `{"consistency":"strong"}`, 400, "session"},
		{"scan with a key that is too long", "POST", "/v1/indexes/world/places_by_name:scan", `{"equal":["a","b","c"]}`, 400, "component"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var status int
			var p wire.Problem
			// not while an election is in progress
			harness.Eventually(t, harness.Hang, "an answer", func() (bool, string) {
				status, p = problem(ctx, t, tc.method, rest+tc.path, tc.body)
				return status != http.StatusServiceUnavailable && status != http.StatusGatewayTimeout, p.Detail
			})
			if status != tc.status || !strings.Contains(p.Error(), tc.want) {
				t.Errorf("got %d %s: %s; want %d and %q", status, p.Code, p.Detail, tc.status, tc.want)
			}
		})
	}

	t.Run("lying frames on every port", func(t *testing.T) { lyingFrames(t, m) })
	t.Run("a second up on the folder", func(t *testing.T) {
		out := runUp(ctx, t, "--data", dir)
		if !strings.Contains(out, "in use") || !strings.Contains(out, fmt.Sprint(up.PID())) {
			t.Errorf("it says: %s", out)
		}
	})
	// All processes still run, under the same pids, and answer correctly.
	now := up.Manifest()
	if fmt.Sprint(allPIDs(now)) != fmt.Sprint(allPIDs(m)) {
		t.Errorf("a process died of bad input: %v, then %v", allPIDs(m), allPIDs(now))
	}
	harness.CheckFinal(ctx, t, c, w, m.Bucket)

	t.Run("a port that is taken at the resume", func(t *testing.T) {
		up.Stop()
		l, err := net.Listen("tcp", m.Indexers[0].Scan)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if out := runUp(ctx, t, "--data", dir); !strings.Contains(out, m.Indexers[0].Scan) ||
			!strings.Contains(out, "taken") {
			t.Errorf("it says: %s", out)
		}
	})
}

// runUp runs an `up` that must fail, and returns its output.
func runUp(ctx context.Context, t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, testcluster.Binary(t), append([]string{"up"}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	out, err := cmd.CombinedOutput()
	if err == nil || ctx.Err() != nil {
		t.Errorf("up ran: %v\n%s", err, out)
	}
	return string(out)
}

// lyingFrames sends invalid requests to every port, some with lengths far beyond their data. Each connection must be
// closed or answered within seconds.
func lyingFrames(t *testing.T, m *localcluster.Manifest) {
	huge := bytes.Repeat([]byte{0xff}, 64)
	memcached := append([]byte{0x80, 0x01, 0xff, 0xff, 0xff, 0, 0, 0, 0xff, 0xff, 0xff, 0xff}, make([]byte, 12)...)
	http2 := append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), huge...)
	longHeader := append([]byte("POST /v1/statements HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n"), huge...)
	addrs := map[string]string{}
	host := func(url string) string { return strings.TrimPrefix(url, "http://") }
	for _, e := range m.Managers {
		addrs[e.ID+" rest"], addrs[e.ID+" raft"] = host(e.REST), e.Raft
	}
	for _, e := range m.KV {
		addrs[e.ID+" memcached"], addrs[e.ID+" admin"] = e.Memcached, host(e.Admin)
	}
	for _, e := range m.Projectors {
		addrs[e.ID+" admin"] = host(e.Admin)
	}
	for _, e := range m.Indexers {
		addrs[e.ID+" admin"], addrs[e.ID+" scan"] = host(e.Admin), e.Scan
		addrs[e.ID+" maintenance"], addrs[e.ID+" backfill"], addrs[e.ID+" catchup"] = e.Data.Maintenance, e.Data.Backfill,
			e.Data.Catchup
	}
	for name, addr := range addrs {
		for _, frame := range [][]byte{huge, memcached, http2, longHeader} {
			conn, err := net.DialTimeout("tcp", addr, harness.Hang)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			_, _ = conn.Write(frame) // the connection may be closed already
			if tc, ok := conn.(*net.TCPConn); ok {
				_ = tc.CloseWrite()
			}
			_ = conn.SetReadDeadline(time.Now().Add(harness.Hang))
			if _, err := io.Copy(io.Discard, io.LimitReader(conn, 1<<20)); err != nil {
				var timeout net.Error
				if te, ok := err.(net.Error); ok { //nolint:errorlint // io.Copy gives the connection's own error
					timeout = te
				}
				if timeout != nil && timeout.Timeout() {
					t.Errorf("%s hangs on %x", name, frame[:8])
				}
			}
			_ = conn.Close()
		}
	}
}
