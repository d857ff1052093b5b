package core

import (
	"errors"
	"math"

	"tidemark/index"
	"tidemark/streams"
	"tidemark/wire"
)

// intake takes reports of components.
type intake struct {
	*scene
	promotion  *promotion
	membership *membership
	held       heldList
}

// projectorReported takes a projector's report and replies to it.
func (l *intake) projectorReported(in *ProjectorReported) {
	p := l.components.projectors[in.Report.ID]
	a := &wire.ReportReply{Leader: l.self, Revision: l.now.revision, Fence: l.fence()}
	var known *component
	if p != nil && p.boot == in.Report.BootID {
		a.Known, known = true, &p.component
		a.Full = !l.takeProjectorReport(p, in.Report, false)
	}
	replyFenced(l.scene, in.Reply, a, &a.Fence, known)
}

// takeProjectorReport returns false if the next report must be a full one: it is the first in this term, or one was
// lost, or it arrived after a newer one and is not a repetition of that. If the projector's state is incomplete, the
// report of its hello is taken even if it is overtaken.
func (l *intake) takeProjectorReport(p *projector, r *wire.ProjectorReport, hello bool) bool {
	p.seenMS, p.reported, p.refused = l.nowMS, true, false
	if p.reports.Overtaken(r.Sequence) && (!hello || p.reports.Whole()) {
		return p.reports.Is(r.Sequence)
	}
	if err := p.reports.Take(r.Base, r.Sequence); err != nil { // its changes are valid by themselves: they are taken
		l.log.Debug("report", "projector", p.id, "error", err)
	}
	l.indexesDue = p.take(r) || l.indexesDue
	if p.works(min(r.Revision, l.now.revision)) {
		l.reached(&p.component)
	}
	for i := range r.Buckets {
		s := &r.Buckets[i]
		s.Full = s.Full || hello
		if b := l.buckets.byName[s.Bucket]; b != nil && b.isOf(s) {
			l.takeStreamStates(p, b, s)
		}
	}
	return p.reports.Whole()
}

// takeStreamStates takes a projector's report of its streams of one bucket. If the report does not fit, p.reports
// requests a full one.
func (l *intake) takeStreamStates(p *projector, b *bucket, s *wire.StreamStates) {
	if err := s.Expand(); err != nil {
		l.log.Warn("report", "projector", p.id, "bucket", s.Bucket, "error", err)
		p.reports.Forget()
		return
	}
	if !b.ledger.Projector(l.nowMS, p.id, streamReport(s)) {
		p.reports.Forget()
	}
	b.takeCompletes(p.id, s)
	if h := s.Hosted; h != nil {
		p.hosting(s)
		b.ledger.Hosted(l.nowMS, p.id, streams.Hosted{Node: h.Node, Revision: h.Revision, VBuckets: h.VBuckets})
	}
	b.drop(p.id, s.Dropping)
}

// streamReport converts a report to the ledger's form.
func streamReport(s *wire.StreamStates) streams.Report {
	r := streams.Report{Full: s.Full, Streams: make([]streams.Running, len(s.Streams))}
	for i := range s.Streams {
		st := &s.Streams[i]
		r.Streams[i] = streams.Running{VBucket: st.VBucket, Incarnation: st.Incarnation, Purge: st.Purge,
			Revision: st.Revision, Ended: st.Ended}
		if len(st.Log) > 0 {
			r.Streams[i].Log = st.Log
		}
	}
	return r
}

// indexerReported takes an indexer's report and replies to it.
func (l *intake) indexerReported(in *IndexerReported) {
	n := l.components.indexers[in.Report.Node]
	a := &wire.ReportReply{Leader: l.self, Revision: l.now.revision, Fence: l.fence()}
	var known *component
	if n != nil && n.uuid == in.Report.UUID && n.boot == in.Report.BootID {
		a.Known, known = true, &n.component
		a.Full, a.HW = !l.takeIndexerReport(n, in.Report, false), l.promotion.hwWanted
		a.TransferRate = l.now.state.Limits().TransferRate
		l.held.pack()
		if a.HeldHash = l.held.hash; in.Report.HeldHash != l.held.hash {
			a.HeldPacked = l.held.packed
		}
	}
	replyFenced(l.scene, in.Reply, a, &a.Fence, known)
}

