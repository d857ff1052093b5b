package topic

import (
	"slices"
	"time"
)

// vbucket is one vbucket's stream.
type vbucket struct {
	at      Position
	request uint64 // counter of the request whose streams alone count; 0: there is none
	// asked are the requests that may begin it while there is none: of each projector at most one, and the first that
	// begins counts.
	asked []uint64
	owner *sink     // connection that brings it; nil: none
	idle  time.Time // since when its request has brought no stream, but for times in which it could not be handled
	moved bool      // something has come since it was asked for
	pace            // of asking for it while it is not begun, or nothing comes
}

// none says that no request brings the vbucket, and that none that is under way counts.
func (v *vbucket) none() { v.request, v.asked, v.owner = 0, nil, nil }

// refuse takes over that a request does not bring the vbucket.
func (v *vbucket) refuse(request uint64) {
	v.asked = slices.DeleteFunc(v.asked, func(n uint64) bool { return n == request })
	if v.request == request {
		v.none()
	}
}

// begins takes over that a request brings the vbucket, and reports whether it counts: not when another one does, or it
// was given up.
func (v *vbucket) begins(request uint64) bool {
	if v.request == 0 && slices.Contains(v.asked, request) {
		v.request, v.asked, v.after = request, nil, time.Time{}
	}
	return v.request == request
}

// ended lets the vbucket be asked for again: at once, or, where nothing has come, after a pause that grows.
func (v *vbucket) ended(now time.Time) {
	v.none()
	if v.moved {
		v.pace = pace{}
		return
	}
	v.later(now)
}

// isUnfed reports whether a vbucket is to be asked for: not while its stream may only wait for the user's function; the
// lock is held.
func (s *Subscription) isUnfed(vb uint16, now time.Time) bool {
	v := &s.vbuckets[vb]
	if v.request == 0 {
		return v.due(now)
	}
	return v.owner == nil && now.Sub(v.idle) > beginPatience && !s.queues(vb)
}

// queues reports whether a connection on which the vbucket's stream has to begin has a batch that was not handled yet;
// the lock is held.
func (s *Subscription) queues(vb uint16) bool {
	for k := range s.taking {
		if k.brings(vb) {
			return true
		}
	}
	return false
}

// fed reports whether each vbucket has been begun somewhere.
func (s *Subscription) fed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.vbuckets != nil && !slices.ContainsFunc(s.vbuckets, func(v vbucket) bool { return v.request == 0 })
}
