package ingest

import (
	"slices"

	"tidemark/index"
	"tidemark/timestamp"
)

// Ack says what became of a stability timestamp: Made when snapshots at exactly it exist, else skipped. Exceptions are
// the copies for which it is the other way round. It speaks of the copies that scans may wait for; one that is given
// when all are written speaks of all.
type Ack struct {
	timestamp.Ref
	Made       bool
	Exceptions []index.CopyID
}

// Publish queues a stability timestamp until everything up to it is here. It reports whether it was new.
func (b *Bucket) Publish(s timestamp.Stability) bool {
	if s.Vector.Check(len(b.vbs)) != nil || s.Generation != b.opt.Generation {
		return false
	}
	if s.RollbackID < b.rollbackID {
		return false
	}
	if s.RollbackID > b.rollbackID {
		b.rollbackID = s.RollbackID
		b.stability.dropBefore(s.RollbackID)
	}
	if !b.stability.add(s) {
		return false
	}
	b.blocked.ok = false
	return true
}

// judgeAgain: a BEGIN may have brought the branch of an S that was discarded; nothing newer may ever be published on an
// idle bucket.
func (b *Bucket) judgeAgain() {
	if s := b.stability.newest; s.Vector.Len() > 0 && s.RollbackID == b.rollbackID {
		b.Publish(s)
	}
}

// Flush returns the batch of the oldest stability timestamp when everything up to it is here; nil when there is none,
// or when Work must be taken first. Acks are those of timestamps that were discarded on the way.
func (b *Bucket) Flush() (t *Batch, acks []Ack) {
	if len(b.work) > 0 {
		return nil, nil
	}
	q := &b.stability
	for len(q.waiting) > 0 {
		s := &q.waiting[0]
		if q.passed(s) {
			q.leave()
			continue
		}
		if b.lost(s) {
			if b.underWay.unacked > 0 { // to acknowledge it says that those before are
				return nil, acks
			}
			acks = append(acks, Ack{Ref: s.Ref})
			b.note(acks[len(acks)-1])
			q.leave()
			continue
		}
		if !b.reached(s) {
			return nil, acks
		}
		return b.flushAt(q.flush(), b.taking()), acks
	}
	return b.resettle(), acks
}

// taking returns the copies that take the next stability timestamp: all, but while one is written to copies that are
// being built, which takes as long as what they have to write before it, only those that are not. What
// is passed over stays queued; the next one that they take has it, or resettle.
func (b *Bucket) taking() []*slice {
	if b.underWay.builds == 0 {
		return b.copies
	}
	some := make([]*slice, 0, len(b.copies))
	for _, c := range b.copies {
		if c.told {
			some = append(some, c)
		} else {
			b.own(c) // those that share move together
		}
	}
	return some
}

// Pending is the number of stability timestamps that wait.
func (b *Bucket) Pending() int { return len(b.stability.waiting) }

// lost: an S that is not on the branch of what is received can never be made, nor made again.
func (b *Bucket) lost(s *timestamp.Stability) bool {
	for vb := range b.vbs {
		v := &b.vbs[vb]
		if v.begun {
			if len(b.copies) > 0 && s.Vector.Seqnos[vb] > logOf(s, vb).Common(v.log) {
				return true
			}
			continue
		}
		for _, c := range b.distinct() {
			if l := c.parts[vb].log; l != nil && s.Vector.Seqnos[vb] > logOf(s, vb).Common(l) {
				return true
			}
		}
	}
	return false
}

func logOf(s *timestamp.Stability, vb int) timestamp.FailoverLog {
	if vb < len(s.Logs) && len(s.Logs[vb]) > 0 {
		return s.Logs[vb]
	}
	return timestamp.FailoverLog{{VBUUID: s.Vector.VBUUIDs[vb]}}
}

// reached: every copy that is fed, or that is whole and will be fed again, has all of S. It remembers where it found
// something missing and looks there first the next time.
func (b *Bucket) reached(s *timestamp.Stability) bool {
	all := b.distinct()
	if k := &b.blocked; k.ok && k.list < len(all) && b.waits(all[k.list], k.vb, s.Vector.Seqnos[k.vb]) {
		return false
	}
	for i, c := range all {
		for vb, seqno := range s.Vector.Seqnos {
			if b.waits(c, vb, seqno) {
				b.blocked = blockedAt{list: i, vb: vb, ok: true}
				return false
			}
		}
	}
	b.blocked.ok = false
	return true
}

func (b *Bucket) waits(c *slice, vb int, seqno uint64) bool {
	p := &c.parts[vb]
	if p.restoring {
		return c.ready
	}
	if p.pos.Main >= seqno {
		return false
	}
	if p.sub {
		return b.received(p, vb) < seqno
	}
	return c.ready && !c.out
}

// has reports whether a copy has applied or received everything up to a seqno.
func (b *Bucket) has(p *part, vb int, seqno uint64) bool {
	return p.pos.Main >= seqno || p.sub && b.received(p, vb) >= seqno
}

