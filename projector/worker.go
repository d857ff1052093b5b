package projector

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"tidemark/feed"
	"tidemark/router"
)

// worker takes the events of its share of a connection's vbuckets (PR-15): vbucket v belongs to worker v % of. The order
// within a vbucket is the connection's.
type worker struct {
	conn     *connection
	number   int
	of       int
	blocks   chan *feed.Block
	kicked   chan struct{} // a new plan
	pump     pump
	revision atomic.Uint64 // of the plan it works with

	last *stream // of the event before, most often of the next one too
}

func (w *worker) owns(vb uint16) bool { return int(vb)%w.of == w.number }

// kick makes the worker look for a new plan also while no data comes.
func (w *worker) kick() {
	select {
	case w.kicked <- struct{}{}:
	default:
	}
}

// run works until the connection has ended, then says END for each of its streams.
func (w *worker) run(ctx context.Context) {
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

// replan switches all streams to the newest plan, between two mutations of each.
func (w *worker) replan(ctx context.Context) {
	pl := w.conn.b.plan.Load()
	if pl.revision == w.revision.Load() {
		return
	}
	for _, s := range w.conn.of(w) {
		if !s.begun || s.ended.Load() {
			continue
		}
		if err := w.pump.topic.Switch(ctx, s.vb, pl.view, s.last); err != nil {
			w.broken(ctx, s, err)
			continue
		}
		s.plan = pl
	}
	w.sync()
	w.revision.Store(pl.revision)
	w.conn.b.p.notify()
}

// sync says again how far each stream is complete (PR-18). An indexer that has joined, started again or lost what was
// queued for it learns it of an idle vbucket by this alone.
func (w *worker) sync() {
	for _, s := range w.conn.of(w) {
		if s.begun && !s.ended.Load() {
			_ = w.pump.topic.Sync(s.vb, s.vbuuid, s.complete.Load()) // a begun stream can be synced
		}
	}
}

// block gives the worker's events of a block to the router.
func (w *worker) block(ctx context.Context, block *feed.Block) {
	tell, moved := false, false
	for i := range block.Events {
		e := &block.Events[i]
		if !w.owns(e.VBucket) {
			continue
		}
		s := w.last
		if s == nil || s.id != e.Stream {
			if s = w.conn.find(e.Stream); s == nil {
				continue // of a stream that was given up
			}
			w.last = s
		}
		switch {
		case e.Kind == feed.StreamBegin:
			if err := w.pump.begin(ctx, s, e, w.conn.b.plan.Load()); err != nil {
				w.broken(ctx, s, err)
			} else {
				w.conn.b.p.counters.begun.Inc()
			}
			tell, moved = true, true
		case s.ended.Load() || !s.begun:
		case e.Kind == feed.StreamEnd:
			w.pump.end(ctx, s, 0)
			w.gone(s)
			tell = true
		default:
			completed, err := w.pump.take(ctx, s, e)
			if err != nil {
				w.broken(ctx, s, err)
				tell = true
			}
			moved = moved || completed
		}
	}
	if moved {
		w.conn.b.moved()
	}
	if tell {
		w.conn.b.p.notify()
	}
}

// gone takes a stream that ended off the connection's list; the bucket keeps it for reports.
func (w *worker) gone(s *stream) {
	w.conn.remove(s)
	w.conn.b.p.counters.ended.Inc()
	if w.last == s {
		w.last = nil
	}
}

// broken gives a stream up: it is ended here, and closed at KV without waiting for it.
func (w *worker) broken(ctx context.Context, s *stream, err error) {
	if ctx.Err() != nil || errors.Is(err, router.ErrClosed) {
		s.ended.Store(true)
		return
	}
	w.conn.b.p.log.Error("a stream is given up; the coordinator will ask for it again", "bucket", w.conn.b.name, "vbucket", s.vb,
		"incarnation", s.inc, "seqno", s.last, "error", err)
	w.pump.end(ctx, s, 0)
	w.gone(s)
	w.conn.b.p.tasks.Go(func() {
		closing, cancel := context.WithTimeout(ctx, kvTimeout)
		defer cancel()
		_ = w.conn.feed.CloseStream(closing, s.vb) // if KV does not hear it, its events find no stream here
	})
}

// finish ends all streams of a connection that was lost.
func (w *worker) finish(ctx context.Context) {
	for _, s := range w.conn.of(w) {
		if s.begun && !s.ended.Load() {
			w.pump.end(ctx, s, 0)
		}
		s.ended.Store(true)
		w.gone(s)
	}
	w.conn.b.moved()
	w.conn.b.p.notify()
}
