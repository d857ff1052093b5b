package router

import (
	"context"
	"time"

	"tidemark/index"
)

// link is a lane's way to its endpoint, one connection after another.
type link struct {
	addr     string
	revision uint64             // of the view that gave addr, or has no copies at the endpoint
	hangUp   context.CancelFunc // cuts the present connection or dial; nil between
	state    linkState
	failed   string // why the last attempt did; empty unless down
	epoch    uint64 // of the present connection
	progress uint64 // the last epoch in which anything was acknowledged
}

// begin notes that a connection is being made, and returns its epoch and address.
func (k *link) begin(hangUp context.CancelFunc) (epoch uint64, addr string) {
	k.epoch++
	k.hangUp = hangUp
	return k.epoch, k.addr
}

// end notes that a connection was lost; it reports whether anything was acknowledged on it. What is acknowledged late
// counts no more.
func (k *link) end(epoch uint64) (progress bool) {
	k.state, k.hangUp = dialing, nil
	k.epoch++
	return k.progress == epoch
}

// cut ends the present connection or dial.
func (k *link) cut() {
	if k.hangUp != nil {
		k.hangUp()
	}
}

// moveTo cuts a connection to another address.
func (k *link) moveTo(addr string) (moved bool) {
	if addr == k.addr {
		return false
	}
	k.addr = addr
	if k.state == down {
		k.state, k.failed = dialing, "" // nobody knows yet about the new address
	}
	k.cut()
	return true
}

type linkState uint8

const (
	dialing linkState = iota // nobody knows yet whether the endpoint can be reached
	connected
	down // the last attempt failed
	gone // the topic is closed
)

// need is who needs a lane: vbuckets, and the newest view, which has copies at the endpoint or not.
type need struct {
	idle     bool        // no vbucket uses it
	unwanted bool        // the newest view has no copies at the endpoint
	leave    *time.Timer // runs while it is both
	expired  bool        // it was both for leaveTimeout
}

// stop ends the wait for what nobody wants any more.
func (n *need) stop() {
	if n.leave != nil {
		n.leave.Stop()
		n.leave = nil
	}
}

// over reports whether nobody needs the lane: all was delivered, or what was not is wanted by nobody and cannot be.
func (n *need) over(empty bool, state linkState) bool {
	return n.idle && (empty || n.unwanted && (state == down || n.expired))
}

// slowness is what a lane knows of an endpoint that may be too slow. Without a judge none is.
type slowness struct {
	judge *judge // nil where everybody is throttled
	node  index.NodeID

	// slow: the judge has said so, and a full queue drops until the endpoint was in time again. behind: that counts
	// against the endpoint, for its queue is more than half full still.
	slow, behind bool
}

// drops reports whether a full queue drops instead of waiting, and whether that is new. If not, again is when to ask
// anew; 0: when something has changed.
func (w *slowness) drops() (yes, began bool, again time.Duration) {
	if w.judge == nil {
		return false, false, 0
	}
	if !w.slow {
		if yes, again = w.judge.drops(w.node); !yes {
			return false, false, again
		}
		w.slow, began = true, true
	}
	if !w.behind {
		w.behind = true
		w.judge.hold(w.node)
	}
	return true, began, 0
}

// inTime reports whether what was dropped may go on: of a slow endpoint when it has been in time for a while. If not,
// again is when to ask anew. The queue is at most half full.
func (w *slowness) inTime() (yes bool, again time.Duration) {
	if !w.slow {
		return true, 0
	}
	if w.behind {
		w.behind = false
		w.judge.free(w.node)
	}
	if yes, again = w.judge.resumes(w.node); yes {
		w.slow = false
	}
	return yes, again
}

// hold has a wait for the endpoint count against it until the returned function is called.
func (w *slowness) hold() (free func()) {
	if w.judge == nil {
		return func() {}
	}
	w.judge.hold(w.node)
	return func() { w.judge.free(w.node) }
}

// leave takes the lane off the judge's list.
func (w *slowness) leave() {
	if w.judge == nil {
		return
	}
	if w.behind {
		w.judge.free(w.node)
	}
	w.judge.leave(w.node)
}
