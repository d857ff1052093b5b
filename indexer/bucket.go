package indexer

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/index"
	"tidemark/indexer/core"
	"tidemark/indexer/pace"
	"tidemark/indexer/packed"
	"tidemark/indexer/storage"
	"tidemark/ingest"
	"tidemark/keyversion"
	"tidemark/timestamp"
	"tidemark/wire"
)

const (
	// dataInbox is how many batches may wait for a bucket's loop: two for each of some tens of connections. Beyond it
	// the connections wait, as they do beyond inboxBytes.
	dataInbox = 64
	// controlInbox is how many commands may wait; a command beyond it waits at its caller.
	controlInbox = 64
	// sideBatch is how many bytes of side streams are written at once: what is written, and with it what a build has
	// reached and what a crash takes away, moves in steps of that size.
	sideBatch = 512 << 10
	// sideRoom is how many bytes of side streams one bucket holds, a quarter of its queue at most. It is enough to keep
	// the writer busy; more would wait here instead of at KV, and be sent again after a crash.
	sideRoom = 16 << 20
	// aheadBatch is how many bytes are written at once to make room in the queue: a stability timestamp waits no longer.
	aheadBatch = 8 << 20
	// bucketTick is how often a bucket looks by itself at what could be written: small side streams, and copies that
	// have become whole.
	bucketTick = 20 * time.Millisecond
	// maxStability is how many stability timestamps may be under way: as many as the coordinator leaves unacknowledged.
	maxStability = 4
	// takeAtOnce bounds how many batches are taken before the loop looks at anything else.
	takeAtOnce = 16
)

var errBucketGone = errors.New("the bucket is not held here any more")

// inbound is one batch on its way to a bucket, or the end of its connection.
type inbound struct {
	src     ingest.Source
	side    bool
	lost    bool
	batch   *keyversion.Batch
	size    int64 // that it takes of the inbox
	release func()
}

// box is the number of its inbox.
func (in *inbound) box() int {
	if in.side {
		return 1
	}
	return 0
}

// bucket is one bucket on this node: a loop that owns the ingest state, and lanes in which what it hands out is
// written.
type bucket struct {
	x        *Indexer
	log      hclog.Logger
	name     string
	uuid     string
	vbuckets int
	piece    int // bytes of one write of one copy, see pieceBytes

	data    chan inbound // of maintenance streams
	side    chan inbound // of side streams
	inboxes [2]inboxRoom // of data and side
	control chan func()
	stop    chan struct{} // closed: the bucket goes
	done    chan struct{} // closed: its loop has ended
	results chan result
	lanes   *lanes

	spreaders packed.Spreaders

	// of the loop
	st      *core.Bucket
	mem     packed.Arena
	places  packed.Interned
	slices  map[index.CopyID]*storage.Slice
	away    map[index.CopyID]*storage.Slice // taken away for a while, see takeAway
	laneOf  map[index.CopyID]*lane          // of those that have had something to write
	leaving map[index.CopyID][]*lane        // of copies that were let go, and whose newest task has perhaps not ended
	sizes   map[index.CopyID]copySize       // of copies that are, or have just been, built: see sizeOf
	pending []ingest.Work
	strays  map[vbOfCopy][]storage.Row // to be removed with the range of a vbucket that is taken anew
	emptied map[index.CopyID]uint64    // how many ranges of a copy were to be deleted: see wrongUntil
	// tombstones that have no use any more, to be removed when nothing else is to be written
	purges  []purge
	under   []*underway           // batches that are not done, in the order in which they were handed out
	purging bool                  // a purge is under way
	unmark  map[index.CopyID]bool // copies of which it is to be seen whether they have any tombstones left
	puts    *putBack              // restores that are under way
	look    bool                  // something may have become possible

	// read from outside the loop
	events     [verdicts]counter
	queueBytes atomic.Int64
	measured   atomic.Pointer[measurement]
	flushed    atomic.Pointer[wire.StabilityRef] // newest one that was flushed, exactly or not
	generation atomic.Uint64
	rollback   atomic.Uint64 // highest rollback id
	restoring  chan struct{} // of the loop: closed when something was put back
}

