package indexer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"go.opentelemetry.io/otel/trace"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/copies"
	"tidemark/indexer/core"
	"tidemark/indexer/health"
	"tidemark/indexer/storage"
	"tidemark/internal/rpc"
	"tidemark/partition"
	"tidemark/wire"
)

// copiesSource is the health source of writes that a list of definitions causes.
const copiesSource = "copies"

// nodeOf returns this indexer's node number according to the definitions, else according to its registration.
func (x *Indexer) nodeOf(d *wire.Definitions) (index.NodeID, bool) {
	id := x.identity.get()
	for _, e := range d.Indexers {
		if e.UUID == id.UUID {
			return e.Node, true
		}
	}
	return id.Node, id.ClusterID != ""
}

// resume puts the definitions of the last run in force, so that this indexer serves its copies before a leader has
// contacted it. It neither makes nor drops a copy, because the stored list may be outdated. It does nothing if a
// leader has already sent a list.
func (x *Indexer) resume() error {
	x.applying.Lock()
	defer x.applying.Unlock()
	d, cut, err := x.kept.load()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if cut {
		x.log.Warn("last change of the definitions was not stored completely: the definitions before it are in force until "+
			"the leader sends new ones", "file", definitionsFile, "revision", d.Revision)
	}
	node, ok := x.nodeOf(d)
	if !ok || x.present().Revision > 0 {
		return nil
	}
	// The list keeps a bucket even if it has no copies here, because the bucket remembers which incarnations it
	// refuses.
	next, err := x.buckets.next(d, x.newBucket)
	if err != nil {
		return err
	}
	x.buckets.replace(next)
	all := map[index.CopyID]*target{}
	for id, w := range core.Placed(d, node) {
		if x.has(id, &w) {
			all[id] = &target{want: &w, bucket: x.bucketNamed(w.Bucket.Name)}
		}
	}
	within, cancel := context.WithTimeout(context.Background(), x.places.patience)
	defer cancel()
	a := x.aim(all)
	await(within, a.makes)
	a.detached.Store(true)
	x.catalog.Resume(d)
	return nil
}

// definitions makes this indexer match a list: it stores the list, makes copies that are missing and drops the copies
// that the previous list had and this one lacks; other copies become orphans. Each copy has its own reconciler, see
// places. The reply confirms that all of this is done, except for copies that cannot be made or take too long:
// reports leave those out.
func (x *Indexer) definitions(ctx context.Context, d *wire.Definitions) (*wire.DefinitionsReply, error) {
	if err := x.admit(d.Fence); err != nil {
		return nil, err
	}
	return x.obey(ctx, d, nil)
}

// obey takes over a list. c is the change that d was derived from, or nil. obey returns when reconcilers have tried
// to reach what the list wants, or after listPatience. The next list does not wait for them.
func (x *Indexer) obey(ctx context.Context, d *wire.Definitions, c *wire.DefinitionsChange) (*wire.DefinitionsReply,
	error) {
	below, span := rpc.StartSpan(ctx, "make copies")
	a, err := x.takeOver(below, d, c)
	if err != nil || a.detached == nil { // the list is already in force
		rpc.EndSpan(ctx, span, err)
		return &wire.DefinitionsReply{Revision: d.Revision}, err
	}
	tried := make(chan struct{})
	x.spawn(func(inner context.Context) error {
		defer close(tried)
		within, cancel := context.WithTimeout(inner, x.places.patience)
		defer cancel()
		await(within, a.makes)
		a.detached.Store(true) // before reports include the new copies
		rpc.EndSpan(ctx, span, nil)
		x.catalog.Made(a.making)
		wake(x.report)
		x.sides.Wake()
		_, span := rpc.StartSpan(ctx, "drop copies")
		await(within, a.others)
		rpc.EndSpan(ctx, span, nil)
		return nil
	})
	await(ctx, []<-chan struct{}{tried})
	return &wire.DefinitionsReply{Revision: d.Revision}, nil
}

// takeOver puts a list in force. The only thing it waits for is the disk write of the list itself.
func (x *Indexer) takeOver(ctx context.Context, d *wire.Definitions, c *wire.DefinitionsChange) (a aimed, err error) {
	x.applying.Lock()
	defer x.applying.Unlock()
	judged, have := x.catalog.Judge(d)
	if judged == core.Older {
		return a, rpc.Refuse(errcode.Fenced, "definitions revision %d is older than the present one, %d", d.Revision, have)
	}
	node, ok := x.nodeOf(d)
	if !ok {
		return a, rpc.Refuse(errcode.Unavailable, "this indexer is not registered yet, or the list lacks it")
	}
	if judged == core.Known {
		return a, nil
	}
	core.Sort(d)
	// An unchanged list is not stored: the stored revision does not matter at the next start.
	if x.kept.revision > 0 && x.catalog.NothingNew(d) {
		x.kept.same(d)
		return a, nil
	}
	next, err := x.buckets.next(d, x.newBucket)
	if err != nil { // the stored list stays in force
		return a, err
	}
	_, span := rpc.StartSpan(ctx, "store definitions")
	err = x.watched(copiesSource, "storing definitions", func() error { return x.kept.store(d, c) })
	rpc.EndSpan(ctx, span, err)
	if x.health.Set(copiesSource, "") {
		wake(x.report)
	}
	if err != nil { // nothing of the list may take effect
		next.drop()
		return a, rpc.Refuse(errcode.Unavailable, "storing definitions: %v", err)
	}
	x.buckets.replace(next)
	x.managers.SetManagers(d.Managers)
	a = x.aim(x.aims(d, core.Placed(d, node), x.named(d), trace.SpanContextFromContext(ctx)))
	x.catalog.Take(d)
	return a, nil
}

