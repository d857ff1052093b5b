package indexer

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"tidemark/index"
	"tidemark/ingest"
	"tidemark/keyversion"
	"tidemark/storage"
	"tidemark/wire"
)

const (
	// dataInbox is how many batches may wait for a bucket's loop: two for each of some tens of connections. Beyond it
	// the connections wait.
	dataInbox = 64
	// controlInbox is how many commands may wait; a command beyond it waits at its caller.
	controlInbox = 64
	// maxAcks is how many acknowledgements are kept until a report was answered. Older ones are implied by newer.
	maxAcks = 64
	// sideBatch is how many bytes of side streams are written at once: what is written, and with it what a build has
	// reached and what a crash takes away, moves in steps of that size.
	sideBatch = 512 << 10
	// sideRoom is how many bytes of side streams one bucket holds, a quarter of its queue at most. It is enough to keep the
	// writer busy; more would wait here instead of at KV, and be sent again after a crash.
	sideRoom = 16 << 20
	// aheadBatch is how many bytes are written at once to make room in the queue: a stability timestamp waits no longer.
	aheadBatch = 8 << 20
	// bucketTick is how often a bucket looks by itself at what could be written: small side streams, and copies that
	// have become whole.
	bucketTick = 20 * time.Millisecond
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
	release func()
}

// bucket is one bucket on this node: a loop that owns the ingest state, and a writer that owns the order of what is
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
	control chan func()
	stop    chan struct{} // closed: the bucket goes
	done    chan struct{} // closed: its loop has ended
	jobs    chan job
	results chan result

	spreader spreader // of the writer

	// of the loop
	st      *ingest.Bucket
	mem     arena
	slices  map[index.CopyID]*storage.Slice
	sizes   map[index.CopyID]copySize // of copies that are, or have just been, built: see sizeOf
	pending []ingest.Work
	strays  map[vbOfCopy][]storage.Row // to be removed with the range of a vbucket that is taken anew
	purges  []purge                    // tombstones that have no use any more, to be removed when nothing else is to be written
	busy    bool
	idle    chan struct{} // closed when the present job is done
	look    bool          // something may have become possible
	acks    []wire.Ack

	// read from outside the loop
	events     [verdicts]counter
	queueBytes atomic.Int64
	measured   atomic.Pointer[measurement]
	flushed    atomic.Pointer[wire.StabilityRef] // newest one that was flushed, exactly or not
	rollback   atomic.Uint64                     // highest rollback id
	restoring  chan struct{}                     // of the loop: closed when something was put back
}

func (x *Indexer) newBucket(b wire.Bucket) (*bucket, error) {
	k := &bucket{
		x: x, log: x.log.With("bucket", b.Name), name: b.Name, uuid: b.UUID, vbuckets: b.VBuckets, piece: x.cfg.pieceBytes(),
		data: make(chan inbound, dataInbox), side: make(chan inbound, dataInbox), control: make(chan func(), controlInbox),
		stop: make(chan struct{}), done: make(chan struct{}), jobs: make(chan job, 1), results: make(chan result, 1),
		slices: map[index.CopyID]*storage.Slice{}, sizes: map[index.CopyID]copySize{}, strays: map[vbOfCopy][]storage.Row{},
	}
	st, err := ingest.New(ingest.Options{VBuckets: b.VBuckets, Generation: b.Generation, RollbackID: b.RollbackID, Pack: k.mem.pack})
	if err != nil {
		return nil, err
	}
	k.st = st
	return k, nil
}

// Run is the bucket's loop together with its writer.
func (k *bucket) Run(ctx context.Context) error {
	defer close(k.done)
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	g := errgroup.Group{}
	g.Go(func() error { return k.write(inner) })
	k.loop(inner)
	cancel()
	close(k.jobs)
	return g.Wait()
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
			k.pump(true)
		}
		k.pump(false)
		k.queueBytes.Store(int64(k.st.QueueBytes()))
		k.rollback.Store(k.st.RollbackID())
	}
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

