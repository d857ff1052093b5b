package stability

import (
	"math/bits"
	"slices"

	"tidemark/index"
	"tidemark/timestamp"
)

// Report is the content of an indexer's HWHeartbeat for this bucket.
type Report struct {
	// BootID changes with the indexer's process; what the previous process had not acknowledged no longer counts.
	BootID string
	// Active is false while the indexer hosts no copy of this bucket, or is in bootstrap or recovery: it does not
	// participate.
	Active bool
	// RollbackID is the one that it has carried out; an indexer with an older one than the bucket is not waited for.
	RollbackID uint64
	// Acked is the newest stability timestamp of this bucket that it has made or skipped; the zero value if none.
	Acked timestamp.Ref
	// HW is the tip of its queue per vbucket; an empty vector if it has none. Only Heartbeat uses it. The caller must
	// not modify it afterwards.
	HW timestamp.Vector
	// Absent marks the vbuckets in which it is recovering: it accepts no stream there. nil if none.
	Absent []bool
	// Fill is the fill of its mutation queue, in thousandths.
	Fill int
}

type participant struct {
	report  Report
	absent  []bool // of report, plus those in which it is left out
	seenMS  int64
	acked   uint64 // number of the newest promotion it acknowledged
	movedMS int64  // when acked last changed, or when it caught up
	bits    uint64 // bitwise or of all its HW seqnos
	// late is set if it missed a running stream, and has not caught up since; lateMS is when it last missed one.
	late   bool
	lateMS int64
}

// goesOn reports whether a report is from the same process, and after the same rollback, as the previous one.
func (p *participant) goesOn(r *Report) bool {
	return p.report.Active && p.report.BootID == r.BootID && p.report.RollbackID == r.RollbackID
}

// wasPromoted reports whether a timestamp has the current generation and rollback id, and is not newer than the
// newest.
func (b *Bucket) wasPromoted(t timestamp.Ref) bool {
	return t.Generation == b.last.Generation && t.RollbackID == b.last.RollbackID && t.Number <= b.last.Number
}

// Report processes an indexer's newest report, received at nowMS.
func (b *Bucket) Report(node index.NodeID, nowMS int64, r Report) {
	p := b.nodes[node]
	if p == nil || !p.goesOn(&r) {
		p = &participant{acked: b.last.Number, movedMS: nowMS} // it starts without unacknowledged promotions
		b.nodes[node] = p
	}
	if old := p.report.HW.Seqnos; len(old) != len(r.HW.Seqnos) || len(old) > 0 && &old[0] != &r.HW.Seqnos[0] {
		p.bits = 0
		for _, s := range r.HW.Seqnos {
			p.bits |= s
		}
	}
	p.report, p.seenMS = r, nowMS
	p.absent = union(r.Absent, b.leftOut[node], len(b.vbs))
	if b.wasPromoted(r.Acked) && r.Acked.Number > p.acked {
		p.acked, p.movedMS = r.Acked.Number, nowMS
	}
	if p.acked == b.last.Number {
		p.movedMS = nowMS
	}
	b.noteLate(p, nowMS)
}

// LeftOut sets the vbuckets in which projectors drop an indexer's data (RT-8), nil for none. The indexer does not
// receive those streams and is not aware of it, since DropData comes with the BEGIN that ends it. Promotion treats
// them like those in Report.Absent, until the next call. The caller must not modify the slice afterwards.
func (b *Bucket) LeftOut(node index.NodeID, nowMS int64, vbuckets []bool) {
	was := b.leftOut[node]
	if was == nil && vbuckets == nil {
		return
	}
	if vbuckets == nil {
		delete(b.leftOut, node)
	} else {
		b.leftOut[node] = vbuckets
	}
	if p := b.nodes[node]; p != nil {
		b.noteLate(p, nowMS)
		p.absent = union(p.report.Absent, vbuckets, len(b.vbs))
		b.noteLate(p, nowMS)
	}
}

// union returns the marks of a and c, of n vbuckets; nil if there are none.
func union(a, c []bool, n int) []bool {
	switch {
	case len(c) == 0:
		return a
	case len(a) == 0:
		return c
	}
	all := make([]bool, n)
	for v := range all {
		all[v] = v < len(a) && a[v] || v < len(c) && c[v]
	}
	return all
}

// noteLate updates whether an indexer is late. One that missed a stream has to catch up when it gets it again. Until
// it has, or for Config.LateFor, promotion does not wait for it.
func (b *Bucket) noteLate(p *participant, nowMS int64) {
	switch {
	case b.recovers(p):
		p.late, p.lateMS = true, nowMS
	case p.late && (b.behind(p) < uint64(b.cfg.MaxOutstanding) || nowMS-p.lateMS > b.cfg.LateFor.Milliseconds()):
		p.late = false
	}
}

// behind returns the number of promotions that an indexer has not acknowledged.
func (b *Bucket) behind(p *participant) uint64 { return b.last.Number - min(p.acked, b.last.Number) }

