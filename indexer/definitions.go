package indexer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

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

// copiesSource is what the node's health has writes under that a list of definitions causes.
const copiesSource = "copies"

// nodeOf returns the number that definitions know this indexer by.
func (x *Indexer) nodeOf(d *wire.Definitions) (index.NodeID, bool) {
	id := x.identity.get()
	for _, e := range d.Indexers {
		if e.UUID == id.UUID {
			return e.Node, true
		}
	}
	return id.Node, id.ClusterID != ""
}

// resume takes over the definitions of the last run, so that what is here is served before a leader has spoken. It
// neither makes nor drops a copy: what is stored may be newer. After a leader has spoken it does nothing.
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
		x.log.Warn("the newest change of definitions was not stored to its end: what it changed is as before, until the "+
			"leader has spoken", "file", definitionsFile, "revision", d.Revision)
	}
	node, ok := x.nodeOf(d)
	if !ok || x.present().Revision > 0 {
		return nil
	}
	if err := x.syncBuckets(d); err != nil {
		return err
	}
	want := core.Placed(d, node)
	for _, s := range x.store.Slices() {
		m := s.Meta()
		w, ok := want[m.Copy]
		if !ok || !w.Is(stored(m)) {
			continue
		}
		if err := x.fills.Take(context.Background(), x.bucketNamed(m.Bucket), s, w.Others); err != nil {
			return fmt.Errorf("copy %s: %w", m.Copy, err)
		}
	}
	x.catalog.Resume(d)
	return nil
}

// definitions makes what is here equal to a list: copies that are missing are made, then the list is stored, then what
// the list before named and this one does not is dropped; other copies are orphans. The answer says that all of it is
// done, but for copies that could not be made: they are not reported, see lacking.
func (x *Indexer) definitions(ctx context.Context, d *wire.Definitions) (*wire.DefinitionsReply, error) {
	if err := x.admit(d.Fence); err != nil {
		return nil, err
	}
	return x.obey(ctx, d, nil)
}

// obey takes a list over; c, unless nil, is what it was told by.
func (x *Indexer) obey(ctx context.Context, d *wire.Definitions, c *wire.DefinitionsChange) (*wire.DefinitionsReply,
	error) {
	x.applying.Lock()
	defer x.applying.Unlock()
	judged, have := x.catalog.Judge(d)
	if judged == core.Older {
		return nil, rpc.Refuse(errcode.Fenced, "definitions revision %d is older than %d, which is here", d.Revision, have)
	}
	node, ok := x.nodeOf(d)
	if !ok {
		return nil, rpc.Refuse(errcode.Unavailable, "this indexer is not registered yet and not in the list")
	}
	if judged == core.Known {
		return &wire.DefinitionsReply{Revision: have}, nil
	}
	core.Sort(d)
	// Where nothing is new nothing is written: a stored revision counts for nothing at the next start.
	if x.catalog.NothingNew(d) {
		x.kept.same(d)
		return &wire.DefinitionsReply{Revision: d.Revision}, nil
	}
	if err := x.syncBuckets(d); err != nil {
		return nil, err
	}
	want, named := core.Placed(d, node), x.named(d)
	x.catalog.Expect(d, want, x.has(want))
	x.lacking.list++
	err := x.arrange(ctx, d, c, want, named)
	if x.health.Set(copiesSource, "") {
		wake(x.report)
	}
	if err != nil {
		return nil, err
	}
	x.catalog.Take(d)
	x.laterMake(want)
	wake(x.report)
	x.sides.Wake()
	return &wire.DefinitionsReply{Revision: d.Revision}, nil
}

// arrange makes the copies that are missing, stores the list, and drops copies.
func (x *Indexer) arrange(ctx context.Context, d *wire.Definitions, c *wire.DefinitionsChange,
	want, named map[index.CopyID]core.Wanted) error {
	if err := x.ensureCopies(ctx, want); err != nil {
		return err
	}
	_, span := rpc.StartSpan(ctx, "store definitions")
	err := x.watched(copiesSource, "storing definitions", func() error { return x.kept.store(d, c) })
	rpc.EndSpan(ctx, span, err)
	if err != nil {
		return rpc.Refuse(errcode.Unavailable, "storing definitions: %v", err)
	}
	x.managers.SetManagers(d.Managers)
	_, span = rpc.StartSpan(ctx, "drop copies")
	err = x.letGo(ctx, d.Fence, want, named)
	rpc.EndSpan(ctx, span, err)
	return err
}

// watched does f, a write to disk; the node's health says so when it takes too long, until who calls clears the source.
func (x *Indexer) watched(source, what string, f func() error) error {
	return x.health.Watch(source, what, health.Hangs, func() {
		x.log.Error("a write does not end: the disk hangs, or is far too slow", "what", what, "for", health.Hangs)
		wake(x.report)
	}, f)
}

// change is definitions told by what has changed since the list that is in force. When another one is, it answers
// Missing and changes nothing.
func (x *Indexer) change(ctx context.Context, c *wire.DefinitionsChange) (*wire.DefinitionsReply, error) {
	if err := x.admit(c.Fence); err != nil {
		return nil, err
	}
	base := x.present()
	d, err := c.Apply(&base)
	if err != nil {
		return &wire.DefinitionsReply{Revision: base.Revision, Missing: true}, nil //nolint:nilerr // the answer says it
	}
	return x.obey(ctx, d, c)
}

