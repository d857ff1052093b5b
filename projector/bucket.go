package projector

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"tidemark/feed"
	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/keyversion"
	"tidemark/mcbp"
	"tidemark/router"
	"tidemark/timestamp"
	"tidemark/wire"
)

// bucket is the maintenance topic of one bucket at this projector's KV node.
type bucket struct {
	p        *Projector
	name     string
	uuid     string
	topic    *router.Topic
	ctx      context.Context // ends with the bucket or the projector
	cancel   context.CancelFunc
	control  *control
	plan     atomic.Pointer[plan]
	starting sync.Mutex // one start request at a time

	planning sync.Mutex
	defs     *wire.Definitions // of the plan; guarded by planning

	mu      sync.Mutex
	conn    *connection    // nil when there is none
	streams []*stream      // by vbucket: the newest one
	seen    []incarnations // by vbucket
	changed chan struct{}  // closed and replaced when a complete seqno has moved
}

// incarnations are the fences of one vbucket.
type incarnations struct {
	highest index.Incarnation // asked for
	stopped index.Incarnation // at or below: refused
}

// connection is one DCP connection with its workers.
type connection struct {
	b       *bucket
	feed    *feed.Conn
	workers []*worker

	mu      sync.Mutex
	streams map[feed.StreamID]*stream
}

// openBucket opens the topic. The plan is made of the newest definitions.
func (p *Projector) openBucket(name, uuid string, vbuckets int) (*bucket, error) {
	p.opening.Lock() // one at a time; requests that only look take p.mu alone
	defer p.opening.Unlock()
	p.mu.Lock()
	old, defs := p.buckets[name], p.defs
	if old != nil && old.uuid == uuid {
		p.mu.Unlock()
		return old, nil
	}
	delete(p.buckets, name)
	full := len(p.buckets) >= maxBuckets
	p.mu.Unlock()
	if old != nil {
		old.close() // re-created under the same name
	}
	if full {
		return nil, rpc.NewProblem(http.StatusServiceUnavailable, rpc.CodeUnavailable, "projector %s streams %d buckets, the most it can", p.cfg.ID, maxBuckets)
	}
	if defs == nil {
		return nil, rpc.NewProblem(http.StatusServiceUnavailable, rpc.CodeUnavailable, "projector %s has no definitions yet; send them first", p.cfg.ID)
	}
	topic, err := p.router.Open(router.TopicConfig{Path: "/maintenance", Class: keyversion.ClassMaintenance, Bucket: name, BucketUUID: uuid, VBuckets: vbuckets})
	if err != nil {
		return nil, rpc.NewProblem(http.StatusServiceUnavailable, rpc.CodeUnavailable, "%v; try again", err)
	}
	b := &bucket{p: p, name: name, uuid: uuid, topic: topic, streams: make([]*stream, vbuckets), seen: make([]incarnations, vbuckets),
		changed: make(chan struct{})}
	b.ctx, b.cancel = context.WithCancel(p.runCtx)
	b.control = p.newControl(b.ctx, name)
	if err := b.replan(defs); err != nil {
		b.close()
		return nil, err
	}
	p.mu.Lock()
	p.buckets[name] = b
	newest := p.defs
	p.mu.Unlock()
	if newest != defs { // they came before it was on the list
		return b, b.replan(newest)
	}
	return b, nil
}

// close ends everything of the bucket; its goroutines end by themselves. Its projector's lock must not be held: the
// topic's connections may be asking for the cluster's id.
func (b *bucket) close() {
	b.cancel()
	b.topic.Close()
	b.control.close()
}

// replan makes the plan of new definitions, unless that of newer ones is there; workers take it between two mutations.
func (b *bucket) replan(d *wire.Definitions) error {
	b.planning.Lock()
	defer b.planning.Unlock()
	if b.defs != nil && !older(b.defs, d) {
		return nil
	}
	pl, bad, err := newPlan(d, b.name, keyversion.ClassMaintenance, maintenanceEndpoints(d), nil)
	for _, e := range bad {
		b.p.log.Error("an index cannot be evaluated and is left out; drop it and create it again", "bucket", b.name, "error", e)
	}
	if err != nil {
		return err
	}
	b.defs = d
	b.plan.Store(pl)
	b.topic.Announce(pl.view)
	b.mu.Lock()
	conn := b.conn
	b.mu.Unlock()
	if conn != nil {
		for _, w := range conn.workers {
			w.kick()
		}
	}
	return nil
}

// applied is the definitions revision that all workers work with.
func (b *bucket) applied() uint64 {
	revision := b.plan.Load().revision
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn != nil {
		for _, w := range b.conn.workers {
			revision = min(revision, w.revision.Load())
		}
	}
	return revision
}

