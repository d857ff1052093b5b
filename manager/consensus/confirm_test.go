package consensus_test

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemark/manager/consensus"
)

// counters returns the number of reads that a server has answered, and of its leadership checks for them.
func (s *server) counters() (reads, checks float64) {
	s.t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(s.node.Collector())
	families, err := registry.Gather()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, f := range families {
		switch f.GetName() {
		case "tidemark_raft_reads_total":
			reads = f.GetMetric()[0].GetCounter().GetValue()
		case "tidemark_raft_read_checks_total":
			checks = f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	return reads, checks
}

// TestOneCheckServesAllReads: reads that arrive during a leadership check share the next one.
func TestOneCheckServesAllReads(t *testing.T) {
	virtual(t, 3, nil, func(t *testing.T, h *hub, all servers) {
		all.propose(projector("p", "x"))
		l := all.leader()
		readsBefore, checksBefore := l.counters()
		read, write := h.hold(l.name) // the first check waits for its answers
		const many = 1000
		var wg sync.WaitGroup
		for range many {
			wg.Go(func() {
				if _, err := l.node.ReadIndex(deadline(t, time.Minute)); err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(heartbeat / 10)
		synctest.Wait()
		write()
		read()
		wg.Wait()
		reads, checks := l.counters()
		if reads-readsBefore != many || checks-checksBefore < 1 || checks-checksBefore > 2 {
			t.Errorf("%v reads took %v checks of leadership; want %d and at most 2", reads-readsBefore, checks-checksBefore,
				many)
		}
	})
}

// TestOldAnswersProveNothing: answers that followers gave before a read was requested do not prove that the leader
// still leads. A leader that was stopped and continues finds such answers, although another leader has been elected.
func TestOldAnswersProveNothing(t *testing.T) {
	virtual(t, 3, nil, func(t *testing.T, h *hub, all servers) {
		all.propose(projector("p", "x"))
		l := all.leader()
		if _, err := l.node.ReadIndex(deadline(t, time.Second)); err != nil {
			t.Fatal(err)
		}
		read, write := h.hold(l.name)
		time.Sleep(heartbeat / 4) // heartbeats are in flight and have their answers
		answered := make(chan error, 1)
		go func() {
			_, err := l.node.ReadIndex(deadline(t, time.Minute))
			answered <- err
		}()
		time.Sleep(time.Millisecond) // the read is waiting
		read()
		if err := <-answered; !errors.Is(err, consensus.ErrNotLeader) {
			t.Errorf("no follower has received anything since the read came in, and it was answered: %v", err)
		}
		write()
		all.propose(projector("p", "y"))
	})
}

// TestReadsDoNotGoBack: what a read has shown at a follower, which may apply an entry before the leader, every later
// read shows, too. No read waits for an entry without a command, whose index no state has.
func TestReadsDoNotGoBack(t *testing.T) {
	virtual(t, 3, nil, func(t *testing.T, _ *hub, all servers) {
		all.propose(projector("p", "x"))
		l, f := all.leader(), all.follower()
		before := l.fsm.State().AppliedIndex()
		held := make(chan struct{})
		wait := func() { <-held }
		l.applying.Store(&wait)
		proposed := make(chan error, 1)
		go func() {
			_, err := l.node.Propose(deadline(t, hang), projector("p", "y"))
			proposed <- err
		}()
		eventually(t, "the follower shows it", func() bool { return f.fsm.State().AppliedIndex() > before })
		index, err := l.node.ReadIndex(deadline(t, hang))
		if seen := f.fsm.State().AppliedIndex(); err != nil || index < seen {
			t.Errorf("a read at the follower has seen entry %d; a later one is of entry %d, %v", seen, index, err)
		}
		l.applying.Store(nil)
		close(held)
		if err := <-proposed; err != nil {
			t.Error(err)
		}
		for range 3 {
			if err := l.node.Barrier(deadline(t, hang)); err != nil {
				t.Fatal(err)
			}
			if err := l.node.ReadBarrier(deadline(t, hang)); err != nil {
				t.Errorf("after an entry without a command: %v", err)
			}
		}
	})
}

// TestCloseWaitsForCalls: a closed node has no call to another node in flight, even if packets to that node are lost.
// Anything that continues after the end of a virtual cluster makes it panic.
func TestCloseWaitsForCalls(t *testing.T) {
	virtual(t, 3, nil, func(t *testing.T, h *hub, all servers) {
		l := all.leader()
		for _, to := range all.names(l) {
			h.oneWay(l.name, to, true)
		}
		time.Sleep(heartbeat / 3) // Raft's own calls, which it waits for, began earlier
		if _, err := l.node.ReadIndex(deadline(t, time.Minute)); !errors.Is(err, consensus.ErrNotLeader) {
			t.Errorf("no follower receives it, and a read was answered: %v", err)
		}
	})
}