func (x *Indexer) newBucket(b wire.Bucket) (*bucket, error) {
	k := &bucket{
		x: x, log: x.log.With("bucket", b.Name), name: b.Name, uuid: b.UUID, vbuckets: b.VBuckets, piece: x.cfg.pieceBytes(),
		data: make(chan inbound, dataInbox), side: make(chan inbound, dataInbox), control: make(chan func(), controlInbox),
		stop: make(chan struct{}), done: make(chan struct{}), results: make(chan result),
		slices: map[index.CopyID]*storage.Slice{}, away: map[index.CopyID]*storage.Slice{},
		laneOf: map[index.CopyID]*lane{}, leaving: map[index.CopyID][]*lane{}, unmark: map[index.CopyID]bool{},
		sizes: map[index.CopyID]copySize{}, strays: map[vbOfCopy][]storage.Row{},
		emptied: map[index.CopyID]uint64{},
	}
	st, err := core.NewBucket(&b, b.VBuckets, k.mem.Pack)
	if err != nil {
		return nil, err
	}
	k.st = st
	k.tellBranch()
	k.mem.Refused = func(e *keyversion.Event, s *keyversion.Statement, key []byte) { x.refuse(k.name, e, s, key) }
	return k, nil
}

// Run is the bucket's loop together with its writers.
func (k *bucket) Run(ctx context.Context) error {
	defer close(k.done)
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	k.lanes = newLanes(func(n *lane, t task) { k.doTask(inner, n, t) })
	k.loop(inner)
	cancel()
	k.lanes.close()
	return nil
}

func (k *bucket) loop(ctx context.Context) {
	tick := time.NewTicker(bucketTick)
	defer tick.Stop()
	for {
		data, side := k.data, k.side
		if k.full() {
			data, side = nil, nil // the connections wait, and the routers behind them
		} else if k.sideFull() {
			side = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-k.stop:
			return
		case f := <-k.control:
			f()
			k.look = true
		case r := <-k.results:
			k.finish(r)
			k.look = true
		case in := <-data:
			k.takeSome(in, k.data, k.full)
		case in := <-side:
			k.takeSome(in, k.side, k.sideFull)
		case <-tick.C:
			k.look = true
			k.pump(ctx, true)
		}
		k.pump(ctx, false)
		k.queueBytes.Store(int64(k.st.QueueBytes()))
		k.tellBranch()
	}
}

// Flushed implements holder, and so do Rollback and Gone.
func (k *bucket) Flushed() *wire.StabilityRef { return k.flushed.Load() }

// Rollback is the newest rollback that was carried out.
func (k *bucket) Rollback() uint64 { return k.rollback.Load() }

// Gone is closed when the bucket's loop has ended.
func (k *bucket) Gone() <-chan struct{} { return k.done }

// tellBranch lets others see by what stability timestamps are judged.
func (k *bucket) tellBranch() {
	k.generation.Store(k.st.Generation())
	k.rollback.Store(k.st.RollbackID())
}

// full: the bucket holds as much as it may.
func (k *bucket) full() bool { return int64(k.st.QueueBytes()) >= k.x.queueShare() }

// sideFull: the bucket holds as much of side streams as it may.
func (k *bucket) sideFull() bool {
	return int64(k.st.SideBytes()) >= min(sideRoom, k.x.queueShare()/4) || k.full()
}

// takeSome takes a batch and some more from the same inbox, while they are there and there is room.
func (k *bucket) takeSome(in inbound, inbox <-chan inbound, full func() bool) {
	k.take(in)
	for range takeAtOnce {
		if full() {
			return
		}
		select {
		case more := <-inbox:
			k.take(more)
		default:
			return
		}
	}
}

// take returns a batch to the state. The events are packed there, so that the frame is free afterwards.
func (k *bucket) take(in inbound) {
	defer k.inboxes[in.box()].leave(in.size)
	if in.lost {
		k.st.ConnectionLost(in.src.Connection)
		wake(k.x.report)
		return
	}
	for i := range in.batch.Events {
		e := &in.batch.Events[i]
		e.Rest = k.places.Of(e.Rest)
		var v ingest.Verdict
		if in.side {
			v = k.st.AcceptSide(in.src, e)
		} else {
			v = k.st.Accept(in.src, e)
		}
		k.events[v].add(1)
		switch e.Kind {
		case keyversion.StreamBegin, keyversion.StreamEnd, keyversion.Activate, keyversion.Deactivate, keyversion.DropData:
			k.log.Debug("stream event", "kind", e.Kind, "vbucket", e.VBucket, "incarnation", e.Incarnation, "seqno", e.Seqno,
				"projector", in.src.Projector, "side", in.side, "verdict", v)
			k.look = true
			wake(k.x.report)
			wake(k.x.sides)
		case keyversion.Sync, keyversion.DSync:
			k.look = true
		}
	}
	in.release()
}

