package simulation

import "tidemark/projector/core"

// Moods of KV are variants of protocol behaviour that some engines show and others do not, as in kv/server. Flushes,
// late purges, finite streams that continue, and takeovers without an END are faults of their own.
//
//   - cutWindows: KV drops a stream's cursor in the middle of a window and continues with another window; the first one
//     never ends.
//   - noStats: KV does not report its purge seqno.
//   - oldPurges: KV compares the purge seqno with the start of a request's window instead of its seqno, as engines of
//     the 5.1 line do.
//   - deepLosses: a failover loses any part of a vbucket, or all of it.
//   - busyStreams: for a moment KV answers requests with an error, or that the stream exists already.
//   - lateVBuckets: KV sends nothing of a vbucket for up to half a second, while it sends others.
//
// Evictions of ephemeral buckets are deletions, which the writes cover.
//
// drawMoods chooses a seed's moods by its number, so that the choices of other seeds stay as they are.
func (s *Sim) drawMoods() {
	n := s.opt.Seed / 2 // independent of the faults that are chosen by number as well
	s.mix[cutWindows] = n%3 == 0
	s.mix[noStats] = n%7 == 2
	s.mix[oldPurges] = n%5 == 1
	s.mix[deepLosses] = n%5 == 3
	s.mix[busyStreams] = n%4 == 2
	s.mix[lateVBuckets] = n%6 == 4
}

// maxSilentMS is the longest time for which KV sends nothing of a vbucket.
const maxSilentMS = 500

// silent reports whether KV sends nothing of a stream now.
func (s *Sim) silent(k *dcp, of *core.Stream) bool {
	if k.silentMS <= s.nowMS && s.chance(lateVBuckets, 8) {
		k.silentMS = s.nowMS + 1 + int64(s.dice.kv.Intn(maxSilentMS))
		s.Report.Late++
		s.ev("KV sends nothing of %v vb%d before %d", of.Incarnation, of.VBucket(), k.silentMS)
	}
	return k.silentMS > s.nowMS && !s.healing
}

// cut makes KV replace a stream's window in the middle of it, and reports whether it did.
func (s *Sim) cut(k *dcp, of *core.Stream) bool {
	if !s.chance(cutWindows, 4) {
		return false
	}
	before := k.window
	k.marker(k.cur + 1 + uint64(s.dice.kv.Intn(int(k.branch.high()-k.cur))))
	s.Report.Cut++
	s.ev("KV cuts the window %v of %v vb%d short at %d: %v %v", before, of.Incarnation, of.VBucket(), k.cur, k.window,
		k.items)
	return true
}

// loses returns how many of the newest mutations of a vbucket a failover loses.
func (s *Sim) loses(old *branch) int {
	if s.chance(deepLosses, 3) {
		return s.dice.kv.Intn(len(old.log) + 1)
	}
	return min(s.dice.kv.Intn(5), len(old.log))
}

// at returns KV's account of a vbucket.
func (s *Sim) at(k *branch) core.At {
	if s.mix[noStats] {
		return core.At{High: k.high(), Revision: k.rev}
	}
	return core.At{High: k.high(), Purge: k.purge, PurgeKnown: true, Revision: k.rev}
}

// ask sends a stream request to KV until it is decided. It returns the decision and KV's last answer.
func (s *Sim) ask(k *branch, r *core.Start) (next core.Next, answer core.Answer) {
	for next = core.RequestAgain; next == core.RequestAgain || next == core.RequestLater; next = r.Answered(answer, true) {
		answer = s.answer(k, r)
	}
	return next, answer
}

// answer returns KV's answer to a stream request.
func (s *Sim) answer(k *branch, r *core.Start) core.Answer {
	if s.chance(busyStreams, 3) {
		s.Report.Busy++
		if s.dice.kv.Intn(3) == 0 {
			return core.Answer{Verdict: core.Fails, Detail: "no memory at the moment"}
		}
		return core.Answer{Verdict: core.Exists, Detail: "there is a stream already"}
	}
	if !k.admit(r.Want.Seqno, r.Want.Window, r.Branch, s.mix[oldPurges]) {
		return core.Answer{Verdict: core.RollsBack}
	}
	return core.Answer{Verdict: core.Consents, Log: k.fl}
}
