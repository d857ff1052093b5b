package router

import (
	"context"
	"time"

	"tidemark/index"
)

// link is a lane's route to its endpoint, over one connection after another.
type link struct {
	addr     string
	revision uint64             // of the newest view that was applied, with or without copies at the endpoint
	hangUp   context.CancelFunc // cancels the present connection or dial; nil if there is none
	state    linkState
	failed   string // error of the last attempt; empty unless down
	epoch    uint64 // of the present connection
	progress uint64 // the last epoch in which the endpoint acknowledged anything
}

// begin records that a connection is being made, and returns its epoch and address.
func (k *link) begin(hangUp context.CancelFunc) (epoch uint64, addr string) {
	k.epoch++
	k.hangUp = hangUp
	return k.epoch, k.addr
}

// end records that a connection was lost, and reports whether anything was acknowledged on it. Acknowledgements that
// arrive later are ignored.
func (k *link) end(epoch uint64) (progress bool) {
	k.state, k.hangUp = dialing, nil
	k.epoch++
	return k.progress == epoch
}

// cut cancels the present connection or dial.
func (k *link) cut() {
	if k.hangUp != nil {
		k.hangUp()
	}
}

// moveTo cuts the connection if the address has changed, and reports whether it has.
func (k *link) moveTo(addr string) (moved bool) {
	if addr == k.addr {
		return false
	}
	k.addr = addr
	if k.state == down {
		k.state, k.failed = dialing, "" // the new address has not been tried yet
	}
	k.cut()
	return true
}

type linkState uint8

const (
	dialing linkState = iota // not known yet whether the endpoint can be reached
	connected
	down // the last attempt failed
	gone // the topic is closed
)

// need tracks whether a lane is still needed: by vbuckets, and by the newest view.
type need struct {
	idle     bool        // no vbucket uses it
	unwanted bool        // the newest view has no copies at the endpoint
	leave    *time.Timer // runs while both are set
	expired  bool        // both were set for leaveTimeout
}

// stop stops the timer of a lane that is needed again.
func (n *need) stop() {
	if n.leave != nil {
		n.leave.Stop()
		n.leave = nil
	}
}

// over reports whether the lane may end: no vbucket uses it, and either everything was delivered, or the newest view
// has no copies at the endpoint and the rest cannot be delivered.
func (n *need) over(empty bool, state linkState) bool {
	return n.idle && (empty || n.unwanted && (state == down || n.expired))
}

// slowness is a lane's record of an endpoint that may be too slow. Without a judge no endpoint is slow.
type slowness struct {
	judge *judge // nil without smart throttling
	node  index.NodeID

	// slow is set by the judge's verdict: a full queue then drops until the endpoint has been in time again. While
	// behind is set, its queue is still more than half full, and that counts against the endpoint.
	slow, behind bool
}

// drops reports whether a full queue drops instead of waiting, and whether that has just begun. If not, again is when
// to check again; 0 means after the next change.
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

// inTime reports whether dropped streams may be resumed: a slow endpoint must have been in time for a while. If not,
// again is when to check again. The caller has found the queue at most half full.
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

// hold counts a wait against the endpoint until the returned function is called.
func (w *slowness) hold() (free func()) {
	if w.judge == nil {
		return func() {}
	}
	w.judge.hold(w.node)
	return func() { w.judge.free(w.node) }
}

// leave unregisters the lane from the judge.
func (w *slowness) leave() {
	if w.judge == nil {
		return
	}
	if w.behind {
		w.judge.free(w.node)
	}
	w.judge.leave(w.node)
}