// states is the level state of all streams.
func (b *bucket) states() wire.StreamStates {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := wire.StreamStates{Bucket: b.name, BucketUUID: b.uuid, Full: true}
	for _, s := range b.streams {
		if s == nil {
			continue
		}
		log := s.log.Load()
		if log == nil {
			continue // KV has not consented yet
		}
		r.VBuckets, r.Incarnations = append(r.VBuckets, s.vb), append(r.Incarnations, s.inc)
		r.VBUUIDs, r.Complete = append(r.VBUUIDs, log.Newest()), append(r.Complete, s.complete.Load())
		r.Ended, r.Logs = append(r.Ended, s.ended.Load()), append(r.Logs, *log)
		r.Purges, r.Revisions = append(r.Purges, s.purge), append(r.Revisions, s.revision)
	}
	return r
}

// moved wakes those who wait for a complete seqno.
func (b *bucket) moved() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.changed)
	b.changed = make(chan struct{})
}

// reached tells whether every stream that runs has completed what is wanted, and gives a channel that is closed when
// that may have changed.
func (b *bucket) reached(want []uint64) (bool, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for v, s := range b.streams {
		if s != nil && v < len(want) && !s.ended.Load() && s.complete.Load() < want[v] {
			return false, b.changed
		}
	}
	return true, b.changed
}

// connect gives the DCP connection, a new one when there is none.
func (b *bucket) connect(ctx context.Context) (*connection, error) {
	b.mu.Lock()
	have := b.conn
	b.mu.Unlock()
	if have != nil {
		select {
		case <-have.feed.Done():
		default:
			return have, nil
		}
	}
	f, err := b.p.dial(ctx, b.name, "maintenance")
	if err != nil {
		return nil, err
	}
	c := &connection{b: b, feed: f, streams: map[feed.StreamID]*stream{}}
	for n := range b.p.cfg.Workers {
		w := &worker{conn: c, number: n, of: b.p.cfg.Workers, blocks: make(chan *feed.Block, workerQueue), kicked: make(chan struct{}, 1),
			pump: pump{topic: b.topic, counters: &b.p.counters}}
		w.revision.Store(b.plan.Load().revision)
		c.workers = append(c.workers, w)
	}
	b.mu.Lock()
	b.conn = c
	b.mu.Unlock()
	for _, w := range c.workers {
		b.p.tasks.Go(func() { w.run(b.ctx) })
	}
	if !b.p.tasks.Go(func() { c.read(b.ctx) }) {
		_ = f.Close()
		return nil, errBucketClosed
	}
	return c, nil
}

