package consensus_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/manager/consensus"
	"tidemark/statecontext"
)

func TestThreeNodes(t *testing.T) {
	virtual(t, 3, nil, func(t *testing.T, _ *hub, all servers) {
		r := all.propose(projector("p1", "a"))
		if r.Rejection != nil || !r.Changed {
			t.Fatalf("result %+v", r)
		}
		all.agree()
		l := all.leader()
		s := l.fsm.State()
		if s.ClusterID() == "" || s.Epoch() == 0 || s.LeaderID() != l.node.ID() ||
			s.Manager(l.node.ID()).REST != "http://"+l.name {
			t.Fatalf("state\n%s", statecontext.Describe(s))
		}
		f := all.follower()
		_, err := f.node.Propose(deadline(t, hang), projector("p2", "a"))
		var not *consensus.NotLeaderError
		if !errors.As(err, &not) || not.Leader.ID != l.node.ID() || not.Leader.Raft != l.addr {
			t.Fatalf("a follower said %v", err)
		}
		if _, err := f.node.ReadIndex(deadline(t, hang)); !errors.Is(err, consensus.ErrNotLeader) {
			t.Fatalf("a follower gave a read index: %v", err)
		}
		// A rejection is a result.
		r, err = l.node.Propose(deadline(t, hang), statecontext.Command{Body: &statecontext.DropIndex{ID: 77}})
		if err != nil || !errors.Is(r.Err(), errcode.UnknownIndex) {
			t.Fatalf("%+v, %v", r, err)
		}
	})
}

func TestReadYourWritesOnAnyNode(t *testing.T) {
	virtual(t, 3, nil, func(t *testing.T, _ *hub, all servers) {
		for i := range 50 {
			admin := fmt.Sprint(i)
			all.propose(projector("p", admin))
			l := all.leader()
			at, err := l.node.ReadIndex(deadline(t, hang))
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range all {
				if err := s.node.WaitApplied(deadline(t, hang), at); err != nil {
					t.Fatal(err)
				}
				if got := s.fsm.State().Projector("p").Admin; got != admin {
					t.Fatalf("%s reads %s after %s was acknowledged", s.name, got, admin)
				}
			}
		}
	})
}

func TestManyProposersShareEntries(t *testing.T) {
	virtual(t, 3, nil, func(t *testing.T, _ *hub, all servers) {
		l := all.leader()
		l.disk(func() error { time.Sleep(2 * time.Millisecond); return nil }) // meanwhile all others propose
		before := l.node.Stats().LastIndex
		const clients, each = 32, 20
		var wg sync.WaitGroup
		for c := range clients {
			wg.Go(func() {
				for k := range each {
					r, err := l.node.Propose(deadline(t, hang), projector(fmt.Sprintf("p%d", c), fmt.Sprint(k)))
					if err != nil || !r.Changed {
						t.Errorf("%+v %v", r, err)
						return
					}
				}
			})
		}
		wg.Wait()
		all.agree()
		if used := l.node.Stats().LastIndex - before; used > clients*each/4 {
			t.Errorf("%d proposals took %d entries: no group commit", clients*each, used)
		}
		for c := range clients {
			if got := l.fsm.State().Projector(index.ProjectorID(fmt.Sprintf("p%d", c))).Admin; got != fmt.Sprint(each-1) {
				t.Errorf("client %d ends at %s", c, got)
			}
		}
	})
}

func TestLeaderStopsAndComesBack(t *testing.T) {
	virtual(t, 3, nil, func(t *testing.T, _ *hub, all servers) {
		for round := range 4 {
			all.propose(projector("p", fmt.Sprint(round)))
			l := all.leader()
			l.stop()
			r := all.propose(projector("p", fmt.Sprint("after ", round)))
			if !r.Changed {
				t.Fatalf("round %d: %+v", round, r)
			}
			l.start()
		}
		all.agree()
		if terms := allTerms(all); len(terms) != countTerms(all) {
			t.Errorf("two leader loops in one term: %v", terms)
		}
	})
}

func allTerms(all servers) map[uint64]bool {
	seen := map[uint64]bool{}
	for _, s := range all {
		s.mu.Lock()
		for _, term := range s.terms {
			seen[term] = true
		}
		s.mu.Unlock()
	}
	return seen
}

func countTerms(all servers) (n int) {
	for _, s := range all {
		s.mu.Lock()
		n += len(s.terms)
		s.mu.Unlock()
	}
	return n
}