// resettle: nothing new is published on an idle bucket, so copies that became whole after the last S was flushed make
// their snapshot at the S they already have. That acknowledges it once more, and so comes after it was.
func (b *Bucket) resettle() *Batch {
	last := &b.stability.last
	if !b.stability.haveLast || b.underWay.unacked > 0 || b.underWay.builds > 0 {
		return nil
	}
	could := map[*part]bool{} // by list
	var become []*slice
	for _, c := range b.copies {
		if c.exact && c.at == last.Ref {
			continue
		}
		yes, known := could[&c.parts[0]]
		if !known {
			yes = b.couldBeExact(c, last)
			could[&c.parts[0]] = yes
		}
		if yes {
			become = append(become, c)
		}
	}
	if len(become) == 0 || b.lost(last) {
		return nil
	}
	b.apart(become)
	return b.flushAt(last, become)
}

// couldBeExact reports whether flushing at S now would leave the copy exact.
func (b *Bucket) couldBeExact(c *slice, s *timestamp.Stability) bool {
	for vb, seqno := range s.Vector.Seqnos {
		p := &c.parts[vb]
		if p.restoring || p.pos.Side < p.pos.A || max(p.pos.Main, p.pos.A) > seqno || seqno < p.pos.Floor {
			return false
		}
		if c.unheard(p) {
			return false
		}
		if !b.has(p, vb, seqno) {
			return false
		}
		if b.vbs[vb].straddles(p, seqno) > seqno {
			return false
		}
	}
	return true
}

// unheard: a copy that was never exact has to be fed in every vbucket before it can be. An S that has nothing of a
// vbucket may be of before anybody streamed it; what KV had when the index was created would be missing.
func (c *slice) unheard(p *part) bool { return !c.ready && !p.sub }

// straddles returns the highest end of a window in the copy's queue that has seqno in its middle, 0 for none.
func (v *vbucket) straddles(p *part, seqno uint64) uint64 {
	var end uint64
	after := max(p.pos.Main, p.pos.A)
	for i := range v.queue {
		e := &v.queue[i]
		if e.Window.Start < seqno && seqno < e.Window.End && e.Seqno > after && e.epoch >= p.from {
			end = max(end, e.Window.End)
		}
	}
	return end
}

// flushAt makes the batch that takes the given copies to S. Events up to S leave the queue when all copies flush.
func (b *Bucket) flushAt(s *timestamp.Stability, copies []*slice) *Batch {
	t := &Batch{Kind: AtStability, Ref: s.Ref, Vector: s.Vector}
	t.Copies = make([]CopyBatch, len(copies))
	for i, c := range copies {
		t.Copies[i] = CopyBatch{ID: c.id, Index: c.index, Slice: c.no, Exact: true, Serves: c.ready, Ready: c.ready}
		t.builds = t.builds || !c.told
	}
	// what happens to it happens to all that share
	first := slices.IndexFunc(copies, func(c *slice) bool { return c.shares })
	var move []int
	for i, c := range copies {
		if !c.shares || i == first {
			move = append(move, i)
		}
	}
	for vb, seqno := range s.Vector.Seqnos {
		b.flushVBucket(t, copies, move, vb, seqno)
	}
	if first >= 0 {
		t.sharePart(copies, first)
	}
	for i, c := range copies {
		cb := &t.Copies[i]
		cb.Serves = cb.Serves && cb.Exact
		if c.exact = cb.Exact; c.exact {
			c.at, c.ready = s.Ref, true
			b.share(c)
		} else {
			c.at = timestamp.Ref{}
		}
	}
	b.underWay.add(t)
	b.blocked.ok = false
	return t
}

// flushVBucket takes those of the copies that move to a stability timestamp's seqno of one vbucket.
func (b *Bucket) flushVBucket(t *Batch, copies []*slice, move []int, vb int, seqno uint64) {
	v, all := &b.vbs[vb], len(copies) == len(b.copies)
	taken, events := -1, v.upTo(seqno)
	if !all { // those that these copies have wait for the others
		events = without(events, copies, move, vb)
	}
	if len(events) > 0 {
		taken = len(t.Segments)
		t.Segments = append(t.Segments, Segment{VBucket: vb, Events: events})
	}
	b.gains.begin(v)
	for _, i := range move {
		b.advance(&t.Copies[i], copies[i], vb, seqno, taken, events)
	}
	switch {
	case all && len(events) > 0:
		b.take(t, v, seqno, len(events))
	case !all && len(v.queue) > 0:
		b.takeHad(t, vb)
	}
}

// sharePart gives the copies that share what the first of them has.
func (t *Batch) sharePart(copies []*slice, first int) {
	common := stands(copies[first])
	for i, c := range copies {
		if cb := &t.Copies[i]; c.shares {
			cb.Exact, cb.Parts, cb.Common = t.Copies[first].Exact, t.Copies[first].Parts, common
		}
	}
}

// upTo returns the queued events at or below seqno, in the order in which they came.
func (v *vbucket) upTo(seqno uint64) []Entry {
	n := 0
	for n < len(v.queue) && v.queue[n].Seqno <= seqno {
		n++
	}
	head := v.queue[:n:n]
	for i := n; i < len(v.queue); i++ {
		if v.queue[i].Seqno <= seqno { // a stream that was restarted stepped back
			head = append(head, v.queue[i])
		}
	}
	return head
}

