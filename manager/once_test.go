package manager

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/manager/api"
	"tidemark/manager/api/v1"
	"tidemark/manager/consensus"
	"tidemark/statecontext"
)

// propose proposes commands on the leader.
func (c *trio) propose(bodies ...statecontext.Body) {
	c.t.Helper()
	for _, b := range bodies {
		if err := c.proposed(b); err != nil {
			c.t.Fatal(err)
		}
	}
}

// proposed proposes a command that may be applied twice; it retries if leadership was lost.
func (c *trio) proposed(b statecontext.Body) (err error) {
	c.t.Helper()
	c.until("an outcome", func() bool {
		ctx, cancel := context.WithTimeout(c.t.Context(), patience/3)
		defer cancel()
		var res statecontext.Result
		if res, err = c.nodes[c.leader()].m.raft.Propose(ctx, statecontext.Command{TimeMS: time.Now().UnixMilli(),
			Body: b}); err == nil {
			err = res.Err()
		}
		return !errors.Is(err, consensus.ErrNotLeader) && !errors.Is(err, consensus.ErrUnknownOutcome)
	})
	return err
}

// furnish registers a bucket and an indexer, so that indexes can be created deferred; neither has a process behind
// it.
func (c *trio) furnish() {
	c.propose(&statecontext.RegisterIndexer{Indexer: statecontext.Indexer{UUID: "i", Admin: "http://127.0.0.1:1"}},
		&statecontext.SetBucket{Name: "b", UUID: "u", VBuckets: 4})
}

// restart stops all managers and starts them again.
func (c *trio) restart() {
	c.t.Helper()
	for i := range c.nodes {
		c.stop(i)
	}
	for i := range c.nodes {
		c.start(i)
	}
	c.ready()
}

func (c *trio) ready() {
	c.t.Helper()
	c.leader()
	c.until("all are ready", func() bool {
		for _, n := range c.nodes {
			if code, _, _ := c.call(n, "GET", "/readyz", "", nil); code != 200 {
				return false
			}
		}
		return true
	})
}

// newLeader transfers leadership.
func (c *trio) newLeader() {
	c.t.Helper()
	l := c.leader()
	c.until("leadership is handed on", func() bool {
		if c.leader() == l {
			_ = c.nodes[l].m.raft.TransferLeadership(context.Background()) // it is retried
		}
		return c.leader() != l
	})
	c.ready()
}

// written is a write that has had its answer.
type written struct {
	method, path, body string
	other              string // body of another write with the same key
	header             map[string]string
	status             int
	answer             map[string]any
}

// timeless removes from an answer what may change after the write: a replay shows the index in its present state.
func timeless(t testing.TB, body []byte) map[string]any {
	t.Helper()
	m := map[string]any{}
	if len(body) == 0 {
		return m
	}
	if err := json.Unmarshal(body, &m); err != nil {
		t.Errorf("%v: %s", err, body)
	}
	drop := func(m map[string]any) {
		for _, k := range []string{"request_id", "progress", "copies", "state", "modified_cas", "reason", "deferred",
			"definition", "keys", "created_ms", "num_partition", "waiting_for"} {
			delete(m, k)
		}
	}
	drop(m)
	if results, ok := m["results"].([]any); ok {
		for _, r := range results {
			if one, ok := r.(map[string]any); ok {
				drop(one)
			}
		}
	}
	return m
}

