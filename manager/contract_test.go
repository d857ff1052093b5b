package manager

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/internal/logging"
	"tidemark/internal/rpc"
	"tidemark/internal/testing/contract"
	"tidemark/wire"
)

// lockedBuffer is a log that several goroutines may write to.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Split(l.b.String(), "\n")
}

// TestOneIDFromClientToLog: a request goes to a follower, and the leader's log line of the write has the client's id.
func TestOneIDFromClientToLog(t *testing.T) {
	t.Parallel()
	logs := map[string]*lockedBuffer{}
	c := newTrio(t, func(cfg *Config) {
		logs[cfg.Name] = &lockedBuffer{}
		cfg.Logger = logging.New(logs[cfg.Name], "manager", hclog.Info, true)
	})
	l, f := c.leader(), c.follower()
	const id = "cli-3f2a"
	status, h, body := c.call(f, "POST", "/v1/statements", statement("DROP INDEX n ON b"),
		map[string]string{rpc.HeaderRequestID: id})
	if p := problemOf(t, h, body); status != 404 || p.RequestID != id || h.Get(rpc.HeaderRequestID) != id {
		t.Errorf("%d, header %q, problem %+v", status, h.Get(rpc.HeaderRequestID), p)
	}
	type line struct {
		Message   string `json:"message"`
		ID        string `json:"request_id"`
		Principal string `json:"principal"`
		Route     string `json:"route"`
		Outcome   string `json:"outcome"`
		Status    int    `json:"status"`
		From      string `json:"from"`
		Took      any    `json:"took"`
	}
	var found []line
	c.until("the leader's log line", func() bool {
		found = nil
		for _, text := range logs[c.cfgs[l].Name].lines() {
			var one line
			if json.Unmarshal([]byte(text), &one) == nil && one.ID == id {
				found = append(found, one)
			}
		}
		return len(found) > 0
	})
	want := line{Message: "write", ID: id, Principal: rpc.Anonymous, Route: "POST /v1/statements",
		Outcome: "UNKNOWN_INDEX", Status: 404, From: f.m.cfg.Name}
	if got := found[0]; len(found) != 1 || got.Took == nil {
		t.Errorf("logged %+v", found)
	} else if got.Took = nil; got != want {
		t.Errorf("logged %+v, want %+v", got, want)
	}
	for _, bad := range []string{"", "with space", strings.Repeat("x", rpc.MaxRequestID+1)} {
		_, h, _ := c.call(f, "GET", "/v1/indexes", "", map[string]string{rpc.HeaderRequestID: bad})
		if got := h.Get(rpc.HeaderRequestID); !rpc.ValidRequestID(got) || got == bad {
			t.Errorf("for id %q the answer has %q", bad, got)
		}
	}
	loggingOf(t, c, f, l)
}

// loggingOf changes the level of a component of one manager through another one, and back; an unknown node, component
// or level is reported.
func loggingOf(t *testing.T, c *trio, asked *node, of int) {
	t.Helper()
	path := "/v1/cluster/nodes/" + c.cfgs[of].Name + "/logging"
	for _, x := range []struct {
		method, path, body string
		status             int
		in                 string
	}{
		{"GET", path, "", 200, `{"name":"manager.api","level":"info","own":false}`},
		{"PUT", path, `{"component":"manager.api","level":"debug"}`, 200, `{"name":"manager.api","level":"debug","own":true}`},
		{"GET", path + "?role=manager", "", 200, `{"name":"manager.api","level":"debug","own":true}`},
		{"PUT", path, `{}`, 200, `{"name":"manager.api","level":"info","own":false}`},
		{"PUT", path, `{"component":"manager.nothing","level":"debug"}`, 400, "there are manager, manager.api"},
		{"PUT", path, `{"level":"loud"}`, 400, "want trace, debug"},
		{"PUT", path, `{"levels":"info"}`, 400, "unknown field"},
		{"GET", path + "?role=indexer", "", 404, "UNKNOWN_NODE"},
		{"GET", path + "?role=king", "", 400, "role=king"},
		{"GET", "/v1/cluster/nodes/nobody/logging", "", 404, "UNKNOWN_NODE"},
	} {
		status, _, body := c.call(asked, x.method, x.path, x.body, nil)
		text := strings.Join(strings.Fields(string(body)), "")
		if status != x.status || !strings.Contains(text, strings.Join(strings.Fields(x.in), "")) {
			t.Errorf("%s %s %s: %d %s; want %d, %s", x.method, x.path, x.body, status, body, x.status, x.in)
		}
	}
}

