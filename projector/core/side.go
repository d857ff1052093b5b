package core

import (
	"tidemark/errcode"
	"tidemark/index"
	"tidemark/wire"
)

const (
	// MaxSideStreams bounds the side topics that are open at a time.
	MaxSideStreams = 64
	// MaxSubscriptions bounds those of subscribers, so that subscribers cannot take all the places that indexers need.
	MaxSubscriptions = MaxSideStreams / 2
)

// SideKey identifies a side stream: several backfills and catchups run side by side (PR-8).
type SideKey struct{ Topic, Bucket string }

// SideStream is an open side stream, as MakeRoom counts it.
type SideStream struct {
	SideKey
	Target *wire.SideTarget
}

// subscribed reports whether the side stream goes to an external subscriber instead of an indexer.
func (s *SideStream) subscribed() bool { return len(s.Target.Indexes) > 0 }

// replaces reports whether s takes the place of o: both have the same topic, or o is of an earlier process of the
// same indexer. Subscribers are excluded from the second rule: they have no node id, and their zero Node would match
// indexer 0.
func (s *SideStream) replaces(o *SideStream) bool {
	return o.SideKey == s.SideKey || !o.subscribed() && !s.subscribed() &&
		o.Target.Node == s.Target.Node && o.Target.BootID != s.Target.BootID && s.Target.BootID != ""
}

// MakeRoom returns which open side streams a new one replaces. It refuses the new one if there is no room for it.
func MakeRoom(id index.ProjectorID, open []SideStream, s *SideStream) (replaced []SideKey, err error) {
	subscriptions := 0 // not replaced
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
		return nil, errcode.Refuse(errcode.Unavailable, "projector %s has %d topics of subscribers open, which is its "+
			"limit; stop one, or try again", id, MaxSubscriptions)
	case len(open)-len(replaced) >= MaxSideStreams:
		return nil, errcode.Refuse(errcode.Unavailable, "projector %s has %d side streams open, which is its limit; try "+
			"again",
			id, MaxSideStreams)
	}
	return replaced, nil
}

// MayRest reports whether it is normal that nothing moves on a side stream: its target requested to retry forever, or
// it has no end and the endpoint has taken everything sent so far.
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

// FromKV is a kind of event that KV sends on a side stream's vbucket.
type FromKV uint8

// The kinds of events.
const (
	KVBegins   FromKV = iota // KV's consent
	KVDocument               // a version of a document
	KVMoves                  // a snapshot marker, or a seqno without a document
	KVEnds                   // the end: everything up to the requested end has been sent
	KVBreaks                 // an end before the requested one
)

// SideStep is how to handle an event of a side stream.
type SideStep uint8

// The steps.
const (
	SideTakes   SideStep = iota // as on any running stream
	SideSkips                   // discard it
	SideBegins                  // send BEGIN
	SideReaches                 // everything has arrived: request KV's high seqno, then call Covered
	SideBreaks                  // break the stream off here: its indexer requests this vbucket again
)

// Side returns how to handle KV's next event. seqno is that of a document.
func (s *Stream) Side(what FromKV, seqno uint64) SideStep {
	switch {
	case s.Done: // KV sends documents beyond the end
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

// past reports whether a document lies beyond the stream's end. KV ends a finite stream at the end of the snapshot
// that contains the requested end, which may be millions of documents further on. Documents come in order, so the
// first one past the end shows that everything up to the end has arrived.
func (s *Stream) past(seqno uint64) bool { return seqno > s.Want.End }

// Covered records that KV has sent everything up to the stream's end, and returns the reach that END carries. What KV
// left out by de-duplication has a newer version at or below KV's present high seqno, so that is the reach: no marker
// of a finite stream carries it. The last version at or below the end may be among those left out, so Last becomes
// the end itself.
func (s *Stream) Covered(high uint64) (reach uint64) {
	s.Last = max(s.Last, s.Want.End)
	return max(s.Reach, high)
}
