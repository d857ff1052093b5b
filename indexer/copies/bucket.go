// Package copies is what a node holds of buckets, and what it does with it: each bucket has a loop that owns the state
// of its copies (package ingest) and takes what streams bring, and lanes in which what the loop hands out is written.
//
// It promises that an event that was taken is written or comes again; that each copy writes in the order in which it
// was handed out, and waits for no other; that queues are bounded and who meets a bound waits; that a copy that was let
// go is not written to any more. It never decides which copies are here, and asks nobody for what they lack.
package copies

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/index"
	"tidemark/indexer/core"
	"tidemark/indexer/health"
	"tidemark/indexer/packed"
	"tidemark/indexer/snapshots"
	"tidemark/indexer/storage"
	"tidemark/ingest"
	"tidemark/keyversion"
	"tidemark/timestamp"
	"tidemark/wire"
)

const (
	// sideBatch is how many bytes of side streams are written at once: what is written, and with it what a build has
	// reached and what a crash takes away, moves in steps of that size.
	sideBatch = 1 << 20
	// sideRoom is how many bytes of side streams one bucket holds, a quarter of its queue at most. It is enough to keep
	// the writer busy; more would wait here instead of at KV, and be sent again after a crash.
	sideRoom = 16 << 20
	// aheadBatch is how many bytes are written at once to make room in the queue: a stability timestamp waits no longer.
	aheadBatch = 8 << 20
	// sideTick is how often a bucket that holds something of side streams looks whether to write it although it is
	// little.
	sideTick = 40 * time.Millisecond
	// bucketTick is how often a bucket looks by itself at what could be written. Nothing waits for it: what makes
	// something possible comes as a batch with a SYNC or what begins or ends a stream, as a call (a stability timestamp,
	// a rollback, a copy), or as the end of a write.
	bucketTick = 250 * time.Millisecond
)

var (
	// ErrBucketGone is wrapped when a bucket is asked for something and has gone.
	ErrBucketGone = errors.New("the bucket is not held here any more")
	// ErrUnwanted is wrapped when a copy that was to be taken away is not where it was.
	ErrUnwanted = errors.New("the copy is whole or gone")
)

// Bucket is one bucket on this node: a loop that owns the ingest state, and lanes in which what it hands out is
// written.
type Bucket struct {
	node     *Node
	log      hclog.Logger
	name     string
	uuid     string
	vbuckets int

	in      *intake
	calls   calls
	results chan result
	told    told

	// of the loop
	st        *core.Bucket
	work      *core.Work
	slices    map[index.CopyID]*storage.Slice
	away      map[index.CopyID]*storage.Slice // taken away for a while, see TakeAway
	lanes     copyLanes
	spreaders packed.Spreaders
	wrong     wrong
	sizes     sizes
	backs     backs
	all       bool // what is no whole batch of side streams is to be written, too

	beside sync.WaitGroup // see aside
}

// told is what others read beside the loop.
type told struct {
	queueBytes atomic.Int64
	flushed    atomic.Pointer[wire.StabilityRef] // newest one that was flushed, exactly or not
	generation atomic.Uint64
	rollback   atomic.Uint64          // highest rollback id
	judged     atomic.Pointer[judged] // what SetGeneration says and the loop has not taken over
}

// judged is by what stability timestamps are judged.
type judged struct{ generation, rollbackID uint64 }

// NewBucket returns one without copies; Run is its loop.
func NewBucket(n *Node, b wire.Bucket) (*Bucket, error) {
	k := &Bucket{
		node: n, log: n.Log.With("bucket", b.Name), name: b.Name, uuid: b.UUID, vbuckets: b.VBuckets,
		in: newIntake(n.Queue), calls: newCalls(), results: make(chan result),
		slices: map[index.CopyID]*storage.Slice{}, away: map[index.CopyID]*storage.Slice{},
		lanes: newCopyLanes(), wrong: newWrong(), sizes: newSizes(),
		backs: backs{shut: map[index.CopyID]*lane{}, leaving: map[index.CopyID]<-chan struct{}{}},
	}
	st, err := core.NewBucket(&b, b.VBuckets, k.in.mem.Pack)
	if err != nil {
		return nil, err
	}
	k.st, k.work = st, core.NewWork(st)
	k.tellBranch()
	k.in.mem.Refused = func(e *keyversion.Event, s *keyversion.Statement, key []byte) { n.Refused(k.name, e, s, key) }
	return k, nil
}

