package streams

import (
	"slices"

	"tidemark/index"
	"tidemark/timestamp"
)

// Adopt ends the start of a new leader: streams gives what each projector that answered runs, minimum the incarnations
// below which each indexer that answered refuses streams, by vbucket. A stream that exactly one projector runs, and
// that no indexer has fenced off, is taken over as it is; everything else is asked for again. unheard are live
// projectors that have not answered yet: what nobody else runs may run there, and is not asked for before Heard, a full
// report or SetProjectors has said otherwise.
func (l *Ledger) Adopt(nowMS int64, streams map[index.ProjectorID]Report, minimum map[index.NodeID][]index.Incarnation,
	unheard []index.ProjectorID) {
	l.adopted = true
	l.unheard = slices.Clone(unheard)
	for _, incs := range minimum {
		l.Minimum(nowMS, incs)
	}
	if !l.wanted {
		for p, s := range streams {
			l.Projector(nowMS, p, s) // stray ones are stopped
		}
		return
	}
	owners := l.claims(streams)
	for v := range l.vbs {
		if l.vbs[v].State == Idle { // else it was requested or has begun already under this leader
			l.adopt(v, nowMS, owners[v])
		}
	}
}

// adopt takes over a vbucket's stream, where exactly one projector runs it.
func (l *Ledger) adopt(v int, nowMS int64, owners []claim) {
	switch {
	case len(owners) == 0 && !l.rollback && len(l.unheard) > 0:
		l.set(v, nowMS, Unknown, "waiting for the answer of projectors that may stream it")
	case len(owners) != 1 || l.rollback || owners[0].Log == nil:
		l.set(v, nowMS, Lost, "not adopted: "+adoptReason(len(owners)))
	default:
		l.begin(v, nowMS, owners[0])
	}
}

// claims lists who says that he streams a vbucket, by vbucket, without what has ended or was fenced off.
func (l *Ledger) claims(streams map[index.ProjectorID]Report) [][]claim {
	owners := make([][]claim, len(l.vbs))
	for p, s := range streams {
		for _, r := range s.Streams {
			v := int(r.VBucket)
			if v >= len(l.vbs) || r.Ended || r.Incarnation.Compare(l.vbs[v].fence) < 0 {
				continue
			}
			owners[v] = append(owners[v], claim{Running: r, projector: p})
		}
	}
	return owners
}

func adoptReason(owners int) string {
	switch owners {
	case 0:
		return "no projector streams it"
	case 1:
		return "its failover log is not known"
	}
	return "more than one projector streams it"
}

// Heard tells that a projector that Adopt was told of as unheard has said all that it streams. When none of those is
// left, what nobody streams is Lost, and no longer Unknown.
func (l *Ledger) Heard(nowMS int64, p index.ProjectorID) {
	i := slices.Index(l.unheard, p)
	if i < 0 {
		return
	}
	l.unheard = slices.Delete(l.unheard, i, i+1)
	l.settle(nowMS)
}

// settle asks for what is unknown when nobody is left who may stream it.
func (l *Ledger) settle(nowMS int64) {
	if len(l.unheard) > 0 || l.counts[Unknown] == 0 {
		return
	}
	for v := range l.vbs {
		if l.vbs[v].State == Unknown {
			l.set(v, nowMS, Lost, "not adopted: "+adoptReason(0))
		}
	}
}

// claim is what a projector says of a vbucket.
type claim struct {
	Running
	projector index.ProjectorID
}

// Projector takes a projector's report of this bucket. It is false when the report leaves out a failover log that is
// not known here: a full report should follow.
func (l *Ledger) Projector(nowMS int64, p index.ProjectorID, s Report) bool {
	if !l.adopted {
		return true
	}
	complete := true
	var listed []bool
	if s.Full {
		listed = make([]bool, len(l.vbs))
	}
	for _, r := range s.Streams {
		v := int(r.VBucket)
		switch {
		case v >= len(l.vbs):
			continue
		case r.Ended:
			l.End(nowMS, v, p, r.Incarnation)
			continue
		case listed != nil:
			listed[v] = true
		}
		if !l.claimed(v, nowMS, claim{Running: r, projector: p}) {
			complete = false
		}
	}
	l.unlisted(nowMS, p, listed)
	if s.Full && complete {
		l.Heard(nowMS, p)
	}
	return complete
}

