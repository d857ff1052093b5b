package manager

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/manager/api"
	"tidemark/manager/api/v1"
	"tidemark/manager/consensus"
	"tidemark/statecontext"
)

// members returns the server ids of Raft's members, from the leader.
func (c *trio) members() (ids []string) {
	c.t.Helper()
	servers, err := c.nodes[c.leader()].m.raft.Servers()
	if err != nil {
		c.t.Fatal(err)
	}
	for _, s := range servers {
		ids = append(ids, s.ID)
	}
	return ids
}

// TestRefusedRemovalChangesNothing: a request that is answered as refused is not done. While a restore is staged, a
// removal with a key is refused, and the manager stays a member; when the restore is over, the same request removes
// it.
func TestRefusedRemovalChangesNothing(t *testing.T) {
	t.Parallel()
	c := newTrio(t, steadfast)
	c.propose(&statecontext.BeginRestore{ID: "r", Mode: statecontext.RestoreInPlace, Bytes: 1 << 20})
	key := map[string]string{api.HeaderKey: "k"}
	leader := c.nodes[c.leader()]
	goes := c.follower()
	path := "/v1/cluster/managers/" + goes.m.cfg.Name
	code, h, body := c.call(leader, "DELETE", path, "", key)
	if p := problemOf(t, h, body); code != http.StatusServiceUnavailable || p.Code != errcode.Restoring {
		t.Errorf("while a restore is staged: %d %s", code, body)
	}
	if all := c.members(); len(all) != 3 {
		t.Fatalf("it was answered that nothing was done, and the members are %v", all)
	}
	c.propose(&statecontext.AbortRestore{ID: "r"})
	if code, _, body := c.call(leader, "DELETE", path, "", key); code != http.StatusOK {
		t.Errorf("when it is over: %d %s", code, body)
	}
	if all := c.members(); len(all) != 2 {
		t.Errorf("it was answered as done, and the members are %v", all)
	}
	c.removed(goes)
}

// removed waits until a manager has learned of its removal and exited.
func (c *trio) removed(n *node) {
	c.t.Helper()
	select {
	case err := <-n.done:
		if !errors.Is(err, consensus.ErrRemoved) {
			c.t.Fatalf("the removed manager ended with %v", err)
		}
	case <-time.After(patience):
		c.t.Fatal("the removed manager goes on")
	}
	n.stop()
	c.nodes[slices.Index(c.nodes, n)] = nil
}

// removalOf returns the request that the API makes of DELETE /v1/cluster/managers/NAME with a key.
func removalOf(name, key string) *statecontext.Request {
	return &statecontext.Request{Principal: rpc.Anonymous, Key: key + ":0",
		BodyHash: sha256.Sum256(fmt.Appendf(nil, "DELETE /v1/cluster/managers/%s\n\n%s", name, name))}
}

// TestRemovalSurvivesItsLeader: the leader dies during a removal, before or after Raft's members have changed. The
// same request at the next leader continues the removal, or reports it as done; and it means the manager that it
// first meant, even if another manager has the name by now.
func TestRemovalSurvivesItsLeader(t *testing.T) {
	t.Parallel()
	c := newTrio(t, steadfast)
	begin := func(name, key, id string) {
		t.Helper()
		c.until("the removal has begun", func() bool {
			res, err := c.nodes[c.leader()].m.raft.Propose(t.Context(), statecontext.Command{Request: removalOf(name, key),
				Body: &statecontext.BeginRemoval{ID: id}})
			if err == nil && res.Err() != nil {
				t.Fatal(res.Err())
			}
			return err == nil
		})
	}
	again := func(when, name, key string, n *node) (reply v1.MemberReply) {
		t.Helper()
		code, _, body := c.call(n, "DELETE", "/v1/cluster/managers/"+name, "", map[string]string{api.HeaderKey: key})
		if code != http.StatusOK {
			t.Fatalf("%s: %d %s", when, code, body)
		}
		if err := json.Unmarshal(body, &reply); err != nil {
			t.Fatal(err)
		}
		return reply
	}
	goes := c.follower()
	name, id := goes.m.cfg.Name, goes.m.raft.ID()

	begin(name, "of before", name+"-00000001") // had that name once, and is no longer a member
	if r := again("one that is gone, of whose name there is another", name, "of before", c.nodes[0]); r.ServerID !=
		name+"-00000001" || len(c.members()) != 3 {
		t.Fatalf("%+v; the members are %v", r, c.members())
	}

	begin(name, "k", id)
	c.until("Raft's members have changed", func() bool { // and the leader dies before it has answered
		_, err := c.nodes[c.leader()].m.steward.Remove(t.Context(), id, false, nil)
		return err == nil || errors.Is(err, consensus.ErrUnknownMember)
	})
	c.removed(goes)
	l := c.nodes[c.leader()]
	c.until("leadership is handed on", func() bool {
		if c.nodes[c.leader()] == l {
			_ = l.m.raft.TransferLeadership(t.Context())
		}
		return c.nodes[c.leader()] != l
	})
	for range 2 {
		if r := again("at the next leader", name, "k", c.nodes[c.leader()]); r.ServerID != id {
			t.Errorf("%+v, want %s", r, id)
		}
	}
	if all := c.members(); len(all) != 2 {
		t.Errorf("the members are %v", all)
	}
}