// Run is the bucket's loop together with its writers.
func (k *Bucket) Run(ctx context.Context) error {
	defer close(k.calls.done)
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	k.lanes.lanes = newLanes(k.node.processors(), func(n *lane, t task) { k.doTask(inner, n, t) })
	k.lanes.builds = k.node.Background
	k.backs.open = func(n *lane) { k.revive(inner, n) }
	k.loop(inner)
	close(k.calls.over)
	cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		k.lanes.close()
		k.beside.Wait()
	}()
	k.lets(ended)
	return nil
}

// Flushed implements holder, and so do Rollback and Gone.
func (k *Bucket) Flushed() *wire.StabilityRef { return k.told.flushed.Load() }

// Rollback is the newest rollback that was carried out.
func (k *Bucket) Rollback() uint64 { return k.told.rollback.Load() }

// Gone is closed when the bucket's loop has ended.
func (k *Bucket) Gone() <-chan struct{} { return k.calls.over }

// tellBranch lets others see by what stability timestamps are judged.
func (k *Bucket) tellBranch() {
	k.told.generation.Store(k.st.Generation())
	k.told.rollback.Store(k.st.RollbackID())
}

// full: the bucket holds as much as it may.
func (k *Bucket) full() bool { return int64(k.st.QueueBytes()) >= k.node.Queue() }

// SideFull reports whether the bucket holds as much of side streams as it may. It is asked in the loop.
func (k *Bucket) SideFull() bool {
	return int64(k.st.SideBytes()) >= min(sideRoom, k.node.Queue()/4) || k.full()
}

// finish takes over what writers have done.
func (k *Bucket) finish(r result) {
	switch {
	case r.reopened != nil:
		k.reopened(r.reopened)
	case r.shown != nil:
		k.tell(k.work.Served(r.shown.Handed, r.shown.missed()...))
	case r.ended != nil:
		k.ended(r.ended)
	case r.back != nil:
		k.restored(r.back)
	}
	first := false
	for _, id := range k.work.Clean() { // a copy that has no tombstones left is not looked through after a restart
		first = k.node.Marks.Clear(id) || first
	}
	if first {
		k.lanes.all.Go(k.keepMarks)
	}
}

// keepMarks stores that copies have no tombstones left. The node's health says so when that takes too long.
func (k *Bucket) keepMarks() {
	_ = k.node.Health.Watch(marksFile, "a write", health.Hangs, func() {
		k.log.Error("a write does not end: the disk hangs, or is far too slow", "file", marksFile, "for", health.Hangs)
		k.node.Report()
	}, func() error {
		k.node.Marks.Keep()
		return nil
	})
	if k.node.Health.Set(marksFile, "") {
		k.node.Report()
	}
}

// ended takes over that something is written.
func (k *Bucket) ended(u *underway) {
	if u.Batch != nil {
		k.node.Metrics.batch(u.Batch.Kind, k.node.Now().Sub(u.began))
		if !u.leaves { // else somebody may still look at it
			k.spreaders.Give(u.spreader)
		}
	}
	k.rowsGone(u)
	k.tell(k.work.Ended(u.Handed, u.missed()...))
}

// tell tells others of what is written.
func (k *Bucket) tell(all []core.Told) {
	for _, w := range all {
		if w.Acked {
			k.node.Report()
		}
		switch {
		case w.Shown:
			k.node.Touch(k.name)
			k.node.Report()
		case w.Batch.Kind == ingest.AtStability:
			k.noteFlushed(w.Batch.Ref)
		default:
			k.node.Sides()
		}
	}
}

// wentBack takes over that a copy's store had to be opened again, and has lost its newest batches: what is under way
// for it is lost, too.
func (k *Bucket) wentBack(n *lane) {
	delete(k.lanes.of, n.copy)
	delete(k.sizes.seen, n.copy)
	restoring := k.st.RestoringOf(n.copy) > 0
	if err := k.work.Reopened(n.copy, n.slice.Positions(), n.slice.Logs()); err != nil {
		k.log.Error("a recovered copy cannot be used", "copy", n.copy, "error", err)
	}
	k.fellBack(n.copy, k.holds(n.copy))
	k.retakeAgain()
	k.node.Sides()
	if restoring {
		k.lessRestoring()
	}
}

// tellBack tells the state what was restored.
func (k *Bucket) tellBack(all []restored) {
	if len(all) == 0 {
		return
	}
	for _, r := range all {
		k.st.Restored(r.what, r.position, r.log)
	}
	k.node.Sides()
	k.lessRestoring()
}

