package core

import (
	"errors"

	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/timestamp"
	"tidemark/wire"
)

// Stream is one vbucket's stream under one incarnation: its request and KV's consent, and its progress.
type Stream struct {
	Start
	Course
}

// NewStream returns the stream for a request.
func NewStream(inc index.Incarnation, want *wire.StreamStart, at At) *Stream {
	return &Stream{Start: newStart(inc, want, at)}
}

// Opened returns the immutable half.
func (s *Stream) Opened() *Start { return &s.Start }

// Course is a stream's progress. Only the worker that handles the stream's events may use it.
type Course struct {
	Begun    bool                  // BEGIN was sent downstream
	VBUUID   uint64                // branch that the stream is on
	BeginLog timestamp.FailoverLog // failover log that BEGIN carries
	Last     uint64                // last seqno that was passed on
	Complete uint64                // newest seqno that ends a DCP snapshot
	Window   timestamp.Window      // of Last; Start is the newest complete seqno before it
	Reach    uint64                // highest window end seen, including that of the window that contains the start
	Lacks    uint64                // KV may have purged deletions up to here
	Waits    bool                  // events are held until KV's purge seqno is known
	Done     bool                  // of a side stream: further events from KV are discarded
	marked   bool                  // the first snapshot of a stream from 0 has begun
	firstEnd uint64                // its end
}

// ErrFailedOver is returned if KV began a stream on another branch than the requester knew. The reply to the request
// reports it.
var ErrFailedOver = errors.New("KV failed over before the stream began")

// BeginsOn initializes the course when KV begins the stream with this failover log.
func (s *Stream) BeginsOn(log timestamp.FailoverLog) error {
	if s.failedOver(log) {
		return ErrFailedOver
	}
	at := s.Want.Seqno
	s.Course = Course{VBUUID: log.Newest(), BeginLog: log, Last: at, Complete: s.From(),
		Window: timestamp.Window{Start: at, End: at}, Reach: s.Want.Window.End, Lacks: s.Purge}
	return nil
}

// Downstream returns the stream's present state for an endpoint, without the endpoint's copies.
func (s *Stream) Downstream() Downstream {
	return Downstream{VBucket: s.VBucket(), Incarnation: s.Incarnation, VBUUID: s.VBUUID,
		Opening: keyversion.Begin{Start: s.Want.Seqno, Log: s.BeginLog, Purge: s.Lacks, Revision: s.KV.Revision}}
}

// Marked is what a snapshot marker requires of the caller.
type Marked uint8

// The required actions.
const (
	Goes       Marked = iota // nothing
	NeedsPurge               // request the purge seqno from KV: the stream waits for Purged
	Begins                   // send BEGIN again: the stream lacks more deletions than the last BEGIN stated
)

// Mark processes a snapshot marker. A stream from 0 is granted whatever KV has purged, and KV fixes the snapshot some
// time after it consented, so it may have purged more than the purge seqno in BEGIN states. Rows whose deletion was
// purged in between would then stay. So the purge seqno is read again once the first snapshot is fixed, and the
// stream's events wait for it. For every other start, KV itself checks what it has purged, both when it consents and
// when it fixes the snapshot.
func (s *Stream) Mark(end uint64) Marked {
	s.Reach = max(s.Reach, end)
	if s.marked || s.Want.Seqno > 0 {
		return Goes
	}
	s.marked, s.firstEnd = true, end
	if s.Blind {
		return s.lacking(end)
	}
	s.Waits = true
	return NeedsPurge
}

// Purged takes KV's present purge seqno for a stream that waits for it. If KV did not report one (known is false), the
// stream may lack any deletion of its first snapshot, and none above.
func (s *Stream) Purged(purge uint64, known bool) Marked {
	if !known {
		purge = s.firstEnd
	}
	return s.lacking(purge)
}

// lacking records the seqno up to which a stream lacks deletions, before any of its data has gone downstream.
func (s *Stream) lacking(purge uint64) Marked {
	if purge <= s.Lacks {
		return Goes
	}
	s.Lacks = purge
	return Begins
}

// Place sets the window of the next item; end is the end of KV's snapshot that contains it. Downstream, the window
// starts where the stream was last complete, wherever KV's marker starts: what lies between was de-duplicated into
// this window, or is part of a snapshot that was cut short. It ends where the stream is complete again (see within),
// so that a receiver has this from the item itself.
func (s *Stream) Place(end uint64) {
	s.Reach = max(s.Reach, end)
	if s.Reach != s.Window.End {
		s.Window = timestamp.Window{Start: s.Complete, End: s.Reach}
	}
}

// Took records that an item was passed on. completed: the item ends a snapshot. It reports whether the stream is
// complete at the item, so that a SYNC can state it.
func (s *Stream) Took(seqno uint64, completed bool) (sync bool) {
	s.Last = max(s.Last, seqno)
	if !completed || s.within(seqno) {
		return false
	}
	s.Complete = seqno
	return true
}

// within reports whether a seqno lies within a snapshot that has begun: the current one, or one that was cut short.
// What a cut snapshot left out by de-duplication has a newer version at or below its end, so even if KV continues
// with a snapshot that ends earlier, the stream is complete only at that end.
func (s *Stream) within(seqno uint64) bool { return seqno < s.Reach }
