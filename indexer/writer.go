package indexer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"tidemark/index"
	"tidemark/indexer/pace"
	"tidemark/indexer/packed"
	"tidemark/indexer/snapshots"
	"tidemark/indexer/storage"
	"tidemark/ingest"
)

const (
	// writeBytes bounds one write of one copy; more is cut into several. See pieceBytes.
	writeBytes = 64 << 20
	// mostUpdates is for how many updates of a batch room is made at once, and updateBytes what one takes beside its keys.
	mostUpdates = 1 << 12
	updateBytes = 128
	// retryFirst and retryMost bound the pause before a write is tried again that found no room.
	retryFirst = 20 * time.Millisecond
	retryMost  = time.Second
	// hangs is how long one write may take until the node's health says so.
	hangs = 30 * time.Second
	// reviveFirst and reviveMost bound the pause before a copy is opened again that could not be.
	reviveFirst = 100 * time.Millisecond
	reviveMost  = 30 * time.Second
	// recoverTimeout bounds the wait for scans that still read a copy that must be opened again.
	recoverTimeout = 30 * time.Second
)

// copySource begins the name under which the node's health has a copy that cannot be written.
const copySource = "copy "

// vbOfCopy is a vbucket of a copy.
type vbOfCopy struct {
	copy index.CopyID
	vb   int
}

// straysOf takes the rows that have to go with the range that a batch deletes. mends: it is deleted because the copy
// was found to be wrong.
func (k *bucket) straysOf(t *ingest.Batch) (rows []storage.Row, mends bool) {
	if t == nil || t.Kind != ingest.DeleteRange {
		return nil, false
	}
	for i := range t.Copies {
		for n := range t.Copies[i].Parts {
			at := vbOfCopy{t.Copies[i].ID, t.Copies[i].Parts[n].VBucket}
			stray, found := k.strays[at]
			rows, mends = append(rows, stray...), mends || found
			delete(k.strays, at)
		}
	}
	return rows, mends
}

// wrongUntil reports whether a copy's files still have rows that are known to be wrong: a vbucket is to be taken anew,
// and its rows have not gone. count changes with each such vbucket. It runs in the loop.
func (k *bucket) wrongUntil(id index.CopyID) (wrong bool, count uint64) {
	for at := range k.strays {
		wrong = wrong || at.copy == id
	}
	for _, u := range k.under {
		wrong = wrong || u.batch.Kind == ingest.DeleteRange && slices.ContainsFunc(u.batch.Copies,
			func(c ingest.CopyBatch) bool { return c.ID == id })
	}
	return wrong, k.emptied[id]
}

// purge removes the tombstones of one vbucket of one copy.
type purge struct {
	copy index.CopyID
	vb   int
}

// result is what a writer tells the loop; one field is set.
type result struct {
	ended    *underway // all of it is done
	shown    *underway // the copies that serve scans are at its stability timestamp
	reopened *lane     // its copy had to be opened again, and has lost its newest batches
	back     *putBack  // all of it is done
}

// outcome of one copy's write.
type outcome struct {
	missing bool
	shut    bool           // and the copy is there, but could not be opened again: see revive
	again   *storage.Slice // was reopened: the write is lost
}

// persistently does f until it succeeds, the copy has had to be reopened, or the context ends. A full disk is told and
// waited for: the loop goes on meanwhile and stops taking data when its queue is full.
func (k *bucket) persistently(ctx context.Context, s *storage.Slice, f func() error) outcome {
	return k.persistentlyWithin(ctx, s, hangs, f)
}

// persistentlyWithin is persistently; the node's health says so when one try takes longer than patience.
func (k *bucket) persistentlyWithin(ctx context.Context, s *storage.Slice, patience time.Duration,
	f func() error) outcome {
	source := copySource + s.Meta().Copy.String()
	for pause := retryFirst; ; pause = min(2*pause, retryMost) {
		err := k.watched(source, patience, f)
		switch {
		case err == nil:
			if k.x.health.set(source, "") {
				k.log.Info("writing again", "copy", s.Meta().Copy)
				wake(k.x.report)
			}
			return outcome{}
		case errors.Is(err, storage.ErrClosed):
			return outcome{missing: true, shut: !s.Ended()}
		case ctx.Err() != nil:
			return outcome{}
		}
		if k.x.health.set(source, err.Error()) {
			k.log.Error("cannot write; trying again", "copy", s.Meta().Copy, "error", err)
			wake(k.x.report)
		}
		if errors.Is(err, storage.ErrReopen) || errors.Is(err, storage.ErrDamaged) {
			if k.reopen(ctx, s) == nil {
				return outcome{again: s}
			}
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return outcome{}
		case <-timer.C:
		}
	}
}