func TestWholeClusterRestarts(t *testing.T) {
	t.Parallel()
	all := newCluster(t, 3)
	all.propose(projector("p", "kept"))
	id := all.leader().fsm.State().ClusterID()
	for _, s := range all {
		s.stop()
	}
	for _, s := range all {
		s.start()
		if has, err := s.node.HasState(); err != nil || !has {
			t.Fatalf("%s has no state after a restart: %v", s.name, err)
		}
		if err := s.node.Bootstrap([]consensus.Server{{ID: s.node.ID(), Raft: s.node.Addr()}}); !errors.Is(err,
			consensus.ErrHasState) {
			t.Fatalf("bootstrap over state: %v", err)
		}
	}
	all.propose(projector("q", "new"))
	all.agree()
	s := all.leader().fsm.State()
	if s.ClusterID() != id || s.Projector("p").Admin != "kept" {
		t.Fatalf("after the restart\n%s", statecontext.Describe(s))
	}
}

func TestSnapshotIsInstalled(t *testing.T) {
	tune := func(c *consensus.Config) {
		c.SnapshotThreshold, c.TrailingLogs, c.SnapshotInterval = 50, 20, 20*time.Millisecond
	}
	virtual(t, 3, tune, func(t *testing.T, _ *hub, all servers) {
		f := all.follower()
		f.stop()
		for i := range 300 {
			all.propose(projector(fmt.Sprintf("p%d", i%40), fmt.Sprint(i)))
		}
		if err := all.leader().node.Snapshot(); err != nil {
			t.Fatal(err)
		}
		f.start()
		at := all.propose(projector("last", "x"))
		eventually(t, "the follower has caught up", func() bool { return f.fsm.State().CAS() >= at.CAS })
		all.agree()
		index, err := all.leader().node.ReadIndex(deadline(t, hang))
		if err != nil {
			t.Fatal(err)
		}
		if err := f.node.WaitApplied(deadline(t, hang), index); err != nil {
			t.Fatal(err)
		}
	})
}

func TestFailedSetupTransfersLeadership(t *testing.T) {
	virtual(t, 3, nil, func(t *testing.T, _ *hub, all servers) {
		l := all.leader()
		l.stop()
		l.lead = func(context.Context, uint64) error { return errors.New("no room on disk") }
		l.start()
		all.propose(projector("p", "x"))
		other := all.leader()
		if other == l {
			t.Fatal("the one that cannot lead leads")
		}
		var err error
		for end := time.Now().Add(hang); time.Now().Before(end); time.Sleep(heartbeat) {
			if err = other.node.TransferLeadership(context.Background()); err == nil || errors.Is(err, consensus.ErrNotLeader) {
				break // it refuses while the other server lags; or it no longer leads, which is as good
			}
		}
		if err != nil && !errors.Is(err, consensus.ErrNotLeader) {
			t.Fatal(err)
		}
		for range 5 {
			all.propose(projector("p", "y")) // whichever server becomes leader, leadership reaches one that can serve
		}
	})
}

func TestLoneLeaderTriesAgain(t *testing.T) {
	t.Parallel()
	s := newServer(t, "m1")
	fails := 3
	s.lead = func(ctx context.Context, _ uint64) error {
		if fails--; fails >= 0 {
			return errors.New("not yet")
		}
		<-ctx.Done()
		return ctx.Err()
	}
	s.start()
	all := servers{s}
	all.bootstrap()
	eventually(t, "its set-up succeeds", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.terms) == 4 })
	all.propose(projector("p", "x"))
}

func TestAbandonedProposals(t *testing.T) {
	virtual(t, 3, nil, func(t *testing.T, _ *hub, all servers) {
		l := all.leader()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := l.node.Propose(ctx, projector("p", "x")); !errors.Is(err, context.Canceled) &&
			!errors.Is(err, consensus.ErrUnknownOutcome) && err != nil {
			t.Fatalf("%v", err)
		}
		big := projector("p", string(make([]byte, 1<<20)))
		if _, err := l.node.Propose(deadline(t, hang), big); !errors.Is(err, consensus.ErrCommand) {
			t.Fatalf("a megabyte: %v", err)
		}
		// Without a majority the outcome is unknown, never a success.
		for _, s := range all {
			if s != l {
				s.stop()
			}
		}
		_, err := l.node.Propose(deadline(t, hang), projector("lost", "x"))
		if !errors.Is(err, consensus.ErrUnknownOutcome) && !errors.Is(err, consensus.ErrNotLeader) {
			t.Fatalf("without a majority: %v", err)
		}
		if _, err := l.node.ReadIndex(deadline(t, hang)); !errors.Is(err, consensus.ErrNotLeader) {
			t.Fatalf("a read index without a majority: %v", err)
		}
	})
}