// TestOneOutcomeOfEveryWrite: each kind of write, repeated with its key at every manager after a change of leaders,
// state snapshots, a restart of all managers, and the removal of its index, returns its first outcome, even if that
// is a refusal. Another body with the key is 422. Nothing is done twice.
func TestOneOutcomeOfEveryWrite(t *testing.T) {
	t.Parallel()
	c := newTrio(t)
	c.furnish()
	at := 0
	everywhere := func() *node { at++; return c.nodes[at%len(c.nodes)] }
	var done []*written
	do := func(key string, status int, w written) map[string]any {
		t.Helper()
		w.header = maps.Clone(w.header)
		if w.header == nil {
			w.header = map[string]string{}
		}
		w.header[api.HeaderKey] = key
		code, _, body := c.call(everywhere(), w.method, w.path, w.body, w.header)
		w.status, w.answer = code, timeless(t, body)
		if code != status {
			t.Fatalf("%s: %d, want %d: %s", key, code, status, body)
		}
		done = append(done, &w)
		return w.answer
	}
	create := func(name string) string {
		return fmt.Sprintf(`{"name":%q,"bucket":"b","keys":[{"expr":"a"}],"defer_build":true}`, name)
	}
	do("create", 202, written{method: "POST", path: "/v1/indexes", body: create("x"), other: create("y")})
	do("again", 409, written{method: "POST", path: "/v1/indexes", body: create("x"), other: create("y")})
	do("several", 202, written{method: "POST", path: "/v1/statements", body: statement("CREATE INDEX s1 ON b(a) WITH " +
		"{\"defer_build\":true}; CREATE INDEX s2 ON b(a) WITH {\"defer_build\":true}; DROP INDEX s1 ON b"),
		other: statement("DROP INDEX s1 ON b")})
	do("half", 404, written{method: "POST", path: "/v1/statements", body: statement("CREATE INDEX h ON b(a) WITH " +
		"{\"defer_build\":true}; DROP INDEX none ON b"), other: statement("DROP INDEX h ON b")})
	do("build", 202, written{method: "POST", path: "/v1/indexes:build", body: `{"bucket":"b","names":["x","s2"]}`, other: `{"bucket":"b","names":["x"]}`})
	do("for the patch", 202, written{method: "POST", path: "/v1/indexes", body: create("p"), other: create("q")})
	do("patch", 202, written{method: "PATCH", path: "/v1/indexes/b/p", body: `{"deferred":false}`})
	do("limits", 200, written{method: "PATCH", path: "/v1/limits", body: `{"indexes_per_bucket": 100}`, other: `{"indexes_per_bucket": 101}`})
	do("drop", 202, written{method: "DELETE", path: "/v1/indexes/b/h"})
	do("drop again", 404, written{method: "DELETE", path: "/v1/indexes/b/h"})

	want := c.nodes[c.leader()].m.raft.State()
	check := func(when string) {
		t.Helper()
		for _, w := range done {
			for _, n := range c.nodes {
				code, _, body := c.call(n, w.method, w.path, w.body, w.header)
				if got := timeless(t, body); code != w.status || fmt.Sprint(got) != fmt.Sprint(w.answer) {
					t.Errorf("%s: %s at %s: %d %v, at first %d %v", when, w.header[api.HeaderKey], n.m.cfg.Name, code, got, w.status,
						w.answer)
				}
			}
			if w.other != "" {
				code, h, body := c.call(everywhere(), w.method, w.path, w.other, w.header)
				if p := problemOf(t, h, body); code != 422 || p.Code != errcode.RequestMismatch {
					t.Errorf("%s: %s with another body: %d %s", when, w.header[api.HeaderKey], code, body)
				}
			}
		}
		s := c.nodes[c.leader()].m.raft.State()
		for x := range want.Indexes() {
			if y := s.Index(x.Definition.ID); y != nil && y.Definition.CreatedMS != x.Definition.CreatedMS {
				t.Errorf("%s: index %s was made anew", when, x.Definition.Name)
			}
		}
		for x := range s.Indexes() {
			if want.Index(x.Definition.ID) == nil {
				t.Errorf("%s: a retry has made index %d %s", when, x.Definition.ID, x.Definition.Name)
			}
		}
	}
	check("at once")
	c.newLeader()
	check("after a change of leaders")
	for _, n := range c.nodes {
		if err := n.m.raft.Snapshot(); err != nil {
			t.Fatal(err)
		}
	}
	c.restart()
	if s := c.nodes[0].m.raft.Stats(); s.AppliedIndex == 0 {
		t.Errorf("%+v", s)
	}
	check("after snapshots and a restart of all")
	c.propose(&statecontext.SetLimits{Limits: statecontext.Limits{Buckets: 7}})
	c.call(c.follower(), "DELETE", "/v1/indexes/b/p", "", nil)
	c.call(c.follower(), "DELETE", "/v1/indexes/b/x", "", nil)
	c.newLeader()
	for _, w := range done { // later changes do not affect an outcome
		code, _, body := c.call(everywhere(), w.method, w.path, w.body, w.header)
		if code != w.status {
			t.Errorf("when its index is dropped: %s: %d, at first %d: %s", w.header[api.HeaderKey], code, w.status, body)
		}
	}
}