// pump hands out what is to be written: what must be done first, then by turns stability timestamps, what makes room
// ahead of one, and what side streams brought. all: also what is no whole batch of side streams.
func (k *bucket) pump(ctx context.Context, all bool) {
	for k.puts == nil {
		k.pending = append(k.pending, k.st.Work()...)
		if len(k.pending) > 0 {
			if !k.handPending(ctx) {
				return
			}
			continue
		}
		t, acks := k.st.Next(k.room(all))
		for _, a := range acks {
			k.acknowledge(a)
			k.noteFlushed(a.Ref)
		}
		k.look = t != nil
		if t == nil {
			k.purgeNext()
			return
		}
		if t.Kind == ingest.Ahead {
			k.log.Debug("the queue is full: applying ahead", "bytes", t.Bytes())
			k.x.metrics.ahead.Inc()
		}
		k.hand(t)
	}
}

// room says which batches are to be looked for; all: also what is no whole batch of side streams. Of side streams and
// of what makes room one batch is under way at a time, so that what is queued for a copy stays small.
func (k *bucket) room(all bool) ingest.Room {
	under := [len(batchKinds)]int{}
	for _, u := range k.under {
		under[u.batch.Kind]++
	}
	limit := int(k.x.queueShare())
	r := ingest.Room{Stability: k.look && under[ingest.AtStability] < maxStability, SideLeast: sideBatch,
		SideMost: sideBatch, AheadFrom: limit / 4 * 3,
		AheadBytes: min(limit/2, aheadBatch), AheadKeep: limit / 4 / k.vbuckets}
	if all || k.st.SideBytes() >= sideBatch {
		r.SideLeast = 1
	}
	if under[ingest.FromSide] > 0 {
		r.SideMost = 0
	}
	if under[ingest.Ahead] > 0 {
		r.AheadFrom = math.MaxInt
	}
	return r
}

// purgeNext lets the tombstones of one vbucket be removed when nothing else is to be written. Where a side stream needs
// them again, they go when it has come to its end.
func (k *bucket) purgeNext() {
	for len(k.purges) > 0 && len(k.under) == 0 && !k.purging {
		p := k.purges[0]
		k.purges = k.purges[1:]
		switch pos, ok := k.st.Position(p.copy, p.vb); {
		case !ok || k.slices[p.copy] == nil:
		case pos.Whole():
			k.handPurge(p)
		default:
			k.st.HoldsTombstones(p.copy, p.vb)
		}
	}
}

// handPending hands out the first work that waits; false: it waits still. Restores go together, and are done when
// nothing else is under way: they choose among what copies hold.
func (k *bucket) handPending(ctx context.Context) bool {
	var back []ingest.Restore
	for len(back) < len(k.pending) && k.pending[len(back)].Restore != nil {
		back = append(back, *k.pending[len(back)].Restore)
	}
	if len(back) > 0 {
		if len(k.under) > 0 || k.purging {
			return false
		}
		k.pending = k.pending[len(back):]
		k.handRestores(ctx, back)
		return true
	}
	w := k.pending[0]
	k.pending = k.pending[1:]
	k.hand(w.Batch)
	return true
}

// finish takes over what writers have done.
func (k *bucket) finish(r result) {
	switch {
	case r.reopened != nil:
		if n := r.reopened; k.laneOf[n.copy] == n { // else it has been let go
			k.wentBack(n)
		}
	case r.shown != nil:
		k.st.Shown(r.shown.batch, r.shown.without()...)
		k.x.catalog.Touch()
		wake(k.x.report)
	case r.ended != nil && r.ended.purge != nil:
		k.purging = false
		k.unmark[r.ended.purge.copy] = true
	case r.ended != nil:
		k.ended(r.ended)
	case r.back != nil:
		k.restored(r.back)
	}
	k.unmarkNow()
}

// ended takes over that a batch is written. Stability timestamps are told of in their order, to acknowledge one says
// that those before it are written.
func (k *bucket) ended(u *underway) {
	u.done = true
	k.x.metrics.batch(u.batch.Kind, k.x.now().Sub(u.began))
	waits := false
	k.under = slices.DeleteFunc(k.under, func(u *underway) bool {
		at := u.batch.Kind == ingest.AtStability
		if !u.done || at && waits {
			waits = waits || at
			return false
		}
		k.written(u)
		return true
	})
}

// written tells the state of a batch that is written.
func (k *bucket) written(u *underway) {
	k.spreaders.Give(u.spreader)
	k.schedulePurges(u.batch)
	if a, ok := k.st.Done(u.batch, u.without()...); ok {
		k.acknowledge(a)
	}
	if u.batch.Kind == ingest.AtStability {
		k.noteFlushed(u.batch.Ref)
	} else {
		wake(k.x.sides)
	}
}

