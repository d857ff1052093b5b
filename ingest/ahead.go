package ingest

import "slices"

// ApplyAhead frees memory (applyAhead). It returns a batch with everything queued in the vbuckets that hold most,
// until at least `bytes` are freed, without waiting for a stability timestamp. The floor of those vbuckets rises to
// the ends of the windows that were read, so that timestamps below are skipped. A vbucket with at most `keep` queued
// bytes is left alone, so that one small snapshot per vbucket always has room. It returns nil if there is nothing to
// apply, or if Work must be taken first.
func (b *Bucket) ApplyAhead(bytes, keep int) *Batch {
	if len(b.work) > 0 || b.queued == 0 {
		return nil
	}
	var order []int
	for vb := range b.vbs {
		if b.vbs[vb].bytes > keep && !b.restoringAt(vb) {
			order = append(order, vb)
		}
	}
	slices.SortFunc(order, func(x, y int) int { return b.vbs[y].bytes - b.vbs[x].bytes })
	t := &Batch{Kind: Ahead, Copies: make([]CopyBatch, len(b.copies))}
	for i, c := range b.copies {
		t.Copies[i] = CopyBatch{ID: c.id, Index: c.index, Slice: c.no, Serves: c.ready, Ready: c.ready}
	}
	for _, vb := range order {
		if t.bytes >= bytes {
			break
		}
		b.takeAhead(t, vb)
	}
	if t.bytes == 0 {
		return nil
	}
	t.Copies = slices.DeleteFunc(t.Copies, func(c CopyBatch) bool { return len(c.Parts) == 0 })
	b.inFlight.add(t)
	b.blocked.ok = false
	return t
}

func (b *Bucket) restoringAt(vb int) bool {
	for _, c := range b.distinct() {
		if c.restoring > 0 && c.parts[vb].restoring {
			return true
		}
	}
	return false
}

func (b *Bucket) takeAhead(t *Batch, vb int) {
	v := &b.vbs[vb]
	events := v.queue
	taken := len(t.Segments)
	t.Segments = append(t.Segments, Segment{VBucket: vb, Events: events})
	b.gains.begin(v)
	for i, c := range b.copies {
		p := b.part(c, vb)
		pt := Part{VBucket: vb, Segment: -1, after: max(p.pos.Main, p.pos.A), upTo: ^uint64(0), epoch: p.from,
			KeepTombstones: p.pos.Side < p.pos.A}
		g := b.gains.of(&pt, events)
		if !g.some {
			continue
		}
		pt.Segment = taken
		p.tombs = p.tombs || pt.KeepTombstones && g.empty
		p.pos.Main = max(p.pos.Main, g.top)
		p.pos.WindowEnd = max(p.pos.WindowEnd, g.end)
		p.pos.Floor = max(p.pos.Floor, g.end)
		if p.sub && v.begun {
			p.log = v.log
		}
		if p.pos.Main > p.pos.A && p.pos.Side >= p.pos.A {
			b.settle(p, &pt, p.pos.Main)
		}
		p.pos.VBUUID = p.log.Newest()
		c.exact = false
		pt.Position, pt.Log = p.pos, p.newLog()
		t.Copies[i].Parts = append(t.Copies[i].Parts, pt)
	}
	t.bytes += v.bytes
	b.queued -= v.bytes
	v.queue, v.bytes = nil, 0
}
