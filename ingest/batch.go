package ingest

import (
	"tidemark/index"
	"tidemark/timestamp"
)

// Work is one task for the store; exactly one field is set.
type Work struct {
	Batch   *Batch
	Restore *Restore
}

// Restore requests that a vbucket of a copy is restored to the newest older state (snapshot, checkpoint) that is
// valid on Log, see Choose, or to the empty state; everything newer is removed. Bucket.Restored is the answer.
type Restore struct {
	Copy    index.CopyID
	VBucket int
	Log     timestamp.FailoverLog
}

// BatchKind is the reason for a batch.
type BatchKind uint8

// The kinds of batches.
const (
	AtStability BatchKind = iota // up to a stability timestamp: a snapshot of each copy is made after it
	FromSide                     // what a side stream has delivered
	Ahead                        // applied without waiting for a stability timestamp because the queue was full
	DeleteRange                  // a vbucket starts again from empty
)

// Batch is what the store has to write: for each copy one atomic write of all its parts. Bucket.Done ends it. Copies
// do not wait for each other: the only requirement is that the batches of one copy are written in the order in which
// they were handed out. Batches at stability timestamps must be reported, by Shown or Done, in that order too.
type Batch struct {
	Kind   BatchKind
	Ref    timestamp.Ref    // AtStability
	Vector timestamp.Vector // AtStability
	// Segments has the events, by vbucket; copies share them.
	Segments []Segment
	Copies   []CopyBatch
	bytes    int
	builds   bool // AtStability: some of its copies are being built
	acked    bool
}

// Segment is the events of one vbucket in the order of arrival. Sequence numbers may step back where a stream was
// restarted; of several versions of a document the one with the highest seqno counts.
type Segment struct {
	VBucket int
	Events  []Entry
}

// CopyBatch is the part of a batch for one copy. A copy without parts changes nothing and only takes its snapshot.
type CopyBatch struct {
	ID    index.CopyID
	Index index.ID
	Slice index.SliceID
	Exact bool // the snapshot after this batch is exact at Ref
	// Serves is set if the copy was exact before and, after a batch at a stability timestamp, is again. Scans may wait
	// for such a copy, and for no other.
	Serves bool
	// Ready is set if the copy was exact before. Its writes must not wait for copies that are being built.
	Ready bool
	// Parts must not be modified if Common is set: they are shared by every copy with the same Common.
	Parts []Part
	// Common is the position of the copy in every vbucket after this batch, if other copies share it. A copy without
	// rows in the batch needs no write: its stored state is valid up to Common.
	Common *Common
}

// Common is the positions, by vbucket, of copies with equal positions. It is immutable.
type Common struct {
	Positions []Position
	Logs      []timestamp.FailoverLog
}

// Part is what happens to one vbucket of one copy, in this order: delete its range if requested, apply the events
// that Selects admits, purge tombstones if requested, and store Position in the same write. An event is skipped if
// its document is stored with an equal or higher seqno.
type Part struct {
	VBucket         int
	Segment         int // index into Batch.Segments, -1: no events
	DeleteRange     bool
	KeepTombstones  bool
	PurgeTombstones bool
	Position        Position
	Log             timestamp.FailoverLog // nil: as stored
	after, upTo     uint64
	epoch           uint32
}

// Selects reports whether the event is for this part: above the copy's position (posSkip), within the range of the
// batch, and not older than the copy's queue.
func (p *Part) Selects(e *Entry) bool {
	return e.Seqno > p.after && e.Seqno <= p.upTo && e.epoch >= p.epoch
}

// Bytes returns the size of the batch's events in memory.
func (t *Batch) Bytes() int { return t.bytes }