// read hands the connection's blocks to the workers until it ends.
func (c *connection) read(ctx context.Context) {
	defer func() {
		for _, w := range c.workers {
			close(w.blocks)
		}
		_ = c.feed.Close()
		c.b.lost(c)
	}()
	for {
		block, err := c.feed.Next(ctx)
		if err != nil {
			if ctx.Err() == nil {
				c.b.p.log.Warn("DCP connection lost; the coordinator will ask for its streams again", "bucket", c.b.name, "kv", c.feed.Addr(), "error", err)
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
	if b.conn == c {
		b.conn = nil
	}
	b.mu.Unlock()
}

// start starts one vbucket's stream, or says why not.
func (b *bucket) start(ctx context.Context, c *connection, req *wire.StreamStart, at *kvState) wire.StartResult {
	r := wire.StartResult{VBucketLog: wire.VBucketLog{VBucket: req.VBucket}}
	if int(req.VBucket) >= len(b.streams) {
		r.Outcome, r.Detail = wire.StartFailed, fmt.Sprintf("the bucket has %d vbuckets", len(b.streams))
		return r
	}
	old, outcome := b.claim(req)
	if outcome != "" {
		if r.Outcome = outcome; outcome == wire.StartBegun {
			r.VBucketLog = b.logOf(old)
		}
		return r
	}
	if old != nil && !old.ended.Load() && c.has(old) {
		if err := c.feed.CloseStream(ctx, req.VBucket); err != nil && !errors.Is(err, feed.ErrNoStream) {
			r.Outcome, r.Detail = wire.StartFailed, err.Error()
			return r
		}
	}
	s := &stream{vb: req.VBucket, id: c.feed.NewStreamID(), inc: req.Incarnation, purge: at.purges[req.VBucket], revision: at.revision,
		start: feed.Position{Seqno: req.Seqno, SnapStart: min(req.Window.Start, req.Seqno), SnapEnd: max(req.Window.End, req.Seqno)}}
	c.add(s)
	entries, err := c.feed.OpenStream(ctx, feed.StreamRequest{VBucket: s.vb, ID: s.id, Start: s.start.Seqno, End: mcbp.EndOfTime,
		VBUUID: req.VBUUID, SnapStart: s.start.SnapStart, SnapEnd: s.start.SnapEnd})
	if err != nil {
		c.remove(s)
		return refusal(r, err)
	}
	if !b.install(s) {
		_ = c.feed.CloseStream(ctx, s.vb) // a stop or a newer incarnation overtook it; StreamEnd tidies up
		r.Outcome = wire.StartStale
		return r
	}
	r.Outcome, r.Purge, r.Revision, r.High = wire.StartBegun, s.purge, s.revision, at.highs[s.vb]
	r.Log = convertLog(entries)
	return r
}

// claim checks the fences of a vbucket and gives its present stream; an outcome other than "" ends the request.
func (b *bucket) claim(req *wire.StreamStart) (*stream, wire.StartOutcome) {
	b.mu.Lock()
	defer b.mu.Unlock()
	seen, now := &b.seen[req.VBucket], b.streams[req.VBucket]
	if req.Incarnation.Compare(seen.highest) < 0 || req.Incarnation.Compare(seen.stopped) <= 0 && !seen.stopped.IsZero() {
		return now, wire.StartStale
	}
	if now != nil && now.inc == req.Incarnation && now.log.Load() != nil && !now.ended.Load() {
		return now, wire.StartBegun // a retry
	}
	seen.highest = req.Incarnation
	return now, ""
}

// install makes a stream the vbucket's present one, unless a newer request came meanwhile.
func (b *bucket) install(s *stream) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	seen := b.seen[s.vb]
	if s.inc.Compare(seen.highest) < 0 || s.inc.Compare(seen.stopped) <= 0 && !seen.stopped.IsZero() {
		return false
	}
	b.streams[s.vb] = s
	return true
}

// refusal turns KV's error into an outcome.
func refusal(r wire.StartResult, err error) wire.StartResult {
	var rollback *feed.RollbackError
	switch {
	case errors.As(err, &rollback):
		r.Outcome, r.Rollback = wire.StartRollback, rollback.Seqno
	case errors.Is(err, feed.ErrNotMyVBucket):
		r.Outcome = wire.StartNotMine
	default:
		r.Outcome, r.Detail = wire.StartFailed, err.Error()
	}
	return r
}

func convertLog(entries []mcbp.FailoverEntry) timestamp.FailoverLog {
	log := make(timestamp.FailoverLog, len(entries))
	for i, e := range entries {
		log[i] = timestamp.LogEntry{VBUUID: e.VBUUID, Seqno: e.Seqno}
	}
	return log
}

func (b *bucket) logOf(s *stream) wire.VBucketLog {
	return wire.VBucketLog{VBucket: s.vb, Log: *s.log.Load(), Purge: s.purge, Revision: s.revision}
}

// startAll answers a start request.
func (b *bucket) startAll(ctx context.Context, starts []wire.StreamStart) (*wire.StartReply, error) {
	b.starting.Lock()
	defer b.starting.Unlock()
	at, err := b.control.state(ctx)
	if err != nil {
		return nil, err
	}
	reply := &wire.StartReply{Results: make([]wire.StartResult, len(starts))}
	var c *connection
	var g errgroup.Group
	g.SetLimit(streamsAtOnce)
	for i := range starts {
		vb := starts[i].VBucket
		if _, hosted := at.highs[vb]; !hosted {
			reply.Results[i] = wire.StartResult{VBucketLog: wire.VBucketLog{VBucket: vb}, Outcome: wire.StartNotMine}
			continue
		}
		if c == nil {
			if c, err = b.connect(ctx); err != nil {
				return nil, kvProblem(b.name, err)
			}
		}
		g.Go(func() error {
			reply.Results[i] = b.start(ctx, c, &starts[i], at)
			return nil
		})
	}
	_ = g.Wait() // outcomes carry the errors
	b.p.notify()
	return reply, nil
}

// stop ends streams at or below an incarnation.
func (b *bucket) stop(ctx context.Context, vbuckets []uint16, inc index.Incarnation) {
	if len(vbuckets) == 0 {
		for v := range b.streams {
			vbuckets = append(vbuckets, uint16(v))
		}
	}
	b.mu.Lock()
	c := b.conn
	var closing []*stream
	for _, v := range vbuckets {
		if int(v) >= len(b.streams) {
			continue
		}
		if b.seen[v].stopped.Compare(inc) < 0 {
			b.seen[v].stopped = inc
		}
		if s := b.streams[v]; s != nil && s.inc.Compare(inc) <= 0 && !s.ended.Load() {
			closing = append(closing, s)
		}
	}
	b.mu.Unlock()
	if c == nil {
		return
	}
	var g errgroup.Group
	g.SetLimit(streamsAtOnce)
	for _, s := range closing {
		if c.has(s) {
			g.Go(func() error {
				if err := c.feed.CloseStream(ctx, s.vb); err != nil && !errors.Is(err, feed.ErrNoStream) {
					b.p.log.Warn("closing a stream", "bucket", b.name, "vbucket", s.vb, "error", err)
				}
				return nil
			})
		}
	}
	_ = g.Wait() // logged above
}

func (c *connection) add(s *stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.streams[s.id] = s
}

func (c *connection) remove(s *stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.streams, s.id)
}

func (c *connection) has(s *stream) bool { return c.find(s.id) == s }

func (c *connection) find(id feed.StreamID) *stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.streams[id]
}

// of lists the streams whose vbuckets a worker owns.
func (c *connection) of(w *worker) (mine []*stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.streams {
		if w.owns(s.vb) {
			mine = append(mine, s)
		}
	}
	return mine
}