// TestOneOutcomeOfUsersAndTokens: a change of users and tokens, repeated with its key at every manager, even after
// changes of leaders and a restart of all managers, returns its first outcome, even if that is a refusal, and is done
// once.
func TestOneOutcomeOfUsersAndTokens(t *testing.T) {
	t.Parallel()
	c := newTrio(t)
	const password = "a-long-password-of-one"
	first := map[string]string{}
	known := http.Header{}
	(&http.Request{Header: known}).SetBasicAuth("first", password)
	user := func(name, role string) written {
		return written{method: "PUT", path: "/v1/users/" + name, status: 200,
			body: fmt.Sprintf(`{"role":%q,"password":%q,"new":true}`, role, password)}
	}
	token := func(secret string, status int) written {
		return written{method: "POST", path: "/v1/tokens", status: status,
			body: fmt.Sprintf(`{"user":"reader","secret":"tmt_%s"}`, strings.Repeat(secret, 43))}
	}
	remove := func(status int) written {
		return written{method: "DELETE", path: "/v1/users/gone", status: status}
	}
	refused := func(w written) written { w.status = 409; return w }
	var done []*written
	for i, w := range []written{user("first", "admin"), user("reader", "read"), refused(user("reader", "ddl")),
		token("A", 201), token("E", 201), user("gone", "read"), remove(204), remove(404)} {
		w.header = maps.Clone(first)
		w.header[api.HeaderKey] = fmt.Sprint("key", i)
		code, _, body := c.call(c.nodes[i%len(c.nodes)], w.method, w.path, w.body, w.header)
		if w.answer = timeless(t, body); code != w.status {
			t.Fatalf("%s %s: %d, want %d: %s", w.method, w.path, code, w.status, body)
		}
		first["Authorization"] = known.Get("Authorization") // once there is a user, every request needs credentials
		if w.path != "/v1/users/first" && (w.path != "/v1/users/gone" || w.method != "PUT") {
			done = append(done, &w) // a removed user has no valid credentials
		}
	}
	count := func() (u, x int) {
		s := c.nodes[c.leader()].m.raft.State()
		for range s.Users() {
			u++
		}
		for range s.Tokens() {
			x++
		}
		return u, x
	}
	for _, when := range []string{"at once", "after a change of leaders", "after another", "after a restart of all"} {
		for _, w := range done {
			for _, n := range c.nodes {
				code, _, body := c.call(n, w.method, w.path, w.body, w.header)
				if got := timeless(t, body); code != w.status || fmt.Sprint(got) != fmt.Sprint(w.answer) {
					t.Errorf("%s: %s %s at %s: %d %v, at first %d %v", when, w.method, w.path, n.m.cfg.Name, code, got, w.status,
						w.answer)
				}
			}
		}
		if u, x := count(); u != 2 || x != 2 {
			t.Errorf("%s: %d users and %d tokens, want 2 and 2", when, u, x)
		}
		if when == "after another" {
			c.restart()
		} else {
			c.newLeader()
		}
	}
}

