// Package copies holds a node's buckets. Each bucket has a loop, which owns the state of its copies (package ingest)
// and takes the events of streams, and lanes, which write the batches that the loop hands out.
//
// It guarantees that an event that was taken is written or streamed again; that each copy writes in the order in
// which batches were handed out, and waits for no other copy; that queues are bounded and block their producer when
// full; and that nothing is written to a copy after its removal. It neither decides which copies are on the node nor
// requests what they lack.
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
	// sideBatch is the number of bytes of side streams that one batch writes. A build's durable progress, and with it
	// what a crash takes away, moves in steps of that size.
	sideBatch = 1 << 20
	// sideRoom bounds the bytes of side streams that one bucket holds; a quarter of its queue is another bound. It is
	// enough to keep the writer busy; more would wait here instead of in KV, and be sent again after a crash.
	sideRoom = 16 << 20
	// aheadBatch is the number of bytes that one batch writes to make room in the queue. A stability timestamp waits
	// for one such batch at most.
	aheadBatch = 8 << 20
	// sideTick is the interval at which a bucket that holds events of side streams writes them even if they are less
	// than a batch.
	sideTick = 40 * time.Millisecond
	// bucketTick is the interval at which a bucket checks on its own for something to write. Nothing depends on it:
	// everything that makes work possible reaches the loop as a batch with a SYNC or the begin or end of a stream, as
	// a call (a stability timestamp, a rollback, a copy), or as the end of a write.
	bucketTick = 250 * time.Millisecond
)

var (
	// ErrBucketGone is wrapped when a call finds that the bucket's loop has ended.
	ErrBucketGone = errors.New("this indexer no longer holds the bucket")
	// ErrUnwanted is wrapped when TakeAway finds that the copy is not in the bucket, or must not be taken away.
	ErrUnwanted = errors.New("the copy is already complete, or gone")
)

// Bucket is one bucket on this node: a loop that owns the ingest state, and lanes that write the batches it hands
// out.
type Bucket struct {
	node     *Node
	log      hclog.Logger
	name     string
	uuid     string
	vbuckets int

	in      *intake
	calls   calls
	results chan result
	shared  shared

	// owned by the loop
	st        *core.Bucket
	work      *core.Work
	slices    map[index.CopyID]*storage.Slice
	away      map[index.CopyID]*storage.Slice // copies taken away temporarily, see TakeAway
	lanes     copyLanes
	spreaders packed.Spreaders
	wrong     wrong
	sizes     sizes
	backs     backs
	all       bool // write events of side streams even if they are less than a batch

	beside sync.WaitGroup // functions started by aside
}

// shared holds what goroutines other than the loop may read.
type shared struct {
	queueBytes atomic.Int64
	flushed    atomic.Pointer[wire.StabilityRef] // newest timestamp that was flushed, exactly or not
	generation atomic.Uint64
	rollback   atomic.Uint64          // highest rollback id
	judged     atomic.Pointer[judged] // set by SetGeneration and not yet applied by the loop
}

// judged is the generation and rollback id that stability timestamps are checked against.
type judged struct{ generation, rollbackID uint64 }

// NewBucket returns a bucket without copies. The caller must call Run.
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
	k.publishBranch()
	k.in.mem.Refused = func(e *keyversion.Event, s *keyversion.Statement, key []byte) { n.Refused(k.name, e, s, key) }
	return k, nil
}

// Run runs the bucket's loop and its writers until ctx ends or Stop is called.
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
	k.answerLeaves(ended)
	return nil
}

// Flushed implements snapshots.Bucket, as do Rollback and Gone.
func (k *Bucket) Flushed() *wire.StabilityRef { return k.shared.flushed.Load() }

// Rollback returns the id of the newest rollback that was carried out.
func (k *Bucket) Rollback() uint64 { return k.shared.rollback.Load() }

// Gone returns a channel that is closed when the bucket's loop has ended.
func (k *Bucket) Gone() <-chan struct{} { return k.calls.over }

// publishBranch publishes the generation and rollback id for readers outside the loop.
func (k *Bucket) publishBranch() {
	k.shared.generation.Store(k.st.Generation())
	k.shared.rollback.Store(k.st.RollbackID())
}

// full reports whether the bucket's queue is at its limit.
func (k *Bucket) full() bool { return int64(k.st.QueueBytes()) >= k.node.Queue() }

// SideFull reports whether the bucket holds its limit of side-stream events. It must be called in the loop.
func (k *Bucket) SideFull() bool {
	return int64(k.st.SideBytes()) >= min(sideRoom, k.node.Queue()/4) || k.full()
}

// finish processes a result of the writers.
func (k *Bucket) finish(r result) {
	switch {
	case r.reopened != nil:
		k.reopened(r.reopened)
	case r.shown != nil:
		k.announce(k.work.Served(r.shown.Handed, r.shown.missed()...))
	case r.ended != nil:
		k.ended(r.ended)
	case r.back != nil:
		k.restored(r.back)
	}
	first := false
	for _, id := range k.work.Clean() { // a copy without tombstones is not searched for them after a restart
		first = k.node.Marks.Clear(id) || first
	}
	if first {
		k.lanes.all.Go(k.keepMarks)
	}
}

