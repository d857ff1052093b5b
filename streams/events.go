package streams

import (
	"slices"

	"tidemark/index"
	"tidemark/timestamp"
)

// Adopt completes the start of a new leader. streams has what each projector that answered runs, minimum the
// incarnations below which each indexer that answered refuses streams, by vbucket. A stream that exactly one
// projector runs, and that no indexer has fenced, is adopted as it is; everything else is requested again. unanswered
// are live projectors that have not answered yet: vbuckets that no other projector runs may run there. They are not
// requested until Reported, a full report or SetProjectors has cleared that up.
func (l *Ledger) Adopt(nowMS int64, streams map[index.ProjectorID]Report, minimum map[index.NodeID][]index.Incarnation,
	unanswered []index.ProjectorID) {
	l.adopted = true
	l.unanswered = slices.Clone(unanswered)
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
		if l.vbs[v].State == Idle { // else this leader has requested or begun it already
			l.adopt(v, nowMS, owners[v])
		}
	}
}

// adopt adopts the stream of a vbucket if exactly one projector runs it.
func (l *Ledger) adopt(v int, nowMS int64, owners []claim) {
	switch {
	case len(owners) == 0 && !l.rollback && len(l.unanswered) > 0:
		l.set(v, nowMS, Unknown, "waiting for the answer of projectors that may stream it")
	case len(owners) != 1 || l.rollback || owners[0].Log == nil:
		l.set(v, nowMS, Lost, "not adopted: "+adoptReason(len(owners)))
	default:
		l.begin(v, nowMS, owners[0])
	}
}

// claims returns, by vbucket, the projectors that report its stream, without streams that have ended or were fenced.
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
		return "its failover log is unknown"
	}
	return "more than one projector streams it"
}

// Reported records that a projector in Adopt's unanswered has reported everything that it streams. When none of them
// is left, vbuckets without a stream become Lost instead of Unknown.
func (l *Ledger) Reported(nowMS int64, p index.ProjectorID) {
	i := slices.Index(l.unanswered, p)
	if i < 0 {
		return
	}
	l.unanswered = slices.Delete(l.unanswered, i, i+1)
	l.settle(nowMS)
}

// settle makes unknown vbuckets Lost when no projector is left that may stream them.
func (l *Ledger) settle(nowMS int64) {
	if len(l.unanswered) > 0 || l.counts[Unknown] == 0 {
		return
	}
	for v := range l.vbs {
		if l.vbs[v].State == Unknown {
			l.set(v, nowMS, Lost, "not adopted: "+adoptReason(0))
		}
	}
}

// claim is a projector's report of the stream of a vbucket.
type claim struct {
	Running
	projector index.ProjectorID
}

// Projector processes a projector's report of this bucket. It returns false if the report omits a failover log that
// is unknown here: a full report should follow.
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
		l.Reported(nowMS, p)
	}
	return complete
}

// unlisted makes vbuckets Lost that a projector owns but does not list in a full report.
func (l *Ledger) unlisted(nowMS int64, p index.ProjectorID, listed []bool) {
	for v := range listed {
		if e := &l.vbs[v]; !listed[v] && e.State == Begun && e.Owner == p &&
			nowMS-e.SinceMS > l.cfg.ReportGrace.Milliseconds() {
			l.set(v, nowMS, Lost, "its projector no longer streams it")
		}
	}
}