// TestIfMatchOverLeaders: a new leader has each index's modified_cas: the right one is accepted, another one gets 412
// with the right one, and a client that has it gets 304.
func TestIfMatchOverLeaders(t *testing.T) {
	t.Parallel()
	c := newTrio(t)
	c.furnish()
	code, h, body := c.call(c.follower(), "POST", "/v1/indexes", `{"name":"x","bucket":"b","keys":[{"expr":"a"}],"defer_build":true}`, nil)
	old := h.Get("ETag")
	if code != 202 || old == "" {
		t.Fatalf("%d %v %s", code, h, body)
	}
	match := func(tag string) map[string]string { return map[string]string{"If-Match": tag} }
	c.newLeader()
	for _, n := range c.nodes {
		code, h, _ := c.call(n, "GET", "/v1/indexes/b/x", "", map[string]string{"If-None-Match": old})
		if code != 304 || h.Get("ETag") != old {
			t.Errorf("%s: %d, ETag %s; want 304 and %s", n.m.cfg.Name, code, h.Get("ETag"), old)
		}
		code, h, body = c.call(n, "PATCH", "/v1/indexes/b/x", `{"deferred":false}`, match(`"1"`))
		if p := problemOf(t, h, body); code != 412 || p.Code != errcode.CASMismatch || fmt.Sprintf(`"%d"`, p.CAS) != old {
			t.Errorf("%s: PATCH of another modified_cas: %d %+v, want 412 and %s", n.m.cfg.Name, code, p, old)
		}
	}
	code, h, body = c.call(c.follower(), "PATCH", "/v1/indexes/b/x", `{"deferred":false}`, match(old))
	now := h.Get("ETag")
	var i v1.IndexInfo
	if err := json.Unmarshal(body, &i); err != nil || code != 202 || now == "" || now == old || i.State == index.Pending &&
		i.Deferred {
		t.Fatalf("PATCH: %d, ETag %s, before %s: %s", code, now, old, body)
	}
	c.newLeader()
	for _, n := range c.nodes {
		code, h, body = c.call(n, "DELETE", "/v1/indexes/b/x", "", match(old))
		if p := problemOf(t, h, body); code != 412 || fmt.Sprintf(`"%d"`, p.CAS) != now {
			t.Errorf("%s: DELETE with the old tag: %d %+v, want 412 and %s", n.m.cfg.Name, code, p, now)
		}
		if code, h, _ = c.call(n, "GET", "/v1/indexes/b/x", "", map[string]string{"If-None-Match": old}); code != 200 ||
			h.Get("ETag") != now {
			t.Errorf("%s: GET with the old tag: %d %s", n.m.cfg.Name, code, h.Get("ETag"))
		}
	}
	if code, h, body = c.call(c.follower(), "PATCH", "/v1/indexes/b/x", `{"deferred":false}`, match(now)); code != 200 && code != 202 || h.Get("ETag") != now {
		t.Errorf("PATCH of what is so already: %d %s: %s", code, h.Get("ETag"), body)
	}
	if code, _, body = c.call(c.follower(), "DELETE", "/v1/indexes/b/x", "", match(now)); code != 202 {
		t.Errorf("DELETE with the right tag: %d %s", code, body)
	}
}

// nearly is an upper bound for a call with a short timeout: otherwise the shortest timeout of a call is 10 s.
const nearly = 9 * time.Second

// stall makes the disks of all followers block, so that the leader keeps leading and nothing is committed, until
// release is called.
func (c *trio) stall() (l int, release func()) {
	l = c.leader()
	gate := make(chan struct{})
	for i, n := range c.nodes {
		if i != l {
			n.gate.Store(&gate)
		}
	}
	var once sync.Once
	release = func() {
		once.Do(func() {
			for _, n := range c.nodes {
				if n != nil {
					n.gate.Store(nil)
				}
			}
			close(gate)
		})
	}
	c.t.Cleanup(release)
	return l, release
}

// TestUnknownOutcome: a write that is not committed by the caller's deadline returns 504 OUTCOME_UNKNOWN, from the
// leader and through a follower, no later than the caller wants; repeated, it returns its one outcome, from both and
// after a change of leaders.
func TestUnknownOutcome(t *testing.T) {
	t.Parallel() // it mostly waits for an election
	c := newTrio(t, steadfast)
	c.furnish()
	l, release := c.stall()
	body := func(i int) string {
		return fmt.Sprintf(`{"name":"x%d","bucket":"b","keys":[{"expr":"a"}],"defer_build":true}`, i)
	}
	headers := func(i int) map[string]string {
		return map[string]string{api.HeaderKey: fmt.Sprint("k", i), api.HeaderTimeout: "1500"}
	}
	for i, n := range c.nodes {
		began := time.Now()
		code, h, b := c.once(n, "POST", "/v1/indexes", body(i), headers(i))
		if p := problemOf(t, h, b); code != 504 || p.Code != errcode.OutcomeUnknown {
			t.Errorf("%s: %d %s", n.m.cfg.Name, code, b)
		}
		if took := time.Since(began); took < time.Second || took > nearly {
			t.Errorf("%s: the answer took %s, the caller wanted to wait 1.5s", n.m.cfg.Name, took)
		}
		code, h, b = c.once(n, "POST", "/v1/indexes", body(i), headers(i)) // at once: still in progress
		if p := problemOf(t, h, b); code != 504 || p.Code != errcode.OutcomeUnknown {
			t.Errorf("%s: again: %d %s", n.m.cfg.Name, code, b)
		}
	}
	if got := c.leader(); got != l {
		t.Errorf("leadership went from %d to %d: nothing was stalled", l, got)
	}
	release()
	ids := map[string]int{}
	for round, next := range []func(){func() {}, c.newLeader} {
		next()
		for i := range c.nodes {
			for _, n := range c.nodes {
				h := headers(i)
				delete(h, api.HeaderTimeout)
				code, _, b := c.call(n, "POST", "/v1/indexes", body(i), h)
				var got v1.IndexInfo
				if err := json.Unmarshal(b, &got); err != nil || code != 202 || got.Name != fmt.Sprint("x", i) {
					t.Fatalf("round %d: x%d at %s: %d %s", round, i, n.m.cfg.Name, code, b)
				}
				ids[got.ID.String()] = i
			}
		}
		code, h, b := c.call(c.follower(), "POST", "/v1/indexes", body(9), map[string]string{api.HeaderKey: "k0"})
		if p := problemOf(t, h, b); code != 422 {
			t.Errorf("another body: %d %+v", code, p)
		}
	}
	if len(ids) != len(c.nodes) {
		t.Errorf("%d writes were done as %d: %v", len(c.nodes), len(ids), ids)
	}
}

