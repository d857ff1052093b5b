package consensus_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"

	"tidemark/internal/testing/need"
	"tidemark/manager/consensus"
)

func TestJudge(t *testing.T) {
	peer := func(id string) consensus.PeerAnswer {
		return consensus.PeerAnswer{ID: id, Raft: id + ":1", Expect: 3, Sees: []string{"a", "b", "c"}}
	}
	with := func(a consensus.PeerAnswer, change func(*consensus.PeerAnswer)) consensus.PeerAnswer {
		change(&a)
		return a
	}
	for name, c := range map[string]struct {
		own    string
		others []consensus.PeerAnswer
		expect int
		want   consensus.Verdict
		err    error
	}{
		"alone":          {"a", nil, 1, consensus.VerdictWait, consensus.ErrBootstrap}, // its own answer expects 3
		"one is missing": {"a", []consensus.PeerAnswer{peer("b")}, 3, consensus.VerdictWait, nil},
		"lowest of all":  {"a", []consensus.PeerAnswer{peer("c"), peer("b")}, 3, consensus.VerdictBootstrap, nil},
		"lowest, listed itself": {"a", []consensus.PeerAnswer{peer("a"), peer("c"), peer("b")}, 3, consensus.VerdictBootstrap,
			nil},
		"not the lowest": {"b", []consensus.PeerAnswer{peer("a"), peer("c")}, 3, consensus.VerdictWait, nil},
		"the same twice": {"a", []consensus.PeerAnswer{peer("b"), peer("b")}, 3, consensus.VerdictWait, nil},
		"too many": {"a", []consensus.PeerAnswer{peer("b"), peer("c"), peer("d")}, 3, consensus.VerdictWait,
			consensus.ErrBootstrap},
		"one has state": {"a", []consensus.PeerAnswer{peer("b"),
			with(peer("c"), func(p *consensus.PeerAnswer) { p.HasState = true })}, 3, consensus.VerdictJoin, nil},
		"one is in a cluster": {"a", []consensus.PeerAnswer{with(peer("c"),
			func(p *consensus.PeerAnswer) { p.ClusterID = "x" })}, 3, consensus.VerdictJoin, nil},
		"another expectation": {"a", []consensus.PeerAnswer{peer("b"),
			with(peer("c"), func(p *consensus.PeerAnswer) { p.Expect = 5 })}, 3, consensus.VerdictWait, consensus.ErrBootstrap},
		"one of another set": {"a", []consensus.PeerAnswer{peer("b"),
			with(peer("c"), func(p *consensus.PeerAnswer) { p.Sees = []string{"c", "d", "e"} })}, 3,
			consensus.VerdictWait, consensus.ErrBootstrap},
		"one has not looked": {"a", []consensus.PeerAnswer{peer("b"),
			with(peer("c"), func(p *consensus.PeerAnswer) { p.Sees = []string{"a", "c"} })}, 3,
			consensus.VerdictWait, consensus.ErrBootstrap},
		"joins only": {"a", []consensus.PeerAnswer{peer("b")}, 0, consensus.VerdictWait, nil},
		"joins only, and may": {"a", []consensus.PeerAnswer{with(peer("b"),
			func(p *consensus.PeerAnswer) { p.HasState = true })}, 0, consensus.VerdictJoin, nil},
		"two clusters": {"a", []consensus.PeerAnswer{with(peer("b"), func(p *consensus.PeerAnswer) { p.ClusterID = "x" }),
			with(peer("c"), func(p *consensus.PeerAnswer) { p.ClusterID = "y" })}, 3, consensus.VerdictWait,
			consensus.ErrBootstrap},
		"state beats expectations": {"a", []consensus.PeerAnswer{with(peer("b"), func(p *consensus.PeerAnswer) {
			p.HasState,
				p.Expect = true, 0
		})}, 3, consensus.VerdictJoin, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, servers, err := consensus.Judge(peer(c.own), c.others, c.expect)
			if got != c.want || !errors.Is(err, c.err) {
				t.Errorf("got %v, %v; want %v, %v", got, err, c.want, c.err)
			}
			if got == consensus.VerdictBootstrap && fmt.Sprint(servers) != "[{a a:1 true} {b b:1 true} {c c:1 true}]" {
				t.Errorf("servers %v", servers)
			}
		})
	}
}

// TestTwoSetsOfThree: of five empty nodes one is listed in two sets of three. Its own set becomes a cluster, the
// other one never does.
func TestTwoSetsOfThree(t *testing.T) {
	dir := need.Memory(t)
	synctest.Test(t, func(t *testing.T) {
		h, all := newHub(), servers{}
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			s := &server{t: t, name: name, dir: filepath.Join(dir, name), addr: name, hub: h}
			all = append(all, s)
			s.start()
		}
		form := func(ctx context.Context, s *server, join ...string) error {
			return s.node.Form(ctx, localProbe{all: all, expect: 3}, join, 3, 20*time.Millisecond)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var g errgroup.Group
		for i, s := range all {
			g.Go(func() error {
				if i < 2 {
					return form(ctx, s, "a", "b", "c")
				}
				return form(ctx, s, "c", "d", "e") // c is in both sets
			})
		}
		time.Sleep(20 * heartbeat)
		for _, s := range all {
			if has, err := s.node.HasState(); err != nil || has && s.name < "c" {
				t.Fatalf("%s takes part in a cluster: %v", s.name, err)
			}
		}
		cancel()
		_ = g.Wait() // they were cancelled
		clusters := map[string]bool{}
		for _, s := range all {
			if has, _ := s.node.HasState(); has {
				clusters[s.node.ClusterID()] = true
			}
		}
		if len(clusters) > 1 {
			t.Errorf("clusters %v", clusters)
		}
		for _, s := range all {
			s.stop()
		}
	})
}