// syncBuckets makes the loops of the buckets in the list run, and ends the others. A bucket stays for as long as the
// list has it, also without copies: it remembers which incarnations are refused.
func (x *Indexer) syncBuckets(d *wire.Definitions) error {
	gone, stay, err := x.buckets.replace(d, x.newBucket)
	for k, b := range stay { // without the lock: the bucket's loop takes it, and must come to the command
		k.SetGeneration(b.Generation, b.RollbackID)
	}
	for _, k := range gone { // what they have under way is done
		<-k.Gone()
	}
	return err
}

// stored is a copy as it lies here.
func stored(m storage.Meta) core.Stored {
	return core.Stored{Copy: m.Copy, Index: m.Index, CreatedMS: m.CreatedMS, BucketUUID: m.BucketUUID,
		VBuckets: m.VBuckets}
}

// ensureCopy makes the copy if it is not there and gives it to its bucket. One whose place it has is dropped.
func (x *Indexer) ensureCopy(ctx context.Context, id index.CopyID, w core.Wanted) error {
	s, ok := x.store.Slice(id)
	if ok && !w.Is(stored(s.Meta())) {
		m := s.Meta()
		x.log.Warn("a copy is of another index, or its bucket was made anew; it starts empty", "copy", id, "bucket", m.Bucket,
			"index", m.Index, "want", w.Index.ID)
		if err := x.dropCopy(ctx, s); err != nil {
			return err
		}
		ok = false
	}
	if !ok {
		if err := x.watched(copiesSource, fmt.Sprintf("making copy %s", id), func() (err error) {
			s, err = x.store.Create(storage.Meta{
				Copy: id, Index: w.Index.ID, Slice: w.Copy.Slice, Bucket: w.Bucket.Name, BucketUUID: w.Bucket.UUID,
				VBuckets: w.Bucket.VBuckets, Desc: w.Index.Desc(), IsPrimary: w.Index.IsPrimary, CreatedMS: w.Index.CreatedMS,
			})
			return err
		}); err != nil {
			return err
		}
		x.orphans.claim(id) // of a damaged folder that was here
		x.origins.Made(ctx, id)
		if w.Copy.State == partition.Allocated {
			x.origins.Found(id)
			x.log.Warn("a copy that was here is missing; it is filled from KV anew", "copy", id, "index", w.Index.ID, "slice",
				w.Copy.Slice)
		}
		x.log.Info("copy allocated", "copy", id, "index", w.Index.ID, "slice", w.Copy.Slice, "bucket", w.Bucket.Name)
	}
	if err := x.fills.Take(ctx, x.bucketNamed(w.Bucket.Name), s, w.Others); err != nil {
		return err
	}
	if x.orphans.claim(id) {
		x.log.Info("an orphan is wanted again: it is taken over as it is", "copy", id, "index", w.Index.ID, "slice",
			w.Copy.Slice)
	}
	return nil
}

// closeCopy takes a copy away from its bucket and from scans.
func (x *Indexer) closeCopy(ctx context.Context, s *storage.Slice) error {
	m := s.Meta()
	if err := x.fills.Drop(ctx, m.Copy); err != nil {
		return err
	}
	if k := x.bucketNamed(m.Bucket); k != nil {
		if err := k.Remove(ctx, m.Copy); err != nil && !errors.Is(err, copies.ErrBucketGone) {
			return err
		}
	}
	x.snapshots.Drop(m.Copy)
	x.health.Set(copies.CopySource+m.Copy.String(), "")
	return nil
}

// dropCopy drops a copy with all that it has on disk.
func (x *Indexer) dropCopy(ctx context.Context, s *storage.Slice) error {
	remove, err := x.retireCopy(ctx, s)
	if err != nil {
		return err
	}
	return remove()
}

// dropCopySoon drops a copy, and makes its room free beside whatever comes next: the next index need not wait for it.
func (x *Indexer) dropCopySoon(ctx context.Context, s *storage.Slice) error {
	remove, err := x.retireCopy(ctx, s)
	if err != nil {
		return err
	}
	x.spawn(func(context.Context) error {
		if err := remove(); err != nil {
			x.log.Warn("a copy that was dropped leaves something on disk until the next start", "copy", s.Meta().Copy, "error",
				err)
		}
		return nil
	})
	return nil
}

// retireCopy takes a copy away for good. remove is never nil.
func (x *Indexer) retireCopy(ctx context.Context, s *storage.Slice) (remove func() error, err error) {
	m := s.Meta()
	if err := x.closeCopy(ctx, s); err != nil {
		return nil, err
	}
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

// present returns the definitions that are in force.
func (x *Indexer) present() wire.Definitions { return x.catalog.Present() }

// has returns what reports whether a copy is here, and no other one has its place in a list.
func (x *Indexer) has(want map[index.CopyID]core.Wanted) func(index.CopyID) bool {
	return func(id index.CopyID) bool {
		s, here := x.store.Slice(id)
		w, is := want[id]
		return here && (!is || w.Is(stored(s.Meta())))
	}
}

// settled returns the definitions that are in force when no list is being taken over: copies are made before it is.
func (x *Indexer) settled() wire.Definitions {
	x.applying.Lock()
	defer x.applying.Unlock()
	return x.present()
}
