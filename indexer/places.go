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

// What lists of definitions want of a copy is done by a reconciler of that copy alone, one thing after the other:
// whatever touches its files may hang with their disk, and holds up no other copy, and no list. A reconciler lives for
// as long as there is something to do.

const (
	// listPatience is how long the answer to a list waits for what reconcilers do: less than half of what the leader
	// waits for it. What takes longer goes on beside.
	listPatience = 2 * time.Second
	// makeFirst and makeMost bound the growing pause before a copy is made again that could not be.
	makeFirst = 100 * time.Millisecond
	makeMost  = 10 * time.Second
)

// makingSource and goingSource begin the names under which the node's health has a copy that cannot be made, or let go
// of: all others are written and served meanwhile.
const (
	makingSource = "making copy "
	goingSource  = "letting go of copy "
)

// target is what is wanted of a copy. It is not changed.
type target struct {
	want   *core.Wanted   // nil: it is not to be here
	bucket *copies.Bucket // that is to have it
	// Of one that is not wanted: what a commit took away with it, and in which epoch. Any other one is an orphan.
	named map[index.CopyID]core.Wanted
	epoch uint64
	drops bool              // an orphan whose grace is over, and which the leader does not know
	by    trace.SpanContext // of who wants it

	once  sync.Once
	tried chan struct{} // closed when it was tried once, or is not wanted so any more
	alone *atomic.Bool  // who wants it waits for it no more, and tells nobody of it
	gone  atomic.Bool   // what drops says is done
}

func (t *target) end() { t.once.Do(func() { close(t.tried) }) }

// covers reports whether what is being done for t is what another target of the copy wants, too.
func (t *target) covers(id index.CopyID, o *target) bool {
	switch {
	case (t.want == nil) != (o.want == nil):
		return false
	case t.want != nil:
		return t.bucket == o.bucket && t.want.Index.ID == o.want.Index.ID && t.want.Index.CreatedMS == o.want.Index.CreatedMS
	case o.drops:
		return t.drops
	}
	_, taken := o.named[id] // a list does not know what those before the last one took away
	return t.epoch == o.epoch && !taken
}

// places is where copies lie. Under its lock nothing waits but for leaves.
type places struct {
	makers   *makers
	patience time.Duration

	mu    sync.Mutex
	in    map[index.CopyID]*copies.Bucket // that have copies
	under map[index.CopyID]*place         // with which something is done, or to be done again
}

func newPlaces(patience time.Duration) places {
	return places{makers: newMakers(), patience: patience, in: map[index.CopyID]*copies.Bucket{},
		under: map[index.CopyID]*place{}}
}

// place is that of one copy.
type place struct {
	target *target
	began  time.Time     // what is being done now
	news   chan struct{} // capacity 1: there is another target
}

// of returns the bucket that has a copy.
func (p *places) of(id index.CopyID) *copies.Bucket {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.in[id]
}

// give notes which bucket has a copy; nil: none has.
func (p *places) give(id index.CopyID, k *copies.Bucket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if k == nil {
		delete(p.in, id)
	} else {
		p.in[id] = k
	}
}

// busy are the copies with which something is done.
func (p *places) busy() map[index.CopyID]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make(map[index.CopyID]bool, len(p.under))
	for id := range p.under {
		all[id] = true
	}
	return all
}

// ifStill does f unless there is another target of a copy; f waits for nothing.
func (p *places) ifStill(id index.CopyID, t *target, f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if one := p.under[id]; one != nil && one.target == t {
		f()
	}
}

// still reports whether a target of a copy is the newest one.
func (p *places) still(id index.CopyID, t *target) (is bool) {
	p.ifStill(id, t, func() { is = true })
	return is
}

