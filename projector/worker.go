package projector

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"tidemark/projector/feed"
	"tidemark/projector/router"
)

// worker handles the events of its share of a connection's vbuckets (PR-15): vbucket v belongs to worker v % of.
// Within a vbucket, events keep the connection's order.
type worker struct {
	conn   *connection
	number int
	of     int
	blocks chan *feed.Block
	kicked chan struct{} // signals a new plan or a revoked stream
	pump   pump
	plan   atomic.Pointer[plan] // in use

	current map[uint16]*stream // the begun stream of each vbucket
	last    *stream            // stream of the previous event, usually that of the next one too
}

func (w *worker) owns(vb uint16) bool { return int(vb)%w.of == w.number }

// kick makes the worker check for a new plan and for revoked streams even if no data comes.
func (w *worker) kick() {
	select {
	case w.kicked <- struct{}{}:
	default:
	}
}

// run works until the connection has ended, then sends END for each of its streams.
func (w *worker) run(ctx context.Context) {
	if before := w.conn.before; before != nil {
		select {
		case <-before:
		case <-ctx.Done():
			return
		}
	}
	tick := time.NewTicker(syncInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			w.sync()
		case <-w.kicked:
			w.replan(ctx)
			w.revoke(ctx)
		case <-w.pump.answers.ready:
			w.replan(ctx)
			w.answered(ctx)
		case block, ok := <-w.blocks:
			if !ok {
				w.finish(ctx)
				return
			}
			w.replan(ctx)
			w.block(ctx, block)
			block.Release()
		}
	}
}

// replan switches all streams to the newest plan, between two mutations of each. A plan that differs in nothing but
// its revision needs no event downstream.
func (w *worker) replan(ctx context.Context) {
	pl, had := w.conn.b.plan.Load(), w.plan.Load()
	if pl == had {
		return
	}
	if pl.alike == had.alike {
		for _, s := range w.current {
			s.plan = pl
		}
		w.plan.Store(pl)
		w.conn.b.p.notify()
		return
	}
	if pl.xattrs() && !w.conn.xattrs {
		w.conn.renew()
		return
	}
	for _, s := range w.current {
		if err := w.pump.topic.Switch(ctx, s.VBucket(), pl.view, s.Last); err != nil {
			w.broken(ctx, s, err)
			continue
		}
		s.plan = pl
		w.conn.b.joins.activate(pl, s.VBucket(), s.Last)
	}
	w.sync()
	w.plan.Store(pl)
	w.conn.b.p.notify()
}

// revoke ends streams whose vbuckets have left the KV node.
func (w *worker) revoke(ctx context.Context) {
	for _, s := range w.current {
		if s.revoked.Load() {
			w.pump.end(ctx, s, 0)
			w.gone(s)
			w.discard(ctx, s)
			w.conn.b.p.notify()
		}
	}
}

// sync sends each stream's complete seqno again (PR-18). For an idle vbucket this is the only way in which an indexer
// learns it after it has joined, restarted or lost queued data.
func (w *worker) sync() {
	for _, s := range w.current {
		_ = w.pump.topic.Sync(s.VBucket(), s.VBUUID, s.Complete) // a begun stream can be synced
	}
}

// news collects what a worker's events require: a report at once, or waking those that wait for complete seqnos.
type news struct{ report, moved bool }

// block passes the worker's events of a block to the router.
func (w *worker) block(ctx context.Context, block *feed.Block) {
	var n news
	for i := range block.Events {
		e := &block.Events[i]
		if !w.owns(e.VBucket) {
			continue
		}
		s := w.last
		if s == nil || s.id != e.Stream {
			if s = w.conn.find(e.Stream); s == nil {
				continue // of a stream that was closed here
			}
			w.last = s
		}
		if s.Waits {
			s.hold(block, i)
			continue
		}
		w.event(ctx, s, e, &n)
	}
	w.announce(n)
}

