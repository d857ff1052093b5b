package copies

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tidemark/indexer/health"
	"tidemark/indexer/pace"
	"tidemark/indexer/packed"
	"tidemark/indexer/snapshots"
	"tidemark/indexer/storage"
	"tidemark/ingest"
)

const (
	// WriteBytes bounds one write of one copy; larger ones are split.
	WriteBytes = 64 << 20
	// mostUpdates bounds the updates for which space is allocated in advance; updateBytes is the size of one without
	// its keys.
	mostUpdates = 1 << 12
	updateBytes = 128
	// retryFirst and retryMost bound the pause before a failed write is retried.
	retryFirst = 20 * time.Millisecond
	retryMost  = time.Second
	// reviveFirst and reviveMost bound the pause between attempts to reopen a copy.
	reviveFirst = 100 * time.Millisecond
	reviveMost  = 30 * time.Second
	// recoverTimeout bounds the wait for scans that still read a copy that must be reopened.
	recoverTimeout = 30 * time.Second
)

// CopySource is the prefix of the health sources of copies that cannot be written.
const CopySource = "copy "

// result is what a writer sends to the loop. One field is set.
type result struct {
	ended    *underway // all of its tasks are done
	shown    *underway // its tasks of copies that serve scans are done
	reopened *lane     // its copy was reopened and has lost its newest batches
	back     *putBack  // all of it has been restored or given up
}

// outcome is the result of one copy's write. The zero value is success.
type outcome struct {
	missing bool
	shut    bool           // the copy is still wanted, but could not be reopened: see revive
	again   *storage.Slice // was reopened: the write is lost
}

// persistently retries f until it succeeds, the copy has been reopened, or the context ends. It reports a full disk
// and waits for space; the loop continues meanwhile, and stops taking data when its queue is full.
func (k *Bucket) persistently(ctx context.Context, s *storage.Slice, f func() error) outcome {
	return k.persistentlyWithin(ctx, s, health.Hangs, f)
}

