package indexer

import (
	"cmp"
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"tidemark/index"
	"tidemark/indexer/core"
	"tidemark/indexer/storage"
	"tidemark/wire"
)

// orphan is a copy that is here and that no list of the present epoch has named: of an index that a restore has
// removed, of a folder that somebody has put here; then it may be damaged, or of another copy than its name says. It is
// kept, neither served nor fed nor checkpointed, until a list names it again, or until its grace is over and the leader
// has confirmed that the StateContext does not place it here (IM-8).
type orphan struct {
	meta  storage.Meta
	epoch uint64
	found time.Time // by this process, under that epoch
	bytes uint64
}

// named returns the copies of the list before d, when d follows it in the same epoch of the same cluster: what d lacks
// of them was taken away by a commit. Of any other copy nobody here knows why it is not in d.
func (x *Indexer) named(d *wire.Definitions) map[index.CopyID]core.Wanted {
	was, follows := x.catalog.Before(d)
	if !follows {
		return nil
	}
	node, ok := x.nodeOf(&was)
	if !ok {
		return nil
	}
	return core.Placed(&was, node)
}

// letGo drops the copies that were named before and are not wanted now, and makes orphans of the others that are not
// wanted.
func (x *Indexer) letGo(ctx context.Context, f wire.Fence, want, named map[index.CopyID]core.Wanted) error {
	g := errgroup.Group{}
	g.SetLimit(allocateAtOnce)
	defer func() { _ = g.Wait() }() // when it is given up in the middle
	for _, s := range x.store.Slices() {
		m := s.Meta()
		if _, ok := want[m.Copy]; ok {
			continue
		}
		if w, ok := named[m.Copy]; ok && is(w, m) {
			g.Go(func() error { return x.dropCopySoon(ctx, s) })
			continue
		}
		if !x.isOrphan(m.Copy) {
			if err := x.closeCopy(ctx, s); err != nil {
				return err
			}
		}
		x.setOrphan(m, f.Epoch, diskBytes(s))
	}
	for _, d := range x.store.Damaged() { // one that is wanted was replaced
		if _, ok := want[d.Copy]; !ok && d.Copy != 0 {
			x.setOrphan(storage.Meta{Copy: d.Copy}, f.Epoch, d.Bytes)
		}
	}
	return g.Wait()
}

func (x *Indexer) setOrphan(m storage.Meta, epoch, bytes uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if o := x.orphans[m.Copy]; o != nil && o.epoch == epoch {
		return
	}
	x.orphans[m.Copy] = &orphan{meta: m, epoch: epoch, found: x.now(), bytes: bytes}
	x.log.Warn("a copy is here that the definitions do not have: an orphan, kept for now", "copy", m.Copy, "index",
		m.Index, "slice", m.Slice,
		"bucket", m.Bucket, "bytes", bytes, "grace", x.cfg.OrphanGrace)
}

// claim forgets an orphan that is wanted or gone; true when it was one.
func (x *Indexer) claim(id index.CopyID) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	_, was := x.orphans[id]
	delete(x.orphans, id)
	return was
}

func (x *Indexer) isOrphan(id index.CopyID) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.orphans[id] != nil
}

// sizeOrphan notes how large a copy is; false when it is none.
func (x *Indexer) sizeOrphan(s *storage.Slice) bool {
	if !x.isOrphan(s.Meta().Copy) {
		return false
	}
	bytes := diskBytes(s)
	x.mu.Lock()
	defer x.mu.Unlock()
	if o := x.orphans[s.Meta().Copy]; o != nil {
		o.bytes = bytes
	}
	return true
}

func diskBytes(s *storage.Slice) uint64 { return uint64(max(s.Stats().DiskBytes, 0)) }

// left is the rest of an orphan's grace in milliseconds, see wire.Orphan.
func (x *Indexer) left(o *orphan) int64 {
	if x.cfg.OrphanGrace < 0 {
		return -1
	}
	rest := x.cfg.OrphanGrace - x.now().Sub(o.found)
	if rest <= 0 {
		return 0
	}
	return max(rest.Milliseconds(), 1)
}

// toldOrphans lists the orphans, the oldest first, as far as a report may; the number and the bytes are of all.
func (x *Indexer) toldOrphans() (list []wire.Orphan, count int, bytes uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for id, o := range x.orphans {
		list = append(list, wire.Orphan{Copy: id, Index: o.meta.Index, Slice: o.meta.Slice, Bucket: o.meta.Bucket,
			Bytes:   o.bytes,
			SinceMS: o.found.UnixMilli(), LeftMS: x.left(o)})
		bytes += o.bytes
	}
	slices.SortFunc(list, func(a, b wire.Orphan) int {
		return cmp.Or(cmp.Compare(a.SinceMS, b.SinceMS), cmp.Compare(a.Copy, b.Copy))
	})
	count = len(list)
	return list[:min(count, wire.MaxOrphans)], count, bytes
}

// dropOrphans drops what the leader has confirmed, as far as it still is an orphan whose grace is over.
func (x *Indexer) dropOrphans(ctx context.Context, req *wire.DropOrphans) (*wire.DropOrphansReply, error) {
	if err := x.identity.admit(req.Fence); err != nil {
		return nil, err
	}
	x.applying.Lock()
	defer x.applying.Unlock()
	reply := &wire.DropOrphansReply{}
	for _, r := range req.Copies {
		x.mu.Lock()
		o := x.orphans[r.Copy]
		ok := o != nil && o.meta.Index == r.Index && o.epoch == req.Fence.Epoch && x.left(o) == 0
		x.mu.Unlock()
		if !ok {
			continue
		}
		if gone, err := x.dropOrphan(ctx, r.Copy); err != nil {
			return nil, err
		} else if !gone {
			continue
		}
		x.log.Warn("an orphan's grace is over and the leader does not know it: it is dropped", "copy", r.Copy, "index",
			r.Index)
		reply.Dropped = append(reply.Dropped, r)
	}
	wake(x.report)
	return reply, nil
}

// dropOrphan drops a copy, or the folder that cannot be opened as one; false when neither is here.
func (x *Indexer) dropOrphan(ctx context.Context, id index.CopyID) (gone bool, err error) {
	if s, here := x.store.Slice(id); here {
		return true, x.dropCopySoon(ctx, s)
	}
	if gone, err = x.store.DropDamaged(id); gone {
		x.claim(id)
	}
	return gone, err
}
