package core

import (
	"fmt"
	"time"

	"tidemark/index"
	"tidemark/timestamp"
	"tidemark/wire"
)

// At is what KV says of a vbucket that it hosts as active.
type At struct {
	High, Purge uint64
	Told        bool                  // Purge is: statistics may leave it out
	Revision    timestamp.MapRevision // of the map
}

// lacks is up to where a stream that KV grants from a seqno may lack deletions; blind: statistics do not tell. A seqno
// that KV grants is not below it then; but 0 is granted always, and it may be anything up to the present.
func (a At) lacks(start uint64) (purge uint64, blind bool) {
	if a.Told || start > 0 {
		return a.Purge, !a.Told
	}
	return a.High, true
}

// Start is a stream as it is asked for, and what KV has consented to. Nothing of it changes once others can see it.
type Start struct {
	Want        wire.StreamStart // End is up to and including it, wire.NoEnd where there is none
	Incarnation index.Incarnation
	KV          At // before it was asked
	Blind       bool
	Purge       uint64                // up to where KV may have forgotten deletions, before it was asked
	Asked       uint64                // branch that KV is asked for
	Log         timestamp.FailoverLog // of KV's consent
	waits       int
}

// newStart is the start that a request asks for.
func newStart(inc index.Incarnation, want *wire.StreamStart, at At) Start {
	s := Start{Want: *want, Incarnation: inc, KV: at, Asked: want.VBUUID}
	if s.Want.End == 0 {
		s.Want.End = wire.NoEnd
	}
	s.Purge, s.Blind = at.lacks(want.Seqno)
	return s
}

// VBucket is the stream's.
func (s *Start) VBucket() uint16 { return s.Want.VBucket }

// From is the newest seqno at or below the start at which what has been received is a state that KV once had.
func (s *Start) From() uint64 {
	if s.Want.Seqno == s.Want.Window.End {
		return s.Want.Seqno
	}
	return s.Want.Window.Start
}

// Verdict is KV's, about a request for a stream.
type Verdict uint8

// What KV says.
const (
	Consents  Verdict = iota
	RollsBack         // it would stream from a lower seqno, or has never had this one on that branch
	Elsewhere         // the vbucket is not active there
	Exists            // it has a stream of the vbucket
	Fails             // it cannot be asked, or says anything else
)

// Answer is what KV answers to a request for a stream.
type Answer struct {
	Verdict  Verdict
	Log      timestamp.FailoverLog // of its consent
	Rollback uint64                // of RollsBack: from where it would stream
	Detail   string                // of what is no consent
}

// Next is what is to be done when KV has answered.
type Next uint8

// What to do.
const (
	Begin     Next = iota // the stream is there
	AskAgain              // for the branch that is Asked now
	AskLater              // as before, after Pause
	CloseAtKV             // KV is on another branch than the asker knew: FailedOver is the outcome
	GiveUp                // Refused is the outcome
)

// A stream that was closed may be on KV's list for a moment longer, and KV refuses the next one. It is asked for again
// after existsFirst, then after twice that, existsTimes in all.
const (
	existsFirst = 5 * time.Millisecond
	existsTimes = 7
)

// Pause is how long AskLater waits.
func (s *Start) Pause() time.Duration { return existsFirst << (s.waits - 1) }

// hasBranchBefore reports whether the request names the branch before the one that is wanted.
func (s *Start) hasBranchBefore() bool {
	return s.Want.Previous != 0 && s.Want.Previous != s.Want.VBUUID
}

// Answered takes KV's answer. patient: a stream of the vbucket was closed just now, and may be there for a moment.
func (s *Start) Answered(a Answer, patient bool) Next {
	before := s.Asked != s.Want.VBUUID // it was asked for the branch before
	switch {
	case a.Verdict == Consents:
		if s.Log = a.Log; s.failedOver(a.Log) {
			return CloseAtKV
		}
		return Begin
	case a.Verdict == Exists && patient && !before && s.waits < existsTimes:
		s.waits++
		return AskLater
	case a.Verdict == RollsBack && !before && s.hasBranchBefore():
		s.Asked = s.Want.Previous // the producer may have lost its newest branch, which shares this seqno with the one before
		return AskAgain
	}
	return GiveUp
}

// failedOver reports whether KV is on another branch than the asker knew when it chose the start (PR-12).
func (s *Start) failedOver(log timestamp.FailoverLog) bool {
	return s.Want.Branch != 0 && log.Newest() != s.Want.Branch
}

// outcome is what becomes of the start of a vbucket.
func outcome(vb uint16, o wire.StartOutcome, detail string) wire.StartResult {
	return wire.StartResult{VBucketHistory: wire.VBucketHistory{VBucket: vb}, Outcome: o, Detail: detail}
}

// NotMine is the outcome for a vbucket that KV does not host, or that lies outside the projector's share.
func NotMine(vb uint16) wire.StartResult { return outcome(vb, wire.StartNotMine, "") }

// Failed is the outcome for a vbucket of which something failed.
func Failed(vb uint16, why string) wire.StartResult { return outcome(vb, wire.StartFailed, why) }

// settled is an outcome with how KV is; lacks is up to where it may have forgotten deletions.
func (s *Start) settled(o wire.StartOutcome, at At, lacks uint64) wire.StartResult {
	r := outcome(s.VBucket(), o, "")
	r.High, r.Purge, r.Revision = at.High, lacks, at.Revision
	return r
}

// withLog fills in what ends a vbucket's handshake: the log as it is, and where the stream stands on it (PR-12).
func withLog(r wire.StartResult, log timestamp.FailoverLog) wire.StartResult {
	if r.Log = log; len(log) > 0 {
		r.Failover = timestamp.Position{VBUUID: log[0].VBUUID, Seqno: log[0].Seqno}
	}
	return r
}

// Began is the outcome of a stream that runs. high is KV's, lacks is up to where it may have forgotten deletions.
func (s *Start) Began(high, lacks uint64) wire.StartResult {
	r := withLog(s.settled(wire.StartBegun, s.KV, lacks), s.Log)
	r.High = high
	r.Stream = timestamp.Position{VBUUID: s.Asked, Seqno: s.Want.Seqno}
	return r
}

// FailedOver is the outcome of a stream that is closed because KV has failed over since its log was read.
func (s *Start) FailedOver() wire.StartResult {
	r := withLog(s.settled(wire.StartFailover, s.KV, s.Purge), s.Log)
	r.Detail = fmt.Sprintf("the KV node is on branch %d, the request knows %d: read its failover log again",
		s.Log.Newest(), s.Want.Branch)
	return r
}

// Overtaken is the outcome of a stream that is closed because a newer request or a stop came before KV's consent.
func (s *Start) Overtaken() wire.StartResult { return outcome(s.VBucket(), wire.StartStale, "") }

// Refused is the outcome of a stream that KV has not consented to. With ROLLBACK goes what the asker needs in order to
// decide, log among it; nil: KV does not say.
func (s *Start) Refused(a Answer, log timestamp.FailoverLog) wire.StartResult {
	switch a.Verdict {
	case RollsBack:
		r := withLog(s.settled(wire.StartRollback, s.KV, s.KV.Purge), log)
		r.Rollback = a.Rollback
		return r
	case Elsewhere:
		return NotMine(s.VBucket())
	}
	return Failed(s.VBucket(), a.Detail)
}
