package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/errcode"
	"tidemark/fsm"
	"tidemark/internal/rpc"
	"tidemark/manager/consensus"
)

// pair starts two managers' Raft nodes and returns the one that leads; end stops the other one.
func pair(t *testing.T, heartbeat time.Duration) (leader *consensus.Node, end func()) {
	t.Helper()
	nodes, members := make([]*consensus.Node, 2), make([]consensus.Server, 2)
	for i := range nodes {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		n, err := consensus.Open(consensus.Config{Name: fmt.Sprintf("m%d", i+1), Dir: t.TempDir(), Listener: l,
			REST: fmt.Sprintf("http://127.0.0.1:%d", i+1), Heartbeat: heartbeat},
			fsm.New(hclog.NewNullLogger(), func(err error) { t.Error(err) }))
		if err != nil {
			t.Fatal(err)
		}
		nodes[i], members[i] = n, consensus.Server{ID: n.ID(), Raft: n.Addr(), Voter: true}
		done := make(chan error, 1)
		go func() {
			done <- n.Run(context.Background(), func(ctx context.Context, _ uint64) error { <-ctx.Done(); return nil })
		}()
		t.Cleanup(func() {
			if err := errors.Join(n.Close(), <-done); err != nil {
				t.Error(err)
			}
		})
	}
	if err := nodes[0].Bootstrap(members); err != nil {
		t.Fatal(err)
	}
	for until := time.Now().Add(3 * time.Minute); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		for i, n := range nodes {
			if _, serving := n.Serving(); serving {
				return n, func() { _ = nodes[1-i].Close() }
			}
		}
	}
	t.Fatal("nobody leads")
	return nil, nil
}

// TestALeaderThatStoodStill: a manager that goes on after it was stopped takes itself for the leader until Raft has
// seen that it is not. What it knew is current no longer than of any other manager, and nobody is refused by it.
func TestALeaderThatStoodStill(t *testing.T) {
	t.Parallel()
	node, end := pair(t, 5*time.Second)
	stood := time.Duration(0)
	g := &ground{cfg: Config{Raft: node, Name: "m"}, now: func() time.Time { return time.Now().Add(stood) }}
	c := over(g).currency
	for until := time.Now().Add(time.Minute); !c.catchUpTo(t.Context(), g.now())() || !c.current(); {
		if time.Now().After(until) {
			t.Fatal("a leader could not prove that it is one")
		}
	}
	end() // nobody answers it any more, as where they have another leader
	stood = mayLag + time.Second
	came := g.now()
	if c.current() {
		t.Error("it lets users in by what it knew before it was stopped")
	}
	if c.currentSince(came) {
		t.Error("it is certain of what there is, though nobody has told it anything since it goes on")
	}
	var p *rpc.Problem
	if err := c.ensureCurrent(t.Context()); !errors.As(err, &p) || p.Code != errcode.ManagerNotCurrent {
		t.Errorf("it lets users in: %v", err)
	}
	if c.catchUpTo(t.Context(), came)() {
		t.Error("it is certain of what there is, though nobody answers it")
	}
}
