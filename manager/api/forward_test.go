package api

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/manager/api/v1"
	"tidemark/manager/consensus"
	"tidemark/wire"
)

// TestWriteReadByADeadLeaderIsUnknown lets a leader read a write from a reused connection and be killed. The
// transport retries and is refused; the outcome of the write is unknown all the same.
func TestWriteReadByADeadLeaderIsUnknown(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	had := make(chan bool, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		in := bufio.NewReader(conn)
		for i := range 2 {
			req, err := http.ReadRequest(in)
			if err != nil {
				break
			}
			_, _ = io.Copy(io.Discard, req.Body)
			if i == 0 {
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				continue
			}
			had <- true
		}
		_, _ = l.Close(), conn.Close()
	}()
	c := rpc.NewClient(1, nil)
	defer c.Close()
	write := func() (*http.Response, bool, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+l.Addr().String()+"/v1/indexes",
			strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(HeaderKey, "k")
		return send(c.HTTP(), req)
	}
	resp, sent, err := write()
	if err != nil || !sent {
		t.Fatal(err, sent)
	}
	_ = resp.Body.Close()
	resp, sent, err = write()
	if err == nil {
		_ = resp.Body.Close()
		t.Fatal("the leader is gone, and there was an answer")
	}
	<-had
	var dial *net.OpError
	if !errors.As(err, &dial) || dial.Op != "dial" {
		t.Logf("the last error is not a refused connection: %v", err) // then no caller would be misled
	}
	if code := failure(t, sent, err); code != errcode.OutcomeUnknown {
		t.Errorf("the client gets %s", code)
	}
	_, sent, err = write() // nothing listens any more
	if code := failure(t, sent, err); code != errcode.NoLeader {
		t.Errorf("for a write that was never sent the client gets %s", code)
	}
}

func failure(t *testing.T, sent bool, err error) errcode.Code {
	t.Helper()
	r, reqErr := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://x/v1/indexes", nil)
	if reqErr != nil {
		t.Fatal(reqErr)
	}
	var p *rpc.Problem
	if err = forwardFailed(r, &route{}, sent, err); !errors.As(err, &p) {
		t.Fatal(err)
	}
	return p.Code
}

// TestWriteWithoutAKeyIsNotSentToADeadLeader checks the moment after a leader's death, when the connection to it still
// exists. A write without a key must not be sent on it, so that it is known not to be done, and waits for the next
// leader.
func TestWriteWithoutAKeyIsNotSentToADeadLeader(t *testing.T) {
	leader := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer leader.Close()
	g := &ground{rpc: rpc.NewClient(1, nil), fresh: rpc.NewFreshClient(1, nil)}
	defer g.rpc.Close()
	ask := func(key string) (*http.Client, *http.Request) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, leader.URL+"/v1/indexes",
			strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		if key != "" {
			req.Header.Set(HeaderKey, key)
		}
		return g.sender(req, &route{doc: operation{headers: []string{HeaderKey}}}), req
	}
	c, req := ask("k")
	if c != g.rpc.HTTP() {
		t.Error("a write with a key has a connection of its own")
	}
	resp, _, err := send(c, req) // the connection is kept
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	leader.Listener.Close() // as at its death: the kept connection breaks a moment later
	resp, sent, err := send(ask(""))
	if err == nil {
		_ = resp.Body.Close()
		t.Fatal("it was sent on the kept connection")
	}
	if code := failure(t, sent, err); code != errcode.NoLeader {
		t.Errorf("the client gets %s: %v", code, err)
	}
}

// TestACutAnswerOfTheLeader checks that an answer that the leader breaks off, such as a backup, does not look
// complete at the forwarding manager's client, with and without a known length.
func TestACutAnswerOfTheLeader(t *testing.T) {
	for name, length := range map[string]string{"of unknown length": "", "of a known length": "100000"} {
		leader := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if length != "" {
				w.Header().Set("Content-Length", length)
			}
			_, _ = io.WriteString(w, strings.Repeat("x", 64<<10))
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}))
		defer leader.Close()
		follower := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			resp, err := http.Get(leader.URL)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			copyAnswer(w, resp)
		}))
		defer follower.Close()
		resp, err := http.Get(follower.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if b, err := io.ReadAll(resp.Body); err == nil {
			t.Errorf("%s: %d bytes of an answer that was cut look like all of it", name, len(b))
		}
	}
}

