package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/internal/detector"
	"tidemark/internal/rpc"
	"tidemark/internal/testing/ports"
	"tidemark/manager/api/v1"
	"tidemark/statecontext"
	"tidemark/wire"
)

// script answers a server's calls one after the other; the last answer is repeated.
type script struct {
	mu    sync.Mutex
	calls []*http.Request
	steps []http.HandlerFunc
}

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	step := s.steps[min(len(s.calls), len(s.steps)-1)]
	s.calls = append(s.calls, r)
	s.mu.Unlock()
	step(w, r)
}

// requests returns the calls so far; an abandoned one may still arrive.
func (s *script) requests() []*http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

func (s *script) keys() (keys []string) {
	for _, r := range s.requests() {
		keys = append(keys, r.Header.Get("Idempotency-Key"))
	}
	return keys
}

func serve(t testing.TB, steps ...http.HandlerFunc) (*script, string) {
	t.Helper()
	s := &script{steps: steps}
	h := httptest.NewServer(s)
	t.Cleanup(h.Close)
	return s, h.URL
}

func refuse(status int, code errcode.Code) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		rpc.WriteProblem(w, rpc.NewProblem(status, code, "because"))
	}
}

func text(s string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, s) }
}

func cut(w http.ResponseWriter, _ *http.Request) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		_ = conn.Close()
	}
}

const accepted = `{"results":[{"id":"7","name":"n","bucket":"b","state":"pending","cas":3}]}`

func newClient(t testing.TB, servers ...string) *Client {
	t.Helper()
	c := New(servers...)
	t.Cleanup(c.Close)
	silent(c)
	return c
}

// silent makes these peers of a client silent, and all others answer probes: otherwise the requests to a test's
// servers would depend on the machine's speed.
func silent(c *Client, peers ...string) {
	probe := func(ctx context.Context, peer string) error {
		if slices.Contains(peers, peer) {
			<-ctx.Done()
		}
		return ctx.Err()
	}
	c.alive.Close()
	c.alive = detector.New(probe)
	if c.direct != nil {
		c.direct.alive.Close()
		c.direct.alive = detector.New(probe)
	}
}

// TestSilentServerIsSkipped: if a server accepts requests and does not answer, the call goes to the next one, for every
// kind of call including scans, and the silent one gets no further calls.
func TestSilentServerIsSkipped(t *testing.T) {
	hangs := func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then does the server detect the end of the connection
		<-r.Context().Done()
	}
	scanned := text(`{"key":["x"],"id":"d"}` + "\n" + `{"end":true,"rows":1,"timestamp":{"hash":"h"}}` + "\n")
	for name, call := range map[string]func(c *Client) error{
		"statement": func(c *Client) error { _, err := c.Statement(t.Context(), "BUILD INDEX ON b(n)"); return err },
		"scan": func(c *Client) error {
			rows, err := c.Scan(t.Context(), "1", v1.ScanRequest{})
			if err != nil {
				return err
			}
			defer rows.Close()
			for rows.Next() {
			}
			_, err = rows.End()
			return err
		},
	} {
		working := scanned
		if name == "statement" {
			working = text(accepted)
		}
		a, urlA := serve(t, hangs)
		b, urlB := serve(t, working)
		c := Open(Options{Servers: []string{urlA, urlB}, ViaManagers: true})
		defer c.Close()
		silent(c, urlA)
		for range 2 {
			if err := call(c); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if n, m := len(a.keys()), len(b.keys()); n != 1 || m != 2 {
			t.Errorf("%s: %d requests to the silent server, %d to the other one; want 1 and 2", name, n, m)
		}
	}
}

// TestRetriedWriteKeepsItsKey: whatever may be retried is, on the other server too, with one key.
func TestRetriedWriteKeepsItsKey(t *testing.T) {
	a, urlA := serve(t, refuse(503, errcode.NoLeader), refuse(504, errcode.OutcomeUnknown), refuse(504, errcode.Timeout),
		text(accepted))
	b, urlB := serve(t, cut, refuse(503, errcode.Busy), refuse(503, errcode.Unavailable))
	var waited atomic.Int32
	c := newClient(t, urlA, urlB)
	defer c.Close()
	c.Waiting = func(error) { waited.Add(1) }
	got, err := c.Statement(t.Context(), "CREATE INDEX n ON b(a)")
	if err != nil || len(got) != 1 || got[0].ID != 7 || got[0].State != index.Pending {
		t.Fatalf("%+v %v", got, err)
	}
	keys := append(a.keys(), b.keys()...)
	if len(keys) != 7 || waited.Load() != 6 {
		t.Errorf("%d attempts, %d reported", len(keys), waited.Load())
	}
	for _, k := range keys {
		if k == "" || k != keys[0] {
			t.Errorf("keys %q", keys)
		}
	}
	if _, err := c.Statement(t.Context(), "again"); err != nil {
		t.Fatal(err)
	}
	if last := a.keys(); last[len(last)-1] == keys[0] {
		t.Error("another request has the same key")
	}
}

