package core

import (
	"tidemark/index"
	"tidemark/streams"
)

// probeAgain is the time after which a projector is probed again if the outcome of the last probe has not arrived.
const probeAgain = 5_000 // ms

// refusesStream reports whether an indexer has stopped accepting the present stream of a vbucket: its connection has
// closed, or some of its data was dropped.
func refusesStream(e streams.Entry, a *streams.Acceptance) bool {
	return !a.Open && e.State == streams.Begun && e.Owner == a.Projector && e.Incarnation == a.Incarnation
}

// doubt probes a projector because an indexer has lost its streams. Only a refused connection shows that the process
// has ended; an answer or a timeout proves nothing: a single link may be broken, or the machine may be slow.
func (l *membership) doubt(bucket string, id index.ProjectorID) {
	p := l.components.projectors[id]
	if p == nil || p.refused || l.nowMS < p.probeMS {
		return
	}
	p.probeMS = l.nowMS + probeAgain
	l.send(&p.component, Queries, "probe", Probe{Projector: id, Bucket: bucket})
}

// probed takes the outcome of a probe.
func (l *membership) probed(a *Probed) {
	p := l.components.projectors[a.Projector]
	if p == nil || p.receiver != a.From {
		return // the projector has registered again meanwhile
	}
	p.probeMS = l.nowMS + l.settings.ProbeRest.Milliseconds()
	if !a.Refused {
		return
	}
	l.log.Warn("indexer has lost a projector's streams, and no process listens at the projector's "+
		"address", "projector", p.id,
		"address", p.addr)
	p.refused = true
	if l.active {
		l.watchProjectors()
	}
}