// TestQueriesDoNotWaitBehindForwards checks that, while the maximum number of slow calls is being forwarded to the
// leader, it can still be asked for its log index, without which no user is admitted, and for its health.
func TestQueriesDoNotWaitBehindForwards(t *testing.T) {
	over, arrived := make(chan struct{}), make(chan struct{}, forwardsAtOnce)
	leader := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/stats" {
			arrived <- struct{}{}
			<-over
		}
		_, _ = io.WriteString(w, `{"index":7}`)
	}))
	defer leader.Close()
	a := New(Config{})
	defer a.Close()
	var forwards sync.WaitGroup
	for range forwardsAtOnce {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, leader.URL+"/v1/stats", nil)
		if err != nil {
			t.Fatal(err)
		}
		forwards.Go(func() {
			resp, _, err := send(a.sender(req, &route{}), req)
			if err != nil {
				t.Error(err)
				return
			}
			_ = resp.Body.Close()
		})
	}
	for range forwardsAtOnce {
		<-arrived
	}
	for what, ask := range map[string]func() error{
		"its log index": func() error {
			_, err := a.howFar(t.Context(), wire.Leader{ID: "m1", REST: leader.URL})
			return err
		},
		"its status": func() error {
			_, err := getJSON[v1.Status](t.Context(), a.ground, a.looks, leader.URL+"/v1/status")
			return err
		},
	} {
		err := ask()
		for until := time.Now().Add(30 * time.Second); err != nil && time.Now().Before(until); {
			err = ask() // one request times out after a second, which a busy machine may need
		}
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	close(over)
	forwards.Wait()
}

// TestVigilEndsWithTheLeader checks that a request's leader is gone when another one leads, unless the request was to
// bring that about, or when none has been known for a while.
func TestVigilEndsWithTheLeader(t *testing.T) {
	m1, m2 := consensus.Leader{ID: "m1", Known: true}, consensus.Leader{ID: "m2", Known: true}
	none := consensus.Leader{}
	patience := int(leaderUnknown / leaderWatch)
	for name, c := range map[string]struct {
		handsOn bool
		seen    []consensus.Leader
		gone    bool
	}{
		"it leads":                 {false, []consensus.Leader{m1, m1, m1}, false},
		"another one leads":        {false, []consensus.Leader{m1, m2}, true},
		"an election":              {false, append(slices.Repeat([]consensus.Leader{none}, patience), m1), false},
		"no manager leads":         {false, slices.Repeat([]consensus.Leader{none}, patience+1), true},
		"leadership was handed on": {true, []consensus.Leader{m1, none, m2, m2, m2}, false},
		"transferred, but no new leader is known": {true, slices.Repeat([]consensus.Leader{none}, patience+1), true},
		"two elections, not in a " +
			"line": {true, append(slices.Repeat([]consensus.Leader{none}, patience), m2, none), false},
	} {
		v := vigil{was: "m1", handsOn: c.handsOn}
		gone := false
		for _, l := range c.seen {
			gone = gone || v.gone(l)
		}
		if gone != c.gone {
			t.Errorf("%s: gone %t", name, gone)
		}
	}
	for _, rt := range over(&ground{}).routes() {
		hands := strings.Contains(rt.path, ":transfer-leadership") ||
			rt.method == http.MethodDelete && strings.HasPrefix(rt.path, "/v1/cluster/managers/")
		if rt.handsOn != hands {
			t.Errorf("%s %s: hands leadership on: %t", rt.method, rt.path, rt.handsOn)
		}
	}
}