// unlisted asks again for what a projector has begun, but does not list in a full report.
func (l *Ledger) unlisted(nowMS int64, p index.ProjectorID, listed []bool) {
	for v := range listed {
		if e := &l.vbs[v]; !listed[v] && e.State == Begun && e.Owner == p &&
			nowMS-e.SinceMS > l.cfg.ReportGrace.Milliseconds() {
			l.set(v, nowMS, Lost, "its projector no longer streams it")
		}
	}
}

// claimed handles "p streams v under this incarnation", said for the first time or again. It is false when the log is
// missing that would be needed to believe it. The rules stand in the order in which they count.
func (l *Ledger) claimed(v int, nowMS int64, c claim) bool {
	e := &l.vbs[v]
	if l.Owns(v, c.projector, c.Incarnation) {
		l.saidAgain(v, nowMS, c)
		return true
	}
	if !l.wanted || l.rollback {
		l.strays[stray{c.projector, uint16(v)}] = c.Incarnation
		return true
	}
	switch order := c.Incarnation.Compare(e.Incarnation); {
	case order < 0, c.Incarnation.Compare(e.fence) < 0:
		if e.State == Begun && e.Owner != c.projector {
			l.strays[stray{c.projector, uint16(v)}] = c.Incarnation // fenced off by everybody, yet it costs KV a stream
		}
		return true
	case order == 0 && e.hasEnded(c.projector): // END has overtaken BEGIN: both orders end in the same state
		e.Owner = c.projector
		l.set(v, nowMS, Ended, "its projector ended it")
		return true
	case e.State == Begun && order == 0:
		l.twoOwners(v, nowMS)
		return true
	}
	if l.repair.fences(v, c.Incarnation) {
		return true // by the poll
	}
	if c.Log == nil {
		return false
	}
	if c.Revision.Compare(e.Revision) < 0 {
		return true // a stale owner must not carry S back to its branch
	}
	l.begin(v, nowMS, c)
	return true
}

// saidAgain takes what the owner of a vbucket says of it.
func (l *Ledger) saidAgain(v int, nowMS int64, c claim) {
	e := &l.vbs[v]
	if c.Log != nil && !c.Log.Equal(e.Log) {
		l.begin(v, nowMS, c)
	}
	e.Purge = max(e.Purge, c.Purge)
}

// hasEnded reports whether a projector has said that what it was asked for last is over.
func (e *Entry) hasEnded(p index.ProjectorID) bool {
	return e.request.early == p || e.State == Ended && e.Owner == p
}

// begin makes the claim the vbucket's owner.
func (l *Ledger) begin(v int, nowMS int64, c claim) {
	e := &l.vbs[v]
	if c.Revision.Compare(e.Revision) > 0 {
		e.Revision = c.Revision
	}
	e.Owner, e.Incarnation, e.Log, e.Purge = c.projector, c.Incarnation, c.Log, c.Purge
	e.tries, e.restMS, e.refused, e.audited = 0, 0, 0, audited{at: timestamp.Infinity}
	l.takers.begun(v)
	l.settleDeal(v, nowMS)
	l.set(v, nowMS, Begun, "")
	l.taken(v, nowMS)
	if !l.valid(v, c.Log) {
		l.diverge(v, "the committed stability timestamp is not on the branch of the stream that began")
	}
}

// twoOwners: two projectors claim one incarnation (a stale vbucket map). Both are stopped, and all are asked again.
func (l *Ledger) twoOwners(v int, nowMS int64) {
	e := &l.vbs[v]
	l.queue(Action{Kind: StopStreams, VBuckets: []uint16{uint16(v)}, Incarnation: e.Incarnation, Projectors: l.projectors})
	l.set(v, nowMS, Lost, "two projectors claimed one incarnation")
	e.Incarnation = l.issued.next() // neither of them counts any more
}

// End takes a projector's END. It may come before the BEGIN.
func (l *Ledger) End(nowMS int64, v int, p index.ProjectorID, incarnation index.Incarnation) {
	if v < 0 || v >= len(l.vbs) {
		return
	}
	delete(l.strays, stray{p, uint16(v)})
	e := &l.vbs[v]
	switch {
	case incarnation != e.Incarnation:
	case e.State == Begun && e.Owner == p:
		l.set(v, nowMS, Ended, "its projector ended it")
	case e.State == Requested:
		e.request.early = p
	}
}

