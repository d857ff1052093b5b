package simulation

import "tidemark/projector/core"

// Moods of KV: what engines do and need not, as in kv/server, as far as it is protocol. Flushes, late purges, finite
// streams that go on, and takeovers without an END are with the faults.
//
//   - cutWindows: KV drops a stream's cursor, and goes on with another window in the middle of one, which never ends.
//   - noStats: KV does not say what it has forgotten.
//   - oldPurges: a request is judged by where its window begins, not by its seqno, as by engines of the 5.1 line.
//   - deepLosses: a failover loses any part of a vbucket, all of it too.
//   - busyStreams: requests are answered that there is a stream already, or with an error, for a moment.
//   - lateVBuckets: of a vbucket nothing is sent for up to half a second, while others go on.
//
// What an ephemeral bucket evicts is deleted like anything else: writes do that already.
//
// drawMoods gives a seed its moods, by its number, so that the choices of the others stay what they were.
func (s *Sim) drawMoods() {
	n := s.opt.Seed / 2 // beside any of the faults that are dealt out by number as well
	s.mix[cutWindows] = n%3 == 0
	s.mix[noStats] = n%7 == 2
	s.mix[oldPurges] = n%5 == 1
	s.mix[deepLosses] = n%5 == 3
	s.mix[busyStreams] = n%4 == 2
	s.mix[lateVBuckets] = n%6 == 4
}

// maxSilentMS bounds how long KV sends nothing of a vbucket.
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

// cut has KV fix another window in the middle of a stream's, and reports whether it has.
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

// loses is how many of the newest mutations of a vbucket a failover loses.
func (s *Sim) loses(old *branch) int {
	if s.chance(deepLosses, 3) {
		return s.dice.kv.Intn(len(old.log) + 1)
	}
	return min(s.dice.kv.Intn(5), len(old.log))
}

// at is what KV says of a vbucket.
func (s *Sim) at(k *branch) core.At {
	if s.mix[noStats] {
		return core.At{High: k.high(), Revision: k.rev}
	}
	return core.At{High: k.high(), Purge: k.purge, PurgeKnown: true, Revision: k.rev}
}

// ask is what is to be done when KV has answered a request for a stream, and its last answer.
func (s *Sim) ask(k *branch, r *core.Start) (next core.Next, answer core.Answer) {
	for next = core.AskAgain; next == core.AskAgain || next == core.AskLater; next = r.Answered(answer, true) {
		answer = s.answer(k, r)
	}
	return next, answer
}

// answer is KV's to a request for a stream.
func (s *Sim) answer(k *branch, r *core.Start) core.Answer {
	if s.chance(busyStreams, 3) {
		s.Report.Busy++
		if s.dice.kv.Intn(3) == 0 {
			return core.Answer{Verdict: core.Fails, Detail: "no memory at the moment"}
		}
		return core.Answer{Verdict: core.Exists, Detail: "there is a stream already"}
	}
	if !k.admit(r.Want.Seqno, r.Want.Window, r.Asked, s.mix[oldPurges]) {
		return core.Answer{Verdict: core.RollsBack}
	}
	return core.Answer{Verdict: core.Consents, Log: k.fl}
}