// watched does f; the node's health says so when that takes longer than patience.
func (k *bucket) watched(source string, patience time.Duration, f func() error) error {
	said := make(chan struct{})
	late := time.AfterFunc(patience, func() {
		defer close(said)
		k.log.Error("a write does not end: the disk hangs, or is far too slow", "copy", source, "for", patience)
		k.x.health.set(source, fmt.Sprintf("a write has been under way for more than %s: the disk hangs, or is far too slow",
			patience))
		wake(k.x.report)
	})
	err := f()
	if !late.Stop() {
		<-said
	}
	return err
}

// reopen brings a copy back to its last durable batch. The node's health says when that fails.
func (k *bucket) reopen(ctx context.Context, s *storage.Slice) error {
	id := s.Meta().Copy
	source := copySource + id.String()
	k.x.snapshots.Drop(id)
	r, err := s.Recover(ctx, recoverTimeout)
	switch {
	case errors.Is(err, storage.ErrClosed): // it has gone meanwhile
		k.x.health.set(source, "")
	case err != nil:
		if k.x.health.set(source, fmt.Sprintf("it cannot be opened again, which is tried again and again: %v", err)) {
			k.log.Error("a copy cannot be opened again; trying again", "copy", id, "error", err)
			wake(k.x.report)
		}
	default:
		k.x.health.set(source, "")
		k.log.Warn("a copy was opened again; what it lacks is streamed again", "copy", id, "outcome", r.Outcome,
			"cause", r.Cause)
		wake(k.x.report)
	}
	return err
}

// revive opens a copy of which a try has failed, with growing pauses, until it is open or has gone. Its lane is lost
// from the beginning: nothing is written to it behind what it lacks, and no other copy waits for it. It is not called
// by two for the same lane.
func (k *bucket) revive(ctx context.Context, n *lane) {
	k.lanes.all.Add(1)
	go func() {
		defer k.lanes.all.Done()
		for pause := reviveFirst; ; pause = min(2*pause, reviveMost) {
			if pace.Sleep(ctx, pause) != nil {
				return
			}
			err := k.reopen(ctx, n.slice)
			if err == nil {
				k.tell(ctx, result{reopened: n})
			}
			if err == nil || errors.Is(err, storage.ErrClosed) {
				return
			}
		}
	}()
}

// writeCopy is one copy's share of a batch.
func (k *bucket) writeCopy(ctx context.Context, u *underway, at int, s *storage.Slice) error {
	t := u.batch
	c := &t.Copies[at]
	if t.Kind == ingest.DeleteRange {
		for i := range c.Parts {
			p := &c.Parts[i]
			if err := s.DeleteVBuckets(ctx, storage.VBPosition{VBucket: uint16(p.VBucket), Position: p.Position,
				Log: p.Log}); err != nil {
				return err
			}
		}
		if len(u.strays) > 0 {
			if err := s.DiscardRows(ctx, u.strays); err != nil {
				return err
			}
		}
		if u.mends {
			k.x.snapshots.Trust(c.ID)
		}
		return nil
	}
	if err := k.flushCopy(ctx, t, c, u.share(k, at), s); err != nil {
		return err
	}
	if !c.Exact {
		if t.Kind == ingest.AtStability {
			k.x.snapshots.Skip(c.ID, k.ref(t.Ref))
		}
		return nil
	}
	snap, err := s.Snapshot()
	if err != nil {
		return err
	}
	k.x.snapshots.Add(c.ID, snapshots.Held{Ref: k.ref(t.Ref), Vector: t.Vector, Snap: snap})
	return nil
}