// take gives a batch to the state. The events are packed there, so that the frame is free afterwards.
func (k *bucket) take(in inbound) {
	if in.lost {
		k.st.ConnectionLost(in.src.Connection)
		wake(k.x.report)
		return
	}
	for i := range in.batch.Events {
		e := &in.batch.Events[i]
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

// pump gives the writer its next job: what must be done first, then by turns a stability timestamp, what makes room ahead of
// one, and what side streams brought. all: also what is no whole batch of side streams.
func (k *bucket) pump(all bool) {
	k.pending = append(k.pending, k.st.Work()...)
	if k.busy {
		return
	}
	if len(k.pending) > 0 {
		k.startPending()
		return
	}
	t, acks := k.st.Next(k.room(all))
	for _, a := range acks {
		k.acknowledge(a)
		k.noteFlushed(a.Ref)
	}
	k.look = t != nil
	if t != nil {
		if t.Kind == ingest.Ahead {
			k.log.Debug("the queue is full: applying ahead", "bytes", t.Bytes())
			k.x.metrics.ahead.Inc()
		}
		k.start(ingest.Work{Batch: t})
		return
	}
	k.purgeNext()
}

// room says which batches are to be looked for; all: also what is no whole batch of side streams.
func (k *bucket) room(all bool) ingest.Room {
	limit := int(k.x.queueShare())
	r := ingest.Room{Stability: k.look, SideLeast: sideBatch, SideMost: sideBatch, AheadFrom: limit / 4 * 3, AheadBytes: min(limit/2, aheadBatch),
		AheadKeep: limit / 4 / k.vbuckets}
	if all || k.st.SideBytes() >= sideBatch {
		r.SideLeast = 1
	}
	return r
}

// purgeNext lets the writer remove the tombstones of one vbucket, unless a side stream needs them again.
func (k *bucket) purgeNext() {
	for len(k.purges) > 0 {
		p := k.purges[0]
		k.purges = k.purges[1:]
		if pos, ok := k.st.Position(p.copy, p.vb); ok && pos.Whole() && k.slices[p.copy] != nil {
			k.startJob(job{purge: &p})
			return
		}
	}
}

// startPending hands the first work that waits to the writer, and restores with all that follow it.
func (k *bucket) startPending() {
	var back []ingest.Restore
	for len(back) < len(k.pending) && k.pending[len(back)].Restore != nil {
		back = append(back, *k.pending[len(back)].Restore)
	}
	if len(back) > 0 {
		k.pending = k.pending[len(back):]
		k.startJob(job{restores: back})
		return
	}
	w := k.pending[0]
	k.pending = k.pending[1:]
	k.start(w)
}

// start hands work to the writer.
func (k *bucket) start(w ingest.Work) { k.startJob(job{work: w}) }

// startJob hands a job to the writer; it has one at a time, so that this never waits.
func (k *bucket) startJob(j job) {
	k.busy = true
	slices := make(map[index.CopyID]*storage.Slice, len(k.slices))
	for id, s := range k.slices {
		slices[id] = s
	}
	j.slices, j.strays = slices, k.straysOf(j.work.Batch)
	k.jobs <- j
}

// finish takes over what the writer has done.
func (k *bucket) finish(r result) {
	k.busy = false
	if k.idle != nil {
		close(k.idle)
		k.idle = nil
	}
	if r.purged != nil {
		k.purged(r.purged.copy)
	}
	if t := r.work.Batch; t != nil {
		k.schedulePurges(t)
		ids := make([]index.CopyID, 0, len(r.reopened))
		for _, o := range r.reopened {
			ids = append(ids, o.id)
		}
		if a, ok := k.st.Done(t, append(ids, r.missing...)...); ok {
			k.acknowledge(a)
		}
		if t.Kind == ingest.AtStability {
			k.noteFlushed(t.Ref)
		} else {
			wake(k.x.sides)
		}
	}
	k.putBack(r.restored)
	for _, o := range r.reopened {
		k.forget(o.id)
		delete(k.sizes, o.id)
		if err := k.st.Reopened(o.id, o.slice.Positions(), o.slice.Logs()); err != nil {
			k.log.Error("a recovered copy cannot be used", "copy", o.id, "error", err)
		}
		wake(k.x.sides)
	}
}

// putBack tells the state what was restored.
func (k *bucket) putBack(all []restored) {
	if len(all) == 0 {
		return
	}
	for _, r := range all {
		k.st.Restored(r.what, r.position, r.log)
	}
	if k.st.Restoring() == 0 {
		for id := range k.slices {
			k.x.snapshots.dropParted(id)
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

// purged: when a copy has none left, it is not looked through after a restart.
func (k *bucket) purged(id index.CopyID) {
	for _, p := range k.purges {
		if p.copy == id {
			return
		}
	}
	if !k.st.Tombstones(id) {
		k.x.marks.clear(id)
	}
}

// noteFlushed lets scans see that nothing at or below a timestamp is still to come.
func (k *bucket) noteFlushed(r ingest.Ref) {
	ref := k.ref(r)
	if f := k.flushed.Load(); f == nil || f.Compare(ref) < 0 {
		k.flushed.Store(&ref)
	}
	k.x.snapshots.signal()
	k.x.viewChanged()
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
	k.acks = append(k.acks, wire.Ack{StabilityRef: k.ref(a.Ref), Made: a.Made, Exceptions: a.Exceptions})
	if len(k.acks) > maxAcks {
		k.acks = k.acks[len(k.acks)-maxAcks:]
	}
	wake(k.x.report)
}

func (k *bucket) ref(r ingest.Ref) wire.StabilityRef {
	return wire.StabilityRef{Bucket: k.name, Generation: r.Generation, RollbackID: r.RollbackID, Number: r.Number, Hash: r.Hash}
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

// addCopy takes an opened slice in.
func (k *bucket) addCopy(ctx context.Context, s *storage.Slice) error {
	var err error
	if e := k.do(ctx, func() {
		m := s.Meta()
		if _, ok := k.slices[m.Copy]; ok {
			return
		}
		stable, _ := s.Timestamp() // all zero until it was exact once; at an empty bucket that is judged anew
		err = k.st.Add(ingest.Copy{ID: m.Copy, Index: m.Index, Slice: m.Slice, Ready: stable.Total() > 0, Positions: s.Positions(), Logs: s.Logs()})
		if err == nil {
			k.slices[m.Copy] = s
		}
		if err == nil && k.x.marks.has(m.Copy) {
			for vb := range k.vbuckets {
				k.purges = append(k.purges, purge{m.Copy, vb})
			}
		}
	}); e != nil {
		return e
	}
	return err
}

// removeCopy lets a copy go; after it returns nothing is written to it any more.
func (k *bucket) removeCopy(ctx context.Context, id index.CopyID) error {
	var under <-chan struct{}
	err := k.do(ctx, func() {
		k.st.Remove(id)
		k.forget(id)
		delete(k.slices, id)
		delete(k.sizes, id)
		if k.busy {
			if k.idle == nil {
				k.idle = make(chan struct{})
			}
			under = k.idle
		}
	})
	if err != nil || under == nil {
		return err
	}
	select {
	case <-under:
		return nil
	case <-k.done:
		return errBucketGone
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// restoredSignal gives a channel that is closed when the next vbucket has been put back. It runs in the loop.
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
