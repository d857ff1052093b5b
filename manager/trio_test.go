package manager

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/internal/testing/contract"
	"tidemark/internal/testing/need"
	"tidemark/internal/testing/ports"
	"tidemark/manager/api"
	"tidemark/manager/api/v1"
	"tidemark/wire"
)

// node is one manager of a cluster in this process.
type node struct {
	m    *Manager
	url  string
	stop context.CancelFunc
	done chan error
	full atomic.Bool // its Raft log cannot be written
	// gate, unless nil, makes each write to its Raft log wait until the gate is closed.
	gate atomic.Pointer[chan struct{}]
	held atomic.Int64 // number of writes that have waited for gate
}

// trio is three managers on loopback, without any component.
type trio struct {
	full  bool // the disks of those that are started are full
	t     testing.TB
	http  *http.Client // checks every exchange against the contract
	seen  func() map[string]bool
	nodes []*node
	cfgs  []Config
}

const patience = 3 * time.Minute // hang guard

// heartbeat makes a follower wait for its leader for one to two seconds: most tests have one leader throughout, and
// those that need that use a longer one (steadfast).
const heartbeat = time.Second

// steadfast is for tests that block the log of a leader, which has to keep leading however busy the machine is.
func steadfast(c *Config) { c.Heartbeat = 5 * heartbeat }

func newTrio(t testing.TB, change ...func(*Config)) *trio {
	t.Helper()
	c := newTrioWith(t, change...)
	c.until("all managers registered and ready", func() bool {
		for _, n := range c.nodes {
			if code, _, _ := c.call(n, "GET", "/readyz", "", nil); code != 200 {
				return false
			}
		}
		var s struct{ Managers []struct{} }
		_, _, body := c.call(c.nodes[0], "GET", "/v1/state?consistency=stale", "", nil)
		return json.Unmarshal(body, &s) == nil && len(s.Managers) == 3
	})
	return c
}

// newTrioWith waits only for a leader.
func newTrioWith(t testing.TB, change ...func(*Config)) *trio {
	t.Helper()
	addrs := ports.Addrs(t, 6)
	checker, err := contract.New()
	if err != nil {
		t.Fatal(err)
	}
	keepAlive := &http.Transport{}
	t.Cleanup(keepAlive.CloseIdleConnections)
	c := &trio{t: t, nodes: make([]*node, 3), seen: checker.Seen,
		http: &http.Client{Transport: checker.Transport(keepAlive,
			func(err error) { t.Errorf("against the contract: %v", err) })}}
	for i := range 3 {
		c.cfgs = append(c.cfgs, Config{Name: "m" + string(rune('1'+i)), Dir: need.Memory(t), REST: addrs[i], Raft: addrs[3+i],
			BootstrapExpect: 3, Join: addrs[:3], Heartbeat: heartbeat,
			// The components that tests register do not exist and never answer.
			OfflineAfter: time.Hour, stopPatience: patience})
		for _, f := range change {
			f(&c.cfgs[i])
		}
	}
	for i := range 3 {
		c.start(i)
	}
	t.Cleanup(func() {
		for i := range c.nodes {
			c.stop(i)
		}
	})
	c.leader()
	return c
}

func (c *trio) start(i int) {
	c.t.Helper()
	n := &node{url: c.cfgs[i].TLS.BaseURL(c.cfgs[i].REST), done: make(chan error, 1)}
	n.full.Store(c.full)
	cfg := c.cfgs[i]
	cfg.Failpoint = func() error {
		if g := n.gate.Load(); g != nil {
			n.held.Add(1)
			<-*g
		}
		if n.full.Load() {
			return syscall.ENOSPC
		}
		return nil
	}
	m, err := Open(cfg)
	if err != nil {
		c.t.Fatalf("opening %s: %v", cfg.Name, err)
	}
	ctx, stop := context.WithCancel(context.Background())
	n.m, n.stop = m, stop
	go func() { n.done <- m.Run(ctx) }()
	c.nodes[i] = n
}

// stop stops a manager in order; it must not take longer than `up` allows.
func (c *trio) stop(i int) {
	c.t.Helper()
	n := c.nodes[i]
	if n == nil {
		return
	}
	c.nodes[i] = nil
	n.stop()
	select {
	case err := <-n.done:
		if err != nil {
			c.t.Errorf("%s ended with %v", c.cfgs[i].Name, err)
		}
	case <-time.After(patience):
		c.t.Fatalf("%s does not stop", c.cfgs[i].Name)
	}
}