// event processes one event of a stream.
func (w *worker) event(ctx context.Context, s *stream, e *feed.Event, n *news) {
	switch {
	case e.Kind == feed.StreamBegin:
		w.begin(ctx, s, e)
		n.report, n.moved = true, true
	case s.ended.Load() || !s.Begun:
	case e.Kind == feed.StreamEnd:
		w.end(ctx, s)
		n.report = true
	default:
		if e.EmptiesDefault && s.Complete > 0 { // otherwise no earlier document was sent
			w.conn.b.collectionEmptied(s.VBucket())
		}
		completed, err := w.pump.take(ctx, s, e)
		if err != nil {
			w.broken(ctx, s, err)
			n.report = true
		}
		n.moved = n.moved || completed
	}
}

// announce carries out n.
func (w *worker) announce(n news) {
	w.pump.publish()
	if n.moved {
		w.conn.b.moved()
		w.conn.b.p.stir()
	}
	if n.report {
		w.conn.b.p.notify()
	}
}

// answered resumes streams for which KV's purge seqno is known now.
func (w *worker) answered(ctx context.Context) {
	for _, a := range w.pump.answers.take() {
		s := a.s
		if !s.Waits || w.current[s.VBucket()] != s {
			continue // it has ended
		}
		n := news{report: true}
		if err := w.pump.marked(ctx, s, s.Purged(a.purge, a.known)); err != nil {
			w.broken(ctx, s, err)
		}
		s.release(func(e *feed.Event) { w.event(ctx, s, e, &n) })
		w.announce(n)
	}
}

// begin makes a stream its vbucket's current one. That ends the former one, whatever KV still sends on it: some
// engines send its END late or never.
func (w *worker) begin(ctx context.Context, s *stream, e *feed.Event) {
	if old := w.current[s.VBucket()]; old != nil {
		w.gone(old)
	}
	pl := w.plan.Load()
	if err := w.pump.begin(ctx, s, e, pl); err != nil {
		w.broken(ctx, s, err)
		return
	}
	w.conn.b.joins.activate(pl, s.VBucket(), s.Last)
	w.current[s.VBucket()] = s
	w.conn.b.p.counters.begun.Inc()
	if s.revoked.Load() {
		w.kick()
	}
}

// end sends END downstream for a begun stream.
func (w *worker) end(ctx context.Context, s *stream) {
	if w.current[s.VBucket()] == s {
		w.pump.end(ctx, s, 0)
	}
	s.atKV.Store(false)
	w.gone(s)
}

// gone unregisters a stream that ended; the bucket keeps it for reports.
func (w *worker) gone(s *stream) {
	s.ended.Store(true)
	s.dropHeld()
	w.conn.remove(s)
	if w.current[s.VBucket()] == s {
		delete(w.current, s.VBucket())
		w.conn.b.p.counters.ended.Inc()
	}
	if w.last == s {
		w.last = nil
	}
}

// broken ends a stream after an error, and closes it at KV without waiting.
func (w *worker) broken(ctx context.Context, s *stream, err error) {
	if ctx.Err() != nil || errors.Is(err, router.ErrClosed) {
		w.gone(s)
		return
	}
	w.conn.b.p.log.Error("stream abandoned; the coordinator will request it again", "bucket", w.conn.b.name, "vbucket",
		s.VBucket(),
		"incarnation", s.Incarnation, "seqno", s.Last, "error", err)
	if s.Begun {
		w.pump.end(ctx, s, 0)
	} else {
		w.pump.topic.Drop(s.VBucket())
	}
	w.gone(s)
	w.discard(ctx, s)
}

// discard closes a stream at KV without waiting. If KV does not receive that, further events of the stream are
// dropped here.
func (w *worker) discard(ctx context.Context, s *stream) {
	w.conn.b.p.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, kvTimeout)
		defer cancel()
		_ = w.conn.discard(ctx, s)
	})
}

// finish ends all streams of a connection that was lost.
func (w *worker) finish(ctx context.Context) {
	for _, s := range w.conn.all() {
		if w.owns(s.VBucket()) {
			w.end(ctx, s)
		}
	}
	w.conn.b.moved()
	w.conn.b.p.notify()
}