// localProbe probes servers of this process; an address that is not up does not answer.
type localProbe struct {
	all    servers
	expect int // 0: all of them
}

func (p localProbe) Probe(_ context.Context, addr string) (consensus.PeerAnswer, error) {
	for _, s := range p.all {
		if node := s.running(); node != nil && s.name == addr {
			return node.Describe(cmp.Or(p.expect, len(p.all)))
		}
	}
	return consensus.PeerAnswer{}, errors.New("connection refused")
}

// Join is never needed: the leader's configuration contains all servers.
func (p localProbe) Join(context.Context, string) error {
	return errors.New("no server is added here")
}

// TestForm: three empty nodes with the same command form one cluster; a node that starts late does not form a second
// one.
func TestForm(t *testing.T) {
	dir := need.Memory(t)
	synctest.Test(t, func(t *testing.T) { form(t, dir) })
}

func form(t *testing.T, dir string) {
	h, all := newHub(), servers{}
	for _, name := range []string{"a", "b", "c"} {
		all = append(all, &server{t: t, name: name, dir: filepath.Join(dir, name), addr: name, hub: h})
	}
	ctx := deadline(t, hang)
	var g errgroup.Group
	begin := func(s *server) {
		s.start()
		node := s.node
		g.Go(func() error {
			return node.Form(ctx, localProbe{all: all}, []string{"a", "b", "c"}, 3, 20*time.Millisecond)
		})
	}
	begin(all[0])
	begin(all[1])
	time.Sleep(10 * heartbeat)
	for _, s := range all[:2] {
		if has, err := s.node.HasState(); err != nil || has {
			t.Fatalf("two of three have bootstrapped: %v %v", has, err)
		}
	}
	start := time.Now()
	begin(all[2])
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	all.leader()
	took := time.Since(start)
	t.Logf("the third of three empty nodes up → a leader serves: %v", took)
	if took > 5*time.Second {
		t.Errorf("took %v", took)
	}
	all.propose(projector("p", "x"))
	all.agree()
	for _, s := range all { // again, with existing state
		if err := s.node.Form(ctx, localProbe{all: all}, []string{"a", "b", "c"}, 3, time.Millisecond); err != nil {
			t.Error(err)
		}
	}
	if members, err := all[1].node.Servers(); err != nil || len(members) != 3 {
		t.Errorf("members %v, %v", members, err)
	}
	for _, s := range all {
		s.stop()
	}
}

// hangingProbe has one manager that answers and belongs to a cluster; the others never answer.
type hangingProbe struct {
	lives string
	joins chan struct{}
}

func (p hangingProbe) Probe(ctx context.Context, addr string) (consensus.PeerAnswer, error) {
	if addr != p.lives {
		<-ctx.Done()
		return consensus.PeerAnswer{}, ctx.Err()
	}
	return consensus.PeerAnswer{ID: "x-1", Name: "x", ClusterID: "one", HasState: true}, nil
}

func (p hangingProbe) Join(ctx context.Context, addr string) error {
	if addr != p.lives {
		<-ctx.Done()
		return ctx.Err()
	}
	select {
	case p.joins <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestHungPeersDoNotDelayJoining: of six addresses in --join all but the last hang. An empty node has
// requested to be added within the timeout of one request plus a fraction of a second per hanging peer, not after the
// sum of all timeouts.
func TestHungPeersDoNotDelayJoining(t *testing.T) {
	dir := need.Memory(t)
	synctest.Test(t, func(t *testing.T) {
		s := &server{t: t, name: "empty", dir: dir, addr: "empty", hub: newHub()}
		s.start()
		defer s.stop()
		ctx, cancel := context.WithCancel(t.Context())
		p := hangingProbe{lives: "f", joins: make(chan struct{})}
		began, ended := time.Now(), make(chan error, 1)
		go func() { ended <- s.node.Form(ctx, p, strings.Split("abcdef", ""), 0, 20*time.Millisecond) }()
		select {
		case <-p.joins:
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("asked to be added after %v", took)
			}
		case <-time.After(hang / 2):
			t.Error("never asked to be added")
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// TestNodeWithoutAClusterRequestsToJoin: a leader that is lost while it adds a node may leave the node only a term,
// which is Raft state without a known cluster. The node requests to be added nevertheless.
func TestNodeWithoutAClusterRequestsToJoin(t *testing.T) {
	dir := need.Memory(t)
	synctest.Test(t, func(t *testing.T) {
		s := &server{t: t, name: "left", dir: dir, addr: "left", hub: newHub()}
		s.start()
		defer s.stop()
		if err := s.node.Bootstrap([]consensus.Server{{ID: s.node.ID(), Raft: s.node.Addr(), Voter: true},
			{ID: "gone", Raft: "gone", Voter: true}}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		p := hangingProbe{lives: "f", joins: make(chan struct{})}
		ended := make(chan error, 1)
		go func() { ended <- s.node.Form(ctx, p, []string{"f"}, 0, 20*time.Millisecond) }()
		select {
		case <-p.joins:
		case err := <-ended:
			ended <- err
			t.Error("it does not ask to be added")
		case <-time.After(hang / 2):
			t.Error("it never asked to be added")
		}
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}
