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

// counters returns the reads that a server has answered, and its checks of leadership for them.
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

// TestOneCheckServesAllReads: reads that come in while a check of leadership is under way share the next one.
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

// TestOldAnswersProveNothing: answers that followers gave before a read was asked for are not taken for the proof that
// the leader still leads. A leader that is stopped and goes on finds such answers, while another leads by then.
func TestOldAnswersProveNothing(t *testing.T) {
	virtual(t, 3, nil, func(t *testing.T, h *hub, all servers) {
		all.propose(projector("p", "x"))
		l := all.leader()
		if _, err := l.node.ReadIndex(deadline(t, time.Second)); err != nil {
			t.Fatal(err)
		}
		read, write := h.hold(l.name)
		time.Sleep(heartbeat / 4) // heartbeats were on their way, and have their answers
		answered := make(chan error, 1)
		go func() {
			_, err := l.node.ReadIndex(deadline(t, time.Minute))
			answered <- err
		}()
		time.Sleep(time.Millisecond) // the read waits
		read()
		if err := <-answered; !errors.Is(err, consensus.ErrNotLeader) {
			t.Errorf("no follower has heard anything since the read came in, and it was answered: %v", err)
		}
		write()
		all.propose(projector("p", "y"))
	})
}

// TestReadsDoNotGoBack: what a read has shown at a follower, where an entry is applied sooner than at the leader, each
// later one shows too; entries without commands, of which no state ever has the index, are waited for by none.
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

// TestCloseWaitsForCalls: a node that has been closed has no call to another one on its way, also when packets to it
// vanish. What goes on after the end of a virtual cluster makes it panic.
func TestCloseWaitsForCalls(t *testing.T) {
	virtual(t, 3, nil, func(t *testing.T, h *hub, all servers) {
		l := all.leader()
		for _, to := range all.names(l) {
			h.oneWay(l.name, to, true)
		}
		time.Sleep(heartbeat / 3) // Raft's own calls, for which it waits, began earlier
		if _, err := l.node.ReadIndex(deadline(t, time.Minute)); !errors.Is(err, consensus.ErrNotLeader) {
			t.Errorf("nobody hears it, and a read was answered: %v", err)
		}
	})
}
