package ingest

import (
	"slices"

	"tidemark/index"
	"tidemark/timestamp"
)

// checkBranch compares a copy's queue and state with a log (beginCheck). What lies beyond the common history is
// removed: the queue at once, applied state by a Restore, which Restored answers.
func (b *Bucket) checkBranch(sl *slice, vb int, log timestamp.FailoverLog, queueTop uint64) {
	p := b.part(sl, vb)
	if p.restoring {
		return
	}
	if p.log.Common(log) != timestamp.Infinity {
		b.unread(p)
	}
	if p.content() > p.log.Common(log) {
		p.sub, p.restoring, p.rejoin, p.from = false, true, false, noQueue
		sl.restoring++
		sl.exact = false
		b.work = append(b.work, Work{Restore: &Restore{Copy: sl.id, VBucket: vb, Log: log}})
		b.trim(vb)
		return
	}
	received := b.receivedLog(p, vb) // the activation timestamp is of the branch that is held, which may be an older one
	if max(b.received(p, vb), queueTop) > received.Common(log) || p.pos.A > p.log.Common(log) {
		b.leaveBranch(p, p.log, log)
		b.reset(sl, vb)
	}
	p.log = log
}

// unsure as the end of a window means that a side stream that has not ended may have left something out because of a
// newer version that has not arrived. Such a position is valid on the branch on which it was read, and on no other.
const unsure = timestamp.Infinity

// unread resets side to where the effect of de-duplication is known; the rows stay, and are read again.
func (b *Bucket) unread(p *part) {
	if p.pos.WindowEnd == unsure {
		p.pos.Floor = max(p.pos.Floor, p.pos.Side)
		p.pos.Side, p.pos.WindowEnd, p.lent = p.solid, p.reach(), 0
	}
}

// reach returns the highest seqno that the position is known to reflect.
func (p *part) reach() uint64 { return max(p.pos.Main, p.pos.Side, p.pos.Floor) }

// content returns the highest seqno whose effects the copy may reflect.
func (p *part) content() uint64 { return p.pos.Content() }

// leaveBranch voids an activation timestamp on a lost branch. What is held is then at most side, and may reflect
// everything up to the floor.
func (b *Bucket) leaveBranch(p *part, held, log timestamp.FailoverLog) {
	if p.pos.A > held.Common(log) {
		p.pos.Floor = max(p.pos.Floor, p.pos.Content())
		p.pos.A, p.pos.Main = p.pos.Side, p.pos.Side
	}
}

// join attaches a copy to the maintenance stream: from now on everything above start comes on it.
func (b *Bucket) join(sl *slice, vb int, start, purge uint64) {
	p := b.part(sl, vb)
	p.sub, p.rejoin, sl.out = true, false, false
	if p.from == noQueue {
		b.clearQueue(sl, vb)
	}
	if start < purge {
		// purged deletions leave no event that could carry their window
		p.pos.Floor = max(p.pos.Floor, purge)
	}
	if start < purge && p.base > start && p.base < purge {
		// a stream from below the purge seqno omits deletions that we have not seen
		p.pos, p.solid, p.lent = Position{Floor: p.pos.Floor}, 0, 0
		b.deleteRange(sl, vb)
		b.clearQueue(sl, vb)
		p.base = 0
	}
	if p.base < start {
		b.clearQueue(sl, vb)
		p.pos.A = start
		p.base = start
	}
	b.trim(vb)
	b.blocked.ok = false
}

// goOn joins a copy that the current stream feeds to it, at its current position: the copy was restored, or added
// only now.
func (b *Bucket) goOn(sl *slice, vb int) {
	v, p := &b.vbs[vb], b.part(sl, vb)
	if b.checkBranch(sl, vb, v.log, 0); p.restoring {
		p.rejoin, p.rejoinLow = true, v.purge
		return
	}
	b.join(sl, vb, v.present(), v.purge)
}

// await records which streams feed a copy that is removed, in case it is added again.
func (b *Bucket) await(sl *slice) {
	for vb := range sl.parts {
		if p := &sl.parts[vb]; p.sub || p.restoring && p.rejoin {
			b.vbs[vb].awaited = append(b.vbs[vb].awaited, sl.id)
		}
	}
}

