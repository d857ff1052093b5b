package core

import (
	"errors"

	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/timestamp"
	"tidemark/wire"
)

// Stream is one vbucket's stream under one incarnation: how it was asked for, and where it stands.
type Stream struct {
	Start
	Course
}

// NewStream returns the stream that a request asks for.
func NewStream(inc index.Incarnation, want *wire.StreamStart, at At) *Stream {
	return &Stream{Start: newStart(inc, want, at)}
}

// Opened is the half that does not change.
func (s *Stream) Opened() *Start { return &s.Start }

// Course is where a stream stands. It belongs to whoever takes the stream's events, and to nobody else.
type Course struct {
	Begun    bool                  // BEGIN was said downstream
	VBUUID   uint64                // branch that it is on
	Told     timestamp.FailoverLog // by BEGIN
	Last     uint64                // last seqno that was handed on
	Complete uint64                // newest seqno that ends a DCP snapshot
	Window   timestamp.Window      // of Last; Start is the newest complete seqno before it
	Reach    uint64                // highest window end seen, that in which the start lies among them
	Lacks    uint64                // KV may have forgotten deletions up to here
	Waits    bool                  // for what KV has forgotten by now: its events are to be held
	Done     bool                  // of a side stream: what KV still sends is for nobody
	marked   bool                  // the first snapshot of a stream from 0 has begun
	firstEnd uint64                // its end
}

// ErrFailedOver is returned when KV has begun a stream on another branch than the asker knew. The answer to the request
// says so.
var ErrFailedOver = errors.New("KV failed over before it began")

// BeginsOn takes over that KV begins the stream, and with which failover log.
func (s *Stream) BeginsOn(log timestamp.FailoverLog) error {
	if s.failedOver(log) {
		return ErrFailedOver
	}
	at := s.Want.Seqno
	s.Course = Course{VBUUID: log.Newest(), Told: log, Last: at, Complete: s.From(),
		Window: timestamp.Window{Start: at, End: at}, Reach: s.Want.Window.End, Lacks: s.Purge}
	return nil
}

// Downstream is the stream as an endpoint is told of it now, but for the endpoint's copies.
func (s *Stream) Downstream() Downstream {
	return Downstream{VBucket: s.VBucket(), Incarnation: s.Incarnation, VBUUID: s.VBUUID,
		Opening: keyversion.Begin{Start: s.Want.Seqno, Log: s.Told, Purge: s.Lacks, Revision: s.KV.Revision}}
}

// Marked is what a snapshot marker makes of a stream.
type Marked uint8

// What there is to do.
const (
	Goes   Marked = iota // nothing
	Asks                 // KV is to be asked what it has forgotten by now: the stream waits for Forgot
	Begins               // BEGIN is to be said once more: the stream lacks more deletions than were told
)

// Mark takes a snapshot marker. From 0 KV streams whatever it has forgotten, and what that is may have changed since
// the purge seqno was read that BEGIN tells: KV fixes the snapshot some time after it has consented. Then rows would
// stay whose deletion was purged in between. So it is asked again, now that the snapshot is fixed, and the stream's
// events wait until it is known. Of every other start KV looks itself at what has been purged, when it consents and
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
	return Asks
}

// Forgot takes up to where KV has forgotten deletions now, for a stream that waits. Where KV does not tell, the stream
// may lack any deletion of its first snapshot, and none above.
func (s *Stream) Forgot(purge uint64, told bool) Marked {
	if !told {
		purge = s.firstEnd
	}
	return s.lacking(purge)
}

// lacking notes what a stream lacks of which nothing has gone downstream yet.
func (s *Stream) lacking(purge uint64) Marked {
	if purge <= s.Lacks {
		return Goes
	}
	s.Lacks = purge
	return Begins
}

// Place notes the end of the window that the item lies in which comes now. For those downstream the window starts where
// the stream was last complete, wherever KV's marker starts: what lies between was de-duplicated into this window, or
// is part of one that was cut short. And it ends where the stream is complete again, see within: whoever has the item
// knows so, also if nothing else of the stream came to him.
func (s *Stream) Place(end uint64) {
	s.Reach = max(s.Reach, end)
	if s.Reach != s.Window.End {
		s.Window = timestamp.Window{Start: s.Complete, End: s.Reach}
	}
}

// Took notes that an item was handed on. completed: it ends a snapshot, at which a SYNC says that the stream is
// complete.
func (s *Stream) Took(seqno uint64, completed bool) (sync bool) {
	s.Last = max(s.Last, seqno)
	if !completed || s.within(seqno) {
		return false
	}
	s.Complete = seqno
	return true
}

// within reports whether a seqno lies within a snapshot that has begun, its own or one that was cut short. What such a
// one left out as de-duplicated has a newer version at or below its end, and there only is the stream complete again,
// if KV goes on with a snapshot that ends before.
func (s *Stream) within(seqno uint64) bool { return seqno < s.Reach }
