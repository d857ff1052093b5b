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

// orphan is a copy on this node that no list of the present epoch has contained. Its index may have been removed by a
// restore, or its folder may have been copied here from elsewhere; then it may be damaged, or hold another copy than
// its name states. It is kept, but neither served nor fed nor checkpointed, until a list contains it again, or until
// its grace period is over and the leader has confirmed that the StateContext does not place it here (IM-8).
type orphan struct {
	core.Orphan
	meta  storage.Meta
	bytes uint64
}

// orphans tracks the orphans on this node.
type orphans struct {
	grace time.Duration // below 0: forever
	log   hclog.Logger
	now   func() time.Time

	mu  sync.Mutex // leaf: no other lock is taken under it
	all map[index.CopyID]*orphan
}

// named returns the copies of the list in force, if d follows it in the same epoch of the same cluster: then a commit
// removed those of them that d lacks. For any other copy the reason why d lacks it is unknown.
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
	o.log.Warn("copy is not in the definitions: kept as an orphan for now", "copy", m.Copy, "index",
		m.Index, "slice", m.Slice,
		"bucket", m.Bucket, "bytes", bytes, "grace", o.grace)
}

// claim forgets an orphan that is wanted again or gone, and reports whether it was one.
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

// of reports whether a copy is recorded as an orphan of an epoch.
func (o *orphans) of(id index.CopyID, epoch uint64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	one := o.all[id]
	return one != nil && one.Epoch == epoch
}

// size updates the recorded size of an orphan, and reports whether the copy is one.
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

// left returns the rest of an orphan's grace period in milliseconds, see wire.Orphan.
func (o *orphans) left(one *orphan) int64 {
	rest := one.Left(o.grace, o.now())
	if rest <= 0 {
		return int64(rest)
	}
	return max(rest.Milliseconds(), 1)
}

// report returns the orphans for a report, oldest first and at most wire.MaxOrphans, and the count and bytes of all
// orphans.
func (o *orphans) report() (list []wire.Orphan, count int, bytes uint64) {
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

// due reports whether the leader of an epoch may have an orphan dropped as a copy of the given index.
func (o *orphans) due(id index.CopyID, of index.ID, epoch uint64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	one := o.all[id]
	return one != nil && one.Due(of, epoch, o.grace, o.now())
}

// dropOrphans drops the copies that the leader has confirmed, as far as they are still orphans whose grace period is
// over. A drop that takes longer than listPatience continues in the background and is missing from the reply.
func (x *Indexer) dropOrphans(ctx context.Context, req *wire.DropOrphans) (*wire.DropOrphansReply, error) {
	if err := x.identity.admit(req.Fence); err != nil {
		return nil, err
	}
	due, a := x.dropDue(req)
	within, cancel := context.WithTimeout(ctx, x.places.patience)
	defer cancel()
	await(within, a.others)
	a.detached.Store(true)
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

// dropDue starts dropping the orphans that are due. It excludes lists of definitions, which could want one of them
// again.
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
