package indexer

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

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
	core.Orphan
	meta  storage.Meta
	bytes uint64
}

// orphans are those that are here.
type orphans struct {
	grace time.Duration // below 0 for ever
	log   hclog.Logger
	now   func() time.Time

	mu  sync.Mutex // leaf
	all map[index.CopyID]*orphan
}

// named returns the copies of the list in force, when d follows it in the same epoch of the same cluster: what d lacks
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

func (o *orphans) set(m storage.Meta, epoch, bytes uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if was := o.all[m.Copy]; was != nil && was.Epoch == epoch {
		return
	}
	o.all[m.Copy] = &orphan{meta: m, bytes: bytes,
		Orphan: core.Orphan{Index: m.Index, Epoch: epoch, Found: o.now()}}
	o.log.Warn("a copy is here that the definitions do not have: an orphan, kept for now", "copy", m.Copy, "index",
		m.Index, "slice", m.Slice,
		"bucket", m.Bucket, "bytes", bytes, "grace", o.grace)
}

// claim forgets an orphan that is wanted or gone; true when it was one.
func (o *orphans) claim(id index.CopyID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, was := o.all[id]
	delete(o.all, id)
	return was
}

func (o *orphans) has(id index.CopyID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all[id] != nil
}

// of reports whether a copy is known as an orphan of an epoch.
func (o *orphans) of(id index.CopyID, epoch uint64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	one := o.all[id]
	return one != nil && one.Epoch == epoch
}

// size notes how large a copy is; false when it is none.
func (o *orphans) size(s *storage.Slice) bool {
	if !o.has(s.Meta().Copy) {
		return false
	}
	bytes := diskBytes(s)
	o.mu.Lock()
	defer o.mu.Unlock()
	if one := o.all[s.Meta().Copy]; one != nil {
		one.bytes = bytes
	}
	return true
}

func diskBytes(s *storage.Slice) uint64 { return uint64(max(s.Stats().DiskBytes, 0)) }

// left is the rest of an orphan's grace in milliseconds, see wire.Orphan.
func (o *orphans) left(one *orphan) int64 {
	rest := one.Left(o.grace, o.now())
	if rest <= 0 {
		return int64(rest)
	}
	return max(rest.Milliseconds(), 1)
}

// told lists the orphans, the oldest first, as far as a report may; the number and the bytes are of all.
func (o *orphans) told() (list []wire.Orphan, count int, bytes uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, one := range o.all {
		list = append(list, wire.Orphan{Copy: id, Index: one.meta.Index, Slice: one.meta.Slice, Bucket: one.meta.Bucket,
			Bytes:   one.bytes,
			SinceMS: one.Found.UnixMilli(), LeftMS: o.left(one)})
		bytes += one.bytes
	}
	slices.SortFunc(list, func(a, b wire.Orphan) int {
		return cmp.Or(cmp.Compare(a.SinceMS, b.SinceMS), cmp.Compare(a.Copy, b.Copy))
	})
	count = len(list)
	return list[:min(count, wire.MaxOrphans)], count, bytes
}

// due reports whether the leader of an epoch may have an orphan dropped, as a copy of an index.
func (o *orphans) due(id index.CopyID, of index.ID, epoch uint64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	one := o.all[id]
	return one != nil && one.Due(of, epoch, o.grace, o.now())
}

// dropOrphans drops what the leader has confirmed, as far as it still is an orphan whose grace is over. What takes
// longer than listPatience is no part of the answer, and goes on beside.
func (x *Indexer) dropOrphans(ctx context.Context, req *wire.DropOrphans) (*wire.DropOrphansReply, error) {
	if err := x.identity.admit(req.Fence); err != nil {
		return nil, err
	}
	due, a := x.dropDue(req)
	within, cancel := context.WithTimeout(ctx, x.places.patience)
	defer cancel()
	await(within, a.others)
	a.alone.Store(true)
	reply := &wire.DropOrphansReply{}
	for _, r := range req.Copies {
		if t := due[r.Copy]; t == nil || !t.gone.Load() {
			continue
		}
		reply.Dropped = append(reply.Dropped, r)
	}
	wake(x.report)
	return reply, nil
}

// dropDue lets the orphans go that may be dropped; no list may name one meanwhile.
func (x *Indexer) dropDue(req *wire.DropOrphans) (due map[index.CopyID]*target, a aimed) {
	x.applying.Lock()
	defer x.applying.Unlock()
	due = map[index.CopyID]*target{}
	for _, r := range req.Copies {
		if x.orphans.due(r.Copy, r.Index, req.Fence.Epoch) {
			due[r.Copy] = &target{drops: true, epoch: req.Fence.Epoch}
		}
	}
	return due, x.aim(due)
}
