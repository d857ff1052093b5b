package core

import (
	"cmp"
	"fmt"
	"slices"

	"tidemark/index"
	"tidemark/liveness"
	"tidemark/streams"
	"tidemark/wire"
)

func (b *Registering) apply(l *Leader) {
	var c *component
	what := "indexer " + b.UUID
	if b.UUID == "" {
		what = "projector " + string(b.Projector)
		if p := l.components.projectors[b.Projector]; p != nil {
			c = &p.component
		}
	} else {
		for _, n := range l.components.indexers {
			if n.uuid == b.UUID {
				c = &n.component
			}
		}
	}
	if c != nil && c.boot != b.Boot && c.addr != b.Addr && c.heard && l.life(c) == liveness.Active {
		reply(l, b.Reply, fmt.Errorf("%w: %s at %s (boot %s) was heard %d ms ago; stop it, or wait until it is silent",
			ErrBootConflict, what, c.addr, c.boot, l.nowMS-c.seenMS))
		return
	}
	reply(l, b.Reply, nil)
}

func (r *Registered) apply(l *Leader) {
	l.sync()
	a := &wire.RegisterReply{ClusterID: l.now.state.ClusterID(), Node: r.Node, Leader: l.self, Fence: l.fence(),
		Brief: true}
	var c *component
	if n := l.components.indexers[r.Node]; r.IsNode && n != nil {
		c = &n.component
	} else if p := l.components.projectors[r.Projector]; !r.IsNode && p != nil {
		c = &p.component
	}
	if c != nil && c.boot == r.Boot {
		c.seenMS, c.heard = l.nowMS, true
	} else {
		c = nil
	}
	replyFenced(l, r.Reply, a, &a.Fence, c)
}

func (in *ProjectorReported) apply(l *Leader) {
	p := l.components.projectors[in.Report.ID]
	a := &wire.ReportReply{Leader: l.self, Revision: l.now.revision, Fence: l.fence(), Brief: true}
	var known *component
	if p != nil && p.boot == in.Report.BootID {
		a.Known, known = true, &p.component
		a.Full = !l.takeProjectorReport(p, in.Report, false)
	}
	replyFenced(l, in.Reply, a, &a.Fence, known)
}

// takeProjectorReport is false when a full report is wanted next: the first one in this term, or one was lost.
func (l *Leader) takeProjectorReport(p *projector, r *wire.ProjectorReport, hello bool) bool {
	p.seenMS, p.heard, p.refused = l.nowMS, true, false
	if r.Sequence <= p.sequence && p.sequence > 0 && !hello {
		return p.full // overtaken: a later one was taken already
	}
	lost := p.sequence > 0 && !r.Follows(p.sequence) && !hello
	p.sequence = max(p.sequence, r.Sequence)
	p.counters, p.kv = r.Counters, r.KV
	if r.FaultsToo {
		p.faults = make(map[index.ID]wire.IndexFaults, len(r.Faults))
		for _, f := range r.Faults {
			p.faults[f.Index] = f
		}
	}
	if r.Evaluation != nil {
		p.evaluation, l.duties.due = r.Evaluation, true
	}
	full := hello || slices.ContainsFunc(r.Buckets, func(s wire.StreamStates) bool { return s.Full })
	p.full = full || p.full && !lost
	if p.hello { // before its hello it may speak of another epoch's
		p.acked = max(p.acked, min(r.Revision, l.now.revision))
	}
	for i := range r.Buckets {
		s := &r.Buckets[i]
		b := l.buckets.byName[s.Bucket]
		if b == nil || s.BucketUUID != "" && s.BucketUUID != b.uuid {
			continue
		}
		s.Full = s.Full || hello
		l.takeStreamStates(p, b, s)
	}
	return p.full
}

// takeStreamStates takes what a projector says of its streams of one bucket; p.full tells whether everything is known.
func (l *Leader) takeStreamStates(p *projector, b *bucket, s *wire.StreamStates) {
	if err := s.Expand(); err != nil {
		l.log.Warn("report", "projector", p.id, "bucket", s.Bucket, "error", err)
		p.full = false
	}
	if !b.ledger.Projector(l.nowMS, p.id, streamReport(s)) {
		p.full = false
	}
	l.takeCompletes(b, p.id, s)
	if h := s.Hosted; h != nil {
		b.ledger.Hosted(l.nowMS, p.id, streams.Hosted{Node: h.Node, Revision: h.Revision, VBuckets: h.VBuckets})
	}
	if len(s.Dropping) > 0 {
		b.dropping[p.id] = s.Dropping
	} else {
		delete(b.dropping, p.id)
	}
}

