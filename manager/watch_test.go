package manager

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"tidemark/client"
	"tidemark/index"
	"tidemark/manager/api/v1"
	"tidemark/partition"
	"tidemark/statecontext"
)

// update makes a change at the leader.
func (c *trio) update(i int) {
	c.t.Helper()
	c.propose(&statecontext.RegisterProjector{
		Projector: statecontext.Projector{ID: index.ProjectorID(fmt.Sprint("p", i%7)), Admin: fmt.Sprint("http://x", i)}})
}

// history collects what a watcher sees until a given cas.
type history struct {
	mu        sync.Mutex
	cas       uint64
	changes   map[uint64]string
	snapshots int
	err       string
}

func (h *history) watch(ctx context.Context, c *client.Client) {
	for e, err := range c.Watch(ctx, "", "all") {
		h.mu.Lock()
		switch {
		case err != nil && ctx.Err() == nil:
			h.err = err.Error()
		case err != nil:
		case e.Snapshot != nil:
			h.snapshots++
		case h.cas != 0 && e.CAS != h.cas+1:
			h.err = fmt.Sprintf("cas %d after %d", e.CAS, h.cas)
		}
		if err == nil {
			h.cas = e.CAS
			b, _ := json.Marshal(e.Changes)
			if e.Snapshot == nil {
				h.changes[e.CAS] = string(b)
			}
		}
		h.mu.Unlock()
	}
}

func (h *history) at() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cas
}