// claimed processes "p streams v under this incarnation", for the first time or repeated. It returns false if the
// report lacks the log that is needed to accept it. The rules are in the order of precedence.
func (l *Ledger) claimed(v int, nowMS int64, c claim) bool {
	e := &l.vbs[v]
	if l.Owns(v, c.projector, c.Incarnation) {
		l.repeated(v, nowMS, c)
		return true
	}
	if !l.wanted || l.rollback {
		l.strays[stray{c.projector, uint16(v)}] = c.Incarnation
		return true
	}
	switch order := c.Incarnation.Compare(e.Incarnation); {
	case order < 0, c.Incarnation.Compare(e.fence) < 0:
		if e.State == Begun && e.Owner != c.projector {
			l.strays[stray{c.projector, uint16(v)}] = c.Incarnation // fenced everywhere, yet it costs KV a stream
		}
		return true
	case order == 0 && e.hasEnded(c.projector): // END has overtaken BEGIN: both orders have the same result
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

// repeated updates a vbucket from a repeated report of its owner.
func (l *Ledger) repeated(v int, nowMS int64, c claim) {
	e := &l.vbs[v]
	if c.Log != nil && !c.Log.Equal(e.Log) {
		l.begin(v, nowMS, c)
	}
	e.Purge = max(e.Purge, c.Purge)
}

// hasEnded reports whether a projector has reported the end of the newest requested stream.
func (e *Entry) hasEnded(p index.ProjectorID) bool {
	return e.request.early == p || e.State == Ended && e.Owner == p
}

// begin makes the claiming projector the owner of the vbucket.
func (l *Ledger) begin(v int, nowMS int64, c claim) {
	e := &l.vbs[v]
	if c.Revision.Compare(e.Revision) > 0 {
		e.Revision = c.Revision
	}
	e.Owner, e.Incarnation, e.Log, e.Purge = c.projector, c.Incarnation, c.Log, c.Purge
	e.tries, e.restMS, e.refused, e.audited = 0, 0, 0, audited{at: timestamp.Infinity}
	l.participants.begun(v)
	l.settleDeal(v, nowMS)
	l.set(v, nowMS, Begun, "")
	l.taken(v, nowMS)
	if !l.valid(v, c.Log) {
		l.diverge(v, "the committed stability timestamp is not on the branch of the stream that began")
	}
}

// twoOwners handles two projectors that claim one incarnation (a stale vbucket map): both are stopped, and the
// vbucket is requested again.
func (l *Ledger) twoOwners(v int, nowMS int64) {
	e := &l.vbs[v]
	l.queue(Action{Kind: StopStreams, VBuckets: []uint16{uint16(v)}, Incarnation: e.Incarnation, Projectors: l.projectors})
	l.set(v, nowMS, Lost, "two projectors claimed one incarnation")
	e.Incarnation = l.issued.next() // neither of them is valid any more
}

// End processes a projector's END. It may arrive before the BEGIN.
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

// Started processes a projector's answer to StartStreams of this incarnation (PR-12).
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
			// Its report will show it. If another projector has begun this incarnation, the ROLLBACK of a stale owner is
			// ignored.
		case r.Outcome == RolledKV:
			// The failover logs decide whether a branch diverged. If none did, holders at that position are no participants.
			e.refused = max(e.refused, e.request.start)
			e.restMS = nowMS + l.patience(l.cfg.RetryWait, e.tries-1)
			l.set(v, nowMS, Lost, "KV answered ROLLBACK")
		default: // not mine, stale, failed
			l.cannot(nowMS, v, p, r)
		}
	}
}

// cannot records that a projector does not start what was requested. When every live projector has refused, the
// vbucket is requested again after a rest, since no BEGIN will come.
func (l *Ledger) cannot(nowMS int64, v int, p index.ProjectorID, r Started) {
	e := &l.vbs[v]
	if r.Detail != "" {
		e.Reason = "projector " + string(p) + " cannot start it: " + r.Detail
	}
	if !e.request.refuses(p, l.projectors) {
		return
	}
	reason := e.Reason // from a projector that failed, not from one that does not host it
	if reason == waiting {
		reason = "no projector hosts it now"
	}
	e.restMS = nowMS + l.patience(l.cfg.RetryWait, e.tries-1)
	l.set(v, nowMS, Lost, reason)
}