// lessRestoring tells those who wait for a rollback that something is back, or is not waited for any more.
func (k *Bucket) lessRestoring() {
	if k.st.Restoring() == 0 {
		gone := make([]snapshots.Gone, 0, len(k.slices))
		for id := range k.slices {
			gone = append(gone, k.node.Snapshots.DropParted(id))
		}
		k.letGo(gone...)
	}
	if k.backs.changed != nil {
		close(k.backs.changed)
		k.backs.changed = nil
	}
}

// noteFlushed lets scans see that nothing at or below a timestamp is still to come.
func (k *Bucket) noteFlushed(r timestamp.Ref) {
	ref := k.ref(r)
	if f := k.told.flushed.Load(); f == nil || f.Compare(ref.Ref) < 0 {
		k.told.flushed.Store(&ref)
	}
	k.node.Snapshots.Signal()
	k.node.Touch(k.name)
}

func (k *Bucket) ref(r timestamp.Ref) wire.StabilityRef {
	return wire.StabilityRef{Bucket: k.name, Ref: r}
}

// Do runs f in the loop, which owns the state, and waits for it. An error says that f has not run and never will.
func (k *Bucket) Do(ctx context.Context, f func(st *core.Bucket)) error {
	return k.do(ctx, func() { f(k.st) })
}

// Slice is a copy that is here; nil: it is not. It is asked in the loop.
func (k *Bucket) Slice(id index.CopyID) *storage.Slice { return k.slices[id] }

// QueueBytes is what events take that are not written.
func (k *Bucket) QueueBytes() int64 { return k.told.queueBytes.Load() }

// Generation is that of the bucket as KV has it.
func (k *Bucket) Generation() uint64 { return k.told.generation.Load() }

// Events calls f with each verdict on events that there was, and how often.
func (k *Bucket) Events(f func(v ingest.Verdict, n uint64)) {
	for v := range k.in.events {
		if n := k.in.events[v].n.Load(); n > 0 {
			f(ingest.Verdict(v), n)
		}
	}
}

// Stop ends the loop.
func (k *Bucket) Stop() { close(k.calls.stop) }

// Add takes an opened slice in. deferred: where nothing is in it, nothing of it is asked of KV before Undefer: it is
// filled by other means, and filling reports whether it is already. later: it is to be filled so.
func (k *Bucket) Add(ctx context.Context, s *storage.Slice, deferred bool,
	filling func(*storage.Slice) bool) (later bool, err error) {
	id, here := s.Meta().Copy, false
	has := func() bool { return k.slices[id] != nil || k.away[id] != nil } // the latter comes back by itself
	if err := k.do(ctx, func() { here = has() }); err != nil {
		return false, err
	}
	// An earlier process may have received files for it. That they go may hang: the loop knows of no copy before.
	if !here && !(deferred && Unfilled(s)) {
		if err := s.DropIncoming(); err != nil {
			k.log.Warn("files that were received for a copy stay for now", "copy", id, "error", err)
		}
	}
	if e := k.do(ctx, func() {
		if has() {
			// its removal may have been given up when nothing filled it any more
			later = k.slices[id] == s && k.st.Deferred(id) && !filling(s)
			return
		}
		stable, _ := s.Timestamp() // all zero until it was exact once; at an empty bucket that is judged anew
		if err = k.add(s, stable.Total() > 0); err == nil {
			later = deferred && Unfilled(s)
			k.st.Defer(id, later)
		}
	}); e != nil {
		return false, e
	}
	return later, err
}

// Unfilled reports whether a copy has nothing of what was before it.
func Unfilled(s *storage.Slice) bool {
	stable, _ := s.Timestamp()
	return stable.Total() == 0 && !slices.ContainsFunc(s.Positions(), func(p ingest.Position) bool { return p.Side > 0 })
}

// Undefer lets side streams be wanted for a copy, unless it is gone or may says no. One that was taken away and came
// back is wanted already.
func (k *Bucket) Undefer(ctx context.Context, s *storage.Slice, may func() bool) error {
	return k.do(ctx, func() {
		if id := s.Meta().Copy; k.slices[id] == s && may() {
			k.st.Defer(id, false)
		}
	})
}

// add takes a copy in with what its store holds; ready: it has been exact here. It runs in the loop.
func (k *Bucket) add(s *storage.Slice, ready bool) error {
	m := s.Meta()
	if err := k.st.Add(ingest.Copy{ID: m.Copy, Index: m.Index, Slice: m.Slice, Ready: ready, Positions: s.Positions(),
		Logs: s.Logs()}); err != nil {
		return err
	}
	k.slices[m.Copy] = s
	if k.node.Marks.Has(m.Copy) {
		k.work.PurgeAll(m.Copy)
	}
	return nil
}