// takeHad removes the first events that every copy has which they are queued for, and charges them to the batch: of a
// batch for some copies that the others had been written before.
func (b *Bucket) takeHad(t *Batch, vb int) {
	low := ^uint64(0)
	for _, c := range b.distinct() {
		p := &c.parts[vb]
		if p.restoring {
			return
		}
		if p.from != noQueue {
			low = min(low, max(p.pos.Main, p.pos.A))
		}
	}
	v := &b.vbs[vb]
	n, bytes := 0, 0
	for n < len(v.queue) && v.queue[n].Seqno <= low {
		bytes += v.queue[n].size()
		n++
	}
	if n == 0 {
		return
	}
	v.queue = behind(v.queue, n)
	v.bytes -= bytes
	b.queued -= bytes
	t.bytes += bytes
}

// without leaves out the first events that each of some copies has.
func without(events []Entry, copies []*slice, some []int, vb int) []Entry {
	low := ^uint64(0)
	for _, i := range some {
		p := &copies[i].parts[vb]
		low = min(low, max(p.pos.Main, p.pos.A))
	}
	for len(events) > 0 && events[0].Seqno <= low {
		events = events[1:]
	}
	return events
}

// take removes the events up to seqno from the queue and charges them to the batch.
func (b *Bucket) take(t *Batch, v *vbucket, seqno uint64, count int) {
	bytes := 0
	if count <= len(v.queue) && v.queue[count-1].Seqno <= seqno &&
		(count == len(v.queue) || sorted(v.queue, count, seqno)) {
		for i := range v.queue[:count] {
			bytes += v.queue[i].size()
		}
		v.queue = behind(v.queue, count)
	} else {
		rest := make([]Entry, 0, len(v.queue)-count)
		for i := range v.queue {
			if v.queue[i].Seqno <= seqno {
				bytes += v.queue[i].size()
			} else {
				rest = append(rest, v.queue[i])
			}
		}
		v.queue = rest
	}
	v.bytes -= bytes
	b.queued -= bytes
	t.bytes += bytes
}

// sorted: the first count events are those up to seqno, and no other is.
func sorted(q []Entry, count int, seqno uint64) bool {
	for i := range q {
		if (q[i].Seqno <= seqno) != (i < count) {
			return false
		}
	}
	return true
}

// advance takes one vbucket of one copy to S and adds what the store has to do for it.
func (b *Bucket) advance(cb *CopyBatch, c *slice, vb int, seqno uint64, taken int, events []Entry) {
	v, p := &b.vbs[vb], &c.parts[vb]
	if p.restoring {
		cb.Exact = false
		return
	}
	was, reached := p.pos, b.has(p, vb, seqno)
	p.pos.Floor = max(p.pos.Floor, b.gains.straddled(v, p, seqno))
	pt := Part{VBucket: vb, Segment: -1, after: max(p.pos.Main, p.pos.A), upTo: seqno, epoch: p.from,
		KeepTombstones: p.pos.Side < p.pos.A}
	p.apply(&pt, taken, b.gains.of(&pt, events))
	if p.sub && v.begun {
		p.log = v.log
	}
	whole := reached && p.pos.Side >= p.pos.A
	switch {
	case whole:
		b.settle(p, &pt, max(p.pos.Main, seqno, p.pos.A))
	case reached && seqno > p.pos.A:
		p.pos.Main = max(p.pos.Main, seqno)
	}
	cb.Exact = cb.Exact && whole && p.pos.Main == seqno && seqno >= p.pos.Floor && !c.unheard(p)
	p.pos.VBUUID = p.log.Newest()
	if p.pos != was || pt.Segment >= 0 || pt.PurgeTombstones {
		pt.Position, pt.Log = p.pos, p.newLog()
		cb.Parts = append(cb.Parts, pt)
	}
}

// apply notes that a part has what a segment is to it, and what that leaves.
func (p *part) apply(pt *Part, segment int, g *gain) {
	if !g.some {
		return
	}
	pt.Segment = segment
	p.tombs = p.tombs || pt.KeepTombstones && g.empty
	p.pos.WindowEnd = max(p.pos.WindowEnd, g.end)
}

// settle: the vbucket is whole up to main. Tombstones have no use any more.
func (b *Bucket) settle(p *part, pt *Part, main uint64) {
	p.pos.Main, p.pos.Side, p.pos.A = main, main, main
	if p.lent = 0; p.pos.WindowEnd != unsure {
		p.solid = main
	}
	pt.PurgeTombstones, p.tombs = p.tombs, false
}

// SetGeneration says which generation of the bucket, and which rollback id, stability timestamps are judged by from now
// on. A new generation forgets those of the old one.
func (b *Bucket) SetGeneration(generation, rollbackID uint64) {
	if generation != b.opt.Generation {
		b.opt.Generation, b.rollbackID = generation, rollbackID
		b.stability = stability{}
		for _, c := range b.copies {
			c.exact, c.at, c.has = false, timestamp.Ref{}, false
		}
	}
}