// Indexer processes the streams that an indexer accepts. A stream that it has refused for too long is requested again
// under a new incarnation. settled is true if everything listed is as expected: the caller need not call it again
// before Changes has risen.
func (l *Ledger) Indexer(nowMS int64, node index.NodeID, accepts []Acceptance) (settled bool) {
	n := l.participants[node]
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

// accepted processes what one indexer accepts in one vbucket.
func (l *Ledger) accepted(v int, nowMS int64, n *participant, a Acceptance) {
	e := &l.vbs[v]
	l.raiseFence(v, a.Incarnation)
	if e.State != Begun {
		n.sinceMS[v] = 0
		return
	}
	switch order := a.Incarnation.Compare(e.Incarnation); {
	case order > 0:
		l.set(v, nowMS, Lost, "an indexer requires a newer incarnation")
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

// Full records that an indexer's queue is full: events in transit to it, BEGIN included, wait there and are not
// missing.
func (l *Ledger) Full(nowMS int64, node index.NodeID) {
	if n := l.participants[node]; n != nil {
		n.fullMS = max(nowMS, 1)
	}
}

// overdue reports whether an indexer that has not accepted the owner's stream of a vbucket should have by now. While
// its queue is full it may take the maximum patience.
func (l *Ledger) overdue(nowMS int64, n *participant, v, tries int) bool {
	sinceMS := n.sinceMS[v]
	return nowMS-max(sinceMS, n.fullMS) > l.patience(l.cfg.MismatchWait, tries) ||
		nowMS-sinceMS > l.patience(l.cfg.MismatchWait, l.cfg.MaxDoublings)
}

// audited is the result of the audits of a stream.
type audited struct {
	at     uint64 // complete seqno at the last audit; timestamp.Infinity: none since the BEGIN
	doubts int    // consecutive audits that found a fault
}

// auditDoubts is how many consecutive audits must find a fault: a single one may overlap an event in transit.
const auditDoubts = 2

// isWell reports whether a vbucket's stream runs where KV hosts the vbucket, and every indexer receives it.
func (l *Ledger) isWell(v int, host index.ProjectorID) bool {
	return host == l.vbs[v].Owner && !l.participants.shut(v)
}

// Audit compares streams that seem to run with the state of KV (IM-14), since after a takeover a producer may never
// report the end of a stream. logs has the answers of projectors, complete returns the newest complete seqno of a
// vbucket. A stream is requested again if another projector hosts its vbucket under a newer map, if it is on an older
// branch than KV, or if it makes no progress below KV's high seqno. The first is done at once, because the map is
// certain; the others after a patience that doubles until the stream is well and every indexer receives it.
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

// newestHosts returns the projector that hosts each vbucket under the newest map. Among several at one KV node it is
// the owner.
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

// doubt returns why a stream that seems to run may not, "" if it is well. h is its host under the newest map, at its
// complete seqno, and still is set if that has not changed since the last audit.
func (e *Entry) doubt(h hosting, still bool, at uint64) string {
	switch newer := h.log.Revision.Compare(e.Revision) > 0; {
	case newer && h.projector != e.Owner:
		return takenReason
	case h.projector == e.Owner && h.log.Log.Newest() != e.Log.Newest():
		return "its stream is on an older branch than KV"
	case h.projector == e.Owner && still && at < h.log.High:
		return "its stream makes no progress below KV's high seqno"
	}
	return ""
}

// hosting is the projector that hosts a vbucket, and the state of KV there.
type hosting struct {
	projector index.ProjectorID
	log       Log
}

// Minimum processes the incarnations below which an indexer refuses streams, by vbucket. A stream that it refuses
// permanently is requested again.
func (l *Ledger) Minimum(nowMS int64, incs []index.Incarnation) {
	for v := range min(len(incs), len(l.vbs)) {
		l.raiseFence(v, incs[v])
		if e := &l.vbs[v]; e.State == Begun && e.Incarnation.Compare(e.fence) < 0 {
			l.set(v, nowMS, Lost, "an indexer requires a newer incarnation")
		}
	}
}

func (l *Ledger) raiseFence(v int, inc index.Incarnation) {
	if e := &l.vbs[v]; inc.Compare(e.fence) > 0 {
		e.fence = inc
	}
	l.issued.seen(inc)
}
