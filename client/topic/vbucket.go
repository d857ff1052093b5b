package topic

import (
	"slices"
	"time"
)

// vbucket is one vbucket's stream.
type vbucket struct {
	at      Position
	request uint64 // counter of the only request whose streams count; 0: there is none
	// asked are the requests that may begin the vbucket while request is 0: at most one for each projector, and the
	// first that begins it counts.
	asked []uint64
	owner *sink     // connection that delivers it; nil: none
	idle  time.Time // since when its request has brought no stream, not counting the time that Handle took
	moved bool      // an event has been handled since it was requested
	pace            // of requests while it is not begun, or nothing arrives
}

// none records that no request delivers the vbucket, and that no pending one counts.
func (v *vbucket) none() { v.request, v.asked, v.owner = 0, nil, nil }

// refuse records that a request does not deliver the vbucket.
func (v *vbucket) refuse(request uint64) {
	v.asked = slices.DeleteFunc(v.asked, func(n uint64) bool { return n == request })
	if v.request == request {
		v.none()
	}
}

// begins records that a request delivers the vbucket, and reports whether it counts: it does not if another one
// delivers the vbucket, or if it was given up.
func (v *vbucket) begins(request uint64) bool {
	if v.request == 0 && slices.Contains(v.asked, request) {
		v.request, v.asked, v.after = request, nil, time.Time{}
	}
	return v.request == request
}

// ended schedules the next request for the vbucket: at once, or, if nothing has arrived, after a growing pause.
func (v *vbucket) ended(now time.Time) {
	v.none()
	if v.moved {
		v.pace = pace{}
		return
	}
	v.later(now)
}

// isUnfed reports whether a vbucket has to be requested: not while its stream may only be waiting for the user's
// function. The caller holds the lock.
func (s *Subscription) isUnfed(vb uint16, now time.Time) bool {
	v := &s.vbuckets[vb]
	if v.request == 0 {
		return v.due(now)
	}
	return v.owner == nil && now.Sub(v.idle) > beginPatience && !s.queues(vb)
}

// queues reports whether the connection on which the vbucket's stream has to begin has a batch that is not handled
// yet. The caller holds the lock.
func (s *Subscription) queues(vb uint16) bool {
	for k := range s.taking {
		if k.brings(vb) {
			return true
		}
	}
	return false
}

// fed reports whether every vbucket has been begun by some request.
func (s *Subscription) fed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.vbuckets != nil && !slices.ContainsFunc(s.vbuckets, func(v vbucket) bool { return v.request == 0 })
}