// Forget drops an indexer that was removed, or hosts no copy of the bucket any more.
func (b *Bucket) Forget(node index.NodeID) {
	delete(b.nodes, node)
	delete(b.leftOut, node)
}

// Pause records that for ms milliseconds nothing was received because the coordinator itself stood still. That time
// does not count as silence of an indexer.
func (b *Bucket) Pause(ms int64) {
	for _, p := range b.nodes {
		p.seenMS += ms
		p.movedMS += ms
		p.lateMS += ms
	}
}

// counts reports whether an indexer participates at all.
func (b *Bucket) counts(p *participant, nowMS int64) bool {
	return p.report.Active && nowMS-p.seenMS <= b.cfg.SilentAfter.Milliseconds() &&
		p.report.RollbackID == b.last.RollbackID
}

// heldBy returns the live indexers with too many unacknowledged promotions, ascending. Late ones are included only if
// no indexer keeps up that could continue without them.
func (b *Bucket) heldBy(nowMS int64) []index.NodeID {
	var held, late []index.NodeID
	others := false
	for id, p := range b.nodes {
		if !b.counts(p, nowMS) {
			continue
		}
		if b.behind(p) < uint64(b.cfg.MaxOutstanding) {
			others = true
			continue
		}
		if nowMS-p.movedMS > b.cfg.StalledAfter.Milliseconds() {
			continue // it reports but makes no progress: it has to catch up by itself
		}
		if b.recovers(p) {
			continue // it cannot make what it does not receive
		}
		if p.late {
			late = append(late, id)
			continue
		}
		held = append(held, id)
	}
	if !others {
		held = append(held, late...)
	}
	slices.Sort(held)
	return held
}

// Settled reports whether every indexer for which promotion waits has made the last one.
func (b *Bucket) Settled(nowMS int64) bool {
	for _, p := range b.nodes {
		if b.behind(p) > 0 && b.counts(p, nowMS) && !p.late && !b.recovers(p) &&
			nowMS-p.movedMS <= b.cfg.StalledAfter.Milliseconds() {
			return false
		}
	}
	return true
}

// recovers reports whether an indexer does not receive a running stream, as between DropData and the next BEGIN.
func (b *Bucket) recovers(p *participant) bool {
	for v, absent := range p.absent {
		if absent && v < len(b.vbs) && b.vbs[v].live {
			return true
		}
	}
	return false
}

// Lagging returns the indexers that host the bucket and are not waited for, because they are silent or stalled,
// ascending.
func (b *Bucket) Lagging(nowMS int64) []index.NodeID {
	var lag []index.NodeID
	for id, p := range b.nodes {
		silent := nowMS-p.seenMS > b.cfg.SilentAfter.Milliseconds()
		stalled := p.acked < b.last.Number && nowMS-p.movedMS > b.cfg.StalledAfter.Milliseconds()
		if p.report.Active && (silent || stalled) {
			lag = append(lag, id)
		}
	}
	slices.Sort(lag)
	return lag
}

// remember adds a complete seqno to the vbucket's ring. A full ring is thinned: every second entry of the older half
// is removed, except the oldest, so that it reaches back further than its size.
func (b *Bucket) remember(v int, seqno uint64) {
	if b.ring == nil || seqno == 0 {
		return
	}
	size := b.cfg.RingSize
	r := b.ring[v*size : (v+1)*size]
	n := int(b.used[v])
	if n > 0 && r[n-1] >= seqno {
		return
	}
	if n == size {
		keep := 1
		for i := 2; i < n; i++ {
			if i >= size/2 || i%2 == 0 {
				r[keep] = r[i]
				keep++
			}
		}
		n = keep
	}
	r[n] = seqno
	b.used[v], b.top[v] = uint8(n+1), seqno
}

// truncate drops the complete seqnos that are not shared history of the old and the new log.
func (b *Bucket) truncate(v int, old, now timestamp.FailoverLog) {
	if b.ring == nil {
		return
	}
	shared := old.Common(now)
	r := b.ring[v*b.cfg.RingSize:]
	n := int(b.used[v])
	for n > 0 && r[n-1] > shared {
		n--
	}
	if b.used[v], b.top[v] = uint8(n), 0; n > 0 {
		b.top[v] = r[n-1]
	}
}

// completeAtOrBelow returns the newest complete seqno at or below target, 0 if none is known.
func (b *Bucket) completeAtOrBelow(v int, target uint64) uint64 {
	if b.top[v] <= target {
		return b.top[v]
	}
	size := b.cfg.RingSize
	r := b.ring[v*size : v*size+int(b.used[v])]
	for i := len(r) - 1; i >= 0; i-- {
		if r[i] <= target {
			return r[i]
		}
	}
	return 0
}

