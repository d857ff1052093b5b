package ingest

import (
	"tidemark/index"
	"tidemark/timestamp"
)

// Work is one thing for the store to do; exactly one field is set.
type Work struct {
	Batch   *Batch
	Restore *Restore
}

// Restore asks that a vbucket of a copy goes back to the newest older state (snapshot, checkpoint) that is valid on
// Log, see Choose, or to nothing; everything newer goes. Bucket.Restored answers it.
type Restore struct {
	Copy    index.CopyID
	VBucket int
	Log     timestamp.FailoverLog
}

// BatchKind says why a batch is written.
type BatchKind uint8

// The kinds of batches.
const (
	AtStability BatchKind = iota // up to a stability timestamp: a snapshot of each copy is made after it
	FromSide                     // what a side stream brought
	Ahead                        // the queue was full: applied without waiting for a stability timestamp
	DeleteRange                  // a vbucket starts again from nothing
)

// Batch is what the store has to write: for each copy one atomic write of all its parts. Bucket.Done ends it. Copies do
// not wait for each other: what is handed out for one of them is to be written in the order in which it was, that is
// all. Batches at stability timestamps are to be told of, by Shown or Done, in the order in which they were handed out.
type Batch struct {
	Kind   BatchKind
	Ref    timestamp.Ref    // AtStability
	Vector timestamp.Vector // AtStability
	// Segments holds the events, by vbucket; copies share them.
	Segments []Segment
	Copies   []CopyBatch
	bytes    int
	builds   bool // AtStability: some of its copies are being built
	acked    bool
}

// Segment is the events of one vbucket in the order in which they came; sequence numbers may step back where a stream
// was restarted, and of several versions of a document the one with the highest seqno counts.
type Segment struct {
	VBucket int
	Events  []Entry
}

// CopyBatch is the share of one copy. A copy without parts changes nothing and only makes its snapshot.
type CopyBatch struct {
	ID    index.CopyID
	Index index.ID
	Slice index.SliceID
	Exact bool // the snapshot after this batch is exact at Ref
	// Serves: the copy was exact before and, after a batch at a stability timestamp, is. Scans may wait for it, and so for
	// no copy that does not serve.
	Serves bool
	// Ready: the copy was exact before. What it has to write is not to wait for copies that are being built.
	Ready bool
	// Parts are shared where Common is set: then they are those of every copy with the same Common.
	Parts []Part
	// Common says where the copy stands in every vbucket after this batch, when other copies stand there too. A copy for
	// which the batch has no rows needs nothing written: what it has stored is good up to there.
	Common *Common
}

// Common is where copies that stand alike stand, by vbucket. It does not change.
type Common struct {
	Positions []Position
	Logs      []timestamp.FailoverLog
}

// Part is what happens to one vbucket of one copy, in this order: delete its range if asked, apply the events that
// Select lets through, purge tombstones if asked, and with it store Position. An event whose document is stored with an
// equal or higher seqno is skipped.
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

// Selects reports whether the event is one for this part: not covered by the copy's position (posSkip), not beyond what
// the batch covers, and not older than the copy's queue.
func (p *Part) Selects(e *Entry) bool {
	return e.Seqno > p.after && e.Seqno <= p.upTo && e.epoch >= p.epoch
}

// Bytes is the memory that the batch's events hold.
func (t *Batch) Bytes() int { return t.bytes }

// Done tells that the store has written the batch (made: and has taken the snapshots of an AtStability batch). Copies
// named in failed did not; they have been, or will be, told of by Reopened. It returns the acknowledgement to send, if
// there is one that Shown has not given.
func (b *Bucket) Done(t *Batch, failed ...index.CopyID) (Ack, bool) {
	b.underWay.done(t)
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
	return ack, b.underWay.acknowledge(t)
}

// Shown tells that the copies of a batch at a stability timestamp that serve scans have their snapshots, except those
// in failed. They hold it from here on, and it is acknowledged by what is returned, if it was not before. Scans wait
// for nothing else: what the others have to write for it is told of by Done, which is still to come. A batch without a
// copy that serves is shown when it is handed out.
func (b *Bucket) Shown(t *Batch, failed ...index.CopyID) (Ack, bool) {
	b.hold(t, true, failed)
	return t.ack(func(c *CopyBatch) bool { return c.Serves }, failed), b.underWay.acknowledge(t)
}

// underWay counts the batches that are handed out and not done.
type underWay struct {
	bytes   int // that their events hold
	unacked int // at stability timestamps, those that are not acknowledged
	builds  int // at stability timestamps, those for copies that are being built
}

// add counts a batch that is handed out.
func (u *underWay) add(t *Batch) {
	u.bytes += t.bytes
	if t.Kind == AtStability {
		u.unacked++
	}
	if t.builds {
		u.builds++
	}
}

// done counts it out, but for its acknowledgement.
func (u *underWay) done(t *Batch) {
	u.bytes -= t.bytes
	t.bytes = 0
	if t.builds {
		u.builds--
	}
}

// acknowledge is true the first time.
func (u *underWay) acknowledge(t *Batch) bool {
	if t.acked {
		return false
	}
	t.acked = true
	u.unacked--
	return true
}

// ack says what became of a batch at a stability timestamp, among some of its copies.
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

// note keeps an acknowledgement for LastAck.
func (b *Bucket) note(a Ack) { b.stability.note(a, b.underWay.builds == 0) }

// hold takes over that copies which serve scans, or those that do not, have their exact snapshots, except those in
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
		// what was handed out before may be told of later
		if sl := b.copies[i]; sl.id == c.ID && (!sl.has || sl.held.Compare(t.Ref) < 0) {
			sl.held, sl.has, sl.told = t.Ref, true, true
		}
	}
}

// written: progress counts what a side stream brought from here on.
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