// alone runs one manager that leads a cluster of its own, and returns its handler.
func alone(t testing.TB, cfg Config) (http.Handler, func()) {
	t.Helper()
	m, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if _, active := m.coord.Status(); active {
			return m.api.Handler(), func() {
				stop()
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
		}
		if time.Now().After(deadline) {
			t.Fatal("one manager alone does not lead")
		}
	}
}

// handlerTransport sends requests to a handler in this process.
type handlerTransport struct{ h http.Handler }

func (t handlerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	t.h.ServeHTTP(w, r)
	return w.Result(), nil
}

// FuzzBodies: for any request the answer is never 500, and refusals are problem JSON; every answer conforms to the
// contract.
func FuzzBodies(f *testing.F) {
	calls := []struct{ method, path string }{{"POST", "/v1/statements"}, {"POST", "/v1/indexes"},
		{"POST", "/v1/indexes:build"},
		{"PATCH", "/v1/indexes/b/n"}, {"POST", "/v1/indexes/b/n:scan"}, {"POST", "/v1/indexes/b/n:count"},
		{"DELETE", "/v1/indexes/b/n"}}
	for i, body := range []string{statement("CREATE INDEX n ON b(a)"), `{"name":"n","bucket":"b","keys":[{"expr":"a","desc":true}],"nodes":["x"]}`,
		`{"bucket":"b","names":["n",""]}`, `{"deferred":false}`, `{"range":{"low":[null],"high":[{}]},"limit":-1}`, `{"tokens":[{"vbucket":65535,"vbuuid":"1"}]}`, ``} {
		f.Add(uint8(i), body, "", "k")
		f.Add(uint8(i), body+body, `"7"`, "")
	}
	cfg := Config{Name: "m1", Dir: f.TempDir(), REST: "127.0.0.1:0", Raft: "127.0.0.1:0", BootstrapExpect: 1,
		ProjectorWait: time.Millisecond} // there is none
	// Every accepted request waits for a sync of the log, which costs more than everything else.
	if memory, err := os.MkdirTemp("/dev/shm", "tidemark"); err == nil {
		f.Cleanup(func() { _ = os.RemoveAll(memory) })
		cfg.Dir = memory
	}
	h, stop := alone(f, cfg)
	f.Cleanup(stop)
	checker, err := contract.New()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, which uint8, body, ifMatch, key string) {
		call := calls[int(which)%len(calls)]
		r := httptest.NewRequest(call.method, call.path, strings.NewReader(body))
		r.GetBody = nil
		r.RequestURI = call.path
		r.Header = http.Header{"Content-Type": {rpc.MediaJSON}, "If-Match": {ifMatch}, "Idempotency-Key": {key}}
		resp, err := checker.Transport(handlerTransport{rpc.Identify(h)}, func(err error) {
			if !strings.Contains(err.Error(), "request was accepted") { // bodies of any kind are tried here
				t.Errorf("against the contract: %v", err)
			}
		}).RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode == http.StatusInternalServerError || resp.StatusCode == http.StatusGatewayTimeout {
			t.Errorf("%s %s: %d: %v", call.method, call.path, resp.StatusCode, rpc.ReadProblem(resp))
		} else if resp.StatusCode >= 400 {
			var p wire.Problem
			if err := json.NewDecoder(resp.Body).Decode(&p); err != nil || resp.Header.Get("Content-Type") != rpc.MediaProblem ||
				p.Code == "" || p.Detail == "" || p.RequestID == "" {
				t.Errorf("%s %s: %d is no whole problem: %+v %v", call.method, call.path, resp.StatusCode, p, err)
			}
		}
	})
}