// proposeHeartbeat is the algorithm of IM-16: the mean of the HWs, shifted towards the fastest indexer, rounded down.
func (b *Bucket) proposeHeartbeat(nowMS int64) timestamp.Vector {
	members, fast := b.members(nowMS)
	if len(members) == 0 {
		return timestamp.Vector{}
	}
	lean := b.leanTo(fast)
	b.meanHW(members)
	last := b.last.Vector
	n := len(last.Seqnos)
	mean, top, newest := b.mean[:n], b.top[:n], b.newest.Seqnos[:n]
	branches, lastBranches := b.newest.VBUUIDs[:n], last.VBUUIDs[:n]
	next := draft{base: last}
	for v, was := range last.Seqnos {
		target := mean[v]
		if lean > 0 && (fast.absent == nil || !fast.absent[v]) {
			target = towards(target, fast.report.HW.Seqnos[v], lean)
		}
		if target < was {
			continue
		}
		seqno := top[v]
		if seqno > target {
			seqno = b.completeAtOrBelow(v, target)
		}
		if seqno < was || seqno == 0 {
			continue
		}
		branch := branches[v]
		if seqno < newest[v] { // on an older branch, or no promotion here
			if !b.vbs[v].live || !b.vbs[v].onward {
				continue
			}
			branch = b.vbs[v].position(seqno).VBUUID
		}
		if seqno == was && branch == lastBranches[v] {
			continue
		}
		next.set(v, branch, seqno)
	}
	return next.vector
}

// leanTo returns how far the target is shifted towards the indexer with the fullest queue, in thousandths: 0 is the
// mean.
func (b *Bucket) leanTo(fast *participant) uint64 {
	over := max(fast.report.Fill-b.cfg.QueueLow, 0)
	return uint64(min(over*fillFull/(b.cfg.QueueHigh-b.cfg.QueueLow), fillFull))
}

// towards moves from a to b by lean thousandths, without overflow.
func towards(a, b, lean uint64) uint64 {
	if b >= a {
		return a + part(b-a, lean)
	}
	return a - part(a-b, lean)
}

// part returns lean thousandths of d, rounded down. The second form has the same result where the product would
// overflow.
func part(d, lean uint64) uint64 {
	if d < 1<<54 {
		return d * lean / fillFull
	}
	return d/fillFull*lean + d%fillFull*lean/fillFull
}

// members returns the participants, and the one with the fullest queue.
func (b *Bucket) members(nowMS int64) (all []*participant, fast *participant) {
	ids := make([]index.NodeID, 0, len(b.nodes))
	for id, p := range b.nodes {
		if b.counts(p, nowMS) && p.report.HW.Len() == len(b.vbs) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	for _, id := range ids {
		p := b.nodes[id]
		all = append(all, p)
		if fast == nil || p.report.Fill > fast.report.Fill {
			fast = p
		}
	}
	return all, fast
}

// meanHW stores the mean HW of the members in the scratch vector; 0 where no member counts.
func (b *Bucket) meanHW(members []*participant) {
	clear(b.mean)
	plain := true
	for _, p := range members {
		plain = plain && p.absent == nil && p.bits < 1<<54 // so that no sum of 256 overflows
	}
	if plain {
		b.plainMean(members)
		return
	}
	b.carefulMean(members)
}

// carefulMean is meanHW for members that do not count everywhere, or sums that may overflow.
func (b *Bucket) carefulMean(members []*participant) {
	for v := range b.mean {
		var n uint64
		for _, p := range members {
			if p.absent == nil || !p.absent[v] {
				n++
			}
		}
		var quotient, remainder uint64
		for _, p := range members {
			if p.absent == nil || !p.absent[v] {
				s := p.report.HW.Seqnos[v]
				quotient, remainder = quotient+s/n, remainder+s%n
			}
		}
		if n > 0 {
			b.mean[v] = quotient + remainder/n
		}
	}
}

// plainMean is meanHW for members that all count everywhere, and sums that do not overflow. It adds four members at a
// time, so that the sums are read and written less often.
func (b *Bucket) plainMean(members []*participant) {
	mean := b.mean
	n := len(mean)
	rest := members
	for ; len(rest) >= 4; rest = rest[4:] {
		w, x, y, z := rest[0].report.HW.Seqnos[:n], rest[1].report.HW.Seqnos[:n], rest[2].report.HW.Seqnos[:n],
			rest[3].report.HW.Seqnos[:n]
		for v := range mean {
			mean[v] += w[v] + x[v] + y[v] + z[v]
		}
	}
	for _, p := range rest {
		for v, s := range p.report.HW.Seqnos[:n] {
			mean[v] += s
		}
	}
	divide(mean, uint64(len(members)))
}

// divide divides numbers below 1<<62 by one divisor of at most 1<<8, rounding down. A multiplication with the
// reciprocal does it: with r = ceil(2^(64+s)/d) and 2^s <= d < 2^(s+1), the error of x*r/2^(64+s) is below
// x*d/2^(64+s)/d, less than 1/d.
func divide(numbers []uint64, d uint64) {
	s := bits.Len64(d) - 1
	if d&(d-1) == 0 {
		for i := range numbers {
			numbers[i] >>= s
		}
		return
	}
	r, _ := bits.Div64(1<<s, d-1, d) // (2^(64+s) + d-1) / d
	for i, x := range numbers {
		high, _ := bits.Mul64(x, r)
		numbers[i] = high >> s
	}
}