func TestCallsThatAreNotRetried(t *testing.T) {
	for _, tc := range []struct {
		name string
		step http.HandlerFunc
		is   func(error) bool
	}{
		{"conflict", refuse(409, "NAME_EXISTS"), func(err error) bool {
			var p *wire.Problem
			return errors.As(err, &p) && p.Status == 409 && p.Code == "NAME_EXISTS"
		}},
		{"no projector", refuse(503, "NO_PROJECTOR"), func(err error) bool {
			var p *wire.Problem
			return errors.As(err, &p) &&
				p.Status == 503
		}},
		{"no problem JSON", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "nginx", 404) },
			func(err error) bool {
				var p *wire.Problem
				return errors.As(err, &p) && p.Status == 404 && strings.Contains(p.Detail, "nginx")
			}},
		{"not a manager", text("<html>"), func(err error) bool { return errors.Is(err, ErrAnswer) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, url := serve(t, tc.step)
			_, err := newClient(t, url).Statement(t.Context(), "x")
			if !tc.is(err) || len(s.keys()) != 1 {
				t.Errorf("%v after %d attempts", err, len(s.keys()))
			}
		})
	}
	for _, server := range []string{"http://[::1", "ftp://x", "://x", "http://:80"} {
		if _, err := newClient(t, server).Status(t.Context()); !errors.Is(err, ErrServer) {
			t.Errorf("%s: %v", server, err)
		}
	}
}

// TestContextEndsCalls: a server that refuses, is gone, or is silent does not hold a call beyond its context, and
// gets the caller's timeout.
func TestContextEndsCalls(t *testing.T) {
	t.Parallel()
	s, silent := serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	_, busy := serve(t, refuse(503, errcode.NoLeader))
	var all sync.WaitGroup
	for server, want := range map[string]string{ports.Addr(t): "the last attempt was at ",
		silent: "which had not answered yet", busy: "the last attempt was at "} {
		all.Go(func() { checkContextEnd(t, server, want) })
	}
	all.Wait()
	calls := s.requests()
	if len(calls) == 0 {
		t.Fatal("the silent server got no request")
	}
	if ms := calls[0].Header.Get("Tidemark-Timeout-Ms"); ms == "" || len(ms) > 4 {
		t.Errorf("the server was sent %q ms", ms)
	}
}

// TestTimeoutErrorContainsLastAnswer: the error contains the server's answer, and the end of the context is not
// mistaken for one.
func TestTimeoutErrorContainsLastAnswer(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	const what = " while waiting for scan b/i with consistency session; the last attempt was at s"
	head, answered := "no answer in time: context canceled"+what, "no answer in time"+what
	problem := rpc.NewProblem(503, errcode.NoLeader, "there is none")
	type errs struct{ last, before error }
	refused, own := errors.New("s: connection refused"), context.Canceled
	closed := fmt.Errorf("read: %w", net.ErrClosed)
	unreached := fmt.Errorf("%w: %w", ErrUnreached, own)
	for text, is := range map[string]errs{
		head + ": s: connection refused":                                           {last: refused},
		head + ", which had not answered yet":                                      {last: closed},
		head + ", which had not answered yet; before that: EOF":                    {own, io.EOF},
		head + ": no server could be reached":                                      {last: unreached},
		answered + ": " + problem.Error():                                          {problem, problem},
		answered + ": s: connection refused; before that: " + problem.Error():      {refused, problem},
		answered + ", which had not answered yet; before that: " + problem.Error(): {own, problem},
	} {
		err := operation{op: "scan", of: "b/i", consistency: "session"}.contextError(ctx, "s", is.last, is.before)
		if err.Error() != text || !errors.Is(err, ErrUnavailable) || !errors.Is(err, context.Canceled) {
			t.Errorf("%q, want %q", err, text)
		}
	}
}

