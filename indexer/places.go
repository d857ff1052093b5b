package indexer

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"tidemark/index"
	"tidemark/indexer/copies"
	"tidemark/indexer/core"
	"tidemark/indexer/snapshots"
	"tidemark/indexer/storage"
	"tidemark/wire"
)

// Each copy has its own reconciler, which does what lists of definitions want of it, one thing after the other.
// Anything that touches a copy's files may hang with its disk; this way it delays neither other copies nor a list. A
// reconciler exists only while there is something to do.

const (
	// listPatience is how long the reply to a list waits for reconcilers. It is less than half of the time that the
	// leader waits for the reply. What takes longer continues in the background.
	listPatience = 2 * time.Second
	// makeFirst and makeMost bound the growing pause between attempts to make a copy.
	makeFirst = 100 * time.Millisecond
	makeMost  = 10 * time.Second
)

// makingSource and goingSource are prefixes of the health sources of copies that cannot be made or dropped. All other
// copies are written and served meanwhile.
const (
	makingSource = "making copy "
	goingSource  = "closing copy "
)

// target is the wanted state of a copy. It is immutable but for its synchronization fields.
type target struct {
	want   *core.Wanted   // nil: the copy is not wanted here
	bucket *copies.Bucket // bucket of the wanted copy
	// For a copy that is not wanted: the copies that commits removed together with it, and the epoch. A copy that
	// named does not contain becomes an orphan.
	named map[index.CopyID]core.Wanted
	epoch uint64
	drops bool              // drop an orphan whose grace period is over and which the leader does not know
	by    trace.SpanContext // span of the command that set the target

	once     sync.Once
	tried    chan struct{} // closed after the first attempt, or when another target replaces this one
	detached *atomic.Bool  // set when the command no longer waits; from then on the reconciler itself reports changes
	gone     atomic.Bool   // set when the copy was dropped
}

func (t *target) end() { t.once.Do(func() { close(t.tried) }) }

// covers reports whether reaching t also reaches o, another target of the same copy.
func (t *target) covers(id index.CopyID, o *target) bool {
	switch {
	case (t.want == nil) != (o.want == nil):
		return false
	case t.want != nil:
		return t.bucket == o.bucket && t.want.Index.ID == o.want.Index.ID && t.want.Index.CreatedMS == o.want.Index.CreatedMS
	case o.drops:
		return t.drops
	}
	_, taken := o.named[id] // named lacks the copies that earlier lists removed
	return t.epoch == o.epoch && !taken
}

// places tracks which bucket has each copy, and the reconcilers. While mu is held, only leaf locks are taken.
type places struct {
	makers   *makers
	patience time.Duration

	mu     sync.Mutex
	in     map[index.CopyID]*copies.Bucket // the bucket of each copy that has one
	active map[index.CopyID]*place         // copies with a reconciler
}

func newPlaces(patience time.Duration) places {
	return places{makers: newMakers(), patience: patience, in: map[index.CopyID]*copies.Bucket{},
		active: map[index.CopyID]*place{}}
}

// place is the state of one copy's reconciler.
type place struct {
	target *target
	began  time.Time     // start of the current attempt; zero between attempts
	news   chan struct{} // capacity 1: signals a new target
}

// of returns the bucket that has a copy, or nil.
func (p *places) of(id index.CopyID) *copies.Bucket {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.in[id]
}

// give records which bucket has a copy; nil: none.
func (p *places) give(id index.CopyID, k *copies.Bucket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if k == nil {
		delete(p.in, id)
	} else {
		p.in[id] = k
	}
}

// busy returns the copies with a reconciler.
func (p *places) busy() map[index.CopyID]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make(map[index.CopyID]bool, len(p.active))
	for id := range p.active {
		all[id] = true
	}
	return all
}

// ifStill runs f under the lock if t is the current target of a copy; f must not block.
func (p *places) ifStill(id index.CopyID, t *target, f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if one := p.active[id]; one != nil && one.target == t {
		f()
	}
}

// still reports whether t is the current target of a copy.
func (p *places) still(id index.CopyID, t *target) (is bool) {
	p.ifStill(id, t, func() { is = true })
	return is
}