// TestWriteSurvivesItsLeader: a leader fails with a write that a follower has forwarded to it. The follower sends a
// write with a key to the next leader, and it is done once. A write whose time is over before there is a next leader
// reports nothing definite.
func TestWriteSurvivesItsLeader(t *testing.T) {
	t.Parallel()
	c := newTrio(t, func(c *Config) { c.Heartbeat = heartbeat / 3 })
	c.furnish()
	tries := 0
	c.until("a write is answered within its time", func() bool {
		tries++
		l, gate, began := c.leader(), make(chan struct{}), time.Now()
		asked := c.nodes[(l+1)%len(c.nodes)]
		c.nodes[l].gate.Store(&gate) // its disk hangs: it has the write, and is replaced
		code, _, body := c.once(asked, "POST", "/v1/indexes",
			fmt.Sprintf(`{"name":"x%d","bucket":"b","keys":[{"expr":"a"}],"defer_build":true}`, tries),
			map[string]string{api.HeaderPrefer: "wait=10", api.HeaderKey: fmt.Sprint("x", tries)})
		took := time.Since(began)
		c.nodes[l].gate.Store(nil)
		close(gate)
		c.ready()
		if code != 202 && took < nearly {
			t.Fatalf("after %s: %d %s", took, code, body)
		}
		return code == 202
	})
	_, _, body := c.call(c.follower(), "GET", "/v1/indexes?bucket=b", "", nil)
	if n := bytes.Count(body, fmt.Appendf(nil, "%q", fmt.Sprint("x", tries))); n != 1 {
		t.Errorf("it was done %d times: %s", n, body)
	}
}

// TestStopWithHungDisks: a leader stops although an entry in its log never completes, because the disks of
// all other managers hang while they still answer.
func TestStopWithHungDisks(t *testing.T) {
	t.Parallel()
	c := newTrio(t)
	c.furnish()
	l, release := c.stall()
	flying := func() string {
		_, _, body := c.call(c.nodes[l], "GET", "/metrics", "", nil)
		_, rest, _ := strings.Cut(string(body), "\ntidemark_raft_entries_in_flight ")
		n, _, _ := strings.Cut(rest, "\n")
		return n
	}
	before, answered := flying(), make(chan struct{})
	go func() {
		defer close(answered)
		c.once(c.nodes[l], "POST", "/v1/statements", statement("CREATE INDEX x ON b(a)"), nil)
	}()
	c.until("the leader has a write under way", func() bool { return flying() > before })
	c.stop(l)
	release()
	<-answered
	c.start(l)
}