// takeCompletes hands the complete seqnos to the decider, after the ledger's changes of ownership.
func (l *Leader) takeCompletes(b *bucket, p index.ProjectorID, s *wire.StreamStates) {
	l.owners(b)
	for i, v := range s.VBuckets {
		if i < len(s.Complete) && i < len(s.Incarnations) && (i >= len(s.Ended) || !s.Ended[i]) {
			b.stab.Complete(int(v), p, s.Incarnations[i], s.Complete[i])
		}
	}
	b.due = true
}

// streamReport reads the parallel slices; what is cut short is left out.
func streamReport(s *wire.StreamStates) streams.Report {
	r := streams.Report{Full: s.Full, Streams: make([]streams.Running, 0, len(s.VBuckets))}
	for i, v := range s.VBuckets {
		if i >= len(s.Incarnations) {
			break
		}
		run := streams.Running{VBucket: v, Incarnation: s.Incarnations[i]}
		if i < len(s.Logs) && len(s.Logs[i]) > 0 {
			run.Log = s.Logs[i]
		}
		if i < len(s.Purges) {
			run.Purge = s.Purges[i]
		}
		if i < len(s.Revisions) {
			run.Revision = s.Revisions[i]
		}
		run.Ended = i < len(s.Ended) && s.Ended[i]
		r.Streams = append(r.Streams, run)
	}
	return r
}

func (in *IndexerReported) apply(l *Leader) {
	n := l.components.indexers[in.Report.Node]
	a := &wire.ReportReply{Leader: l.self, Revision: l.now.revision, Fence: l.fence(), Brief: true}
	var known *component
	if n != nil && n.uuid == in.Report.UUID && n.boot == in.Report.BootID {
		a.Known, known = true, &n.component
		a.Full, a.HW = !l.takeIndexerReport(n, in.Report), l.promotion.hwWanted
		a.TransferRate = l.now.state.Limits().TransferRate
		l.packHeld()
		switch {
		case !in.Report.Packed:
			a.Held = l.held.list
		case in.Report.HeldHash != l.held.hash:
			a.HeldPacked = l.held.packed
			fallthrough
		default:
			a.HeldHash = l.held.hash
		}
	}
	replyFenced(l, in.Reply, a, &a.Fence, known)
}

// takeIndexerReport is false when a full report is wanted next.
func (l *Leader) takeIndexerReport(n *indexer, r *wire.IndexerReport) bool {
	n.seenMS, n.heard = l.nowMS, true
	if r.Sequence <= n.sequence && n.sequence > 0 && !r.Full {
		return n.full
	}
	taken, ok := n.reports.Take(r)
	n.sequence, n.full = max(n.sequence, r.Sequence), ok
	n.health = r.Health
	n.faults = r.Faults[:min(len(r.Faults), wire.MaxIndexFaults)]
	n.differing = r.Differing[:min(len(r.Differing), wire.MaxDifferingCopies)]
	n.orphans, n.orphanCount = r.Orphans[:min(len(r.Orphans), wire.MaxOrphans)], r.OrphanCount
	if a := min(r.Revision, l.now.revision); n.hello && a > n.acked { // before its hello it may speak of another epoch's
		n.acked = a
		l.duties.due = true
	}
	l.takeCopies(n, r)
	for i := range taken {
		l.takeBucketReport(n, &taken[i])
	}
	for name, told := range n.reports.Buckets { // what is left out is as it was, and it lives
		b := l.buckets.byName[name]
		if b == nil || told.Told.Generation != b.generation {
			continue
		}
		nb := n.bucket(name)
		l.reportStability(b, n, nb, &told.Told)
		// so full it applies ahead to have room
		if h := &told.Told.Heartbeat; h.QueueLimit > 0 && h.MutationQueue*4 > h.QueueLimit*3 {
			b.ledger.Full(l.nowMS, n.node)
		}
		l.judgeLate(b, n, nb, told)
	}
	return n.full
}

// takeCopies takes what an indexer says of its copies, and notes whose work that makes.
func (l *Leader) takeCopies(n *indexer, r *wire.IndexerReport) {
	if r.Full {
		clear(n.copies)
		l.held.dirty, l.duties.due = true, true
	}
	for _, c := range r.Copies {
		old, had := n.copies[c.Copy]
		if !had || old.Ready != c.Ready || old.Held != c.Held {
			l.held.dirty = true
		}
		if !had || old.Ready != c.Ready || c.Ready && old.Held != c.Held {
			l.duties.due = true
		}
		n.copies[c.Copy] = c
	}
}