// TestWatchOverLeaderChanges: while managers stop and start, watchers of one manager, of another one and of all see
// the same changes, each once, without a gap and with one snapshot, even those whose manager was away.
func TestWatchOverLeaderChanges(t *testing.T) {
	t.Parallel()
	c := newTrio(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	var seen []*history
	var urls []string
	for _, n := range c.nodes {
		urls = append(urls, n.url)
	}
	for i := range 4 {
		h, servers := &history{changes: map[uint64]string{}}, urls
		if i < 3 {
			servers = urls[i : i+1]
		}
		cl := client.New(servers...)
		t.Cleanup(cl.Close)
		wg.Go(func() { h.watch(ctx, cl) })
		seen = append(seen, h)
	}
	for _, h := range seen {
		c.until("a snapshot", func() bool { return h.at() > 0 })
	}
	for i := range 60 {
		c.update(i)
		if i%20 == 10 {
			l := c.leader()
			c.stop(l)
			c.update(1000 + i)
			c.start(l)
		}
	}
	last := c.nodes[c.leader()].m.raft.State().CAS()
	for i, h := range seen {
		c.until(fmt.Sprintf("watcher %d at cas %d (it is at %d)", i, last, h.at()), func() bool { return h.at() >= last })
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.err != "" || h.snapshots != 1 {
			t.Errorf("watcher %d: %d snapshots, %s", i, h.snapshots, h.err)
		}
		for cas := last - 60; cas <= last; cas++ { // they may have begun at different cas values
			if a, b := h.changes[cas], seen[0].changes[cas]; a != b || a == "" {
				t.Errorf("watcher %d saw at cas %d\n%s\nwatcher 0\n%s", i, cas, a, b)
			}
		}
	}
}

// TestPagesOfIndexes: the pages contain every index once, and parameters are validated.
func TestPagesOfIndexes(t *testing.T) {
	t.Parallel()
	c := newTrio(t)
	propose := func(bodies ...statecontext.Body) {
		n := c.nodes[c.leader()]
		for _, b := range bodies {
			res, err := n.m.raft.Propose(t.Context(), statecontext.Command{Body: b})
			if err == nil {
				err = res.Err()
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	create := func(name string) statecontext.Body {
		return &statecontext.CreateIndex{
			Definition: index.Definition{Name: name, Bucket: "b", BucketUUID: "u", Keys: []index.KeyExpr{{Expr: "a"}},
				Partitions: 1, Deferred: true},
			Layout: partition.Layout{Scheme: partition.HashDocID, Partitions: 1}, Placement: []statecontext.Placement{{}}}
	}
	propose(&statecontext.RegisterIndexer{Indexer: statecontext.Indexer{UUID: "i", Admin: "http://127.0.0.1:1"}},
		&statecontext.SetBucket{Name: "b", UUID: "u", VBuckets: 4})
	for i := range 5 {
		propose(create(fmt.Sprint("x", i)))
	}
	var names []string
	for after, pages := "", 0; ; pages++ {
		_, _, b := c.call(c.follower(), "GET", "/v1/indexes?limit=2&bucket=b&after="+after, "", nil)
		var page v1.IndexList
		if err := json.Unmarshal(b, &page); err != nil || len(page.Indexes) > 2 {
			t.Fatalf("%s, %v", b, err)
		}
		for _, i := range page.Indexes {
			names = append(names, i.Name)
		}
		if pages == 1 { // changes between two pages
			propose(&statecontext.DropIndex{ID: page.Indexes[0].ID}, create("late"))
		}
		if after = page.Next; after == "" {
			break
		}
	}
	if got := fmt.Sprint(names); got != "[x0 x1 x2 x3 x4 late]" {
		t.Error(got)
	}
	var topology v1.TopologyList
	if _, _, b := c.call(c.follower(), "GET", "/v1/topology?limit=3", "", nil); json.Unmarshal(b, &topology) != nil ||
		len(topology.Indexes) != 3 ||
		topology.Next == "" || len(topology.Indexes[1].Copies) != 1 {
		t.Errorf("%s", b)
	}
	for path, want := range map[string]string{
		"/v1/rollbacks":                          `"rollbacks": []`,
		"/v1/streams?limit=3":                    `"next": "b/2"`,
		"/v1/streams?after=b/2&bucket=b":         `"vbucket": 3`,
		"/v1/streams?consistency=stale":          `"streams": []`,
		"/v1/buckets/b/timestamps?limit=2":       `"next": "1"`,
		"/v1/buckets/b/timestamps?after=1":       `"from": 2`,
		"/v1/buckets/x/timestamps":               `"UNKNOWN_BUCKET"`,
		"/v1/streams?after=x":                    `"BAD_REQUEST"`,
		"/v1/buckets/b/timestamps?limit=9999999": `"BAD_REQUEST"`,
	} {
		c.until(path+" shows "+want, func() bool { // the leader's view of a bucket comes a moment later
			_, _, b := c.call(c.follower(), "GET", path, "", nil)
			return strings.Contains(string(b), want)
		})
	}
	for _, q := range []string{"limit=0", "limit=5001", "limit=x", "after=x"} {
		if code, _, b := c.call(c.nodes[0], "GET", "/v1/indexes?"+q, "", nil); code != 400 {
			t.Errorf("%s: %d %s", q, code, b)
		}
	}
}

// TestEventsOverHTTP covers what a plain HTTP client sees.
func TestEventsOverHTTP(t *testing.T) {
	t.Parallel()
	c := newTrio(t)
	for path, want := range map[string]int{"/v1/events?kinds=wat": 400, "/v1/events?since=x": 400,
		"/v1/events?wat=1": 400} {
		code, h, b := c.call(c.nodes[0], "GET", path, "", nil)
		if p := problemOf(t, h, b); code != want || p.Code != "BAD_REQUEST" {
			t.Errorf("%s: %d %s", path, code, b)
		}
	}
	s := c.nodes[0].m.raft.State()
	if code, _, b := c.once(c.nodes[0], "GET", fmt.Sprintf("/v1/events?since=99999@%s.%d", s.ClusterID(), s.Epoch()), "",
		nil); code != 503 {
		t.Errorf("ahead of the manager: %d %s", code, b)
	}
	f := c.follower()
	req, err := http.NewRequest("GET", f.url+"/v1/events?kinds=manager,projector&since=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Last-Event-ID", "7@another.1") // takes precedence over since
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%s %s", resp.Status, resp.Header)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	next := func(prefix string) string {
		for lines.Scan() {
			if text, ok := strings.CutPrefix(lines.Text(), prefix); ok {
				return text
			}
		}
		t.Fatalf("no line %q: %v", prefix, lines.Err())
		return ""
	}
	if s := next("data: "); !strings.Contains(s, `"reason":"other_cluster"`) || !strings.Contains(s, `"managers":[`) || strings.Contains(s, `"indexes"`) {
		t.Fatal(s)
	}
	c.update(1)
	if s := next("data: "); !strings.Contains(s, `"kind":"projector"`) || !strings.Contains(s, `"admin":"http://x1"`) {
		t.Fatal(s)
	}
	for i, n := range c.nodes {
		if n == f {
			c.stop(i)
		}
	}
	if next("event: "); !strings.Contains(next("data: "), `"reason":"stopping"`) {
		t.Fatal("no last word")
	}
}
