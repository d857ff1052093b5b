package topic

import (
	"slices"
	"time"
)

// vbucket is one vbucket's stream.
type vbucket struct {
	at      Position
	request uint64 // counter of the only request whose streams count; 0: there is none
	// candidates are the requests that may begin the vbucket while request is 0: at most one for each projector, and the
	// first that begins it counts.
	candidates []uint64
	owner      *sink     // connection that delivers it; nil: none
	idle       time.Time // since when its request has had no stream, not counting the time that Handle took
	moved      bool      // an event has been handled since it was requested
	pace                 // of requests while it is not begun, or nothing arrives
}

// reset records that no request delivers the vbucket, and that no pending one counts.
func (v *vbucket) reset() { v.request, v.candidates, v.owner = 0, nil, nil }

// refuse records that a request does not deliver the vbucket.
func (v *vbucket) refuse(request uint64) {
	v.candidates = slices.DeleteFunc(v.candidates, func(n uint64) bool { return n == request })
	if v.request == request {
		v.reset()
	}
}

// begins records that a request delivers the vbucket, and reports whether it counts: it does not if another one
// delivers the vbucket, or if it was given up.
func (v *vbucket) begins(request uint64) bool {
	if v.request == 0 && slices.Contains(v.candidates, request) {
		v.request, v.candidates, v.after = request, nil, time.Time{}
	}
	return v.request == request
}

// ended schedules the next request for the vbucket: at once, or, if nothing has arrived, after a growing pause.
func (v *vbucket) ended(now time.Time) {
	v.reset()
	if v.moved {
		v.pace = pace{}
		return
	}
	v.later(now)
}

// needsRequest reports whether a vbucket has to be requested: not while its stream may only be waiting for the user's
// function. The caller holds the lock.
func (s *Subscription) needsRequest(vb uint16, now time.Time) bool {
	v := &s.vbuckets[vb]
	if v.request == 0 {
		return v.due(now)
	}
	return v.owner == nil && now.Sub(v.idle) > beginTimeout && !s.queues(vb)
}

// queues reports whether the connection on which the vbucket's stream has to begin has a batch that is not handled
// yet. The caller holds the lock.
func (s *Subscription) queues(vb uint16) bool {
	for k := range s.taking {
		if k.carries(vb) {
			return true
		}
	}
	return false
}

// allBegun reports whether every vbucket has been begun by some request.
func (s *Subscription) allBegun() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.vbuckets != nil && !slices.ContainsFunc(s.vbuckets, func(v vbucket) bool { return v.request == 0 })
}