// checkContextEnd checks that a call of that server ends with its context, and that the error names what it waited for.
func checkContextEnd(t *testing.T, server, want string) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // long enough for a request even on a busy machine
	defer cancel()
	_, err := newClient(t, server).Indexes(ctx, "b")
	if !errors.Is(err, ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%s: %v", server, err)
	} else if text := err.Error(); !strings.Contains(text, "waiting for GET /v1/indexes") ||
		!strings.Contains(text, server) || !strings.Contains(text, want) {
		t.Errorf("the error %q does not name what it waited for, %s, and %q", text, server, want)
	}
}

// TestServersByIPv6: an address with a zone is accepted; the error for an address without brackets mentions them.
func TestServersByIPv6(t *testing.T) {
	o := Options{Servers: []string{"[fe80::1%lo]:9520", "[::1]:9520"}}
	all, err := o.servers()
	if want := []string{"http://[fe80::1%25lo]:9520", "http://[::1]:9520"}; err != nil || !slices.Equal(all, want) {
		t.Errorf("%q, %v, want %q", all, err, want)
	}
	for _, bad := range []string{"::1", "::1:9520", "fe80::1"} {
		o.Servers = []string{bad}
		if _, err := o.servers(); !errors.Is(err, ErrServer) || !strings.Contains(err.Error(), "in brackets") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestNamesAreEscaped(t *testing.T) {
	s, url := serve(t, text("{}"))
	c := newClient(t, url)
	if _, err := c.Index(t.Context(), Ref("a/b", "c d")); err != nil {
		t.Fatal(err)
	}
	if err := c.Drop(t.Context(), Ref("b", "n"), 12); err != nil {
		t.Fatal(err)
	}
	if got := s.requests()[0].URL.EscapedPath(); got != "/v1/indexes/a%2Fb/c%20d" {
		t.Error(got)
	}
	if got := s.requests()[1].Header.Get("If-Match"); got != `"12"` || s.requests()[1].Method != http.MethodDelete {
		t.Error(got)
	}
}

func TestScansWithoutEndLineAreCut(t *testing.T) {
	const row = `{"key":["x",9007199254740993],"id":"d"}` + "\n"
	for _, tc := range []struct {
		name, body string
		rows       int
		want       string // in the error; "" none
	}{
		{"whole", row + row + `{"end":true,"rows":2,"timestamp":{"hash":"h","vector":[["18446744073709551615",5]]}}` + "\n", 2, ""},
		{"no end line", row + row, 0, ErrCut.Error()},
		{"half a line", row + `{"key":["x`, 0, ErrCut.Error()},
		{"an error at the end", row + `{"error":{"status":504,"code":"TIMEOUT","detail":"slow"}}` + "\n", 1, "TIMEOUT"},
		{"neither row nor end", row + "{}\n" + row, 0, ErrCut.Error()},
		{"neither row nor end, before an end", row + "{}\n" + `{"end":true,"rows":1}` + "\n", 1, ErrCut.Error()},
		{"no JSON", "x\n", 0, ErrCut.Error()},
		{"nothing", "", 0, ErrCut.Error()},
		{"a row longer than the buffer", `{"key":["` + strings.Repeat("y", 200<<10) + `"],"id":"d"}` + "\n" + `{"end":true,"rows":1,"timestamp":{"hash":"h"}}`, 1, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, url := serve(t, refuse(503, errcode.Unavailable), text(tc.body))
			rows, err := newClient(t, url).Scan(t.Context(), "1", v1.ScanRequest{})
			if err != nil {
				t.Fatal(err)
			}
			defer rows.Close()
			n := 0
			for ; rows.Next(); n++ {
				if rows.Row().ID != "d" {
					t.Errorf("row %+v", rows.Row())
				}
			}
			end, err := rows.End()
			if n != tc.rows || (tc.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%d rows, %v", n, err)
			}
			if err == nil && (int(end.Rows) != n || tc.name == "whole" && end.Timestamp.Vector[0].VBUUID != 1<<64-1) {
				t.Errorf("end %+v", end)
			}
			if rows.Next() {
				t.Error("goes on after its end")
			}
		})
	}
	_, url := serve(t, refuse(409, "INDEX_NOT_READY"))
	if _, err := newClient(t, url).Scan(t.Context(), "1", v1.ScanRequest{}); err == nil ||
		!strings.Contains(err.Error(), "INDEX_NOT_READY") {
		t.Error(err)
	}
}

// TestScansKeepTheirConnection: consecutive scans use one connection, however their answers arrive.
func TestScansKeepTheirConnection(t *testing.T) {
	const body = `{"key":["x"],"id":"d"}` + "\n" + `{"end":true,"rows":1,"timestamp":{"hash":"h"}}` + "\n"
	var chunked, opened atomic.Int64
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if chunked.Load() == 0 {
			w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		}
		_, _ = io.WriteString(w, body)
		if chunked.Load() != 0 {
			_ = http.NewResponseController(w).Flush()
		}
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	c := newClient(t, s.URL)
	for i := range 6 {
		chunked.Store(int64(i % 2))
		rows, err := c.Scan(t.Context(), "1", v1.ScanRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
		}
		if _, err := rows.End(); err != nil {
			t.Fatal(err)
		}
		if err := rows.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if n := opened.Load(); n != 1 {
		t.Errorf("%d connections for scans one after another", n)
	}
}

func TestWaitReady(t *testing.T) {
	list := func(states ...string) http.HandlerFunc {
		var l struct {
			Indexes []map[string]any `json:"indexes"`
		}
		for i, s := range states {
			l.Indexes = append(l.Indexes, map[string]any{"id": fmt.Sprint(i + 1), "name": "n", "bucket": "b", "state": s,
				"progress": 50, "reason": "no disk", "waiting_for": []string{"KV node k1 is away"}})
		}
		b, _ := json.Marshal(l)
		return text(string(b))
	}
	for _, tc := range []struct {
		name  string
		steps []http.HandlerFunc
		want  string
	}{
		{"ready", []http.HandlerFunc{list("pending", "backfill"), list("ready", "ready")}, ""},
		{"error", []http.HandlerFunc{list("pending", "backfill"), list("ready", "error")}, "no disk"},
		{"dropped", []http.HandlerFunc{list("pending", "backfill"), list("ready")}, "dropped"},
		{"dropping", []http.HandlerFunc{list("pending", "dropping")}, "dropped"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, url := serve(t, tc.steps...)
			last := 0.0
			err := newClient(t, url).WaitReady(t.Context(), []index.ID{1, 2}, func(p float64) { last = p })
			if (tc.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Error(err)
			}
			if err == nil && last != 100 {
				t.Errorf("ended at %v %%", last)
			}
		})
	}
	_, url := serve(t, list("backfill"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := newClient(t, url).WaitReady(ctx, []index.ID{1}, func(float64) { cancel() })
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "index n on b is waiting: KV node k1 is away") {
		t.Error(err)
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestTruncatedBackupIsRejected: an incomplete backup is rejected and requested again.
func TestTruncatedBackupIsRejected(t *testing.T) {
	var whole bytes.Buffer
	if err := statecontext.WriteBackup(&whole, statecontext.New(), 1, "1.0"); err != nil {
		t.Fatal(err)
	}
	s, url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(whole.Bytes()[:whole.Len()/2])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(whole.Bytes()) })
	got, err := newClient(t, url).Backup(t.Context())
	if err != nil || !bytes.Equal(got, whole.Bytes()) || len(s.requests()) != 2 {
		t.Errorf("%d of %d bytes after %d calls: %v", len(got), whole.Len(), len(s.requests()), err)
	}
}

// TestTooLargeAnswerIsRefused: it is refused by its size, and not requested again, which would return the same.
func TestTooLargeAnswerIsRefused(t *testing.T) {
	s, url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(append([]byte(`{"verdict":"ready"}`), bytes.Repeat([]byte(" "), 1000)...))
	})
	c := newClient(t, url)
	if c.largest != maxAnswer {
		t.Errorf("a client reads up to %d bytes, want %d", c.largest, maxAnswer)
	}
	c.largest = 1000 // sending maxAnswer bytes may take a busy machine longer than an attempt may
	_, err := c.Status(t.Context())
	if !errors.Is(err, ErrAnswer) || !errors.Is(err, rpc.ErrTooLarge) || !strings.Contains(err.Error(), url) ||
		len(s.requests()) != 1 {
		t.Errorf("after %d calls: %v", len(s.requests()), err)
	}
}
