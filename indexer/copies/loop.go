package copies

import (
	"context"
	"time"

	"tidemark/indexer/core"
	"tidemark/ingest"
)

// What a round of the loop does at most. Calls and data have their turns by turns, so that neither waits for more than
// a round of the other. indexer/copies/DESIGN.md says what each of these may take.
const (
	callsAtOnce = 16
	// handAtOnce bounds the batches that are handed out.
	handAtOnce = 16
	// takeBytes bounds what is taken of one inbox, and how much of a batch is taken without a look at calls; a frame may
	// have 48 MiB. An event costs takeEvent beside what is kept of it, and as much for each copy that it names.
	takeBytes = 1 << 20
	takeEvent = 256
	// takeLeast is what a batch costs in any case.
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

// inboxes are those of which something may be taken; nil: the connections wait, and the routers behind them.
func (k *Bucket) inboxes() (fromData, fromSide <-chan inbound) {
	if k.full() {
		return nil, nil
	}
	if !k.SideFull() {
		fromSide = k.in.boxes[1].batches
	}
	return k.in.boxes[0].batches, fromSide
}

// round does a bounded amount of each kind of work that waits: calls first, then what writers have done, then what
// streams bring, then what is to be written. It waits for nothing, and reports whether there may be more to do.
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
	k.told.queueBytes.Store(int64(k.st.QueueBytes()))
	k.tellBranch()
	return more
}

// serve answers calls that wait.
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

// looks is a look at what could be written although nothing says so.
func (k *Bucket) looks() {
	k.work.Look()
	k.goneForGood()
	k.retakeAgain()
	k.all = true
}

// looksEvery is how often the loop looks by itself.
func (k *Bucket) looksEvery() time.Duration {
	if k.st.SideBytes() > 0 {
		return sideTick
	}
	return bucketTick
}

// pump hands out what is to be written, also what is no whole batch of side streams after a look. It reports whether
// there may be more.
func (k *Bucket) pump(ctx context.Context) (more bool) {
	for range handAtOnce {
		if !k.handNext(ctx) {
			k.all = false
			return false
		}
	}
	return true
}

// handNext hands out what is to be written next, if there is anything.
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
			k.log.Debug("the queue is full: applying ahead", "bytes", t.Bytes())
			k.node.Metrics.ahead.Inc()
		}
		k.hand(s.Handed)
	}
	return true
}

// aside runs what may wait for a disk beside the loop. Run waits for it.
func (k *Bucket) aside(f func()) { k.beside.Go(f) }