// wanted returns the copies with a reconciler that are wanted here.
func (p *places) wanted() (ids []index.CopyID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, one := range p.active {
		if one.target.want != nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// aimLocked sets the target of a copy. begins reports that the copy has no reconciler yet, and that the caller must
// start one. tried is closed after the first attempt; it is nil if the caller need not wait, because the current
// attempt covers the target or hangs.
func (p *places) aimLocked(id index.CopyID, t *target) (begins bool, tried <-chan struct{}) {
	t.tried = make(chan struct{})
	one := p.active[id]
	switch {
	case one == nil:
		p.active[id] = &place{target: t, news: make(chan struct{}, 1)}
		return true, t.tried
	case one.target.covers(id, t):
		if one.began.IsZero() { // it pauses before its next attempt
			wake(one.news)
		}
		return false, nil
	}
	one.target.end()
	one.target = t
	wake(one.news)
	if !one.began.IsZero() && time.Since(one.began) > p.patience {
		return false, nil
	}
	return false, t.tried
}

// next starts an attempt and returns its target.
func (p *places) next(one *place) *target {
	p.mu.Lock()
	defer p.mu.Unlock()
	one.began = time.Now()
	return one.target
}

// tried records the result of an attempt and reports whether the copy needs no further one.
func (p *places) tried(id index.CopyID, one *place, t *target, err error) (settled bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t.end()
	one.began = time.Time{}
	if err != nil || one.target != t {
		return false
	}
	delete(p.active, id)
	return true
}

// aims returns the targets by which a list differs from what is here or in progress. named holds the copies of the
// list that d follows.
func (x *Indexer) aims(d *wire.Definitions, want, named map[index.CopyID]core.Wanted, by trace.SpanContext) (
	all map[index.CopyID]*target) {
	all = map[index.CopyID]*target{}
	p := &x.places
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, w := range want {
		k := x.bucketNamed(w.Bucket.Name)
		if p.active[id] != nil || p.in[id] != k || !x.has(id, &w) {
			all[id] = &target{want: &w, bucket: k, epoch: d.Fence.Epoch, by: by}
		}
	}
	lets := func(id index.CopyID) {
		_, wanted := want[id]
		if !wanted && id != 0 && (p.active[id] != nil || !x.orphans.of(id, d.Fence.Epoch)) {
			all[id] = &target{named: named, epoch: d.Fence.Epoch, by: by}
		}
	}
	for _, s := range x.store.Slices() {
		lets(s.Meta().Copy)
	}
	for _, c := range x.store.Damaged() {
		lets(c.Copy)
	}
	for id := range p.active {
		lets(id)
	}
	return all
}

// aimed is the result of aim. Side streams of the copies in making are held back until all of these are made.
type aimed struct {
	making        []index.CopyID
	makes, others []<-chan struct{} // closed after the first attempt for each copy
	detached      *atomic.Bool      // set by the caller when it stops waiting
}

// aim sets the targets of copies and starts the reconcilers that are missing.
func (x *Indexer) aim(all map[index.CopyID]*target) (a aimed) {
	p := &x.places
	begin, claimed := map[index.CopyID]*place{}, []*target{}
	var hidden []snapshots.Gone
	a.detached = &atomic.Bool{}
	p.mu.Lock()
	for id, t := range all {
		t.detached = a.detached
		begins, tried := p.aimLocked(id, t)
		if begins {
			begin[id] = p.active[id]
		}
		if t.want != nil && x.orphans.claim(id) && x.has(id, t.want) {
			claimed = append(claimed, t)
		}
		if gone := x.showOnly(id, t); !gone.None() {
			hidden = append(hidden, gone)
		}
		switch {
		case tried == nil:
		case t.want == nil:
			a.others = append(a.others, tried)
		default:
			if a.makes = append(a.makes, tried); !x.has(id, t.want) {
				a.making = append(a.making, id)
			}
		}
	}
	p.mu.Unlock()
	x.catalog.Expect(a.making)
	if len(hidden) > 0 {
		x.spawn(func(context.Context) error { // closing the last user of a file waits for its disk
			for _, g := range hidden {
				g.Close()
			}
			return nil
		})
	}
	for id, one := range begin {
		x.spawn(func(ctx context.Context) error {
			x.reconcile(ctx, id, one)
			return nil
		})
	}
	for _, t := range claimed {
		x.log.Info("orphaned copy is in the definitions again: it is used as it "+
			"is", "copy", t.want.Copy.ID, "index", t.want.Index.ID,
			"slice", t.want.Copy.Slice)
	}
	return a
}

// showOnly makes a wanted copy visible to scans, and hides a different copy of the same id until it is dropped, see
// closeCopy.
func (x *Indexer) showOnly(id index.CopyID, t *target) (gone snapshots.Gone) {
	if _, here := x.store.Slice(id); t.want == nil || !here {
		return gone
	}
	if !x.has(id, t.want) {
		return x.snapshots.Hide(id)
	}
	x.snapshots.Show(id)
	return gone
}

// has reports whether the store has the wanted copy rather than another one with its id.
func (x *Indexer) has(id index.CopyID, w *core.Wanted) bool {
	s, here := x.store.Slice(id)
	return here && w.Is(stored(s.Meta()))
}

// await waits until all channels are closed or ctx ends.
func await(ctx context.Context, all []<-chan struct{}) {
	for _, c := range all {
		select {
		case <-c:
		case <-ctx.Done():
			return
		}
	}
}

// reconcile works on the targets of a copy, one after the other, until the newest is reached.
func (x *Indexer) reconcile(ctx context.Context, id index.CopyID, one *place) {
	pause := makeFirst
	for ctx.Err() == nil {
		t := x.places.next(one)
		var remove func() error
		var err error
		x.places.makers.do(func() { remove, err = x.watchedTry(ctx, id, t) })
		if remove != nil { // the caller does not wait for the space to be freed
			t.end()
			if err := x.watched(goingSource+id.String(), "removing its files", remove); err != nil {
				x.log.Warn("files of a dropped copy stay on disk until the next start", "copy", id, "error", err)
			}
		}
		if ctx.Err() != nil {
			break
		}
		changed := x.noteTry(id, t, err)
		settled := x.places.tried(id, one, t, err)
		if changed || pause > makeFirst || t.detached.Load() { // otherwise the command reports all of its copies together
			wake(x.report)
			x.sides.Wake()
		}
		if settled {
			return
		}
		if err == nil {
			pause = makeFirst
			continue // the target has changed
		}
		again := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-one.news:
			pause = makeFirst
		case <-again.C:
			pause = min(2*pause, makeMost)
		}
		again.Stop()
	}
	x.places.next(one).end()
}

// noteTry sets or clears the health problem of a copy that cannot be made, and reports whether that changed anything.
func (x *Indexer) noteTry(id index.CopyID, t *target, err error) (changed bool) {
	why := ""
	if err != nil && t.want != nil && x.places.still(id, t) {
		why = "cannot be made: " + err.Error()
	}
	changed = x.health.Set(makingSource+id.String(), why)
	if changed && why != "" {
		x.log.Error("copy cannot be made; trying again", "copy", id, "error", err)
	}
	return x.health.Set(goingSource+id.String(), "") || changed
}

// watchedTry is try with the node's health reporting an attempt that takes too long.
func (x *Indexer) watchedTry(ctx context.Context, id index.CopyID, t *target) (remove func() error, err error) {
	source, what := goingSource+id.String(), "closing it"
	if t.want != nil {
		source, what = makingSource+id.String(), "making it"
	}
	err = x.watched(source, what, func() (err error) {
		remove, err = x.try(ctx, id, t)
		return err
	})
	return remove, err
}

// try makes one attempt to reach a target. remove, unless nil, deletes the files of a dropped copy.
func (x *Indexer) try(ctx context.Context, id index.CopyID, t *target) (remove func() error, err error) {
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case t.want != nil:
		return nil, x.ensureCopy(ctx, id, t)
	}
	s, here := x.store.Slice(id)
	switch {
	case !here && t.drops:
		gone, err := x.store.DropDamaged(id)
		if err != nil {
			x.log.Warn("folder without a readable copy cannot be dropped: it is kept as an orphan", "copy", id, "error", err)
			return nil, nil //nolint:nilerr // the leader asks again
		}
		x.orphans.claim(id)
		if gone {
			x.noteGone(id, 0, t)
		}
		return nil, nil
	case !here:
		x.notHere(id, t)
		return nil, nil
	case !t.drops && core.FateOf(stored(s.Meta()), nil, t.named) != core.Goes:
		bytes := diskBytes(s)
		x.places.ifStill(id, t, func() { x.orphans.set(s.Meta(), t.epoch, bytes) })
		return nil, x.closeCopy(ctx, id)
	}
	if err := x.closeCopy(ctx, id); err != nil {
		return nil, err
	}
	if !x.places.still(id, t) {
		return nil, nil // it may be wanted again by now, unchanged
	}
	if remove, err = x.retireCopy(s); err != nil {
		// the failure blocks nothing else, and the copy is dropped when its grace period is over
		x.log.Warn("copy cannot be dropped: it is closed, and kept as an orphan", "copy", id, "error", err)
		bytes := diskBytes(s)
		x.places.ifStill(id, t, func() { x.orphans.set(s.Meta(), t.epoch, bytes) })
		return nil, nil //nolint:nilerr // it was logged, and the copy is reported as an orphan
	}
	x.noteGone(id, s.Meta().Index, t)
	return remove, nil
}

// noteGone records that a copy was dropped, whether or not the command still waits for it.
func (x *Indexer) noteGone(id index.CopyID, of index.ID, t *target) {
	if t.gone.Store(true); t.drops {
		x.log.Warn("grace period of an orphaned copy is over and the leader does not have it: it is "+
			"dropped", "copy", id, "index", of)
	}
}

// notHere records that the store does not have a copy. A damaged folder in its place becomes an orphan.
func (x *Indexer) notHere(id index.CopyID, t *target) {
	x.places.ifStill(id, t, func() {
		for _, d := range x.store.Damaged() {
			if d.Copy == id {
				x.orphans.set(storage.Meta{Copy: id}, t.epoch, d.Bytes)
				return
			}
		}
		x.orphans.claim(id)
	})
}
