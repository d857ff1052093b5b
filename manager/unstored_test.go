package manager

import (
	"encoding/json"
	"strings"
	"testing"

	"tidemark/errcode"
	"tidemark/manager/api/v1"
)

// TestAMajorityOnFullDisks: a write that cannot be stored is answered by any manager with the managers whose disks are
// full, and what to do; so is the status. That is so as long as the leader has its followers, and when it has lost
// them, since its own disk is full, too. Everything is well as soon as there is room.
func TestAMajorityOnFullDisks(t *testing.T) {
	t.Parallel()
	c := newTrio(t, steadfast)
	l := c.leader()
	limits := func(n *node) (int, errcode.Code, string) {
		code, h, body := c.once(n, "PATCH", "/v1/limits", `{"indexes_per_bucket":500}`, nil)
		if code == 200 {
			return code, "", ""
		}
		p := problemOf(t, h, body)
		return code, p.Code, p.Detail
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
	for i, n := range c.nodes {
		n.full.Store(i != l)
	}
	for _, n := range c.nodes {
		if status, code, detail := limits(n); status != 504 || code != errcode.OutcomeUnknown || !names(detail) {
			t.Errorf("%s answers %d %s: %s", n.m.cfg.Name, status, code, detail)
		}
		c.until("the status says it", func() bool { return said(n) })
	}
	c.nodes[l].full.Store(true)
	for _, n := range c.nodes {
		c.until("there is no leader, and the answer says why", func() bool {
			_, code, detail := limits(n)
			return code == errcode.NoLeader && names(detail)
		})
		c.until("the status says it without a leader", func() bool { return said(n) })
	}
	for _, n := range c.nodes {
		n.full.Store(false)
	}
	c.until("writes are stored again", func() bool {
		status, _, _ := limits(c.nodes[0])
		return status == 200
	})
}
