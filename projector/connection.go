package projector

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"tidemark/keyversion"
	"tidemark/projector/feed"
	"tidemark/timestamp"
)

// connection is one DCP connection of a bucket with its workers.
type connection struct {
	b       *bucket
	feed    feed.Feed
	window  int  // of DCP: how many unacknowledged bytes KV may send
	xattrs  bool // documents come with their extended attributes
	renewal sync.Once
	workers []*worker
	before  <-chan struct{} // closed when the previous connection's workers have finished; nil for the first
	drained chan struct{}   // closed when this connection's workers have finished

	mu      sync.Mutex
	streams map[feed.StreamID]*stream // those that may still have events to come
	newest  []*stream                 // by vbucket: the last one that was requested from KV
}

// connect returns the DCP connection, and opens one if there is none.
func (b *bucket) connect(ctx context.Context) (*connection, error) {
	if err := b.dialing.lock(ctx); err != nil {
		return nil, err
	}
	defer b.dialing.unlock()
	b.mu.Lock()
	have, before := b.conn, b.drained
	b.mu.Unlock()
	if have != nil && have.alive() {
		return have, nil
	}
	pl := b.plan.Load()
	xattrs := pl.xattrs()
	window := max(feed.DefaultBufferBytes/b.p.sharers(), feed.MinBufferBytes)
	f, err := b.p.dialCalm(ctx, b.name, "maintenance", window, xattrs, b.calm)
	if err != nil {
		return nil, err
	}
	c := &connection{b: b, feed: f, window: window, xattrs: xattrs, before: before, drained: make(chan struct{}),
		streams: map[feed.StreamID]*stream{},
		newest:  make([]*stream, b.vbuckets())}
	desk := newPurgeDesk(b.ctx, b.p, b.name, b.control.get)
	for n := range b.p.cfg.Workers {
		w := &worker{conn: c, number: n, of: b.p.cfg.Workers, blocks: make(chan *feed.Block, workerQueue),
			kicked:  make(chan struct{}, 1),
			current: map[uint16]*stream{}, pump: pump{topic: b.topic, counters: &b.p.counters,
				received: b.p.counters.received[keyversion.ClassMaintenance], faults: &b.p.faults, desk: desk,
				answers: newPurgeAnswers()}}
		w.plan.Store(pl)
		c.workers = append(c.workers, w)
	}
	if !b.p.tasks.Go(func() { c.run(b.ctx) }) {
		_ = f.Close()
		return nil, errBucketClosed
	}
	b.mu.Lock()
	b.conn, b.drained = c, c.drained
	b.mu.Unlock()
	c.kick() // a plan that was stored in between has kicked no worker
	return c, nil
}

func (c *connection) alive() bool {
	select {
	case <-c.feed.Done():
		return false
	default:
		return true
	}
}

// renew closes a connection that does not deliver what the newest plan needs. The coordinator then requests its
// streams again, and they come over a connection that does. Until then the plan is not applied.
func (c *connection) renew() {
	c.renewal.Do(func() {
		c.b.p.log.Info("index needs the extended attributes of documents: reopening the DCP connection", "bucket",
			c.b.name)
		c.b.p.tasks.Go(func() { _ = c.feed.Close() })
	})
}

func (c *connection) kick() {
	for _, w := range c.workers {
		w.kick()
	}
}

// run reads blocks until the connection has ended and its workers have sent END for all streams. The workers start
// when those of the previous connection have finished, so that only one goroutine at a time handles a vbucket's
// events.
func (c *connection) run(ctx context.Context) {
	defer close(c.drained)
	var workers sync.WaitGroup
	for _, w := range c.workers {
		workers.Go(func() { w.run(ctx) })
	}
	c.read(ctx)
	for _, w := range c.workers {
		close(w.blocks)
	}
	_ = c.feed.Close()
	c.b.lost(c)
	workers.Wait()
}

// read passes the connection's blocks to the workers until it ends.
func (c *connection) read(ctx context.Context) {
	for {
		block, err := c.feed.Next(ctx)
		if err != nil {
			if ctx.Err() == nil {
				c.b.p.log.Warn("DCP connection lost; the coordinator will request its streams again", "bucket", c.b.name, "kv",
					c.feed.Addr(), "error", err)
			}
			return
		}
		block.Retain(len(c.workers) - 1)
		for _, w := range c.workers {
			select {
			case w.blocks <- block:
			case <-ctx.Done():
				return // no release: the window is that of a connection that is being closed
			}
		}
	}
}

// lost clears the bucket's connection if it is c.
func (b *bucket) lost(c *connection) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn == c {
		b.conn = nil
	}
}

// open requests a stream from KV. A stream of the vbucket that this connection already has is closed before. The
// caller holds the vbucket's gate.
func (c *connection) open(ctx context.Context, s *stream) (timestamp.FailoverLog, error) {
	if err := c.closeAtKV(ctx, c.newestOf(s.VBucket())); err != nil {
		return nil, err
	}
	log, err := c.feed.OpenStream(ctx, c.request(s))
	c.opened(s, err)
	return log, err
}

// openAll requests many streams, none of whose vbuckets has a stream open at KV.
func (c *connection) openAll(ctx context.Context, all []*stream) []feed.StreamAnswer {
	reqs := make([]feed.StreamRequest, len(all))
	for i, s := range all {
		reqs[i] = c.request(s)
	}
	answers := c.feed.OpenStreams(ctx, reqs)
	for i, a := range answers {
		c.opened(all[i], a.Err)
	}
	return answers
}

// newestOf returns the last stream of a vbucket that was requested from KV, nil if there was none.
func (c *connection) newestOf(vb uint16) *stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newest[vb]
}

// request registers a stream, before KV can answer, and returns the request to send.
func (c *connection) request(s *stream) feed.StreamRequest {
	s.id = c.feed.NewStreamID()
	s.atKV.Store(true)
	c.mu.Lock()
	c.streams[s.id], c.newest[s.VBucket()] = s, s
	c.mu.Unlock()
	return s.request()
}

// opened unregisters a stream that KV did not grant.
func (c *connection) opened(s *stream, err error) {
	if err != nil {
		s.atKV.Store(false) // if KV grants it later, the feed closes it
		c.remove(s)
	}
}

// closeAtKV closes a stream at KV if it may be open there.
func (c *connection) closeAtKV(ctx context.Context, s *stream) error {
	if s == nil || !s.atKV.Load() {
		return nil
	}
	if err := c.feed.CloseStream(ctx, s.VBucket()); err != nil && !errors.Is(err, feed.ErrNoStream) {
		return fmt.Errorf("closing the stream of vbucket %d: %w", s.VBucket(), err)
	}
	s.atKV.Store(false)
	return nil
}

// discard closes a stream at KV unless a newer one of its vbucket was requested; the caller does not hold the gate.
func (c *connection) discard(ctx context.Context, s *stream) error {
	gate := c.b.gates[s.VBucket()]
	if err := gate.lock(ctx); err != nil {
		return err
	}
	defer gate.unlock()
	c.mu.Lock()
	newest := c.newest[s.VBucket()]
	c.mu.Unlock()
	if newest != s {
		return nil
	}
	return c.closeAtKV(ctx, s)
}

// remove unregisters a stream: its further events are dropped.
func (c *connection) remove(s *stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.streams, s.id)
}

func (c *connection) find(id feed.StreamID) *stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.streams[id]
}

// all returns the streams that may still have events to come.
func (c *connection) all() []*stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]*stream, 0, len(c.streams))
	for _, s := range c.streams {
		all = append(all, s)
	}
	return all
}
