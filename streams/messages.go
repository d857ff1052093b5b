package streams

import (
	"tidemark/index"
	"tidemark/timestamp"
)

// Committed is the newest committed stability timestamp, with the failover logs at its promotion and the revisions of
// their vbucket maps; both may be shorter if nothing is known.
type Committed struct {
	Vector    timestamp.Vector
	Logs      []timestamp.FailoverLog // by vbucket
	Revisions []timestamp.MapRevision // by vbucket
}

// Running is one vbucket's maintenance stream as a projector reports it.
type Running struct {
	VBucket     uint16
	Incarnation index.Incarnation
	Log         timestamp.FailoverLog // nil: as reported before
	Purge       uint64                // KV has purged deletions at or below it
	Revision    timestamp.MapRevision // of the vbucket map under which it began
	Ended       bool                  // the stream of that incarnation has ended
}

// Report is what a projector streams of the bucket, or the changes of it.
type Report struct {
	Full    bool      // vbuckets not listed are not streamed
	Streams []Running // in any order
}

// Acceptance is the stream that an indexer accepts for a vbucket.
type Acceptance struct {
	VBucket     uint16
	Incarnation index.Incarnation
	Projector   index.ProjectorID
	Open        bool // false: nothing is accepted until the next BEGIN
}

// Position is an indexer's position in a vbucket, as its answer to a poll.
type Position struct {
	VBucket     uint16
	Participant bool                  // false: it recovers by itself
	HW          uint64                // smallest position of its whole slices, including queued events
	Reach       uint64                // highest seqno, window end or floor that it may reflect
	Log         timestamp.FailoverLog // at that position
	Revision    timestamp.MapRevision // newest vbucket map that the indexer has seen
}

// Log is KV's state of a vbucket that a projector's KV nodes host as active.
type Log struct {
	VBucket  uint16
	Log      timestamp.FailoverLog // newest branch first
	High     uint64                // seqno of the newest version
	Purge    uint64                // KV has purged deletions at or below it
	Revision timestamp.MapRevision // of the vbucket map that the node has
}

// Start requests one vbucket's stream after a restart timestamp (PR-11, IM-21).
type Start struct {
	VBucket     uint16
	Incarnation index.Incarnation // of the requested stream
	VBUUID      uint64            // branch of Seqno
	Seqno       uint64            // the stream begins after it
	Window      timestamp.Window  // DCP snapshot in which Seqno lies; {Seqno, Seqno} if Seqno ends one
	// newest branch of the log from which the start was computed: a producer on another branch has failed over since
	Branch   uint64
	Previous uint64 // branch before VBUUID if VBUUID began at Seqno; 0: none
}

// Outcome is the outcome of one Start at one projector.
type Outcome uint8

// The outcomes.
const (
	Failed   Outcome = iota // for another reason; see Detail
	Streams                 // the stream runs
	NotMine                 // no KV node of the projector hosts the vbucket as active
	RolledKV                // KV answered ROLLBACK
	Stale                   // the projector has seen a newer incarnation
)

// Started is a projector's answer for one vbucket.
type Started struct {
	VBucket  uint16
	Outcome  Outcome
	Log      timestamp.FailoverLog // with Streams
	Purge    uint64                // KV has purged deletions at or below it; with Streams
	Revision timestamp.MapRevision // of the vbucket map that the node has; with Streams
	Detail   string                // of Failed: the error, for people
}