// Started takes a projector's answer to StartStreams of this incarnation (PR-12).
func (l *Ledger) Started(nowMS int64, p index.ProjectorID, incarnation index.Incarnation, results []Started) {
	for _, r := range results {
		v := int(r.VBucket)
		if v >= len(l.vbs) || l.vbs[v].Incarnation != incarnation {
			continue
		}
		e := &l.vbs[v]
		switch {
		case r.Outcome == Streams && r.Log != nil:
			l.claimed(v, nowMS, claim{projector: p, Running: Running{VBucket: r.VBucket, Incarnation: incarnation, Log: r.Log,
				Purge: r.Purge, Revision: r.Revision}})
		case r.Outcome == Streams, e.State != Requested:
			// Its report will tell. When another projector has begun this incarnation, a stale owner's ROLLBACK counts for
			// nothing.
		case r.Outcome == RolledKV:
			// Logs decide whether a branch diverged; if none did, whoever stands at that position is no participant.
			e.refused = max(e.refused, e.request.start)
			e.restMS = nowMS + l.patience(l.cfg.RetryWait, e.tries-1)
			l.set(v, nowMS, Lost, "KV answered ROLLBACK")
		default: // not mine, stale, failed
			l.cannot(nowMS, v, p, r)
		}
	}
}

// cannot notes that a projector does not start what was requested. When every live projector has said so, the vbucket
// is asked for again after a rest instead of waiting for a BEGIN that nobody will send.
func (l *Ledger) cannot(nowMS int64, v int, p index.ProjectorID, r Started) {
	e := &l.vbs[v]
	if r.Detail != "" {
		e.Reason = "projector " + string(p) + " cannot start it: " + r.Detail
	}
	if !e.request.refuses(p, l.projectors) {
		return
	}
	reason := e.Reason // of who could not, whoever else has said since that it is not its own
	if reason == waiting {
		reason = "no projector hosts it now"
	}
	e.restMS = nowMS + l.patience(l.cfg.RetryWait, e.tries-1)
	l.set(v, nowMS, Lost, reason)
}

// Indexer takes which streams an indexer accepts. What it refuses for longer than patience is asked for again under a
// new incarnation. It is true when all that is listed is as wanted: it need not be told again before Changes has risen.
func (l *Ledger) Indexer(nowMS int64, node index.NodeID, accepts []Acceptance) (settled bool) {
	n := l.takers[node]
	if n == nil {
		return false
	}
	settled = true
	if n.sinceMS == nil {
		n.sinceMS = make([]int64, len(l.vbs))
	}
	for _, a := range accepts {
		if v := int(a.VBucket); v < len(l.vbs) {
			l.accepted(v, nowMS, n, a)
			settled = settled && n.sinceMS[v] == 0
		}
	}
	return settled
}

// accepted takes what one indexer accepts of one vbucket.
func (l *Ledger) accepted(v int, nowMS int64, n *taker, a Acceptance) {
	e := &l.vbs[v]
	l.raiseFence(v, a.Incarnation)
	if e.State != Begun {
		n.sinceMS[v] = 0
		return
	}
	switch order := a.Incarnation.Compare(e.Incarnation); {
	case order > 0:
		l.set(v, nowMS, Lost, "an indexer insists on a newer incarnation")
	case order == 0 && a.Open && a.Projector != e.Owner:
		l.set(v, nowMS, Lost, "an indexer accepts another projector under the same incarnation")
	case order == 0 && a.Open:
		n.accepts(v)
	case n.sinceMS[v] == 0:
		n.sinceMS[v] = max(nowMS, 1)
	case l.overdue(nowMS, n, v, e.misTries):
		e.misTries++
		n.shutOut(v)
		l.set(v, nowMS, Lost, "an indexer does not receive it")
	}
}

// Full tells that an indexer's queue has no room: what is on its way to it waits there, BEGIN too, and is not missing.
func (l *Ledger) Full(nowMS int64, node index.NodeID) {
	if n := l.takers[node]; n != nil {
		n.fullMS = max(nowMS, 1)
	}
}

// overdue reports whether an indexer, which has not accepted the owner's stream of a vbucket, should have by now. While
// it is full that may take as long as patience ever lasts.
func (l *Ledger) overdue(nowMS int64, n *taker, v, tries int) bool {
	sinceMS := n.sinceMS[v]
	return nowMS-max(sinceMS, n.fullMS) > l.patience(l.cfg.MismatchWait, tries) ||
		nowMS-sinceMS > l.patience(l.cfg.MismatchWait, l.cfg.MaxDoublings)
}

