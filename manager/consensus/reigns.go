package consensus

import (
	"context"
	"fmt"
	"sync"

	"github.com/hashicorp/raft"
)

// reigns is whether this node leads, and serves as leader.
type reigns struct {
	*base
	notify    chan bool     // from Raft, drained by one goroutine
	notifyEnd chan struct{} // closed when Raft has shut down
	gained    chan struct{} // holds one signal after any number of changes of leads

	mu      sync.Mutex
	serving reign         // zero while this node does not serve as leader
	changed chan struct{} // closed and replaced when serving changes or leadership is lost
	leads   leadership    // what Raft said last
	setUp   error         // why the leader loop of this term ended, nil while it has not
	stalled bool          // a write to the disk hangs: this node does not serve
}

// reign is a term in which this node serves.
type reign struct {
	term  uint64
	began uint64 // index of its LeaderStarted
	clock *termClock
}

// leadership is what Raft said last. Gains counts how often it was gained: two more means lost and regained.
type leadership struct {
	leader bool
	gains  uint64
}

// Serving reports whether this node leads, has begun its term in the state, and in which term.
func (rs *reigns) Serving() (term uint64, ok bool) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return rs.serving.term, rs.serving.term != 0
}

// awaitServing returns the term in which this node serves, waiting while it leads and has not yet begun its term.
func (rs *reigns) awaitServing(ctx context.Context) (reign, error) {
	for {
		rs.mu.Lock()
		now, changed, stalled := rs.serving, rs.changed, rs.stalled
		rs.mu.Unlock()
		if now.term != 0 {
			return now, nil
		}
		if stalled || rs.raft.State() != raft.Leader {
			return reign{}, rs.notLeader()
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return reign{}, fmt.Errorf("not proposed, the new leader is not ready yet: %w", ctx.Err())
		case <-rs.stop:
			return reign{}, ErrClosed
		}
	}
}

// serve says that this node serves in a term, if it still leads as it did when the term began, and wakes those who
// wait.
func (rs *reigns) serve(r reign, gains uint64) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if !rs.leads.leader || rs.leads.gains != gains || rs.stalled {
		return false
	}
	rs.serving = r
	rs.wake()
	return true
}

// resign says that this node does not serve, and wakes those who wait to know.
func (rs *reigns) resign() {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.serving = reign{}
	rs.wake()
}

// stall ends the leader's duties here when a write hangs, and lets them begin anew, if this node then still leads, when
// it no longer does.
func (rs *reigns) stall(hangs bool) {
	rs.mu.Lock()
	changed := rs.stalled != hangs
	if rs.stalled = hangs; changed && hangs {
		rs.serving = reign{}
	}
	if changed {
		rs.wake()
	}
	rs.mu.Unlock()
	if changed {
		rs.signal()
	}
}

// drain does nothing but take changes of leadership from Raft, which would wait for it.
func (rs *reigns) drain() {
	for {
		select {
		case leader := <-rs.notify:
			rs.mu.Lock()
			rs.leads.leader = leader
			if leader {
				rs.leads.gains++
			} else {
				rs.setUp = nil
				rs.serving = reign{} // at once: nothing more is proposed or read in that term
			}
			rs.wake()
			rs.mu.Unlock()
			rs.signal()
		case <-rs.notifyEnd:
			return
		}
	}
}

// signal makes the loop of lead look again.
func (rs *reigns) signal() {
	select {
	case rs.gained <- struct{}{}:
	default:
	}
}

// wake lets those look again who wait for a change of serving. n.mu is held.
func (rs *reigns) wake() {
	close(rs.changed)
	rs.changed = make(chan struct{})
}