// wanted are the busy copies that are to be here.
func (p *places) wanted() (ids []index.CopyID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, one := range p.under {
		if one.target.want != nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// aimLocked takes over a target. begins says that the copy has no reconciler yet; tried is closed when the target was
// tried; nil: nobody is to wait for that, as it is being done already, or what is being done hangs.
func (p *places) aimLocked(id index.CopyID, t *target) (begins bool, tried <-chan struct{}) {
	t.tried = make(chan struct{})
	one := p.under[id]
	switch {
	case one == nil:
		p.under[id] = &place{target: t, news: make(chan struct{}, 1)}
		return true, t.tried
	case one.target.covers(id, t):
		if one.began.IsZero() { // it rests before the next try
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

// next returns what is to be done in a place.
func (p *places) next(one *place) *target {
	p.mu.Lock()
	defer p.mu.Unlock()
	one.began = time.Now()
	return one.target
}

// tried notes what became of a target. It reports whether nothing is to be done in the place any more.
func (p *places) tried(id index.CopyID, one *place, t *target, err error) (settled bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t.end()
	one.began = time.Time{}
	if err != nil || one.target != t {
		return false
	}
	delete(p.under, id)
	return true
}

// aims compares a list with what is here, and with what is being done already. named are those of the list that it
// follows.
func (x *Indexer) aims(d *wire.Definitions, want, named map[index.CopyID]core.Wanted, by trace.SpanContext) (
	all map[index.CopyID]*target) {
	all = map[index.CopyID]*target{}
	p := &x.places
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, w := range want {
		k := x.bucketNamed(w.Bucket.Name)
		if p.under[id] != nil || p.in[id] != k || !x.has(id, &w) {
			all[id] = &target{want: &w, bucket: k, epoch: d.Fence.Epoch, by: by}
		}
	}
	lets := func(id index.CopyID) {
		_, wanted := want[id]
		if !wanted && id != 0 && (p.under[id] != nil || !x.orphans.of(id, d.Fence.Epoch)) {
			all[id] = &target{named: named, epoch: d.Fence.Epoch, by: by}
		}
	}
	for _, s := range x.store.Slices() {
		lets(s.Meta().Copy)
	}
	for _, c := range x.store.Damaged() {
		lets(c.Copy)
	}
	for id := range p.under {
		lets(id)
	}
	return all
}

// aimed is what reconcilers were let do. Of copies that are made side streams wait for each other.
type aimed struct {
	making        []index.CopyID
	makes, others []<-chan struct{} // closed when each was tried once
	alone         *atomic.Bool      // nobody waits for them any more
}

// aim lets reconcilers do what is wanted of copies.
func (x *Indexer) aim(all map[index.CopyID]*target) (a aimed) {
	p := &x.places
	begin, claimed := map[index.CopyID]*place{}, []*target{}
	var hidden []snapshots.Gone
	a.alone = &atomic.Bool{}
	p.mu.Lock()
	for id, t := range all {
		t.alone = a.alone
		begins, tried := p.aimLocked(id, t)
		if begins {
			begin[id] = p.under[id]
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
		x.spawn(func(context.Context) error { // who closes the last one of files waits for their disk
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
		x.log.Info("an orphan is wanted again: it is taken over as it is", "copy", t.want.Copy.ID, "index", t.want.Index.ID,
			"slice", t.want.Copy.Slice)
	}
	return a
}

// showOnly lets scans see what is wanted: not another copy of its id that is here until it is let go of, see closeCopy.
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

// has reports whether a wanted copy is in the store, and not another one of its id.
func (x *Indexer) has(id index.CopyID, w *core.Wanted) bool {
	s, here := x.store.Slice(id)
	return here && w.Is(stored(s.Meta()))
}

// await waits until all are closed, or ctx ends.
func await(ctx context.Context, all []<-chan struct{}) {
	for _, c := range all {
		select {
		case <-c:
		case <-ctx.Done():
			return
		}
	}
}

// reconcile does what is wanted of a copy until it is done, one thing after the other.
func (x *Indexer) reconcile(ctx context.Context, id index.CopyID, one *place) {
	pause := makeFirst
	for ctx.Err() == nil {
		t := x.places.next(one)
		var remove func() error
		var err error
		x.places.makers.do(func() { remove, err = x.watchedTry(ctx, id, t) })
		if remove != nil { // nobody waits for its room
			t.end()
			if err := x.watched(goingSource+id.String(), "removing its files", remove); err != nil {
				x.log.Warn("a copy that was dropped leaves something on disk until the next start", "copy", id, "error", err)
			}
		}
		if ctx.Err() != nil {
			break
		}
		changed := x.noteTry(id, t, err)
		settled := x.places.tried(id, one, t, err)
		if changed || pause > makeFirst || t.alone.Load() { // else who wanted it tells of all together
			wake(x.report)
			x.sides.Wake()
		}
		if settled {
			return
		}
		if err == nil {
			pause = makeFirst
			continue // there is another target
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

// noteTry tells of a copy that cannot be made, or that it can. It reports whether that is new.
func (x *Indexer) noteTry(id index.CopyID, t *target, err error) (changed bool) {
	why := ""
	if err != nil && t.want != nil && x.places.still(id, t) {
		why = "cannot be made: " + err.Error()
	}
	changed = x.health.Set(makingSource+id.String(), why)
	if changed && why != "" {
		x.log.Error("a copy cannot be made; trying again", "copy", id, "error", err)
	}
	return x.health.Set(goingSource+id.String(), "") || changed
}

// watchedTry is try; the node's health says so when it takes too long.
func (x *Indexer) watchedTry(ctx context.Context, id index.CopyID, t *target) (remove func() error, err error) {
	source, what := goingSource+id.String(), "to let go of it"
	if t.want != nil {
		source, what = makingSource+id.String(), "making it"
	}
	err = x.watched(source, what, func() (err error) {
		remove, err = x.try(ctx, id, t)
		return err
	})
	return remove, err
}

// try does once what is wanted of a copy. remove, unless nil, makes the room of one free that was dropped.
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
			x.log.Warn("a folder that is no copy's cannot be dropped: it is kept as an orphan", "copy", id, "error", err)
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
		return nil, nil // it may be wanted again by now, as it is
	}
	if remove, err = x.retireCopy(s); err != nil {
		// it holds back nobody else, and is dropped when its grace is over
		x.log.Warn("a copy cannot be dropped: it is closed, and kept as an orphan", "copy", id, "error", err)
		bytes := diskBytes(s)
		x.places.ifStill(id, t, func() { x.orphans.set(s.Meta(), t.epoch, bytes) })
		return nil, nil //nolint:nilerr // it is told
	}
	x.noteGone(id, s.Meta().Index, t)
	return remove, nil
}

// noteGone notes that a copy was dropped, also one for which nobody waits any more.
func (x *Indexer) noteGone(id index.CopyID, of index.ID, t *target) {
	if t.gone.Store(true); t.drops {
		x.log.Warn("an orphan's grace is over and the leader does not know it: it is dropped", "copy", id, "index", of)
	}
}

// notHere notes that a copy is not here, or a damaged folder in its place.
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
