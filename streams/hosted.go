package streams

import (
	"tidemark/index"
	"tidemark/timestamp"
)

// Hosted is what a projector's KV node says that it has as active.
type Hosted struct {
	Node     string // the KV node: several projectors may stand at it
	Revision timestamp.MapRevision
	VBuckets []uint16
}

// hosted is Hosted by vbucket.
type hosted struct {
	node     string
	revision timestamp.MapRevision
	has      []bool
}

// Hosted takes what a projector's KV node has (IM-14). A stream that runs, of a vbucket which another node has under a
// newer map than any known here, is none any more, whether its own node says so or hangs: it is asked for again.
func (l *Ledger) Hosted(nowMS int64, p index.ProjectorID, h Hosted) {
	has := make([]bool, len(l.vbs))
	for _, v := range h.VBuckets {
		if int(v) < len(has) {
			has[v] = true
		}
	}
	l.hosts[p] = hosted{node: h.Node, revision: h.Revision, has: has}
	for v := range l.vbs {
		l.taken(v, nowMS)
	}
}

// Forget drops what was known of a projector that is no part of the cluster any more.
func (l *Ledger) Forget(p index.ProjectorID) { delete(l.hosts, p) }

// taken asks for a stream again whose vbucket another KV node has by now. What the newer map says stands: a log under
// an older one does not count from now on, or an owner that was failed over, and answers on, would be asked for ever.
func (l *Ledger) taken(v int, nowMS int64) {
	e := &l.vbs[v]
	if e.State != Begun {
		return
	}
	for _, p := range l.projectors {
		h, told := l.hosts[p]
		if !told || !h.has[v] || h.revision.Compare(e.Revision) <= 0 || l.oneNode(v, e.Owner, p) {
			continue
		}
		e.Revision, e.restMS = h.revision, 0
		l.set(v, nowMS, Lost, takenReason)
		return
	}
}

// oneNode reports whether two projectors stand at one KV node. One that has just begun may not have told at which: then
// the newest audit says it.
func (l *Ledger) oneNode(v int, p, other index.ProjectorID) bool {
	own, told := l.hosts[p]
	return p == other || told && own.node == l.hosts[other].node || !told && l.beside(v, p, other)
}

const takenReason = "another projector hosts it under a newer vbucket map"