// flushCopy applies the parts in one atomic write. Where that would be too large it is cut: the rows of the first
// pieces go in under the old positions, widened by what they may reflect, so that a crash in between is met by the
// branch rule and by streaming the same again.
func (k *bucket) flushCopy(ctx context.Context, t *ingest.Batch, c *ingest.CopyBatch, mine *packed.Share,
	s *storage.Slice) error {
	var parts []ingest.Part
	var keep map[uint16]bool
	events := 0
	// That documents of which a copy without rows has nothing have no keys changes nothing. One that shares keeps no
	// tombstones.
	if c.Common == nil || mine == nil || mine.Stating > 0 || s.Items() > 0 {
		mine = mine.Whole()
		parts = mine.Parts(t, c)
		events, keep = mine.Sums(t, parts)
	}
	b := storage.Batch{Common: c.Common, Yields: !c.Ready, KeepTombstones: func(vb uint16) bool { return keep[vb] }}
	if len(keep) > 0 {
		if err := k.x.marks.set(c.ID); err != nil {
			return fmt.Errorf("%w: %w", storage.ErrIO, err)
		}
	}
	b.Updates = make([]storage.Update, 0, min(events, mostUpdates))
	if c.Exact {
		b.Timestamp = t.Vector
	}
	f := &flush{copy: c, slice: s, batch: b, most: k.piece, unpack: packed.Unpacker{Index: c.Index, Slice: c.Slice}}
	for i := range parts {
		if c.Common == nil {
			f.stands(&parts[i])
		}
		if parts[i].Segment < 0 {
			continue
		}
		for e, at := range mine.Each(parts[i].Segment, t.Segments[parts[i].Segment].Events) {
			if err := f.event(ctx, &parts[i], e, at); err != nil {
				return err
			}
		}
	}
	return f.end(ctx)
}

// flush is one copy's write on its way.
type flush struct {
	copy   *ingest.CopyBatch
	slice  *storage.Slice
	batch  storage.Batch
	unpack packed.Unpacker
	bytes  int // of the updates
	most   int // bytes of one write
}

// stands says where the copy stands in a vbucket afterwards.
func (f *flush) stands(p *ingest.Part) {
	f.batch.Positions = append(f.batch.Positions, storage.VBPosition{VBucket: uint16(p.VBucket), Position: p.Position,
		Log: p.Log})
}

// event adds what an event states for the copy; at is the place of its statement.
func (f *flush) event(ctx context.Context, p *ingest.Part, e *ingest.Entry, at int) error {
	if !p.Selects(e) {
		return nil
	}
	up, ok := f.unpack.Update(e.Data, e.Rest, at, p.VBucket, e.Seqno)
	if !ok {
		return nil
	}
	f.batch.Updates = append(f.batch.Updates, up)
	if f.bytes += 3*len(e.Data) + updateBytes; f.bytes < f.most {
		return nil
	}
	if err := f.early(ctx); err != nil {
		return err
	}
	f.batch.Updates, f.unpack.Keys, f.bytes = f.batch.Updates[:0], f.unpack.Keys[:0], 0
	return nil
}

// end writes what has not been written, if there is anything.
func (f *flush) end(ctx context.Context) error {
	b := &f.batch
	if len(b.Updates) == 0 && len(b.Positions) == 0 && b.Common == nil && !f.copy.Exact {
		return nil
	}
	return f.slice.Flush(ctx, *b)
}

// early writes a piece of a batch that is too large for one write. What is stored then reflects some of what comes up
// to the batch's end and not all: it is a state of no timestamp below that, for whoever goes on from it (after a crash,
// or from files that are sent), so that the floor rises with it.
func (f *flush) early(ctx context.Context) error {
	b, c := &f.batch, f.copy
	piece := storage.Batch{Updates: b.Updates, Yields: b.Yields, KeepTombstones: b.KeepTombstones}
	held := f.slice.Positions()
	for i := range c.Parts {
		p := &c.Parts[i]
		was := held[p.VBucket]
		was.WindowEnd = max(was.WindowEnd, p.Position.Content())
		was.Floor = max(was.Floor, p.Position.Floor, p.Position.Main, p.Position.Side)
		if was.VBUUID == 0 {
			was.VBUUID = p.Position.VBUUID
		}
		piece.Positions = append(piece.Positions, storage.VBPosition{VBucket: uint16(p.VBucket), Position: was, Log: p.Log})
	}
	return f.slice.Flush(ctx, piece)
}
