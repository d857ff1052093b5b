package simulation

import (
	"tidemark/manager/coordinator/core"
	"tidemark/timestamp"
)

// This file runs scans with session consistency: they read KV's seqnos, then wait for a stability timestamp at or
// above them.

// session is a waiting scan.
type session struct {
	lead *leader
	need timestamp.Vector
	ask  func() (core.Stabilized, bool)
}

// session advances a bucket's scan, or begins one. Like package scan, it uses the newest timestamp if that reaches
// KV's seqnos, and requests a promotion from the leader otherwise.
func (s *Sim) session(b *kvBucket) {
	if a := s.asking[b.name]; a != nil {
		at, ok := a.ask()
		if !ok && a.lead == s.lead {
			return
		}
		if delete(s.asking, b.name); ok && at.Err == nil && at.Stability.Number > 0 {
			s.checkSession(b, a.need, at.Stability.Vector)
		}
		return
	}
	if s.lead == nil || !s.indexed(b) {
		return
	}
	need := b.present()
	if newest := s.state.Bucket(b.name).Stability; newest.Number > 0 && newest.Vector.Reaches(need) {
		s.checkSession(b, need, newest.Vector)
		return
	}
	s.ev("a session scan of %s needs %v", b.name, need)
	s.asking[b.name] = &session{s.lead, need, s.lead.step.stabilize(b.name, need)}
}

// checkSession checks that a scan shows all that KV had when the scan began, and nothing that KV had undone by then.
func (s *Sim) checkSession(b *kvBucket, need, shown timestamp.Vector) {
	s.Report.Sessions++
	for v := range need.Seqnos {
		if want, at := need.At(v), shown.At(v); !s.continues(want, at) {
			s.fail("a session scan of %s/%d that began when KV was at %v is shown %v", b.name, v, want, at)
		}
	}
}

// continues reports whether position to includes everything up to from, and nothing that was undone there.
func (s *Sim) continues(from, to timestamp.Position) bool {
	a, z := s.branches[from.VBUUID], s.branches[to.VBUUID]
	switch {
	case to.Seqno < from.Seqno:
		return false
	case to.Seqno == 0, from.VBUUID == to.VBUUID:
		return true
	case z.rev.Compare(a.rev) > 0: // a later branch: it began with what KV held then
		return from.Seqno <= z.fl.ValidUpTo(from.VBUUID)
	}
	return to.Seqno <= a.fl.ValidUpTo(to.VBUUID)
}