// audited is what audits have found of a stream.
type audited struct {
	at     uint64 // what was complete at the newest one; timestamp.Infinity: there was none since the BEGIN
	doubts int    // audits in a row that found it wanting
}

// auditDoubts is how many audits in a row must find a stream wanting: one may cross an event that is on its way.
const auditDoubts = 2

// isWell reports whether a vbucket's stream runs where KV hosts it, and every indexer receives it.
func (l *Ledger) isWell(v int, host index.ProjectorID) bool {
	return host == l.vbs[v].Owner && !l.takers.shut(v)
}

// Audit compares streams that seem to run with what KV says (IM-14): after a takeover a producer may never say that a
// stream is over. logs gives the answers of the projectors that gave one, complete the newest complete seqno of a
// vbucket. A stream whose vbucket another projector hosts under a newer map, that is on an older branch than KV, or
// that stands still below KV's high seqno, is asked for again: the first at once, for the map says it, the others with
// a patience that doubles until the stream is well and every indexer receives it.
func (l *Ledger) Audit(nowMS int64, logs map[index.ProjectorID][]Log, complete func(v int) uint64) {
	l.kv.noteShared(logs, len(l.vbs))
	best := l.newestHosts(logs)
	for v := range l.vbs {
		e := &l.vbs[v]
		at := complete(v)
		still, first := at == e.audited.at, e.audited.at == timestamp.Infinity
		e.audited.at = at
		h, hosted := best[uint16(v)]
		if hosted {
			l.kv.traffic.note(v, nowMS, h.log.High)
		}
		if e.State != Begun || !hosted {
			e.audited.doubts = 0
			continue
		}
		switch reason := e.doubt(h, still, at); reason {
		case "":
			e.audited.doubts = 0
			caughtUp := !first || at >= h.log.High
			if e.misTries > 0 && caughtUp && l.isWell(v, h.projector) {
				e.misTries = 0
			}
		case takenReason:
			e.audited.doubts = 0
			l.set(v, nowMS, Lost, reason)
		default:
			if e.audited.doubts++; e.audited.doubts >= auditDoubts<<min(e.misTries, l.cfg.MaxDoublings) {
				e.audited.doubts, e.misTries = 0, e.misTries+1
				l.set(v, nowMS, Lost, reason)
			}
		}
	}
}

// newestHosts returns who hosts each vbucket under the newest map; of several at one KV node it is the one that
// streams.
func (l *Ledger) newestHosts(logs map[index.ProjectorID][]Log) map[uint16]hosting {
	best := map[uint16]hosting{}
	for _, p := range sortedKeys(logs) {
		for _, g := range logs[p] {
			owner := int(g.VBucket) < len(l.vbs) && l.vbs[g.VBucket].Owner == p
			old, ok := best[g.VBucket]
			if order := g.Revision.Compare(old.log.Revision); !ok || order > 0 || order == 0 && owner {
				best[g.VBucket] = hosting{projector: p, log: g}
			}
		}
	}
	return best
}

// doubt says why a stream that seems to run may not: its host under the newest map is h, and it is at that seqno, still
// since the last audit or not. Empty for a stream that is well.
func (e *Entry) doubt(h hosting, still bool, at uint64) string {
	switch newer := h.log.Revision.Compare(e.Revision) > 0; {
	case newer && h.projector != e.Owner:
		return takenReason
	case h.projector == e.Owner && h.log.Log.Newest() != e.Log.Newest():
		return "its stream is on an older branch than KV"
	case h.projector == e.Owner && still && at < h.log.High:
		return "its stream stands still below KV's high seqno"
	}
	return ""
}

// hosting is who hosts a vbucket, and what KV says there.
type hosting struct {
	projector index.ProjectorID
	log       Log
}

// Minimum takes the incarnations below which an indexer refuses streams, by vbucket. A stream that it refuses for ever
// is asked for again.
func (l *Ledger) Minimum(nowMS int64, incs []index.Incarnation) {
	for v := range min(len(incs), len(l.vbs)) {
		l.raiseFence(v, incs[v])
		if e := &l.vbs[v]; e.State == Begun && e.Incarnation.Compare(e.fence) < 0 {
			l.set(v, nowMS, Lost, "an indexer insists on a newer incarnation")
		}
	}
}

func (l *Ledger) raiseFence(v int, inc index.Incarnation) {
	if e := &l.vbs[v]; inc.Compare(e.fence) > 0 {
		e.fence = inc
	}
	l.issued.seen(inc)
}