// TestFullQueue: when too many writes wait for a log that accepts nothing, a write returns 503 BUSY with Retry-After,
// from the leader and through a follower, while all accepted writes complete as soon as the log continues.
func TestFullQueue(t *testing.T) {
	t.Parallel()
	c := newTrio(t, steadfast)
	var wg sync.WaitGroup
	ctx, end := context.WithCancel(t.Context())
	t.Cleanup(func() { end(); wg.Wait() }) // nothing continues after a failure of the test
	l, release := c.stall()
	raft := c.nodes[l].m.raft
	before := raft.State().CAS()
	var mu sync.Mutex
	cas, refused, sent := map[uint64]bool{}, 0, 0
	propose := func(i int) {
		wg.Go(func() {
			res, err := raft.Propose(ctx, statecontext.Command{Body: &statecontext.RegisterProjector{
				Projector: statecontext.Projector{ID: "p", Admin: fmt.Sprint("http://x", i)}}})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil && res.Changed:
				cas[res.CAS] = true
			case errors.Is(err, consensus.ErrBusy):
				refused++
			case !t.Failed(): // only the first of thousands
				t.Errorf("%+v, %v", res, err)
			}
		})
	}
	// Writes refused while Raft still accepts entries leave room later: send more until the queue stays full.
	full := 0
	c.until("the queue is full", func() bool {
		if t.Failed() { // a manager that lost leadership has no queue
			t.FailNow()
		}
		if _, _, body := c.call(c.nodes[l], "GET", "/metrics", "", nil); bytes.Contains(body,
			[]byte("tidemark_raft_proposals_queued 4096")) {
			full++
			return full > 10
		}
		full = 0
		for range 2000 {
			propose(sent)
			sent++
		}
		return false
	})
	for _, n := range c.nodes {
		code, h, body := c.call(n, "POST", "/v1/statements", statement("DROP INDEX n ON b"),
			map[string]string{api.HeaderKey: "k"})
		if p := problemOf(t, h, body); code != http.StatusServiceUnavailable || p.Code != errcode.Busy ||
			h.Get("Retry-After") == "" || p.RetryAfterMS == 0 {
			t.Errorf("%s: %d %v %s", n.m.cfg.Name, code, h, body)
		}
	}
	if _, _, body := c.call(c.nodes[l], "GET", "/metrics", "", nil); !bytes.Contains(body,
		[]byte("tidemark_raft_proposals_queued 4096")) {
		t.Error("the metrics do not show a full queue")
	}
	release()
	wg.Wait()
	if len(cas)+refused != sent || raft.State().CAS() < before+uint64(len(cas)) {
		t.Errorf("%d done under %d cas values, %d refused, of %d; cas %d, before %d", len(cas), len(cas), refused, sent,
			raft.State().CAS(), before)
	}
	if code, _, body := c.call(c.follower(), "POST", "/v1/statements", statement("DROP INDEX IF EXISTS n ON b"),
		map[string]string{api.HeaderKey: "k"}); code != 202 {
		t.Errorf("afterwards, under the key of what was refused: %d %s", code, body)
	}
}

// TestSlowBody: a body that does not arrive is waited for no longer than the call may take, and the request is
// answered.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	c := newTrio(t)
	for path, n := range map[string]*node{"/v1/statements": c.nodes[c.leader()], "/v1/indexes": c.follower(),
		"/v1/indexes/b/n:scan": c.follower()} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(n.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		began := time.Now()
		if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\nContent-Type: "+
			"application/json\r\n%s: 300\r\n\r\n{", path, api.HeaderTimeout); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(conn).ReadString('\n')
		if took := time.Since(began); err != nil || !strings.Contains(line, " 408 ") || took > nearly {
			t.Errorf("%s: %q, %v after %s", path, line, err, took)
		}
	}
}

// TestManyStatementsAndANewLeader: leadership is transferred between the statements of one body without a key.
// Statements that are done must not be repeated at the next leader.
func TestManyStatementsAndANewLeader(t *testing.T) {
	t.Parallel()
	c := newTrio(t)
	c.furnish()
	f := c.follower()
	answered := make(chan string, 1)
	go func() {
		_, _, body := c.once(f, "POST", "/v1/statements", statement(
			`CREATE INDEX a ON b(a) WITH {"defer_build":true};`+strings.Repeat("DROP INDEX IF EXISTS z ON b;", 900)+
				`CREATE INDEX z ON b(a) WITH {"defer_build":true}`), nil)
		answered <- string(body)
	}()
	c.until("the first statement is done", func() bool {
		status, _, _ := c.call(f, "GET", "/v1/indexes/b/a?consistency=stale", "", nil)
		return status == 200
	})
	c.newLeader()
	if body := <-answered; strings.Contains(body, "NAME_EXISTS") || strings.Contains(body, "NO_LEADER") {
		t.Errorf("%.1000s", body)
	} else {
		t.Logf("%.300s", body)
	}
}
