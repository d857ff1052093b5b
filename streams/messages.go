package streams

import (
	"tidemark/index"
	"tidemark/timestamp"
)

// Committed is the newest committed stability timestamp with the failover logs under which it was promoted and the
// revisions of the vbucket maps that those came with; both may be shorter where nothing is known.
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
	Purge       uint64                // KV has forgotten deletions at or below
	Revision    timestamp.MapRevision // of the vbucket map under which it began
	Ended       bool                  // the stream of that incarnation is over
}

// Report is what a projector streams of the bucket, or what of it changed.
type Report struct {
	Full    bool      // vbuckets that are not listed are not streamed
	Streams []Running // in any order
}

// Acceptance is which stream an indexer accepts for a vbucket.
type Acceptance struct {
	VBucket     uint16
	Incarnation index.Incarnation
	Projector   index.ProjectorID
	Open        bool // false: nothing is accepted until the next BEGIN
}

// Position is where an indexer stands in a vbucket, as its answer to a poll.
type Position struct {
	VBucket     uint16
	Participant bool                  // false: it recovers by itself
	HW          uint64                // smallest position of its whole slices, queue included
	Reach       uint64                // highest seqno, window end or floor that it may reflect
	Log         timestamp.FailoverLog // under which it got there
	Revision    timestamp.MapRevision // newest vbucket map that it has seen
}

// Log is what KV says of a vbucket that a projector's KV nodes host as active.
type Log struct {
	VBucket  uint16
	Log      timestamp.FailoverLog // newest branch first
	High     uint64                // seqno of the newest version
	Purge    uint64                // KV has forgotten deletions at or below
	Revision timestamp.MapRevision // of the vbucket map that the node has
}

// Start asks for one vbucket's stream after a restart timestamp (PR-11, IM-21).
type Start struct {
	VBucket     uint16
	Incarnation index.Incarnation // of the stream that is asked for
	VBUUID      uint64            // branch that Seqno is on
	Seqno       uint64            // the stream begins after it
	Window      timestamp.Window  // DCP snapshot that Seqno lies in; {Seqno, Seqno} where it ends one
	// newest of the log that the start was chosen by: a producer on another has failed over since
	Branch   uint64
	Previous uint64 // branch before VBUUID, when that one began at Seqno; 0: none
}

// Outcome tells what became of one Start at one projector.
type Outcome uint8

// The outcomes.
const (
	Failed   Outcome = iota // for another reason; see Detail
	Streams                 // the stream runs
	NotMine                 // no KV node there hosts the vbucket as active
	RolledKV                // KV answered ROLLBACK
	Stale                   // a newer incarnation was seen there
)

// Started is a projector's answer for one vbucket.
type Started struct {
	VBucket  uint16
	Outcome  Outcome
	Log      timestamp.FailoverLog // with Streams
	Purge    uint64                // KV has forgotten deletions at or below; with Streams
	Revision timestamp.MapRevision // of the vbucket map that the node has; with Streams
	Detail   string                // of Failed: what is wrong, for people
}
