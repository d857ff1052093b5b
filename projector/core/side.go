package core

import (
	"tidemark/errcode"
	"tidemark/index"
	"tidemark/wire"
)

const (
	// MaxSideStreams is how many side topics are open at a time.
	MaxSideStreams = 64
	// MaxSubscriptions is how many of them are subscribers': what indexers lack is not to wait for strangers.
	MaxSubscriptions = MaxSideStreams / 2
)

// SideKey names a side stream: several backfills and catchups run beside each other (PR-8).
type SideKey struct{ Topic, Bucket string }

// SideStream is a side stream as it counts for the room that there is.
type SideStream struct {
	SideKey
	Target *wire.SideTarget
}

// subscribed reports whether it goes to somebody who is no indexer.
func (s *SideStream) subscribed() bool { return len(s.Target.Indexes) > 0 }

// replaces reports whether it takes the place of another one: of the same topic, or of an earlier process of the same
// indexer. Subscribers have no node of their own: theirs reads as that of the indexer numbered 0.
func (s *SideStream) replaces(o *SideStream) bool {
	return o.SideKey == s.SideKey || !o.subscribed() && !s.subscribed() &&
		o.Target.Node == s.Target.Node && o.Target.BootID != s.Target.BootID && s.Target.BootID != ""
}

// MakeRoom returns which of the side streams that are open a new one takes the place of. It refuses one that there is
// no room for.
func MakeRoom(id index.ProjectorID, open []SideStream, s *SideStream) (replaced []SideKey, err error) {
	subscriptions := 0 // that stay
	for i := range open {
		switch o := &open[i]; {
		case s.replaces(o):
			replaced = append(replaced, o.SideKey)
		case o.subscribed():
			subscriptions++
		}
	}
	switch {
	case s.subscribed() && subscriptions >= MaxSubscriptions:
		return nil, errcode.Refuse(errcode.Unavailable, "projector %s has %d topics of subscribers open, the most it can; "+
			"stop one, or try again", id, MaxSubscriptions)
	case len(open)-len(replaced) >= MaxSideStreams:
		return nil, errcode.Refuse(errcode.Unavailable, "projector %s has %d side streams open, the most it can; try again",
			id, MaxSideStreams)
	}
	return replaced, nil
}

// MayRest reports whether it is no failure that nothing moves on a side stream: it is to be retried for ever, or it has
// no end and its endpoint has taken all that there is.
func MayRest(t *wire.SideTarget, want *wire.RestartTimestamp, taken func() bool) bool {
	if t.RetryForever {
		return true
	}
	for i := range want.Len() {
		if want.At(i).End != wire.NoEnd {
			return false
		}
	}
	return taken()
}

// FromKV is what KV sends of a side stream's vbucket.
type FromKV uint8

// What it sends.
const (
	KVBegins   FromKV = iota // its consent
	KVDocument               // a version of a document
	KVMoves                  // a snapshot marker, or a seqno that is no document's
	KVEnds                   // the end: everything up to the one that was asked for has been sent
	KVBreaks                 // an end before that one
)

// SideStep is what there is to do with it.
type SideStep uint8

// What there is to do.
const (
	SideTakes   SideStep = iota // as with any stream that runs
	SideSkips                   // nothing: it is for nobody
	SideBegins                  // BEGIN is to be said
	SideReaches                 // everything has come: KV is to be asked how far it is, for Covered
	SideBreaks                  // the stream is to be broken off where it is: its indexer asks again for this vbucket
)

// Side takes what KV sends next, of a document with its seqno.
func (s *Stream) Side(what FromKV, seqno uint64) SideStep {
	switch {
	case s.Done: // KV reads on beyond the end
		return SideSkips
	case what == KVBegins:
		return SideBegins
	case !s.Begun:
		return SideSkips
	case what == KVEnds, what == KVDocument && s.past(seqno):
		s.Done = true
		return SideReaches
	case what == KVBreaks:
		return SideBreaks
	}
	return SideTakes
}

// past reports whether a document lies beyond the stream's end. KV ends a finite stream with the snapshot that its end
// lies in, which may be millions of documents further on. Documents come in order, so that the first one past the end
// says that everything up to the end has come.
func (s *Stream) past(seqno uint64) bool { return seqno > s.Want.End }

// Covered takes over that KV has sent everything up to the stream's end, and returns the reach that END tells. What KV
// left out as de-duplicated has a newer version at or below KV's present high seqno, so that is the reach: no marker of
// a finite stream says it. The last version at or below the end may be among what was left out, so the end itself is
// what has been covered.
func (s *Stream) Covered(high uint64) (reach uint64) {
	s.Last = max(s.Last, s.Want.End)
	return max(s.Reach, high)
}