// takeIndexerReport is takeProjectorReport for an indexer.
func (l *intake) takeIndexerReport(n *indexer, r *wire.IndexerReport, hello bool) bool {
	n.seenMS, n.reported = l.nowMS, true
	if n.reports.Overtaken(r.Sequence) && (!hello || n.full) {
		return n.reports.Is(r.Sequence)
	}
	taken, err := n.reports.Take(r)
	if n.full = err == nil; errors.Is(err, wire.ErrBase) {
		l.log.Debug("report", "indexer", n.name, "error", err)
	} else if err != nil {
		l.log.Warn("report", "indexer", n.name, "error", err)
	}
	n.health, n.room = r.Health, int64(min(r.Room, math.MaxInt64))
	n.faults, n.faultsOmitted = r.Faults[:min(len(r.Faults), wire.MaxIndexFaults)], r.FaultsOmitted
	n.differing, n.differingOmitted = r.Differing[:min(len(r.Differing), wire.MaxDifferingCopies)], r.DifferingOmitted
	n.orphans, n.orphanCount = r.Orphans[:min(len(r.Orphans), wire.MaxOrphans)], r.OrphanCount
	if n.works(min(r.Revision, l.now.revision)) {
		l.indexesDue = true
		l.reached(&n.component)
	}
	l.takeCopies(n, r)
	for i := range taken {
		l.takeBucketReport(n, &taken[i])
	}
	for name, r := range n.reports.Buckets { // buckets left out are unchanged, and their indexer is alive
		if b := l.buckets.byName[name]; b != nil && r.Report.Generation == b.generation {
			l.applyBucketReport(b, n, r)
		}
	}
	return n.full
}

// applyBucketReport applies an indexer's newest report of a bucket, which may be an earlier one.
func (l *intake) applyBucketReport(b *bucket, n *indexer, r *wire.ReportedBucket) {
	nb := n.bucket(b.name)
	l.promotion.reportStability(b, n, nb, &r.Report)
	// near its limit an indexer applies data ahead of stability timestamps to make room
	if h := &r.Report.Heartbeat; h.QueueLimit > 0 && h.MutationQueue*4 > h.QueueLimit*3 {
		b.ledger.Full(l.nowMS, n.node)
	}
	l.judgeLate(b, n, nb, r)
}

// takeCopies takes an indexer's report of its copies, and sets the flags of the duties that depend on it.
func (l *intake) takeCopies(n *indexer, r *wire.IndexerReport) {
	if r.Whole() {
		clear(n.copies)
		l.heldDirty, l.indexesDue = true, true
	}
	for _, c := range r.Copies {
		old, had := n.copies[c.Copy]
		turned, moved := !had || old.Ready != c.Ready, old.Held != c.Held
		if turned || moved {
			l.heldDirty = true
		}
		if l.indexes.has[c.Index] && (turned || c.Ready && moved) {
			l.indexesDue = true
		}
		n.copies[c.Copy] = c
	}
}

func (l *intake) takeBucketReport(n *indexer, t *wire.Taken) {
	r := &t.Bucket.Report
	b := l.buckets.byName[r.Heartbeat.Bucket]
	if b == nil || r.Generation != b.generation {
		return
	}
	nb := n.bucket(b.name)
	for _, a := range r.Acks {
		if a.Generation == b.generation && a.Compare(nb.acked) > 0 {
			nb.acked = a.Ref
		}
	}
	b.due = b.due || t.Whole
	nb.absent.take(&t.Accepted, r.Generation, b.stab.Len())
	if len(t.Accepted.VBuckets) > 0 {
		nb.settled = l.judge(b, n, &t.Accepted) && nb.settled
	}
}

