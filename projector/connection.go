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
	window  int  // of DCP: how many bytes KV may send ahead
	xattrs  bool // it brings the extended attributes of documents
	renewal sync.Once
	workers []*worker
	before  <-chan struct{} // closed when the connection before has nothing left to say; nil for the first
	drained chan struct{}   // closed when this one has

	mu      sync.Mutex
	streams map[feed.StreamID]*stream // those that events may still come for
	newest  []*stream                 // by vbucket: the last one that KV was asked for
}

// connect returns the DCP connection, a new one when there is none.
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
	c.kick() // a plan that came in between has kicked nobody
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

// renew ends a connection that does not bring what the newest plan needs; the coordinator asks for its streams again,
// and they come over one that does. Until then the plan is not applied.
func (c *connection) renew() {
	c.renewal.Do(func() {
		c.b.p.log.Info("an index needs the extended attributes of documents: the DCP connection is made anew", "bucket",
			c.b.name)
		c.b.p.tasks.Go(func() { _ = c.feed.Close() })
	})
}

func (c *connection) kick() {
	for _, w := range c.workers {
		w.kick()
	}
}

// run takes blocks until the connection has ended and its workers have said END for all streams. The workers begin
// when those of the connection before are through: of a vbucket's events only one goroutine at a time has charge.
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

// read hands the connection's blocks to the workers until it ends.
func (c *connection) read(ctx context.Context) {
	for {
		block, err := c.feed.Next(ctx)
		if err != nil {
			if ctx.Err() == nil {
				c.b.p.log.Warn("DCP connection lost; the coordinator will ask for its streams again", "bucket", c.b.name, "kv",
					c.feed.Addr(), "error", err)
			}
			return
		}
		block.Retain(len(c.workers) - 1)
		for _, w := range c.workers {
			select {
			case w.blocks <- block:
			case <-ctx.Done():
				return // nobody waits for these bytes
			}
		}
	}
}

// lost forgets a connection that ended.
func (b *bucket) lost(c *connection) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn == c {
		b.conn = nil
	}
}

// open asks KV for a stream; the caller holds the vbucket's gate. What the connection has of the vbucket is closed
// before.
func (c *connection) open(ctx context.Context, s *stream) (timestamp.FailoverLog, error) {
	if err := c.closeAtKV(ctx, c.newestOf(s.VBucket())); err != nil {
		return nil, err
	}
	log, err := c.feed.OpenStream(ctx, c.request(s))
	c.opened(s, err)
	return log, err
}

// openAll is open for many, none of which has anything open at KV.
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

// newestOf is the last stream of a vbucket that KV was asked for; nil: none.
func (c *connection) newestOf(vb uint16) *stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newest[vb]
}

// request makes a stream known, before KV can answer, and returns what KV is asked.
func (c *connection) request(s *stream) feed.StreamRequest {
	s.id = c.feed.NewStreamID()
	s.atKV.Store(true)
	c.mu.Lock()
	c.streams[s.id], c.newest[s.VBucket()] = s, s
	c.mu.Unlock()
	return s.request()
}

// opened forgets a stream that KV has not consented to.
func (c *connection) opened(s *stream, err error) {
	if err != nil {
		s.atKV.Store(false) // should KV consent later, the connection takes it back
		c.remove(s)
	}
}

// closeAtKV ends a stream at KV if it may be open there.
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

// discard ends a stream at KV unless a newer one of its vbucket was asked for; the caller does not hold the gate.
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

// remove lets a stream's events find nobody any more.
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

// all lists the streams that events may still come for.
func (c *connection) all() []*stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]*stream, 0, len(c.streams))
	for _, s := range c.streams {
		all = append(all, s)
	}
	return all
}
