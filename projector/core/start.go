package core

import (
	"fmt"
	"time"

	"tidemark/index"
	"tidemark/timestamp"
	"tidemark/wire"
)

// At is KV's state of a vbucket that it hosts as active.
type At struct {
	High, Purge uint64
	PurgeKnown  bool                  // whether Purge is known: statistics may lack it
	Revision    timestamp.MapRevision // of the cluster map
}

// lacks returns the seqno up to which a stream that starts at start may lack deletions. blind reports that KV's
// statistics do not contain the purge seqno. For a start above 0 this is harmless: KV only grants a seqno that is not
// below its purge seqno. But KV always grants 0, and then it may have purged any deletion up to its present high
// seqno.
func (a At) lacks(start uint64) (purge uint64, blind bool) {
	if a.PurgeKnown || start > 0 {
		return a.Purge, !a.PurgeKnown
	}
	return a.High, true
}

// Start is a stream request and KV's consent to it. It is not modified once other goroutines can see it.
type Start struct {
	Want        wire.StreamStart // End is inclusive, wire.NoEnd if there is none
	Incarnation index.Incarnation
	KV          At // KV's state before the request
	Blind       bool
	Purge       uint64                // up to where KV may have purged deletions, before the request
	Branch      uint64                // branch that is requested from KV
	Log         timestamp.FailoverLog // of KV's consent
	waits       int
}

// newStart returns the start of a request.
func newStart(inc index.Incarnation, want *wire.StreamStart, at At) Start {
	s := Start{Want: *want, Incarnation: inc, KV: at, Branch: want.VBUUID}
	if s.Want.End == 0 {
		s.Want.End = wire.NoEnd
	}
	s.Purge, s.Blind = at.lacks(want.Seqno)
	return s
}

// VBucket returns the stream's vbucket.
func (s *Start) VBucket() uint16 { return s.Want.VBucket }

// From returns the newest seqno at or below the start at which the data received so far is a state that KV once had.
func (s *Start) From() uint64 {
	if s.Want.Seqno == s.Want.Window.End {
		return s.Want.Seqno
	}
	return s.Want.Window.Start
}

// Verdict is the kind of KV's answer to a stream request.
type Verdict uint8

// The verdicts.
const (
	Consents  Verdict = iota
	RollsBack         // KV would stream from a lower seqno, or never had this one on that branch
	Elsewhere         // the vbucket is not active on this node
	Exists            // KV already has a stream of the vbucket
	Fails             // KV cannot be reached, or gives any other answer
)

// Answer is KV's answer to a stream request.
type Answer struct {
	Verdict  Verdict
	Log      timestamp.FailoverLog // of its consent
	Rollback uint64                // of RollsBack: the seqno from which KV would stream
	Detail   string                // the reason, if KV does not consent
}

// Next is what to do after KV's answer.
type Next uint8

// The next steps.
const (
	Begin        Next = iota // the stream runs
	RequestAgain             // request the branch that Branch names now
	RequestLater             // repeat the request after Pause
	CloseAtKV                // KV is on another branch than the requester knew: the outcome is FailedOver
	GiveUp                   // the outcome is Refused
)

// KV may still list a stream that was just closed and refuse the next one of its vbucket. The request is repeated
// after existsFirst, then after twice that, existsTimes in all.
const (
	existsFirst = 5 * time.Millisecond
	existsTimes = 7
)

// Pause returns how long RequestLater waits.
func (s *Start) Pause() time.Duration { return existsFirst << (s.waits - 1) }

// hasBranchBefore reports whether the request names the branch before the wanted one.
func (s *Start) hasBranchBefore() bool {
	return s.Want.Previous != 0 && s.Want.Previous != s.Want.VBUUID
}

// Answered processes KV's answer and returns what to do next. closing: a stream of the vbucket was closed just now
// and may still be listed for a moment.
func (s *Start) Answered(a Answer, closing bool) Next {
	before := s.Branch != s.Want.VBUUID // the branch before was requested
	switch {
	case a.Verdict == Consents:
		if s.Log = a.Log; s.failedOver(a.Log) {
			return CloseAtKV
		}
		return Begin
	case a.Verdict == Exists && closing && !before && s.waits < existsTimes:
		s.waits++
		return RequestLater
	case a.Verdict == RollsBack && !before && s.hasBranchBefore():
		// the producer may have lost its newest branch, which shares this seqno with the one before
		s.Branch = s.Want.Previous
		return RequestAgain
	}
	return GiveUp
}

// failedOver reports whether KV is on another branch than the requester knew when it chose the start (PR-12).
func (s *Start) failedOver(log timestamp.FailoverLog) bool {
	return s.Want.Branch != 0 && log.Newest() != s.Want.Branch
}

// outcome returns a vbucket's result with nothing but its outcome and detail.
func outcome(vb uint16, o wire.StartOutcome, detail string) wire.StartResult {
	return wire.StartResult{VBucketHistory: wire.VBucketHistory{VBucket: vb}, Outcome: o, Detail: detail}
}

// NotMine returns the outcome for a vbucket that KV does not host, or that lies outside the projector's share.
func NotMine(vb uint16) wire.StartResult { return outcome(vb, wire.StartNotMine, "") }

// Failed returns the outcome for a vbucket whose start failed.
func Failed(vb uint16, why string) wire.StartResult { return outcome(vb, wire.StartFailed, why) }

// settled returns an outcome with KV's state; lacks is the seqno up to which KV may have purged deletions.
func (s *Start) settled(o wire.StartOutcome, at At, lacks uint64) wire.StartResult {
	r := outcome(s.VBucket(), o, "")
	r.High, r.Purge, r.Revision = at.High, lacks, at.Revision
	return r
}

// withLog adds the last part of a vbucket's handshake: KV's failover log and its newest branch (PR-12).
func withLog(r wire.StartResult, log timestamp.FailoverLog) wire.StartResult {
	if r.Log = log; len(log) > 0 {
		r.Failover = timestamp.Position{VBUUID: log[0].VBUUID, Seqno: log[0].Seqno}
	}
	return r
}

// Began returns the outcome of a stream that runs. high is KV's high seqno; lacks is the seqno up to which KV may
// have purged deletions.
func (s *Start) Began(high, lacks uint64) wire.StartResult {
	r := withLog(s.settled(wire.StartBegun, s.KV, lacks), s.Log)
	r.High = high
	r.Stream = timestamp.Position{VBUUID: s.Branch, Seqno: s.Want.Seqno}
	return r
}

// FailedOver returns the outcome of a stream that is closed because KV failed over after the requester read its
// failover log.
func (s *Start) FailedOver() wire.StartResult {
	r := withLog(s.settled(wire.StartFailover, s.KV, s.Purge), s.Log)
	r.Detail = fmt.Sprintf("the KV node is on branch %d, the request is for %d: read its failover log again",
		s.Log.Newest(), s.Want.Branch)
	return r
}

// Overtaken returns the outcome of a stream that is closed because a newer request or a stop came before KV's
// consent.
func (s *Start) Overtaken() wire.StartResult { return outcome(s.VBucket(), wire.StartStale, "") }

// Refused returns the outcome of a stream that KV refused. For a ROLLBACK it includes what the requester needs to
// choose a lower start, including KV's failover log; log is nil if KV did not send it.
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
