package copies

import (
	"context"
	"time"

	"tidemark/indexer/core"
	"tidemark/ingest"
)

// Limits of one round of the loop. Calls and data alternate, so that neither waits for more than one round of the
// other. indexer/copies/DESIGN.md has the duration of each kind of work.
const (
	callsAtOnce = 16
	// handAtOnce bounds the batches that a round hands out.
	handAtOnce = 16
	// takeBytes bounds what a round takes from one inbox, and how much of a batch is taken before the loop checks for
	// calls; a frame may have 48 MiB. An event costs takeEvent in addition to the bytes kept of it, and the same for
	// each copy that it names.
	takeBytes = 1 << 20
	takeEvent = 256
	// takeLeast is the least cost of a batch.
	takeLeast = 64 << 10
)

func (k *Bucket) loop(ctx context.Context) {
	every := bucketTick
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if due := k.looksEvery(); due != every {
			every = due
			tick.Reset(every)
		}
		select {
		case <-ctx.Done():
			return
		case <-k.calls.stop:
			return
		case <-tick.C:
			k.looks()
		default:
		}
		if k.round(ctx) {
			continue
		}
		fromData, fromSide := k.inboxes()
		select {
		case <-ctx.Done():
			return
		case <-k.calls.stop:
			return
		case f := <-k.calls.queue:
			k.call(f)
		case r := <-k.results:
			k.finish(r)
		case in := <-fromData:
			k.in.boxes[0].begin(in)
		case in := <-fromSide:
			k.in.boxes[1].begin(in)
		case <-tick.C:
			k.looks()
		}
	}
}

// inboxes returns the inboxes that the loop may take from. Of those that are nil, the connections block, and the
// routers behind them.
func (k *Bucket) inboxes() (fromData, fromSide <-chan inbound) {
	if k.full() {
		return nil, nil
	}
	if !k.SideFull() {
		fromSide = k.in.boxes[1].batches
	}
	return k.in.boxes[0].batches, fromSide
}

// round does a bounded amount of each kind of pending work: calls first, then results of writers, then data from the
// inboxes, then batches to hand out. It does not block, and reports whether there may be more to do.
func (k *Bucket) round(ctx context.Context) (more bool) {
	more = k.serve()
	select {
	case r := <-k.results:
		k.finish(r)
		more = true
	default:
	}
	more = k.takeSome(&k.in.boxes[0], k.full) || more
	more = k.takeSome(&k.in.boxes[1], k.SideFull) || more
	more = k.pump(ctx) || more
	k.shared.queueBytes.Store(int64(k.st.QueueBytes()))
	k.publishBranch()
	return more
}

// serve answers waiting calls.
func (k *Bucket) serve() (served bool) {
	for range callsAtOnce {
		select {
		case f := <-k.calls.queue:
			k.call(f)
			served = true
		default:
			return served
		}
	}
	return served
}

func (k *Bucket) call(f func()) {
	k.takeGeneration()
	f()
	k.work.Look()
}

// looks makes the loop check for work that nothing has announced.
func (k *Bucket) looks() {
	k.work.Look()
	k.goneForGood()
	k.retakeAgain()
	k.all = true
}

// looksEvery returns the interval of looks.
func (k *Bucket) looksEvery() time.Duration {
	if k.st.SideBytes() > 0 {
		return sideTick
	}
	return bucketTick
}

// pump hands out what is to be written. After looks, that includes events of side streams that are less than a batch.
// It reports whether there may be more.
func (k *Bucket) pump(ctx context.Context) (more bool) {
	for range handAtOnce {
		if !k.handNext(ctx) {
			k.all = false
			return false
		}
	}
	return true
}

// handNext hands out the next batch, purge or restores, and reports whether there was one.
func (k *Bucket) handNext(ctx context.Context) bool {
	s := k.work.Next(core.Limits{Queue: int(k.node.Queue()), Side: sideBatch, Ahead: aheadBatch, All: k.all})
	for _, a := range s.Acks {
		k.node.Report()
		k.noteFlushed(a.Ref)
	}
	switch {
	case len(s.Restores) > 0:
		k.handRestores(ctx, s.Restores)
	case s.Handed == nil:
		return false
	case s.Handed.Batch == nil:
		k.handPurge(s.Handed)
	default:
		if t := s.Handed.Batch; t.Kind == ingest.Ahead {
			k.log.Debug("queue is full: applying events before the next stability timestamp", "bytes", t.Bytes())
			k.node.Metrics.ahead.Inc()
		}
		k.hand(s.Handed)
	}
	return true
}

// aside runs f, which may wait for a disk, outside the loop. Run waits for it to end.
func (k *Bucket) aside(f func()) { k.beside.Go(f) }
