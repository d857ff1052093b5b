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
	// WriteBytes bounds one write of one copy; more is cut into several.
	WriteBytes = 64 << 20
	// mostUpdates is for how many updates of a batch room is made at once, and updateBytes what one takes beside its keys.
	mostUpdates = 1 << 12
	updateBytes = 128
	// retryFirst and retryMost bound the pause before a write is tried again that found no room.
	retryFirst = 20 * time.Millisecond
	retryMost  = time.Second
	// reviveFirst and reviveMost bound the pause before a copy is opened again that could not be.
	reviveFirst = 100 * time.Millisecond
	reviveMost  = 30 * time.Second
	// recoverTimeout bounds the wait for scans that still read a copy that must be opened again.
	recoverTimeout = 30 * time.Second
)

// CopySource begins the name under which the node's health has a copy that cannot be written.
const CopySource = "copy "

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
func (k *Bucket) persistently(ctx context.Context, s *storage.Slice, f func() error) outcome {
	return k.persistentlyWithin(ctx, s, health.Hangs, f)
}

// persistentlyWithin is persistently; the node's health says so when one try takes longer than patience.
func (k *Bucket) persistentlyWithin(ctx context.Context, s *storage.Slice, patience time.Duration,
	f func() error) outcome {
	source := CopySource + s.Meta().Copy.String()
	var fails unreadable
	for pause := retryFirst; ; pause = min(2*pause, retryMost) {
		err := k.node.Health.Watch(source, "a write", patience, func() {
			k.log.Error("a write does not end: the disk hangs, or is far too slow", "copy", s.Meta().Copy, "for", patience)
			k.node.Report()
		}, f)
		switch {
		case err == nil:
			if k.node.Health.Set(source, "") {
				k.log.Info("writing again", "copy", s.Meta().Copy)
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

// unreadable is since when a copy cannot be written although its engine writes: some of its files cannot be read. The
// zero value is that it can.
type unreadable struct{ since time.Time }

// last notes an error of a write and reports whether it has been so for too long. Such a copy is opened again, which
// reads all of it, and is shut where that fails: nobody waits for it any more. A disk that takes no writes is waited
// for: other copies have the same.
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

// reopen brings a copy back to its last durable batch. The node's health says when that fails.
func (k *Bucket) reopen(ctx context.Context, s *storage.Slice) error {
	id := s.Meta().Copy
	source := CopySource + id.String()
	k.node.Snapshots.Release(id)
	r, err := s.Recover(ctx, recoverTimeout)
	switch {
	case errors.Is(err, storage.ErrClosed): // it has gone meanwhile
		k.node.Health.Set(source, "")
	case ctx.Err() != nil: // it was let go: whoever has it next says what is wrong
	case err != nil:
		if k.node.Health.Set(source, fmt.Sprintf("it cannot be opened again, which is tried again and again: %v", err)) {
			k.log.Error("a copy cannot be opened again; trying again", "copy", id, "error", err)
			k.node.Report()
		}
	default:
		k.node.Health.Set(source, "")
		k.log.Warn("a copy was opened again; what it lacks is streamed again", "copy", id, "outcome", r.Outcome,
			"cause", r.Cause)
		k.node.Report()
	}
	return err
}

// revive opens a copy of which a try has failed, with growing pauses, until it is open or is let go, which waits for
// it. Its lane is lost from the beginning: nothing is written to it behind what it lacks, and no other copy waits for
// it. It is not called by two for the same lane.
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

// MendBroken lets buckets write to those of their copies that must be recovered: what a scan, a merge or a look at the
// files finds is mended where nothing changes, too. It waits for nobody: who asks does so again.
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

// writeCopy is one copy's share of a batch.
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

// flushCopy applies the parts in one atomic write. Where that would be too large it is cut: the rows of the first
// pieces go in under the old positions, widened by what they may reflect, so that a crash in between is met by the
// branch rule and by streaming the same again.
func (k *Bucket) flushCopy(ctx context.Context, t *ingest.Batch, c *ingest.CopyBatch, mine *packed.Share,
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