func (l *Leader) takeBucketReport(n *indexer, t *wire.Taken) {
	r := &t.Bucket.Told
	b := l.buckets.byName[r.Heartbeat.Bucket]
	if b == nil || r.Generation != b.generation {
		return
	}
	nb := n.bucket(b.name)
	for _, a := range r.Acks {
		if a.Generation == b.generation && a.Compare(nb.acked) > 0 {
			nb.acked = a.StabilityRef
		}
	}
	b.due = b.due || t.Whole
	nb.absent.take(&t.Accepted, r.Generation, b.stab.Len())
	if len(t.Accepted.VBuckets) > 0 {
		nb.settled = l.judge(b, n, &t.Accepted) && nb.settled
	}
}

// judge tells the ledger which streams an indexer accepts. It is false when the ledger is to be told again as time
// passes.
func (l *Leader) judge(b *bucket, n *indexer, a *wire.Accepted) bool {
	accepts := make([]streams.Acceptance, 0, len(a.VBuckets))
	for i, v := range a.VBuckets {
		if i >= len(a.Incarnations) || i >= len(a.Projectors) || i >= len(a.Open) {
			break
		}
		one := streams.Acceptance{VBucket: v, Incarnation: a.Incarnations[i], Projector: a.Projectors[i], Open: a.Open[i]}
		accepts = append(accepts, one)
		if !one.Open && int(v) < b.ledger.Len() && refusesStream(b.ledger.At(int(v)), &one) {
			l.doubt(b.name, one.Projector)
		}
	}
	b.due = true
	return b.ledger.Indexer(l.nowMS, n.node, accepts)
}

// judgePart is which part of the ledger's patience with an indexer passes until it is told again what has not changed.
const judgePart = 10

// judgeLate tells the ledger all streams that an indexer accepts, where it has changed since, or waits for the indexer.
func (l *Leader) judgeLate(b *bucket, n *indexer, nb *nodeBucket, told *wire.ReportedBucket) {
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
	a := told.Accepted()
	nb.settled = l.judge(b, n, &a)
}

// absences are the vbuckets of a bucket for which an indexer is in recovery: no stream is accepted there, so that what
// it has received stands still until the next BEGIN, whatever KV does.
type absences struct {
	generation uint64
	marks      []bool
	count      int
}

// take takes over what is accepted; what is left out is as it was, and nothing was at first.
func (s *absences) take(a *wire.Accepted, generation uint64, vbuckets int) {
	if s.generation != generation || len(s.marks) != vbuckets {
		*s = absences{generation: generation, marks: make([]bool, vbuckets), count: vbuckets}
		for v := range s.marks {
			s.marks[v] = true
		}
	}
	for i, v := range a.VBuckets {
		if int(v) >= vbuckets || i >= len(a.Open) || s.marks[v] != a.Open[i] {
			continue
		}
		if s.marks[v] = !a.Open[i]; s.marks[v] {
			s.count++
		} else {
			s.count--
		}
	}
}

// vbuckets marks them; nil without any.
func (s *absences) vbuckets() []bool {
	if s.count == 0 {
		return nil
	}
	return s.marks
}

func (n *indexer) bucket(name string) *nodeBucket {
	nb := n.buckets[name]
	if nb == nil {
		nb = &nodeBucket{}
		n.buckets[name] = nb
	}
	return nb
}

// packHeld lists which copies hold which stability timestamp, for scans. With many copies there are always some that
// have moved on: the list is then made anew now and then only.
func (l *Leader) packHeld() {
	copies := 0
	for _, n := range l.components.indexers {
		copies += len(n.copies)
	}
	if l.held.packed != nil && (!l.held.dirty || l.nowMS-l.held.madeMS < int64(copies/copiesPerMS) &&
		l.nowMS >= l.held.madeMS) {
		return
	}
	l.held.dirty, l.held.madeMS = false, l.nowMS
	l.held.list = make([]wire.Held, 0, copies) // the old one may still be on its way to somebody
	for _, n := range l.components.indexers {
		ok := !n.offline && n.heard
		for _, c := range n.copies {
			if c.Held.Number > 0 {
				l.held.list = append(l.held.list, wire.Held{Copy: c.Copy, Node: n.node, Ref: c.Held, OK: ok})
			}
		}
	}
	slices.SortFunc(l.held.list, func(a, b wire.Held) int {
		return cmp.Or(cmp.Compare(a.Copy, b.Copy),
			cmp.Compare(a.Node, b.Node))
	})
	l.held.packed = wire.PackHeld(l.held.list)
	l.held.hash = wire.HeldHash(l.held.packed)
}

// copiesPerMS: a list of so many copies is made anew once in a millisecond at most.
const copiesPerMS = 8