// keepMarks stores which copies no longer have tombstones. The node's health reports it while it takes too long.
func (k *Bucket) keepMarks() {
	_ = k.node.Health.Watch(marksFile, "a write", health.Hangs, func() {
		k.log.Error("write does not end: the disk hangs, or is far too slow", "file", marksFile, "for", health.Hangs)
		k.node.Report()
	}, func() error {
		k.node.Marks.Keep()
		return nil
	})
	if k.node.Health.Set(marksFile, "") {
		k.node.Report()
	}
}

// ended records that a batch or purge has been written.
func (k *Bucket) ended(u *underway) {
	if u.Batch == nil {
		k.work.Purged(u.Purge, int(u.purged.Load()))
		return
	}
	k.node.Metrics.batch(u.Batch.Kind, k.node.Now().Sub(u.began))
	if !u.leaves { // otherwise a writer may still be reading it
		k.spreaders.Give(u.spreader)
	}
	k.rowsGone(u)
	k.announce(k.work.Ended(u.Handed, u.missed()...))
}

// announce notifies the leader, scans and side streams of completed batches.
func (k *Bucket) announce(all []core.Completion) {
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

// wentBack records that a copy's store was reopened and has lost its newest batches, including those in flight.
func (k *Bucket) wentBack(n *lane) {
	delete(k.lanes.of, n.copy)
	delete(k.sizes.seen, n.copy)
	restoring := k.st.RestoringOf(n.copy) > 0
	if err := k.work.Reopened(n.copy, n.slice.Positions(), n.slice.Logs()); err != nil {
		k.log.Error("recovered copy cannot be used", "copy", n.copy, "error", err)
	}
	k.searchTombstones(n.copy) // purges may be among what it has lost, or have failed while it was shut
	k.fellBack(n.copy, k.holds(n.copy))
	k.retakeAgain()
	k.node.Sides()
	if restoring {
		k.lessRestoring()
	}
}

// noteRestored passes the results of restores to the state.
func (k *Bucket) noteRestored(all []restored) {
	if len(all) == 0 {
		return
	}
	for _, r := range all {
		k.st.Restored(r.what, r.position, r.log)
	}
	k.node.Sides()
	k.lessRestoring()
}

// lessRestoring wakes calls that wait for a rollback, because a vbucket has been restored or no longer has to be.
func (k *Bucket) lessRestoring() {
	if k.st.Restoring() == 0 {
		gone := make([]snapshots.Gone, 0, len(k.slices))
		for id := range k.slices {
			gone = append(gone, k.node.Snapshots.DropParted(id))
		}
		k.closeSnapshots(gone...)
	}
	if k.backs.changed != nil {
		close(k.backs.changed)
		k.backs.changed = nil
	}
}

// noteFlushed publishes to scans that nothing at or below a timestamp is outstanding.
func (k *Bucket) noteFlushed(r timestamp.Ref) {
	ref := k.ref(r)
	if f := k.shared.flushed.Load(); f == nil || f.Compare(ref.Ref) < 0 {
		k.shared.flushed.Store(&ref)
	}
	k.node.Snapshots.Signal()
	k.node.Touch(k.name)
}

func (k *Bucket) ref(r timestamp.Ref) wire.StabilityRef {
	return wire.StabilityRef{Bucket: k.name, Ref: r}
}

// Do runs f in the loop, which owns the state, and waits for it. An error means that f has not run and never will.
func (k *Bucket) Do(ctx context.Context, f func(st *core.Bucket)) error {
	return k.do(ctx, func() { f(k.st) })
}

// Slice returns a copy of this bucket, or nil. It must be called in the loop.
func (k *Bucket) Slice(id index.CopyID) *storage.Slice { return k.slices[id] }

// QueueBytes returns the memory of events that are not written yet.
func (k *Bucket) QueueBytes() int64 { return k.shared.queueBytes.Load() }

// Generation returns the bucket's generation.
func (k *Bucket) Generation() uint64 { return k.shared.generation.Load() }

// Events calls f with each verdict on events that has occurred, and its count.
func (k *Bucket) Events(f func(v ingest.Verdict, n uint64)) {
	for v := range k.in.events {
		if n := k.in.events[v].n.Load(); n > 0 {
			f(ingest.Verdict(v), n)
		}
	}
}

// Stop ends the loop.
func (k *Bucket) Stop() { close(k.calls.stop) }

// Add adds an opened copy to the bucket. If deferred is set and the copy is empty, nothing is requested from KV for
// it before Undefer, because it is filled by other means; later reports that this is so. filling reports whether such
// a fill is already in progress.
func (k *Bucket) Add(ctx context.Context, s *storage.Slice, deferred bool,
	filling func(*storage.Slice) bool) (later bool, err error) {
	id, here := s.Meta().Copy, false
	has := func() bool { return k.slices[id] != nil || k.away[id] != nil } // a copy in away returns by itself
	if err := k.do(ctx, func() { here = has() }); err != nil {
		return false, err
	}
	// An earlier process may have received files for the copy. Deleting them may hang, so the loop does not get the
	// copy before.
	if !here && !(deferred && Unfilled(s)) {
		if err := s.DropIncoming(); err != nil {
			k.log.Warn("files received for a copy cannot be removed yet", "copy", id, "error", err)
		}
	}
	if e := k.do(ctx, func() {
		if has() {
			// the fill, and the copy with it, may have been given up
			later = k.slices[id] == s && k.st.Deferred(id) && !filling(s)
			return
		}
		stable, _ := s.Timestamp() // all zero until the copy was exact once; in an empty bucket it is decided again
		if err = k.add(s, stable.Total() > 0); err == nil {
			later = deferred && Unfilled(s)
			k.st.Defer(id, later)
		}
	}); e != nil {
		return false, e
	}
	return later, err
}

// Unfilled reports whether a copy was never exact and holds nothing from side streams.
func Unfilled(s *storage.Slice) bool {
	stable, _ := s.Timestamp()
	return stable.Total() == 0 && !slices.ContainsFunc(s.Positions(), func(p ingest.Position) bool { return p.Side > 0 })
}

// Undefer enables side streams for a copy, unless the copy has gone or may returns false. For a copy that was taken
// away and brought back they are enabled already.
func (k *Bucket) Undefer(ctx context.Context, s *storage.Slice, may func() bool) error {
	return k.do(ctx, func() {
		if id := s.Meta().Copy; k.slices[id] == s && may() {
			k.st.Defer(id, false)
		}
	})
}

// add adds a copy in the state that its store holds. ready is set if it has been exact. It runs in the loop.
func (k *Bucket) add(s *storage.Slice, ready bool) error {
	m := s.Meta()
	if err := k.st.Add(ingest.Copy{ID: m.Copy, Index: m.Index, Slice: m.Slice, Ready: ready, Positions: s.Positions(),
		Logs: s.Logs()}); err != nil {
		return err
	}
	k.slices[m.Copy] = s
	k.searchTombstones(m.Copy)
	return nil
}

// searchTombstones schedules the removal of all useless tombstones of a copy that is marked as one that may have some.
func (k *Bucket) searchTombstones(id index.CopyID) {
	if k.node.Marks.Has(id) {
		k.work.PurgeAll(id)
	}
}

// Remove releases a copy, also if the bucket's loop has ended. After it returns nil, nothing is written to the copy
// any more. If Remove was cancelled, the caller may call it again, and it waits for the same writers.
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

// TakeAway removes a copy temporarily, unless may returns an error. Until BringBack the copy is not in the bucket and
// nothing is written to it, but lists of definitions treat it as present.
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

// BringBack adds a copy that was taken away in the state that its store holds, unless it was removed meanwhile. It
// serves scans once it is exact.
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

// BringBackOpen is BringBack for a copy whose store must be reopened first. It returns at once; the reopening
// continues until it succeeds or the copy is removed.
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

// remove releases a copy. When all channels in waits are closed, nothing is written to it any more. It runs in the
// loop.
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

// writersOf stops writes to a copy. When all channels in waits are closed, none is in progress. It runs in the loop,
// or in Run after the loop has ended.
func (k *Bucket) writersOf(id index.CopyID) (waits []<-chan struct{}) {
	waits = k.lanes.leave(id)
	if p := k.backs.current; p != nil && p.of[id] != nil {
		p.of[id].leave()
		k.backs.leaving[id] = p.of[id].ended
	}
	if ended := k.backs.leaving[id]; ended != nil {
		waits = append(waits, ended)
	}
	return waits
}

// rest waits for the channels that remove returns.
func (k *Bucket) rest(ctx context.Context, waits []<-chan struct{}) error {
	for _, w := range waits {
		select {
		case <-w:
		case <-k.calls.done: // all writers have ended, too
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// restoredSignal returns a channel that is closed when the next vbucket has been restored. It runs in the loop.
func (k *Bucket) restoredSignal() <-chan struct{} {
	if k.backs.changed == nil {
		k.backs.changed = make(chan struct{})
	}
	return k.backs.changed
}

// SetGeneration sets the generation and rollback id that stability timestamps are checked against, effective before
// any later call. It does not block, however many calls are waiting.
func (k *Bucket) SetGeneration(generation, rollbackID uint64) {
	k.shared.judged.Store(&judged{generation, rollbackID})
	select {
	case k.calls.queue <- func() {}: // wakes the loop; with a full queue the loop is awake
	default:
	}
}

// takeGeneration applies the values that SetGeneration set last. It runs in the loop.
func (k *Bucket) takeGeneration() {
	if j := k.shared.judged.Swap(nil); j != nil {
		k.st.SetGeneration(j.generation, j.rollbackID)
	}
}
