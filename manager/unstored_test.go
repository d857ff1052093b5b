package manager

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"tidemark/errcode"
	"tidemark/manager/api"
	"tidemark/manager/api/v1"
	"tidemark/wire"
)

// TestMajorityOnFullDisks: a write that cannot be stored is answered by any manager with the managers whose disks are
// full, and what to do, and the leader is asked for it once, also with a key; so is the status. That is so as long as
// the leader has its followers, and when it has lost them, since its own disk is full, too. Everything is well as soon
// as there is room.
func TestMajorityOnFullDisks(t *testing.T) {
	t.Parallel()
	c := newTrio(t, steadfast)
	var l int
	fill := func() { // only the leader can write
		for _, n := range c.nodes {
			n.full.Store(false)
		}
		l = c.leader()
		for i, n := range c.nodes {
			n.full.Store(i != l)
		}
	}
	limits := func(n *node, header map[string]string) (int, wire.Problem) {
		status, h, body := c.once(n, "PATCH", "/v1/limits", `{"indexes_per_bucket":500}`, header)
		if status == 200 {
			return status, wire.Problem{}
		}
		return status, problemOf(t, h, body)
	}
	names := func(text string) bool {
		all := strings.Contains(text, "nothing can be stored now: ") && strings.Contains(text, "make room")
		for i, n := range c.nodes {
			all = all && (i == l || strings.Contains(text, "manager "+n.m.cfg.Name+" cannot write (disk fails: "))
		}
		return all
	}
	said := func(n *node) bool {
		var s v1.Status
		_, _, body := c.call(n, "GET", "/v1/status", "", nil)
		if err := json.Unmarshal(body, &s); err != nil {
			t.Fatal(err)
		}
		return s.Verdict == v1.VerdictNotReady && names(strings.Join(s.Reasons, "\n"))
	}
	ended := func(n *node, header map[string]string) bool { // because nothing can be stored, not with its time
		if _, serving := c.nodes[l].m.raft.Serving(); !serving { // those that are full elect nobody
			fill()
		}
		status, p := limits(n, header)
		return status == 504 && p.Code == errcode.OutcomeUnknown && names(p.Detail) && len(p.Reasons) == 1 &&
			p.Reasons[0].Code == "unstored" && strings.Contains(p.Detail, p.Reasons[0].Detail)
	}
	answers := func() int { // of the leader, to such writes
		_, _, body := c.call(c.nodes[l], "GET", "/metrics", "", nil)
		_, rest, _ := strings.Cut(string(body),
			`tidemark_manager_requests_total{outcome="OUTCOME_UNKNOWN",route="PATCH /v1/limits"} `)
		text, _, _ := strings.Cut(rest, "\n")
		n, _ := strconv.Atoi(text) // 0 if it has made none
		return n
	}
	fill()
	for _, n := range c.nodes {
		c.until("the answer says it", func() bool { return ended(n, nil) })
		c.until("the status says it", func() bool { return said(n) })
	}
	c.until("a write with a key is answered while one manager leads", func() bool {
		term, _ := c.nodes[l].m.raft.Serving()
		before := answers()
		over := ended(c.nodes[(l+1)%len(c.nodes)], map[string]string{api.HeaderKey: "k"})
		if now, serving := c.nodes[l].m.raft.Serving(); !over || !serving || now != term {
			return false
		}
		// Another try is right if the follower did not know the leader meanwhile: then the next write shows it.
		return answers()-before == 1
	})
	c.nodes[l].full.Store(true)
	for _, n := range c.nodes {
		c.until("there is no leader, and the answer says why", func() bool {
			_, p := limits(n, nil)
			return p.Code == errcode.NoLeader && names(p.Detail)
		})
		c.until("the status says it without a leader", func() bool { return said(n) })
	}
	for _, n := range c.nodes {
		n.full.Store(false)
	}
	c.until("writes are stored again", func() bool {
		status, _ := limits(c.nodes[0], nil)
		return status == 200
	})
}
