package ingest

import (
	"slices"

	"tidemark/index"
	"tidemark/timestamp"
)

// Ack is the outcome of a stability timestamp: Made if snapshots exist at exactly this timestamp, else skipped.
// Exceptions are the copies with the opposite outcome. It covers the copies for which scans may wait, or, if it is
// returned when all are written, all copies.
type Ack struct {
	timestamp.Ref
	Made       bool
	Exceptions []index.CopyID
}

// Publish queues a stability timestamp until everything up to it has been received. It reports whether it was new.
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

// judgeAgain publishes the newest S again, because a BEGIN may have brought the branch of an S that was discarded,
// and on an idle bucket no newer one may ever be published.
func (b *Bucket) judgeAgain() {
	if s := b.stability.newest; s.Vector.Len() > 0 && s.RollbackID == b.rollbackID {
		b.Publish(s)
	}
}

// Flush returns the batch of the oldest stability timestamp if everything up to it has been received. It returns nil
// if there is none, or if Work must be taken first. acks are those of timestamps that were discarded on the way.
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
			if b.inFlight.unacked > 0 { // its acknowledgement implies those of its predecessors
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

// taking returns the copies that take the next stability timestamp. These are all copies, except while one is being
// written to copies that are being built, which takes as long as everything that they have to write before it; then
// it is only those that are not being built. What the others miss stays queued for the next timestamp that they take,
// or for resettle.
func (b *Bucket) taking() []*slice {
	if b.inFlight.builds == 0 {
		return b.copies
	}
	some := make([]*slice, 0, len(b.copies))
	for _, c := range b.copies {
		if c.confirmed {
			some = append(some, c)
		} else {
			b.own(c) // the sharing copies move together
		}
	}
	return some
}

// Pending returns the number of waiting stability timestamps.
func (b *Bucket) Pending() int { return len(b.stability.waiting) }

// lost reports whether S is not on the branch of what was received, so that it can never be made, or made again.
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

// reached reports whether every copy that is fed, or that is whole and will be fed again, has all of S. It records
// where something was missing, and checks that place first the next time.
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

// resettle returns a batch for copies that became whole after the last S was flushed: they make their snapshot at
// that S, because on an idle bucket no new one is published. The batch acknowledges S once more, so it has to come
// after the first acknowledgement.
func (b *Bucket) resettle() *Batch {
	last := &b.stability.last
	if !b.stability.haveLast || b.inFlight.unacked > 0 || b.inFlight.builds > 0 {
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

// couldBeExact reports whether a flush at S now would leave the copy exact.
func (b *Bucket) couldBeExact(c *slice, s *timestamp.Stability) bool {
	for vb, seqno := range s.Vector.Seqnos {
		p := &c.parts[vb]
		if p.restoring || p.pos.Side < p.pos.A || max(p.pos.Main, p.pos.A) > seqno || seqno < p.pos.Floor {
			return false
		}
		if c.unfed(p) {
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

// unfed reports whether a copy was never exact and is not fed in this vbucket. Such a copy cannot be exact at an S
// with seqno 0 in the vbucket: that S may be older than its first stream, and the copy would lack what KV had when
// the index was created.
func (c *slice) unfed(p *part) bool { return !c.ready && !p.sub }

// straddles returns the highest end of a window in the copy's queue that contains seqno in its interior, 0 for none.
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

// flushAt returns the batch that takes the given copies to S. Events up to S leave the queue if all copies flush.
func (b *Bucket) flushAt(s *timestamp.Stability, copies []*slice) *Batch {
	t := &Batch{Kind: AtStability, Ref: s.Ref, Vector: s.Vector}
	t.Copies = make([]CopyBatch, len(copies))
	for i, c := range copies {
		t.Copies[i] = CopyBatch{ID: c.id, Index: c.index, Slice: c.no, Exact: true, Serves: c.ready, Ready: c.ready}
		t.builds = t.builds || !c.confirmed
	}
	// one sharing copy represents all of them
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
	b.inFlight.add(t)
	b.blocked.ok = false
	return t
}

// flushVBucket takes the copies in move to a stability timestamp's seqno of one vbucket.
func (b *Bucket) flushVBucket(t *Batch, copies []*slice, move []int, vb int, seqno uint64) {
	v, all := &b.vbs[vb], len(copies) == len(b.copies)
	taken, events := -1, v.upTo(seqno)
	if !all { // the events that these copies have stay queued for the others
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

// sharePart copies the result of the first sharing copy to all of them.
func (t *Batch) sharePart(copies []*slice, first int) {
	common := stands(copies[first])
	for i, c := range copies {
		if cb := &t.Copies[i]; c.shares {
			cb.Exact, cb.Parts, cb.Common = t.Copies[first].Exact, t.Copies[first].Parts, common
		}
	}
}

// upTo returns the queued events at or below seqno, in the order of arrival.
func (v *vbucket) upTo(seqno uint64) []Entry {
	n := 0
	for n < len(v.queue) && v.queue[n].Seqno <= seqno {
		n++
	}
	head := v.queue[:n:n]
	for i := n; i < len(v.queue); i++ {
		if v.queue[i].Seqno <= seqno { // a restarted stream stepped back
			head = append(head, v.queue[i])
		}
	}
	return head
}

// takeHad removes the first events that all of the copies for which they are queued have, and charges them to the
// batch. After a batch for some copies, these are events that the other copies had written before.
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

// without leaves out the first events that all of some copies have.
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

// sorted reports whether exactly the first count events are at or below seqno.
func sorted(q []Entry, count int, seqno uint64) bool {
	for i := range q {
		if (q[i].Seqno <= seqno) != (i < count) {
			return false
		}
	}
	return true
}

// advance takes one vbucket of one copy to S and adds the tasks of the store for it.
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
	cb.Exact = cb.Exact && whole && p.pos.Main == seqno && seqno >= p.pos.Floor && !c.unfed(p)
	p.pos.VBUUID = p.log.Newest()
	if p.pos != was || pt.Segment >= 0 || pt.PurgeTombstones {
		pt.Position, pt.Log = p.pos, p.newLog()
		cb.Parts = append(cb.Parts, pt)
	}
}

// apply records that a part applies a segment, and the consequences for the position.
func (p *part) apply(pt *Part, segment int, g *gain) {
	if !g.some {
		return
	}
	pt.Segment = segment
	p.tombs = p.tombs || pt.KeepTombstones && g.empty
	p.pos.WindowEnd = max(p.pos.WindowEnd, g.end)
}

// settle records that the vbucket is whole up to main. Its tombstones have no use any more.
func (b *Bucket) settle(p *part, pt *Part, main uint64) {
	p.pos.Main, p.pos.Side, p.pos.A = main, main, main
	if p.lent = 0; p.pos.WindowEnd != unsure {
		p.solid = main
	}
	pt.PurgeTombstones, p.tombs = p.tombs, false
}

// SetGeneration sets the generation and the rollback id of valid stability timestamps. A new generation discards
// those of the old one.
func (b *Bucket) SetGeneration(generation, rollbackID uint64) {
	if generation != b.opt.Generation {
		b.opt.Generation, b.rollbackID = generation, rollbackID
		b.stability = stability{}
		for _, c := range b.copies {
			c.exact, c.at, c.has = false, timestamp.Ref{}, false
		}
	}
}