// judge passes to the ledger which streams an indexer accepts. It returns false if the ledger must receive them again
// as time passes.
func (l *intake) judge(b *bucket, n *indexer, a *wire.Accepted) bool {
	accepts := make([]streams.Acceptance, 0, len(a.VBuckets))
	for i, v := range a.VBuckets {
		if i >= len(a.Incarnations) || i >= len(a.Projectors) || i >= len(a.Open) {
			break
		}
		one := streams.Acceptance{VBucket: v, Incarnation: a.Incarnations[i], Projector: a.Projectors[i], Open: a.Open[i]}
		accepts = append(accepts, one)
		if !one.Open && int(v) < b.ledger.Len() && refusesStream(b.ledger.At(int(v)), &one) {
			l.membership.doubt(b.name, one.Projector)
		}
	}
	b.due = true
	return b.ledger.Indexer(l.nowMS, n.node, accepts)
}

// judgePart divides the ledger's wait for an indexer: after a part of it, unchanged acceptances are passed
// again, so that reports of an indexer at rest count, too.
const judgePart = 20

// judgeLate passes to the ledger all streams that an indexer accepts if the ledger has changed since it last did, or
// waits for the indexer.
func (l *intake) judgeLate(b *bucket, n *indexer, nb *nodeBucket, r *wire.ReportedBucket) {
	if nb.judgedBy == b.ledger {
		if nb.settled && nb.judgedAt == b.ledger.Changes() {
			return
		}
		if rest := l.settings.Streams.MismatchWait.Milliseconds() / judgePart; l.nowMS-nb.judgedMS < rest &&
			l.nowMS >= nb.judgedMS {
			return
		}
	}
	nb.judgedBy, nb.judgedAt, nb.judgedMS = b.ledger, b.ledger.Changes(), l.nowMS
	a := r.Accepted()
	nb.settled = l.judge(b, n, &a)
}

// projectorHello takes the answer to a hello.
func (l *intake) projectorHello(h *ProjectorHelloAnswered) {
	p := l.components.projectors[h.Projector]
	if p == nil || p.receiver != h.From {
		return // the projector has registered again meanwhile
	}
	r := &wire.ProjectorReport{}
	if h.Err == nil {
		r = &h.Answer.Report
	}
	if h.Err == nil || isAnothers(h.Err) {
		defer l.membership.spoke(p.id)
	}
	if !l.takeHello(&p.component, r.BootID, h.Err, "projector", string(p.id)) {
		return
	}
	l.takeProjectorReport(p, r, true)
	if l.active {
		return
	}
	p.running = map[string]wire.StreamStates{}
	for i := range r.Buckets {
		if s := &r.Buckets[i]; s.Expand() == nil { // an error was logged above
			p.running[s.Bucket] = *s
		}
	}
}

// indexerHello takes the answer to a hello.
func (l *intake) indexerHello(h *IndexerHelloAnswered) {
	n := l.components.indexers[h.Node]
	if n == nil || n.receiver != h.From {
		return
	}
	r := &wire.IndexerReport{}
	if h.Err == nil {
		r = &h.Answer.Report
	}
	if !l.takeHello(&n.component, r.BootID, h.Err, "indexer", n.name) {
		return
	}
	n.minimum = map[string][]index.Incarnation{}
	for _, m := range h.Answer.Minimum {
		n.minimum[m.Bucket] = m.Incarnations
		if b := l.buckets.byName[m.Bucket]; b != nil {
			b.ledger.Minimum(l.nowMS, m.Incarnations)
		}
	}
	l.takeIndexerReport(n, r, true)
	for _, b := range l.buckets.ordered { // at each handshake the newest timestamp is sent, unless the indexer holds it
		if nb := n.bucket(b.name); nb.acked == b.stable.Ref {
			nb.publishedRef, nb.publishedMS = nb.acked, l.nowMS
		} else {
			l.promotion.publish(b, n)
		}
	}
}