// TestDryRunIsRetriedAtTheNextLeader checks that a dry run, which has no effect, is retried or times out; a request
// that only looks like one is a write.
func TestDryRunIsRetriedAtTheNextLeader(t *testing.T) {
	a := over(&ground{})
	tries := 0
	for _, rt := range a.routes() {
		if rt.method == http.MethodGet || rt.component() {
			continue
		}
		for query, dry := range map[string]bool{"": false, "?dry_run=false": false, "?dry_run=true": true} {
			dry = dry && slices.ContainsFunc(rt.doc.params, func(p param) bool { return p.name == paramDryRun })
			r := httptest.NewRequestWithContext(t.Context(), rt.method, "http://x/y"+query, nil)
			for _, err := range []error{errLeaderGone, context.DeadlineExceeded} {
				want := errcode.OutcomeUnknown
				switch {
				case dry && errors.Is(err, context.DeadlineExceeded):
					want = errcode.Timeout
				case dry:
					tries++
					want = errcode.NoLeader
				}
				if p := (*rpc.Problem)(nil); !errors.As(forwardFailed(r, &rt, true, err), &p) || p.Code != want {
					t.Errorf("%s %s%s: %v: the client gets %v, want %s", rt.method, rt.path, query, err, p, want)
				}
			}
		}
	}
	if tries < 3 {
		t.Errorf("%d routes have dry runs", tries)
	}
}

// TestEveryCallIsBounded checks the limits of time, of the body's size, and of the time that the body takes.
func TestEveryCallIsBounded(t *testing.T) {
	a := over(&ground{})
	for _, rt := range a.routes() {
		if rt.limit <= 0 || rt.limit > WatchTimeout && rt.limit != v1.VerifyTimeout || rt.maxBody() <= 0 ||
			rt.bodyTime(rt.limit) <= 0 || rt.stream != (rt.path == "/v1/events") || rt.lasts != (rt.limit > WatchTimeout) {
			t.Errorf("%s %s: limit %s, body of %d bytes in %s, stream %t", rt.method, rt.path, rt.limit, rt.maxBody(),
				rt.bodyTime(rt.limit), rt.stream)
		}
	}
}

// TestJoinMayTakeLonger checks that joining may take longer than other member changes, for slow
// heartbeats.
func TestJoinMayTakeLonger(t *testing.T) {
	seen := 0
	for _, waits := range []time.Duration{0, time.Minute, 2 * time.Minute} {
		for _, rt := range over(&ground{cfg: Config{JoinTimeout: waits}}).routes() {
			want := max(waits, v1.MemberTimeout)
			if rt.path == "/v1/cluster/managers:join" { // and asks for its identity first
				want = max(v1.ReadTimeout+waits, v1.JoinTimeout)
			} else if rt.path != "/v1/cluster/managers" {
				continue
			}
			seen++
			if rt.limit != want {
				t.Errorf("%s: who waits for %s has %s, want %s", rt.path, waits, rt.limit, want)
			}
		}
	}
	if seen != 6 {
		t.Errorf("%d rows", seen)
	}
}

// TestHungJoiningManager checks that asking for its identity does not use up the time for adding it.
func TestHungJoiningManager(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := members{&ground{rpc: rpc.NewClient(1, nil)}}
		g.rpc.Wrap(func(http.RoundTripper) http.RoundTripper { return hangs{} })
		began := time.Now()
		if _, err := g.askPeer(t.Context(), "m4:9520"); err == nil || time.Since(began) > v1.ReadTimeout {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

// hangs accepts requests and answers none for an hour.
type hangs struct{}

func (hangs) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(r.Context(), time.Hour)
	defer cancel()
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestTimeoutOfEveryCall checks TimeoutOf for each call of users, for all forms of its path.
func TestTimeoutOfEveryCall(t *testing.T) {
	filled := regexp.MustCompile(`\{[^}]*\}`)
	seen := 0
	for _, rt := range over(&ground{}).routes() {
		if rt.role == RoleComponent || rt.stream || rt.path == "/metrics" {
			continue
		}
		seen++
		for _, by := range []string{"7", "world/by_name", "a:b"} {
			path := filled.ReplaceAllString(rt.path, by)
			if timeout := v1.TimeoutOf(rt.method, path); timeout != rt.limit {
				t.Errorf("%s %s: TimeoutOf returns %s, it takes up to %s", rt.method, path, timeout, rt.limit)
			}
		}
	}
	if seen < 40 {
		t.Errorf("only %d calls: looked at the wrong table", seen)
	}
}
