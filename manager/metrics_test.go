package manager

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"tidemark/internal/testing/need"
	"tidemark/internal/testing/ports"
	"tidemark/manager/api/v1"
)

// TestMetricsAreDocumented: docs/metrics.md lists every metric of ours that a manager exports.
func TestMetricsAreDocumented(t *testing.T) {
	t.Parallel()
	docs, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	c := newTrio(t)
	_, _, body := c.call(c.nodes[c.leader()], "GET", "/metrics", "", nil)
	seen := 0
	for line := range bytes.Lines(body) {
		name, found := strings.CutPrefix(string(line), "# TYPE tidemark_")
		if !found {
			continue
		}
		name, _, _ = strings.Cut(name, " ")
		seen++
		if !bytes.Contains(docs, []byte("`tidemark_"+name)) {
			t.Errorf("docs/metrics.md does not name tidemark_%s", name)
		}
	}
	if seen < 20 {
		t.Errorf("only %d metrics of ours", seen)
	}
}

// TestFollowerDiskIsVisible: a follower whose log cannot be written is not ready and reports the reason, the leader's
// status shows it, writes continue, and everything is well when its disk is.
func TestFollowerDiskIsVisible(t *testing.T) {
	t.Parallel()
	c := newTrio(t)
	f := c.follower()
	f.full.Store(true)
	c.until("the follower says what is wrong", func() bool {
		began := time.Now()
		if status, _, body := c.call(c.nodes[c.leader()], "POST", "/v1/statements", statement("DROP INDEX IF EXISTS n ON b"),
			nil); status != 202 {
			t.Errorf("a write while a follower's disk is full: %d %s", status, body)
		}
		if took := time.Since(began); took > patience/2 {
			t.Errorf("a write took %v while a follower's disk is full", took)
		}
		if err := c.nodes[c.leader()].m.raft.TransferLeadership(context.Background()); err != nil { // which it has to store
			t.Log(err)
		}
		status, h, body := c.call(f, "GET", "/readyz", "", nil)
		return status == 503 && strings.Contains(problemOf(t, h, body).Detail, "no space left")
	})
	c.until("the status shows it", func() bool {
		var s v1.Status
		_, _, body := c.call(c.nodes[c.leader()], "GET", "/v1/status", "", nil)
		if err := json.Unmarshal(body, &s); err != nil {
			t.Fatal(err)
		}
		for _, m := range s.Managers {
			for _, r := range m.NotReady {
				if m.REST == f.url && r.Code == "disk" && strings.Contains(r.Detail, "no space left") {
					return true
				}
			}
		}
		return false
	})
	f.full.Store(false)
	c.until("the follower is well again", func() bool {
		status, _, _ := c.call(f, "GET", "/readyz", "", nil)
		return status == 200
	})
}

// TestManagersThatStartOnFullDisks: without a leader, and with nothing of the state in memory, each manager reports
// that it belongs to a cluster, and that its disk is full; it reports nothing about the others that it cannot know.
func TestManagersThatStartOnFullDisks(t *testing.T) {
	t.Parallel()
	c := newTrio(t)
	c.until("it is ready", func() bool { return c.leader() >= 0 })
	for i := range c.nodes {
		c.stop(i)
	}
	c.full = true
	for i := range c.nodes {
		c.start(i)
	}
	for _, n := range c.nodes {
		c.until("it says what is wrong", func() bool {
			var s v1.Status
			_, _, body := c.call(n, "GET", "/v1/status", "", nil)
			if err := json.Unmarshal(body, &s); err != nil {
				t.Fatal(err)
			}
			all := strings.Join(s.Reasons, "\n")
			if strings.Contains(all, "never registered") {
				t.Errorf("of others it says: %s", all)
			}
			status, h, body := c.call(n, "GET", "/readyz", "", nil)
			return s.Verdict == v1.VerdictNotReady && strings.Contains(all, "is not ready: disk fails") &&
				status == 503 && strings.Contains(problemOf(t, h, body).Detail, "has a log of its cluster")
		})
	}
	for _, n := range c.nodes {
		n.full.Store(false)
	}
	c.until("all are well again", func() bool {
		for _, n := range c.nodes {
			if status, _, _ := c.call(n, "GET", "/readyz", "", nil); status != 200 {
				return false
			}
		}
		return true
	})
}

// TestLoneManagerSaysWhatItWaitsFor: a manager whose peers of --join have not been started answers that it belongs to
// no cluster yet, and does not lead its operator to recover a majority that was never there.
func TestLoneManagerSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	addrs := ports.Addrs(t, 4)
	c := &trio{t: t, nodes: make([]*node, 1), http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
		cfgs: []Config{{Name: "m1", Dir: need.Memory(t), REST: addrs[0], Raft: addrs[1], BootstrapExpect: 3,
			Join: []string{addrs[0], addrs[2], addrs[3]}, stopPatience: patience}}}
	c.start(0)
	t.Cleanup(func() { c.stop(0) })
	for _, path := range []string{"/v1/indexes", "/v1/status", "/readyz"} {
		_, _, body := c.once(c.nodes[0], "GET", path, "", map[string]string{"Prefer": "wait=0"})
		if text := string(body); !strings.Contains(text, "belongs to no cluster yet: it waits for the --bootstrap-expect") ||
			strings.Contains(text, "cluster recover") {
			t.Errorf("%s: %s", path, text)
		}
	}
}