// watched runs f, a write to disk. If f takes too long, the node's health reports it under source until the caller
// clears that source.
func (x *Indexer) watched(source, what string, f func() error) error {
	return x.health.Watch(source, what, health.Hangs, func() {
		x.log.Error("write does not end: the disk hangs, or is far too slow", "what", what, "for", health.Hangs)
		wake(x.report)
	}, f)
}

// change applies a difference to the list in force. If the difference is based on another list, change replies
// Missing and changes nothing.
func (x *Indexer) change(ctx context.Context, c *wire.DefinitionsChange) (*wire.DefinitionsReply, error) {
	if err := x.admit(c.Fence); err != nil {
		return nil, err
	}
	base := x.present()
	d, err := c.Apply(&base)
	if err != nil {
		return &wire.DefinitionsReply{Revision: base.Revision, Missing: true}, nil //nolint:nilerr // it is in the reply
	}
	return x.obey(ctx, d, c)
}

// stored returns the identity of a copy on disk.
func stored(m storage.Meta) core.Stored {
	return core.Stored{Copy: m.Copy, Index: m.Index, CreatedMS: m.CreatedMS, BucketUUID: m.BucketUUID,
		VBuckets: m.VBuckets}
}

// ensureCopy makes the copy if it does not exist and attaches it to its bucket. It first drops a different copy with
// the same id.
func (x *Indexer) ensureCopy(ctx context.Context, id index.CopyID, t *target) error {
	w := t.want
	s, here := x.store.Slice(id)
	is := here && w.Is(stored(s.Meta()))
	if !is || x.places.of(id) != t.bucket {
		if err := x.closeCopy(ctx, id); err != nil {
			return err
		}
	}
	if here && !is {
		m := s.Meta()
		if !x.places.still(id, t) {
			return nil // by now this very copy may be wanted
		}
		x.log.Warn("copy belongs to another index, or its bucket was created again; it starts "+
			"empty", "copy", id, "bucket", m.Bucket,
			"index", m.Index, "want", w.Index.ID)
		remove, err := x.retireCopy(s)
		if err == nil {
			err = remove()
		}
		if err != nil {
			return err
		}
	}
	if !is {
		var err error
		if s, err = x.makeCopy(ctx, id, t); err != nil {
			return err
		}
	}
	// a list that wants the same copy may have hidden it meanwhile, because the old one was still here
	x.places.ifStill(id, t, func() { x.snapshots.Show(id) })
	if x.places.of(id) == t.bucket {
		return nil
	}
	if err := x.fills.Take(ctx, t.bucket, s, w.Others); err != nil {
		return err
	}
	x.places.give(id, t.bucket)
	return nil
}

// makeCopy creates a copy that does not exist.
func (x *Indexer) makeCopy(ctx context.Context, id index.CopyID, t *target) (*storage.Slice, error) {
	w := t.want
	s, err := x.store.Create(storage.Meta{
		Copy: id, Index: w.Index.ID, Slice: w.Copy.Slice, Bucket: w.Bucket.Name, BucketUUID: w.Bucket.UUID,
		VBuckets: w.Bucket.VBuckets, Desc: w.Index.Desc(), IsPrimary: w.Index.IsPrimary, CreatedMS: w.Index.CreatedMS,
	})
	if err != nil {
		return nil, err
	}
	x.origins.Made(trace.ContextWithSpanContext(ctx, t.by), id)
	if w.Copy.State == partition.Allocated {
		x.origins.Found(id)
		x.log.Warn("files of a copy are missing; it is filled from KV again", "copy", id, "index", w.Index.ID, "slice",
			w.Copy.Slice)
	}
	x.log.Info("copy allocated", "copy", id, "index", w.Index.ID, "slice", w.Copy.Slice, "bucket", w.Bucket.Name)
	return s, nil
}

// closeCopy detaches a copy from its bucket and from scans.
func (x *Indexer) closeCopy(ctx context.Context, id index.CopyID) error {
	k := x.places.of(id)
	if k == nil {
		x.snapshots.Show(id)
		return nil
	}
	if err := x.fills.Drop(ctx, id); err != nil {
		return err
	}
	if err := k.Remove(ctx, id); err != nil {
		return err
	}
	x.snapshots.Drop(id)
	x.snapshots.Show(id)
	x.health.Set(copies.CopySource+id.String(), "")
	x.places.give(id, nil)
	return nil
}

// retireCopy removes a closed copy from the store for good. The caller runs remove, which is never nil when err is
// nil, to delete its files.
func (x *Indexer) retireCopy(s *storage.Slice) (remove func() error, err error) {
	m := s.Meta()
	x.node.Marks.Clear(m.Copy)
	remove, err = x.store.Retire(m.Copy)
	switch {
	case errors.Is(err, storage.ErrNotFound):
		remove = func() error { return nil }
	case err != nil:
		return nil, fmt.Errorf("dropping copy %s: %w", m.Copy, err)
	}
	x.orphans.claim(m.Copy)
	x.origins.Forget(m.Copy)
	x.log.Info("copy dropped", "copy", m.Copy, "index", m.Index, "bucket", m.Bucket)
	return remove, nil
}

// present returns the definitions in force.
func (x *Indexer) present() wire.Definitions { return x.catalog.Present() }

// settled returns the definitions in force. It waits for a list that is being taken over, whose copies may be made
// before it is in force.
func (x *Indexer) settled() wire.Definitions {
	x.applying.Lock()
	defer x.applying.Unlock()
	return x.present()
}