// fed reports whether the current stream of a vbucket feeds a copy that was not on this node, and removes it from the
// awaited ones. Between DropData and the BEGIN that ends it nothing is fed: that BEGIN lists the copy again.
func (b *Bucket) fed(vb int, id index.CopyID) bool {
	v := &b.vbs[vb]
	i := slices.Index(v.awaited, id)
	if i < 0 {
		return false
	}
	v.awaited = slices.Delete(v.awaited, i, i+1)
	return v.cur.open && !v.cur.dropping
}

// dropRange restarts a vbucket of a copy from 0, because KV cannot deliver the deletions that the copy lacks. It
// removes what maintenance has applied too, and raises A up to it.
func (b *Bucket) dropRange(sl *slice, vb int) {
	p := b.part(sl, vb)
	if p.pos.Side, p.solid, p.lent = 0, 0, 0; p.pos.WindowEnd == unsure {
		p.pos.WindowEnd = p.reach()
	}
	p.pos.A = max(p.pos.A, p.pos.Main)
	p.pos.Floor = max(p.pos.Floor, p.pos.A)
	sl.exact = false
	b.deleteRange(sl, vb)
}

// deleteRange adds the task to delete the range, with the position that holds after it.
func (b *Bucket) deleteRange(sl *slice, vb int) {
	p := b.part(sl, vb)
	p.pos.VBUUID = p.log.Newest()
	p.tombs = false
	b.work = append(b.work, Work{Batch: &Batch{
		Kind: DeleteRange,
		Copies: []CopyBatch{{ID: sl.id, Index: sl.index, Slice: sl.no,
			Parts: []Part{{VBucket: vb, Segment: -1, DeleteRange: true, Position: p.pos, Log: p.newLog()}}}},
	}})
}

// newLog returns the log if the store does not have it yet, else nil.
func (p *part) newLog() timestamp.FailoverLog {
	if p.kept.Equal(p.log) {
		return nil
	}
	p.kept = p.log
	return p.log
}

// Restored is the answer to a Restore: what the copy holds of the vbucket now, and the log under which that state was
// made. A zero position means that no older state was valid and the range is empty.
func (b *Bucket) Restored(r Restore, pos Position, held timestamp.FailoverLog) {
	sl := b.find(r.Copy)
	if sl == nil || r.VBucket >= len(b.vbs) {
		return
	}
	if !sl.parts[r.VBucket].restoring {
		return
	}
	v, p := &b.vbs[r.VBucket], b.part(sl, r.VBucket)
	p.load(pos, held)
	p.kept = nil
	log := r.Log
	if v.begun {
		log = v.log // a newer BEGIN may have arrived meanwhile
	}
	if p.content() > held.Common(log) {
		b.work = append(b.work, Work{Restore: &Restore{Copy: sl.id, VBucket: r.VBucket, Log: log}})
		return
	}
	b.leaveBranch(p, held, log)
	p.log = log
	sl.restored(p)
	rejoin := p.rejoin
	b.reset(sl, r.VBucket)
	if rejoin {
		// the stream has advanced meanwhile: join at its current position
		b.join(sl, r.VBucket, v.present(), p.rejoinLow)
	}
}

// restored records that a part does not wait for Restored.
func (sl *slice) restored(p *part) {
	if p.restoring {
		p.restoring = false
		sl.restoring--
	}
}

// Restoring returns the number of vbuckets of copies that wait for Restored.
func (b *Bucket) Restoring() int {
	n := 0
	for _, c := range b.distinct() { // sharing copies are not being restored
		n += c.restoring
	}
	return n
}

// RestoringOf returns the number of vbuckets of one copy that are being restored.
func (b *Bucket) RestoringOf(id index.CopyID) int {
	if c := b.find(id); c != nil {
		return c.restoring
	}
	return 0
}

// Held is a state to which a vbucket of a copy could be restored.
type Held struct {
	Position Position
	Log      timestamp.FailoverLog
}

// Choose returns the index of the first of the states (newest first) that lies entirely on the branch of log, -1 for
// none.
func Choose(states []Held, log timestamp.FailoverLog) int {
	for i, s := range states {
		if s.Position.Content() <= s.Log.Common(log) {
			return i
		}
	}
	return -1
}