func (c *trio) until(what string, ok func() bool) {
	c.t.Helper()
	for deadline := time.Now().Add(patience); !ok(); {
		if time.Now().After(deadline) {
			c.t.Fatalf("not within %s: %s", patience, what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// leader waits for a leader whose coordinator is running, and returns its position among the nodes.
func (c *trio) leader() (at int) {
	c.t.Helper()
	c.until("a leader", func() bool {
		for i, n := range c.nodes {
			if n == nil {
				continue
			}
			if _, serving := n.m.raft.Serving(); serving {
				if _, active := n.m.coord.Status(); active {
					at = i
					return true
				}
			}
		}
		return false
	})
	return at
}

// follower returns a running node that does not lead.
func (c *trio) follower() *node {
	l := c.leader()
	for i, n := range c.nodes {
		if n != nil && i != l {
			return n
		}
	}
	c.t.Fatal("no follower runs")
	return nil
}

// call sends a request, and retries while there is no leader, the outcome is unknown, or a manager cannot check its
// users: on a busy machine leadership may be lost at any time.
func (c *trio) call(n *node, method, path, body string, header map[string]string) (code int, h http.Header, b []byte) {
	c.t.Helper()
	if path == "/readyz" {
		return c.once(n, method, path, body, header)
	}
	c.until("an answer", func() bool {
		code, h, b = c.once(n, method, path, body, header)
		var p wire.Problem
		return code < 500 || json.Unmarshal(b, &p) != nil || p.Code != errcode.NoLeader &&
			p.Code != errcode.OutcomeUnknown && p.Code != errcode.ManagerNotCurrent
	})
	return code, h, b
}

// once sends a request and returns any answer. If there is no complete answer, code is 0 and the body has the reason.
func (c *trio) once(n *node, method, path, body string, header map[string]string) (int, http.Header, []byte) {
	c.t.Helper()
	req, err := http.NewRequest(method, n.url+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, nil, []byte(err.Error())
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil { // the manager was stopped meanwhile
		return 0, nil, []byte(err.Error())
	}
	return resp.StatusCode, resp.Header, b
}

func problemOf(t testing.TB, h http.Header, body []byte) wire.Problem {
	t.Helper()
	var p wire.Problem
	if err := json.Unmarshal(body, &p); err != nil || h.Get("Content-Type") != "application/problem+json" {
		t.Errorf("no problem JSON (%v): %s", err, body)
	}
	return p
}

func statement(text string) string {
	b, _ := json.Marshal(map[string]string{"statement": text})
	return string(b)
}

// TestContract is the table of calls: each is made on the leader and on a follower, with the same answer.
func TestContract(t *testing.T) {
	t.Parallel()
	c := newTrio(t, func(c *Config) { c.ProjectorWait = time.Millisecond })
	big := strings.Repeat("x", 1<<20+1)
	for _, tc := range []struct {
		name, method, path, body string
		header                   map[string]string
		status                   int
		code                     errcode.Code // of a problem
		detail                   string
	}{
		{name: "list", method: "GET", path: "/v1/indexes", status: 200},
		{name: "list of a bucket", method: "GET", path: "/v1/indexes?bucket=x&consistency=linearizable", status: 200},
		{name: "status", method: "GET", path: "/v1/status", status: 200},
		{name: "state", method: "GET", path: "/v1/state", status: 200},
		{name: "state as text", method: "GET", path: "/v1/state?format=text", status: 200},
		{name: "history", method: "GET", path: "/v1/history?minutes=10&step=60&bucket=b&limit=3", status: 200},
		{name: "history, step", method: "GET", path: "/v1/history?step=15", status: 400, code: "BAD_REQUEST", detail: "a multiple of 10"},
		{name: "history, minutes", method: "GET", path: "/v1/history?minutes=61", status: 400, code: "BAD_REQUEST", detail: "1 to 60"},
		{name: "history of a manager", method: "GET", path: "/v1/history/own?from=1&each=1&points=360", status: 200},
		{name: "history of a manager, too much", method: "GET", path: "/v1/history/own?from=1&each=2&points=360", status: 400,
			code: "BAD_REQUEST", detail: "360 slots are kept"},
		{name: "read index", method: "GET", path: "/v1/readindex", status: 200},
		{name: "alive", method: "GET", path: "/healthz", status: 200},
		{name: "alive, head only", method: "HEAD", path: "/healthz", status: 200},
		{name: "ready", method: "GET", path: "/readyz", status: 200},
		{name: "metrics", method: "GET", path: "/metrics", status: 200},
		{name: "unknown parameter", method: "GET", path: "/v1/indexes?buckt=x", status: 400, code: "BAD_REQUEST",
			detail: "did you mean bucket?"},
		{name: "unknown parameter of a scan", method: "POST", path: "/v1/indexes/b/n:scan?limitt=1", body: "{}", status: 400,
			code: "BAD_REQUEST", detail: `unknown parameter "limitt"; POST /v1/indexes/b/n:scan has no query parameters`},
		{name: "mistyped dry run", method: "POST", path: "/v1/statements?dry_runn=true", body: statement("DROP INDEX n ON b"),
			status: 400, code: "BAD_REQUEST", detail: `unknown parameter "dry_runn"; did you mean dry_run?`},
		{name: "unknown consistency", method: "GET", path: "/v1/indexes?consistency=strong", status: 400, code: "BAD_REQUEST",
			detail: "stale"},
		{name: "unknown id", method: "GET", path: "/v1/indexes/42", status: 404, code: "UNKNOWN_INDEX", detail: "42"},
		{name: "unknown name", method: "GET", path: "/v1/indexes/b/n", status: 404, code: "UNKNOWN_INDEX", detail: `"n" on bucket "b"`},
		{name: "escaped name, statistics", method: "POST", path: "/v1/indexes/b/n%20%2F:statistics", status: 404, code: "UNKNOWN_INDEX", detail: `"n /"`},
		{name: "escaped name", method: "GET", path: "/v1/indexes/b/n%20%2F%3Ascan", status: 404, code: "UNKNOWN_INDEX", detail: `n /:scan`},
		{name: "scan by GET", method: "GET", path: "/v1/indexes/b/n:scan", status: 405, code: "METHOD_NOT_ALLOWED",
			detail: `there is no index "n:scan" on bucket "b"; to scan "b/n", send POST /v1/indexes/b/n:scan`},
		{name: "count by GET", method: "GET", path: "/v1/indexes/42:count", status: 405, code: "METHOD_NOT_ALLOWED",
			detail: `to count "42"`},
		{name: "no verb", method: "GET", path: "/v1/indexes/b/n:scam", status: 404, code: "UNKNOWN_INDEX", detail: `"n:scam" on`},
		{name: "name of points", method: "GET", path: "/v1/indexes/b/..", status: 404, code: "UNKNOWN_INDEX", detail: `".." on`},
		{name: "neither id nor name", method: "GET", path: "/v1/indexes/abc", status: 404, code: "UNKNOWN_INDEX",
			detail: "bucket/name"},
		{name: "drop of an unknown id", method: "DELETE", path: "/v1/indexes/42", status: 404, code: "UNKNOWN_INDEX"},
		{name: "drop of an unknown name", method: "DELETE", path: "/v1/indexes/b/n", status: 404, code: "UNKNOWN_INDEX"},
		{name: "drop, bad If-Match", method: "DELETE", path: "/v1/indexes/42", header: map[string]string{"If-Match": "abc"},
			status: 400, code: "BAD_REQUEST", detail: "If-Match"},
		{name: "drop, If-Match that never was", method: "DELETE", path: "/v1/indexes/42", header: map[string]string{"If-Match": `"0"`}, status: 400, code: "BAD_REQUEST", detail: "If-Match"},
		{name: "change of an unknown id", method: "PATCH", path: "/v1/indexes/42", body: `{"deferred":false}`, status: 404, code: "UNKNOWN_INDEX"},
		{name: "change of an unknown name", method: "PATCH", path: "/v1/indexes/b/n", body: `{"deferred":false}`, status: 404, code: "UNKNOWN_INDEX"},
		{name: "merge patch", method: "PATCH", path: "/v1/indexes/b/n", body: `{"deferred":false}`, header: map[string]string{"Content-Type": "application/merge-patch+json"}, status: 404, code: "UNKNOWN_INDEX"},
		{name: "change of nothing", method: "PATCH", path: "/v1/indexes/b/n", body: `{}`, status: 400, code: "BAD_REQUEST", detail: "nothing to change"},
		{name: "change, no body", method: "PATCH", path: "/v1/indexes/b/n", status: 400, code: "BAD_REQUEST",
			detail: "nothing to change"},
		{name: "change of a fixed field", method: "PATCH", path: "/v1/indexes/b/n", body: `{"num_replica":2}`, status: 400, code: "UNSUPPORTED", detail: "use ALTER INDEX"},
		{name: "change of the name", method: "PATCH", path: "/v1/indexes/b/n", body: `{"name":"m"}`, status: 400, code: "UNSUPPORTED", detail: "create another"},
		{name: "change of the state", method: "PATCH", path: "/v1/indexes/b/n", body: `{"state":"ready"}`, status: 400, code: "BAD_REQUEST", detail: "is read-only"},
		{name: "change of an unknown field", method: "PATCH", path: "/v1/indexes/b/n", body: `{"coment":"x"}`, status: 400, code: "BAD_REQUEST", detail: "coment"},
		{name: "deferred again", method: "PATCH", path: "/v1/indexes/b/n", body: `{"deferred":true}`, status: 400, code: "UNSUPPORTED", detail: "cannot be deferred"},
		{name: "deferred null", method: "PATCH", path: "/v1/indexes/b/n", body: `{"deferred":null}`, status: 400, code: "BAD_REQUEST", detail: "null"},
		{name: "change, bad If-Match", method: "PATCH", path: "/v1/indexes/b/n", body: `{"deferred":false}`, header: map[string]string{"If-Match": `W/"7"`}, status: 400, code: "BAD_REQUEST", detail: "If-Match"},
		{name: "drop if exists", method: "POST", path: "/v1/statements", body: statement("DROP INDEX IF EXISTS n ON b"),
			status: 202},
		{name: "no projector", method: "POST", path: "/v1/statements", body: statement("CREATE INDEX n ON b(a)"), status: 503,
			code: "NO_PROJECTOR", detail: "start one"},
		{name: "create in JSON, no projector", method: "POST", path: "/v1/indexes", body: `{"name":"n","bucket":"b","keys":[{"expr":"a"}]}`, status: 503, code: "NO_PROJECTOR"},
		{name: "create without keys", method: "POST", path: "/v1/indexes", body: `{"name":"n","bucket":"b"}`, status: 400, code: "BAD_DEFINITION"},
		{name: "build of an unknown index", method: "POST", path: "/v1/statements", body: statement("BUILD INDEX ON b(n)"),
			status: 404, code: "UNKNOWN_INDEX"},
		{name: "build of nothing", method: "POST", path: "/v1/indexes:build", body: `{"bucket":"b"}`, status: 400, code: "BAD_REQUEST", detail: "names"},
		{name: "syntax", method: "POST", path: "/v1/statements", body: statement("CREATE\n INDX"), status: 400,
			code: "SYNTAX_ERROR", detail: "line 2"},
		{name: "second of two statements", method: "POST", path: "/v1/statements",
			body: statement("DROP INDEX IF EXISTS n ON b; DROP INDEX m ON b"), status: 404, code: "UNKNOWN_INDEX",
			detail: "statement 2 of 2"},
		{name: "no statement", method: "POST", path: "/v1/statements", body: `{}`, status: 400, code: "SYNTAX_ERROR"},
		{name: "no body", method: "POST", path: "/v1/statements", status: 400, code: "SYNTAX_ERROR"},
		{name: "bad JSON", method: "POST", path: "/v1/statements", body: `{"statement":`, status: 400, code: "BAD_REQUEST", detail: "middle"},
		{name: "unknown field", method: "POST", path: "/v1/statements", body: `{"statment":""}`, status: 400, code: "BAD_REQUEST", detail: "statment"},
		{name: "foreign media type", method: "POST", path: "/v1/statements", body: `x`, header: map[string]string{"Content-Type": "text/html"}, status: 415, code: "UNSUPPORTED_MEDIA_TYPE"},
		{name: "long key", method: "POST", path: "/v1/statements", body: statement("DROP INDEX n ON b"),
			header: map[string]string{"Idempotency-Key": strings.Repeat("k", 201)}, status: 400, code: "BAD_IDEMPOTENCY_KEY"},
		{name: "large body", method: "POST", path: "/v1/statements", body: statement(big), status: 413,
			code: "BODY_TOO_LARGE", detail: "1048576"},
		{name: "large scan", method: "POST", path: "/v1/indexes/1:scan", body: big, status: 413, code: "BODY_TOO_LARGE",
			detail: "1048576"},
		{name: "scan of an unknown index", method: "POST", path: "/v1/indexes/b/n:scan", status: 404, code: "UNKNOWN_INDEX"},
		{name: "count of an unknown index", method: "POST", path: "/v1/indexes/42:count", body: "{}", status: 404,
			code: "UNKNOWN_INDEX"},
		{name: "scan, unknown field", method: "POST", path: "/v1/indexes/1:scan", body: `{"limt":1}`, status: 400, code: "BAD_REQUEST", detail: "limt"},
		{name: "unknown path", method: "GET", path: "/v2/x", status: 404, code: "NOT_FOUND", detail: "/v2/x"},
		{name: "report of an unknown component", method: "POST", path: "/v1/components/x/reports?kind=kv", status: 400, code: "BAD_REQUEST",
			detail: "projector"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for role, n := range map[string]*node{"leader": c.nodes[c.leader()], "follower": c.follower()} {
				status, h, body := c.call(n, tc.method, tc.path, tc.body, tc.header)
				if status != tc.status {
					t.Errorf("%s: %d, want %d: %s", role, status, tc.status, body)
					continue
				}
				if tc.code != "" {
					if p := problemOf(t, h, body); p.Code != tc.code || p.Status != tc.status ||
						!strings.Contains(p.Detail, tc.detail) || p.Title == "" || p.Type == "" {
						t.Errorf("%s: %+v; want %s and %q", role, p, tc.code, tc.detail)
					}
					if allow := h.Get("Allow"); tc.status == 405 && allow != "POST" {
						t.Errorf("%s: Allow: %q", role, allow)
					}
				}
				if retry := h.Get("Retry-After"); (status == 503) != (retry != "") {
					t.Errorf("%s: %d with Retry-After %q", role, status, retry)
				}
			}
		})
	}
	t.Run("wrong methods name the right ones", func(t *testing.T) {
		for path, want := range map[string]string{"/v1/statements": "POST", "/v1/indexes": "GET, HEAD, POST",
			"/v1/indexes/b/n":      "DELETE, GET, HEAD, PATCH",
			"/v1/indexes/b/n:scan": "POST", "/v1/indexes:build": "POST", "/metrics": "GET, HEAD", "/v1/state": "GET, HEAD"} {
			status, h, body := c.call(c.follower(), "PUT", path, "", nil)
			if status != 405 || h.Get("Allow") != want || problemOf(t, h, body).Code != "METHOD_NOT_ALLOWED" {
				t.Errorf("PUT %s: %d, Allow %q, want %q", path, status, h.Get("Allow"), want)
			}
		}
	})
	t.Run("the leader is named", func(t *testing.T) {
		for range 2 {
			_, h, _ := c.call(c.follower(), "GET", "/v1/indexes", "", nil)
			if want := c.nodes[c.leader()].url; h.Get("Tidemark-Leader") != want || h.Get("Tidemark-Cas") == "" {
				t.Errorf("headers %v, want leader %s and a cas", h, want)
			}
		}
	})
	t.Run("a body that does not come", func(t *testing.T) { c.slowBodies(t) })
	t.Run("a forwarded request goes no further", func(t *testing.T) {
		status, h, body := c.once(c.follower(), "GET", "/v1/indexes", "", map[string]string{api.HeaderForwarded: "m9"})
		if p := problemOf(t, h, body); status != 503 || p.Code != "NO_LEADER" || p.Leader == nil ||
			h.Get("Retry-After") == "" {
			t.Errorf("%d %+v %v", status, p, h)
		}
	})
	t.Run("a stale read needs no other manager and states its age", func(t *testing.T) {
		_, h, body := c.call(c.follower(), "GET", "/v1/indexes?consistency=stale", "", nil)
		if h.Get("Tidemark-Age-Ms") == "" || h.Get("Tidemark-Cas") == "" {
			t.Errorf("headers %v: %s", h, body)
		}
	})
	t.Run("the state has lists and no null", func(t *testing.T) {
		_, _, body := c.call(c.follower(), "GET", "/v1/state", "", nil)
		if bytes.Contains(body, []byte("null")) || !bytes.Contains(body, []byte(`"buckets": []`)) {
			t.Errorf("%s", body)
		}
	})
}

// slowBodies verifies, for any client and manager, that a body that does not arrive in time is not waited for, and
// that one that is cut off was not written.
func (c *trio) slowBodies(t *testing.T) {
	for role, n := range map[string]*node{"leader": c.nodes[c.leader()], "follower": c.follower()} {
		for _, tc := range []struct {
			path   string
			cut    bool
			status string
			code   errcode.Code
		}{
			{"/v1/statements", false, "408", errcode.BodyTooSlow},
			{"/v1/indexes/b/n:scan", false, "408", errcode.BodyTooSlow},
			{"/v1/components/i1/reports?kind=indexer", false, "408", errcode.BodyTooSlow},
			{"/v1/components/i1/reports?kind=indexer", true, "400", errcode.BadRequest},
			{"/v1/restore?mode=in-place", true, "400", errcode.BadRequest},
		} {
			conn, err := net.Dial("tcp", strings.TrimPrefix(n.url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			timeout := time.Hour
			if !tc.cut {
				timeout = 200 * time.Millisecond
			}
			_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n%s: %d\r\n\r\n{",
				tc.path, api.HeaderTimeout, timeout.Milliseconds())
			if tc.cut && err == nil {
				err = conn.(*net.TCPConn).CloseWrite()
			}
			if err == nil {
				err = conn.SetReadDeadline(time.Now().Add(patience))
			}
			var resp *http.Response
			if err == nil {
				resp, err = http.ReadResponse(bufio.NewReader(conn), nil)
			}
			if err != nil {
				t.Fatalf("%s at the %s: %v", tc.path, role, err)
			}
			body, err := io.ReadAll(resp.Body)
			if p := problemOf(t, resp.Header, body); err != nil || !strings.HasPrefix(resp.Status, tc.status) ||
				p.Code != tc.code {
				t.Errorf("%s, cut %t, at the %s: %s %+v %v; want %s", tc.path, tc.cut, role, resp.Status, p, err, tc.code)
			}
			_ = conn.Close()
		}
	}
}

// TestOneOutcome: the ledger returns the same outcome on any node and after a change of leaders.
func TestOneOutcome(t *testing.T) {
	t.Parallel()
	c := newTrio(t)
	key := func(k string) map[string]string { return map[string]string{"Idempotency-Key": k} }
	drop := `{"statement":"DROP INDEX IF EXISTS n ON b"}`
	status, _, first := c.call(c.follower(), "POST", "/v1/statements", drop, key("a"))
	if status != 202 {
		t.Fatalf("%d %s", status, first)
	}
	check := func(when string) {
		t.Helper()
		for _, n := range c.nodes {
			if n == nil {
				continue
			}
			if status, _, body := c.call(n, "POST", "/v1/statements", drop, key("a")); status != 202 {
				t.Errorf("%s: %s: %d %s", when, n.url, status, body)
			}
			// A request is identified by its bytes: their meaning may differ in another version.
			if status, _, body := c.call(n, "POST", "/v1/statements", " { \"statement\" : \"DROP INDEX IF EXISTS n ON b\" }\n",
				key("a")); status != 422 {
				t.Errorf("%s: other bytes: %d %s", when, status, body)
			}
			status, h, body := c.call(n, "POST", "/v1/statements", statement("DROP INDEX IF EXISTS other ON b"), key("a"))
			if p := problemOf(t, h, body); status != 422 || p.Code != "REQUEST_MISMATCH" || strings.Contains(p.Detail, "a:0") {
				t.Errorf("%s: another body: %d %s", when, status, body)
			}
			status, _, body = c.call(n, "DELETE", "/v1/indexes/b/n", "", key("a"))
			if status != 422 {
				t.Errorf("%s: another call: %d %s", when, status, body)
			}
		}
	}
	check("at first")
	was := c.leader()
	c.stop(was) // in order: leadership is transferred
	if c.leader() == was {
		t.Fatal("the stopped manager still leads")
	}
	check("after a change of leaders")
	c.start(was)
	c.until("the old leader is back", func() bool {
		code, _, _ := c.call(c.nodes[was], "GET", "/readyz", "", nil)
		return code == 200
	})
	check("when the old leader is back")
}

// TestLostQuorum: one manager of three answers every request within a bound, and never wrongly.
func TestLostQuorum(t *testing.T) {
	t.Parallel()
	c := newTrio(t)
	l := c.leader()
	c.stop(l)
	c.stop(c.leader())
	var n *node
	for _, m := range c.nodes {
		if m != nil {
			n = m
		}
	}
	var s v1.Status
	c.until("it has noticed", func() bool {
		s = v1.Status{}
		_, _, body := c.call(n, "GET", "/v1/status", "", nil)
		return json.Unmarshal(body, &s) == nil && s.Node.Role == "candidate" && s.Leader.ID == ""
	})
	for _, tc := range []struct {
		method, path, body string
		status             int
		code               errcode.Code
	}{
		{"GET", "/healthz", "", 200, ""},
		{"GET", "/readyz", "", 503, "NO_LEADER"},
		{"GET", "/metrics", "", 200, ""},
		{"GET", "/v1/status", "", 200, ""},
		{"GET", "/v1/indexes", "", 503, "NO_LEADER"},
		{"GET", "/v1/indexes?consistency=stale", "", 200, ""},
		{"GET", "/v1/state?consistency=stale&format=text", "", 200, ""},
		{"GET", "/v1/state", "", 503, "NO_LEADER"},
		{"POST", "/v1/statements", statement("DROP INDEX n ON b"), 503, "NO_LEADER"},
		{"DELETE", "/v1/indexes/7", "", 503, "NO_LEADER"},
		{"POST", "/v1/indexes/b/n:scan", "{}", 503, "NO_LEADER"},
	} {
		status, h, body := c.once(n, tc.method, tc.path, tc.body, map[string]string{api.HeaderPrefer: "wait=0"})
		if status != tc.status {
			t.Errorf("%s %s: %d %s", tc.method, tc.path, status, body)
		} else if tc.code != "" && problemOf(t, h, body).Code != tc.code {
			t.Errorf("%s %s: %s", tc.method, tc.path, body)
		}
	}
	if len(s.Managers) != 3 {
		t.Errorf("status %+v", s)
	}
	alive := 0
	for _, m := range s.Managers {
		if m.Alive {
			alive++
		}
	}
	if alive != 1 {
		t.Errorf("%d managers are alive, want 1: %+v", alive, s)
	}
}

// TestFoldersAndPorts: an error of opening names what failed and where, and everything opened before is released.
func TestFoldersAndPorts(t *testing.T) {
	t.Parallel()
	addrs := ports.Addrs(t, 4)
	cfg := Config{Name: "m1", Dir: need.Memory(t), REST: addrs[0], Raft: addrs[1], BootstrapExpect: 1, Join: addrs[:1]}
	m, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	for _, tc := range []struct {
		name, want string
		change     func(*Config)
	}{
		{"one folder for two", "in use", func(c *Config) { c.REST, c.Raft = addrs[2], addrs[3] }},
		{"the REST port is taken", addrs[0], func(c *Config) { c.Dir, c.Raft = t.TempDir(), addrs[3] }},
		{"the Raft port is taken", addrs[1], func(c *Config) { c.Dir, c.REST = t.TempDir(), addrs[2] }},
		{"no server expected", "--bootstrap-expect", func(c *Config) { c.BootstrapExpect = -1 }},
	} {
		other := cfg
		tc.change(&other)
		if _, err := Open(other); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
	if l, err := net.Listen("tcp", addrs[2]); err != nil {
		t.Errorf("a failed start keeps its port: %v", err)
	} else {
		_ = l.Close()
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if m, err = Open(cfg); err != nil {
		t.Fatalf("opening it again: %v", err)
	}
	ctx, stop = context.WithCancel(context.Background())
	stop()
	if err := m.Run(ctx); err != nil {
		t.Error(err)
	}
}