// persistentlyWithin is persistently with the time that one attempt may take before the node's health reports it.
func (k *Bucket) persistentlyWithin(ctx context.Context, s *storage.Slice, patience time.Duration,
	f func() error) outcome {
	source := CopySource + s.Meta().Copy.String()
	var fails unreadable
	for pause := retryFirst; ; pause = min(2*pause, retryMost) {
		err := k.node.Health.Watch(source, "a write", patience, func() {
			k.log.Error("write does not end: the disk hangs, or is far too slow", "copy", s.Meta().Copy, "for", patience)
			k.node.Report()
		}, f)
		switch {
		case err == nil:
			if k.node.Health.Set(source, "") {
				k.log.Info("writes succeed again", "copy", s.Meta().Copy)
				k.node.Report()
			}
			return outcome{}
		case errors.Is(err, storage.ErrClosed):
			return outcome{missing: true, shut: !s.Ended()}
		case ctx.Err() != nil:
			return outcome{}
		}
		if k.node.Health.Set(source, err.Error()) {
			k.log.Error("cannot write; trying again", "copy", s.Meta().Copy, "error", err)
			k.node.Report()
		}
		if storage.NeedsRecover(err) || fails.last(k.node.Now(), s, err) {
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

// unreadable tracks since when writes to a copy fail although its engine can write: then some of its files cannot be
// read. The zero value has seen no failure.
type unreadable struct{ since time.Time }

// last records an error of a write and reports whether this state has lasted too long. The copy is then reopened,
// which reads all of it, and is shut if that fails, so that nothing waits for it any more. A disk that refuses writes
// is waited for instead, because other copies have the same problem.
func (u *unreadable) last(now time.Time, s *storage.Slice, err error) bool {
	switch {
	case !errors.Is(err, storage.ErrIO) || s.Stats().Failing != nil:
		u.since = time.Time{}
		return false
	case u.since.IsZero():
		u.since = now
	}
	return now.Sub(u.since) >= health.Hangs
}

// reopen takes a copy back to its last durable batch. If that fails, the node's health reports it. The copy's snapshots
// are released only if its files can be closed: else it continues to serve scans from them.
func (k *Bucket) reopen(ctx context.Context, s *storage.Slice) error {
	id := s.Meta().Copy
	source := CopySource + id.String()
	r, err := s.Recover(ctx, recoverTimeout, func() { k.node.Snapshots.Release(id) })
	switch {
	case errors.Is(err, storage.ErrClosed): // it was removed meanwhile
		k.node.Health.Set(source, "")
	case ctx.Err() != nil: // it was removed: its next user reports the error
	case err != nil:
		if k.node.Health.Set(source, fmt.Sprintf("it cannot be reopened; further attempts follow: %v", err)) {
			k.log.Error("copy cannot be reopened; trying again", "copy", id, "error", err)
			k.node.Report()
		}
	default:
		k.node.Health.Set(source, "")
		k.log.Warn("copy was reopened; missing changes are streamed again", "copy", id, "outcome", r.Outcome,
			"cause", r.Cause)
		k.node.Report()
	}
	return err
}

// revive reopens a copy after an attempt has failed, with growing pauses, until it is open or removed; removal waits
// for it. The lane is lost already: nothing is written behind what the copy lacks, and no other copy waits for it.
// revive runs at most once at a time for a lane.
func (k *Bucket) revive(ctx context.Context, n *lane) {
	ctx, end := context.WithCancel(ctx)
	if !k.lanes.opening(n, end) {
		end()
		return
	}
	go func() {
		defer k.lanes.opened(n)
		for pause := reviveFirst; ; pause = min(2*pause, reviveMost) {
			if pace.Sleep(ctx, pause) != nil {
				return
			}
			err := k.reopen(ctx, n.slice)
			if err == nil {
				k.result(ctx, result{reopened: n})
			}
			if err == nil || errors.Is(err, storage.ErrClosed) {
				return
			}
		}
	}()
}

// MendBroken makes buckets write to those of their copies that must be recovered, so that damage found by a scan, a
// merge or a check of the files is repaired even where no data arrives. It does not wait; the caller calls it
// periodically.
func MendBroken(all []*storage.Slice, of []*Bucket) {
	for _, s := range all {
		if s.Broken() == nil {
			continue
		}
		for _, k := range of {
			if k.name == s.Meta().Bucket {
				k.mend(s)
			}
		}
	}
}

func (k *Bucket) mend(s *storage.Slice) {
	id := s.Meta().Copy
	select {
	case k.calls.queue <- func() {
		if k.slices[id] == s {
			k.work.Stir(id)
		}
	}:
	default:
	}
}

// writeCopy writes one copy's part of a batch.
func (k *Bucket) writeCopy(ctx context.Context, u *underway, at int, s *storage.Slice) error {
	t := u.Batch
	c := &t.Copies[at]
	if t.Kind == ingest.DeleteRange {
		for i := range c.Parts {
			p := &c.Parts[i]
			if err := s.DeleteVBuckets(ctx, storage.VBPosition{VBucket: uint16(p.VBucket), Position: p.Position,
				Log: p.Log}); err != nil {
				return err
			}
		}
		var rows []storage.Row
		for _, stray := range u.strays {
			if stray.copy == c.ID {
				rows = append(rows, stray.rows...)
			}
		}
		if len(rows) == 0 {
			return nil
		}
		return s.DiscardRows(ctx, rows)
	}
	if err := k.flushCopy(ctx, t, c, u.share(k, at), s); err != nil {
		return err
	}
	if !c.Exact {
		if t.Kind == ingest.AtStability {
			k.node.Snapshots.Skip(c.ID, k.ref(t.Ref))
		}
		return nil
	}
	snap, err := s.Snapshot()
	if err != nil {
		return err
	}
	k.node.Snapshots.Add(c.ID, snapshots.Held{Ref: k.ref(t.Ref), Vector: t.Vector, Snap: snap})
	return nil
}

// flushCopy applies the parts in one atomic write. If that would be too large, it is split: the first pieces are
// written under the old positions, widened by what their rows may reflect, so that after a crash in between the
// branch rule holds and streaming the same range again completes it.
func (k *Bucket) flushCopy(ctx context.Context, t *ingest.Batch, c *ingest.CopyBatch, mine *packed.Share,
	s *storage.Slice) error {
	var parts []ingest.Part
	var keep map[uint16]bool
	events := 0
	// Statements that documents have no keys change nothing in a copy without rows. A copy
	// that shares its positions keeps no tombstones.
	if c.Common == nil || mine == nil || mine.Stating > 0 || s.Items() > 0 {
		mine = mine.Whole()
		parts = mine.Parts(t, c)
		events, keep = mine.Sums(t, parts)
	}
	b := storage.Batch{Common: c.Common, Yields: !c.Ready, KeepTombstones: func(vb uint16) bool { return keep[vb] }}
	if len(keep) > 0 {
		if err := k.node.Marks.Set(c.ID); err != nil {
			return fmt.Errorf("that the copy has tombstones cannot be stored: %w", err)
		}
	}
	b.Updates = make([]storage.Update, 0, min(events, mostUpdates))
	if c.Exact {
		b.Timestamp = t.Vector
	}
	f := &flush{copy: c, slice: s, batch: b, most: k.node.Piece, unpack: packed.Unpacker{Index: c.Index, Slice: c.Slice}}
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

// flush is one copy's write in progress.
type flush struct {
	copy   *ingest.CopyBatch
	slice  *storage.Slice
	batch  storage.Batch
	unpack packed.Unpacker
	bytes  int // of the updates
	most   int // bytes of one write
}

// stands adds the copy's position in a vbucket after the write.
func (f *flush) stands(p *ingest.Part) {
	f.batch.Positions = append(f.batch.Positions, storage.VBPosition{VBucket: uint16(p.VBucket), Position: p.Position,
		Log: p.Log})
}

// event adds an event's statement for the copy; at is the place of the statement.
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

// end writes the rest, if there is any.
func (f *flush) end(ctx context.Context) error {
	b := &f.batch
	if len(b.Updates) == 0 && len(b.Positions) == 0 && b.Common == nil && !f.copy.Exact {
		return nil
	}
	return f.slice.Flush(ctx, *b)
}

// early writes a piece of a batch that is too large for one write. The store then reflects some but not all events up
// to the batch's end, which is the state of no timestamp below that end. Users of that state (a restart, or a node
// that receives the files) must not make one, so the floor rises with the piece.
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