// wentBack takes over that a copy's store had to be opened again, and has lost its newest batches: what is under way
// for it is lost, too.
func (k *bucket) wentBack(n *lane) {
	delete(k.laneOf, n.copy)
	for _, u := range k.under {
		u.spoilt = append(u.spoilt, n.copy)
	}
	k.forget(n.copy)
	delete(k.sizes, n.copy)
	if err := k.st.Reopened(n.copy, n.slice.Positions(), n.slice.Logs()); err != nil {
		k.log.Error("a recovered copy cannot be used", "copy", n.copy, "error", err)
	}
	wake(k.x.sides)
}

// tellBack tells the state what was restored.
func (k *bucket) tellBack(all []restored) {
	if len(all) == 0 {
		return
	}
	for _, r := range all {
		k.st.Restored(r.what, r.position, r.log)
	}
	if k.st.Restoring() == 0 {
		for id := range k.slices {
			k.x.snapshots.DropParted(id)
		}
	}
	wake(k.x.sides)
	if k.restoring != nil {
		close(k.restoring)
		k.restoring = nil
	}
}

// schedulePurges notes which tombstones a batch has made useless.
func (k *bucket) schedulePurges(t *ingest.Batch) {
	for i := range t.Copies {
		c := &t.Copies[i]
		for n := range c.Parts {
			if p := &c.Parts[n]; p.PurgeTombstones {
				k.purges = append(k.purges, purge{c.ID, p.VBucket})
			}
		}
	}
}

// unmarkNow: a copy that has no tombstones left is not looked through after a restart. What is under way may bring
// some.
func (k *bucket) unmarkNow() {
	if len(k.unmark) == 0 || len(k.under) > 0 || k.purging {
		return
	}
	for _, p := range k.purges {
		delete(k.unmark, p.copy) // there will be another look
	}
	for id := range k.unmark {
		if !k.st.Tombstones(id) {
			k.x.marks.clear(id)
		}
	}
	clear(k.unmark)
}

// noteFlushed lets scans see that nothing at or below a timestamp is still to come.
func (k *bucket) noteFlushed(r timestamp.Ref) {
	ref := k.ref(r)
	if f := k.flushed.Load(); f == nil || f.Compare(ref.Ref) < 0 {
		k.flushed.Store(&ref)
	}
	k.x.snapshots.Signal()
	k.x.catalog.Touch()
}

// forget drops waiting work of a copy that has gone back.
func (k *bucket) forget(id index.CopyID) {
	kept := k.pending[:0]
	for _, w := range append(k.pending, k.st.Work()...) {
		if w.Restore != nil && w.Restore.Copy == id {
			continue
		}
		if w.Batch != nil {
			copies := w.Batch.Copies[:0:0]
			for _, c := range w.Batch.Copies {
				if c.ID != id {
					copies = append(copies, c)
				}
			}
			w.Batch.Copies = copies
		}
		kept = append(kept, w)
	}
	k.pending = kept
}

func (k *bucket) acknowledge(a ingest.Ack) {
	k.st.Acknowledge(a)
	wake(k.x.report)
}

func (k *bucket) ref(r timestamp.Ref) wire.StabilityRef {
	return wire.StabilityRef{Bucket: k.name, Ref: r}
}

