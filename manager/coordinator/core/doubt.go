package core

import (
	"tidemark/index"
	"tidemark/streams"
)

// probeAgain is after how long a projector is asked again whether it lives when no outcome has come.
const probeAgain = 5_000 // ms

// refusesStream reports whether an indexer has stopped accepting the stream that its owner is thought to say: its
// connection has closed, or something of it was dropped.
func refusesStream(e streams.Entry, a *streams.Acceptance) bool {
	return !a.Open && e.State == streams.Begun && e.Owner == a.Projector && e.Incarnation == a.Incarnation
}

// doubt asks a projector whether it lives, because an indexer has lost its streams. A process that has ended is known
// by that nobody listens at its address; an answer, and silence too, prove nothing: one link may be broken, a machine
// may be slow.
func (l *membership) doubt(bucket string, id index.ProjectorID) {
	p := l.components.projectors[id]
	if p == nil || p.refused || l.nowMS < p.probeMS {
		return
	}
	p.probeMS = l.nowMS + probeAgain
	l.tell(&p.component, Questions, "probe", Probe{Projector: id, Bucket: bucket})
}

// probed takes the outcome.
func (l *membership) probed(a *Probed) {
	p := l.components.projectors[a.Projector]
	if p == nil || p.receiver != a.From {
		return // it has registered anew meanwhile
	}
	p.probeMS = l.nowMS + l.settings.ProbeRest.Milliseconds()
	if !a.Refused {
		return
	}
	l.log.Warn("an indexer has lost a projector's streams, and nobody listens at its address", "projector", p.id,
		"address", p.addr)
	p.refused = true
	if l.active {
		l.watchProjectors()
	}
}