// Remove lets a copy go, also one of a bucket that has gone; after it returns without an error nothing is written to it
// any more. A call that was given up is made again: it waits for the same.
func (k *Bucket) Remove(ctx context.Context, id index.CopyID) error {
	var waits []<-chan struct{}
	err := k.do(ctx, func() {
		delete(k.away, id)
		k.wrong.forget(id)
		waits = k.remove(id)
	})
	if errors.Is(err, ErrBucketGone) {
		waits, err = k.leave(ctx, id)
	}
	if err != nil {
		return err
	}
	return k.rest(ctx, waits)
}

// TakeAway lets a copy go for a while, unless may says no: it is not here until BringBack, and nothing is written to
// it, but lists of definitions take it for here.
func (k *Bucket) TakeAway(ctx context.Context, s *storage.Slice, may func(*core.Bucket) error) error {
	id := s.Meta().Copy
	var waits []<-chan struct{}
	var no error
	if err := k.do(ctx, func() {
		if no = may(k.st); no == nil && k.slices[id] != s {
			no = ErrUnwanted
		}
		if no == nil {
			k.away[id] = s
			k.wrong.forget(id)
			waits = k.remove(id)
		}
	}); err != nil || no != nil {
		return errors.Join(err, no)
	}
	return k.rest(ctx, waits)
}

// BringBack adds a copy again with what its store holds, unless it was let go meanwhile. It serves once it is exact
// here.
func (k *Bucket) BringBack(ctx context.Context, s *storage.Slice) error {
	id := s.Meta().Copy
	var added error
	err := k.do(ctx, func() {
		if k.away[id] == s {
			delete(k.away, id)
			added = k.add(s, false)
		}
	})
	return errors.Join(err, added)
}

// BringBackOpen is BringBack for a copy that has to be opened anew before, which goes on beside until it is done or the
// copy is let go.
func (k *Bucket) BringBackOpen(ctx context.Context, s *storage.Slice) error {
	return k.do(ctx, func() {
		if id := s.Meta().Copy; k.away[id] == s {
			n := &lane{copy: id, slice: s}
			n.lost.Store(true)
			k.shut(n)
			k.backs.open(n)
		}
	})
}

// remove lets a copy go. When all waits are over nothing is written to it any more. It runs in the loop.
func (k *Bucket) remove(id index.CopyID) (waits []<-chan struct{}) {
	restoring := k.st.RestoringOf(id) > 0
	n := k.lanes.of[id]
	k.work.Remove(id)
	waits = k.writersOf(id)
	delete(k.slices, id)
	delete(k.sizes.seen, id)
	delete(k.backs.shut, id)
	if restoring {
		k.lessRestoring()
	}
	if n != nil {
		k.giveUp(n)
	}
	return waits
}

// writersOf lets nothing more be written to a copy. When all waits are over nothing is. It runs in the loop, or when
// that has ended in its place.
func (k *Bucket) writersOf(id index.CopyID) (waits []<-chan struct{}) {
	waits = k.lanes.leave(id)
	if p := k.backs.under; p != nil && p.of[id] != nil {
		p.of[id].leave()
		k.backs.leaving[id] = p.of[id].ended
	}
	if ended := k.backs.leaving[id]; ended != nil {
		waits = append(waits, ended)
	}
	return waits
}

// rest waits for what remove gives.
func (k *Bucket) rest(ctx context.Context, waits []<-chan struct{}) error {
	for _, w := range waits {
		select {
		case <-w:
		case <-k.calls.done: // so have all writers
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// restoredSignal returns a channel that is closed when the next vbucket has been put back. It runs in the loop.
func (k *Bucket) restoredSignal() <-chan struct{} {
	if k.backs.changed == nil {
		k.backs.changed = make(chan struct{})
	}
	return k.backs.changed
}

// SetGeneration tells the loop by what stability timestamps are judged, before what it is told afterwards. It does not
// wait, however many commands do.
func (k *Bucket) SetGeneration(generation, rollbackID uint64) {
	k.told.judged.Store(&judged{generation, rollbackID})
	select {
	case k.calls.queue <- func() {}: // it may do nothing at present
	default:
	}
}

// takeGeneration takes over the newest one that was set. It runs in the loop.
func (k *Bucket) takeGeneration() {
	if j := k.told.judged.Swap(nil); j != nil {
		k.st.SetGeneration(j.generation, j.rollbackID)
	}
}