// do runs f in the loop and waits for it. An error says that f has not run and never will.
func (k *bucket) do(ctx context.Context, f func()) error {
	const running, abandoned = 1, 2
	var state atomic.Int32
	ran := make(chan struct{})
	call := func() {
		if state.CompareAndSwap(0, running) {
			f()
			close(ran)
		}
	}
	var err error
	select {
	case k.control <- call:
		select {
		case <-ran:
			return nil
		case <-k.done:
			err = errBucketGone
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	case <-k.done:
		return errBucketGone
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if state.CompareAndSwap(0, abandoned) {
		return err
	}
	<-ran // it has begun, and nothing in the loop waits
	return nil
}

// addCopy takes an opened slice in. Where nothing is in it, and others have it, it is filled from one of them.
func (k *bucket) addCopy(ctx context.Context, s *storage.Slice, others []index.NodeID) error {
	var err error
	added, later := false, false
	if e := k.do(ctx, func() {
		id := s.Meta().Copy
		if _, ok := k.slices[id]; ok || k.away[id] != nil { // the latter comes back by itself
			// its removal may have been given up when nothing filled it any more
			later = k.slices[id] == s && k.st.Deferred(id) && !k.x.fills.fills(s)
			return
		}
		stable, _ := s.Timestamp() // all zero until it was exact once; at an empty bucket that is judged anew
		if err = k.add(s, stable.Total() > 0); err == nil {
			added = true
			later = k.x.cfg.TransferRate != 0 && len(others) > 0 && unfilled(s)
			k.st.Defer(id, later)
		}
	}); e != nil {
		return e
	}
	if later {
		k.x.fills.add(k, s, others)
	} else if added { // an earlier process may have received files for it
		err = s.DropIncoming()
	}
	return err
}

// add takes a copy in with what its store holds; ready: it has been exact here. It runs in the loop.
func (k *bucket) add(s *storage.Slice, ready bool) error {
	m := s.Meta()
	if err := k.st.Add(ingest.Copy{ID: m.Copy, Index: m.Index, Slice: m.Slice, Ready: ready, Positions: s.Positions(),
		Logs: s.Logs()}); err != nil {
		return err
	}
	k.slices[m.Copy] = s
	if k.x.marks.has(m.Copy) {
		for vb := range k.vbuckets {
			k.purges = append(k.purges, purge{m.Copy, vb})
		}
	}
	return nil
}

// removeCopy lets a copy go; after it returns without an error nothing is written to it any more. A call that was given
// up is made again: it waits for the same.
func (k *bucket) removeCopy(ctx context.Context, id index.CopyID) error {
	var waits []<-chan struct{}
	if err := k.do(ctx, func() {
		delete(k.away, id)
		waits = k.remove(id)
	}); err != nil {
		return err
	}
	return k.rest(ctx, waits)
}

// takeAway lets a copy go for a while, unless may says no: it is not here until bringBack, and nothing is written to
// it, but lists of definitions take it for here.
func (k *bucket) takeAway(ctx context.Context, s *storage.Slice, may func() error) error {
	id := s.Meta().Copy
	var waits []<-chan struct{}
	var no error
	if err := k.do(ctx, func() {
		if no = may(); no == nil && k.slices[id] != s {
			no = errUnwanted
		}
		if no == nil {
			k.away[id] = s
			waits = k.remove(id)
		}
	}); err != nil || no != nil {
		return errors.Join(err, no)
	}
	return k.rest(ctx, waits)
}

// bringBack adds a copy again with what its store holds, unless it was let go meanwhile. It serves once it is exact
// here.
func (k *bucket) bringBack(ctx context.Context, s *storage.Slice) error {
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

// bringBackOpen is bringBack for a copy that has to be opened anew before, which is tried until it is done or the copy
// goes.
func (k *bucket) bringBackOpen(ctx context.Context, s *storage.Slice) {
	for pause := reviveFirst; ; pause = min(2*pause, reviveMost) {
		err := k.reopen(ctx, s)
		if err == nil {
			err = k.bringBack(ctx, s)
			wake(k.x.sides)
		}
		if err == nil || errors.Is(err, storage.ErrClosed) || errors.Is(err, errBucketGone) || pace.Sleep(ctx, pause) != nil {
			return
		}
	}
}

// remove lets a copy go. When all waits are over nothing is written to it any more. It runs in the loop.
func (k *bucket) remove(id index.CopyID) (waits []<-chan struct{}) {
	k.st.Remove(id)
	k.forget(id)
	for _, u := range k.under { // a copy of the same id that comes now has nothing of it
		u.spoilt = append(u.spoilt, id)
	}
	if n := k.laneOf[id]; n != nil {
		k.leaving[id] = append(k.leaving[id], n)
		delete(k.laneOf, id)
	}
	for _, n := range k.leaving[id] {
		if rest := k.lanes.lose(n); rest != nil {
			waits = append(waits, rest)
		}
	}
	if len(waits) == 0 {
		delete(k.leaving, id)
	}
	delete(k.slices, id)
	delete(k.emptied, id)
	delete(k.sizes, id)
	if k.puts != nil {
		waits = append(waits, k.puts.ended)
	}
	return waits
}

// rest waits for what remove gives.
func (k *bucket) rest(ctx context.Context, waits []<-chan struct{}) error {
	for _, w := range waits {
		select {
		case <-w:
		case <-k.done:
			return errBucketGone
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// restoredSignal returns a channel that is closed when the next vbucket has been put back. It runs in the loop.
func (k *bucket) restoredSignal() <-chan struct{} {
	if k.restoring == nil {
		k.restoring = make(chan struct{})
	}
	return k.restoring
}

// setGeneration tells the loop by what stability timestamps are judged. It does not wait.
func (k *bucket) setGeneration(generation, rollbackID uint64) {
	select {
	case k.control <- func() { k.st.SetGeneration(generation, rollbackID) }:
	case <-k.done:
	}
}