// Done records that the store has written the batch and, for an AtStability batch, taken the snapshots. The copies in
// failed did not; Reopened reports them, before or after. Done returns the acknowledgement to send; ok is false if
// Shown has returned it already.
func (b *Bucket) Done(t *Batch, failed ...index.CopyID) (Ack, bool) {
	b.inFlight.done(t)
	if t.Kind == FromSide {
		b.written(t)
	}
	if t.Kind != AtStability {
		return Ack{}, false
	}
	b.hold(t, true, failed)
	b.hold(t, false, failed)
	ack := t.ack(func(*CopyBatch) bool { return true }, failed)
	b.note(ack)
	return ack, b.inFlight.acknowledge(t)
}

// Shown records that the copies of a batch at a stability timestamp that serve scans have their snapshots, except
// those in failed. They hold the timestamp from here on. Shown returns the acknowledgement to send; ok is false if it
// was returned before. Scans wait for nothing else: Done still has to report the other copies. A batch without a
// serving copy is shown as soon as it is handed out.
func (b *Bucket) Shown(t *Batch, failed ...index.CopyID) (Ack, bool) {
	b.hold(t, true, failed)
	return t.ack(func(c *CopyBatch) bool { return c.Serves }, failed), b.inFlight.acknowledge(t)
}

// inFlight counts the batches that were handed out and are not done.
type inFlight struct {
	bytes   int // size of their events
	unacked int // at stability timestamps, not yet acknowledged
	builds  int // at stability timestamps, with copies that are being built
}

// add counts a batch that was handed out.
func (u *inFlight) add(t *Batch) {
	u.bytes += t.bytes
	if t.Kind == AtStability {
		u.unacked++
	}
	if t.builds {
		u.builds++
	}
}

// done uncounts a batch, except for its acknowledgement.
func (u *inFlight) done(t *Batch) {
	u.bytes -= t.bytes
	t.bytes = 0
	if t.builds {
		u.builds--
	}
}

// acknowledge records that t is acknowledged. It returns false if it was before.
func (u *inFlight) acknowledge(t *Batch) bool {
	if t.acked {
		return false
	}
	t.acked = true
	u.unacked--
	return true
}

// ack returns the outcome of a batch at a stability timestamp among some of its copies.
func (t *Batch) ack(among func(*CopyBatch) bool, failed []index.CopyID) Ack {
	var made, not []index.CopyID
	for i := range t.Copies {
		switch c := &t.Copies[i]; {
		case !among(c):
		case c.Exact && !listed(failed, c.ID):
			made = append(made, c.ID)
		default:
			not = append(not, c.ID)
		}
	}
	if len(made) >= len(not) {
		return Ack{Ref: t.Ref, Made: true, Exceptions: not}
	}
	return Ack{Ref: t.Ref, Exceptions: made}
}

// note records an acknowledgement for LastAck.
func (b *Bucket) note(a Ack) { b.stability.note(a, b.inFlight.builds == 0) }

// hold records that the copies that serve scans, or those that do not, have their exact snapshots, except those in
// failed.
func (b *Bucket) hold(t *Batch, serve bool, failed []index.CopyID) {
	if t.Ref.RollbackID != b.rollbackID || t.Ref.Generation != b.opt.Generation {
		return
	}
	i := 0
	for n := range t.Copies {
		c := &t.Copies[n]
		if c.Serves != serve || !c.Exact || listed(failed, c.ID) {
			continue
		}
		for i < len(b.copies) && b.copies[i].id < c.ID { // both ascend
			i++
		}
		if i == len(b.copies) {
			return
		}
		// an older batch may be reported after a newer one
		if sl := b.copies[i]; sl.id == c.ID && (!sl.has || sl.held.Compare(t.Ref) < 0) {
			sl.held, sl.has, sl.confirmed = t.Ref, true, true
		}
	}
}

// written clears the part of side that was not written yet, so that progress includes what the batch has.
func (b *Bucket) written(t *Batch) {
	for i := range t.Copies {
		if c := b.find(t.Copies[i].ID); c != nil {
			for n := range t.Copies[i].Parts {
				if vb := t.Copies[i].Parts[n].VBucket; c.parts[vb].taken != 0 {
					b.part(c, vb).taken = 0
				}
			}
		}
	}
}
