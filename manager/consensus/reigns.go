package consensus

import (
	"context"
	"fmt"
	"sync"

	"github.com/hashicorp/raft"
)

// reigns tracks whether this node leads, and whether it serves as leader.
type reigns struct {
	*base
	notify    chan bool     // leadership changes from Raft, received by drain
	notifyEnd chan struct{} // closed when Raft has shut down
	gained    chan struct{} // capacity 1: signals that leads has changed

	mu      sync.Mutex
	serving reign         // zero while this node does not serve as leader
	changed chan struct{} // closed and replaced when serving changes or leadership is lost
	leads   leadership    // newest state reported by Raft
	setUp   error         // why the leader loop of this term ended, nil if it has not
	stalled bool          // a disk write hangs: this node does not serve
}

// reign is a term in which this node serves as leader.
type reign struct {
	term  uint64
	began uint64 // index of its LeaderStarted
	clock *termClock
}

// leadership is the newest leadership state reported by Raft. gains counts how often leadership was gained, so that a
// loss and a new gain between two reads can be detected.
type leadership struct {
	leader bool
	gains  uint64
}

// Serving returns the term in which this node serves as leader; ok is false if it does not lead or has not begun its
// term.
func (rs *reigns) Serving() (term uint64, ok bool) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return rs.serving.term, rs.serving.term != 0
}

// awaitServing returns the reign of this node. While the node leads and has not begun its term, it waits.
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

// serve marks this node as serving in a term, if it still has the leadership with which the term began, and wakes the
// waiters.
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

// resign marks this node as not serving and wakes the waiters.
func (rs *reigns) resign() {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.serving = reign{}
	rs.wake()
}

// stall stops the leader's duties when a disk write hangs. When the write no longer hangs, the duties may start again
// if this node still leads.
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

// drain receives leadership changes from Raft and does nothing that could block, because Raft waits for it.
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
				rs.serving = reign{} // at once: no more proposals or reads in that term
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

// wake wakes the goroutines that wait for a change of serving. The caller holds rs.mu.
func (rs *reigns) wake() {
	close(rs.changed)
	rs.changed = make(chan struct{})
}
