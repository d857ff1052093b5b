package projector

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/kv/mcbp"
	"tidemark/projector/feed"
	"tidemark/timestamp"
	"tidemark/wire"
)

// startAll answers a request for maintenance streams. Requests of the same vbucket wait for each other, others do not.
func (b *bucket) startAll(ctx context.Context, inc index.Incarnation,
	restart *wire.RestartTimestamp) ([]wire.StartResult, error) {
	at, err := b.control.state(ctx)
	if err != nil {
		return nil, err
	}
	if at.config.UUID != "" && at.config.UUID != b.uuid {
		return nil, recreated(b.name, at.config.UUID, b.uuid)
	}
	results := make([]wire.StartResult, restart.Len())
	var c *connection
	many := starts{b: b, inc: inc, at: at, results: results}
	for i := range results {
		want := restart.At(i)
		if _, hosted := at.highs[want.VBucket]; !hosted {
			results[i] = wire.StartResult{VBucketHistory: wire.VBucketHistory{VBucket: want.VBucket}, Outcome: wire.StartNotMine}
			continue
		}
		if c == nil {
			if c, err = b.connect(ctx); err != nil {
				return nil, kvProblem(b.name, err)
			}
		}
		many.wants = append(many.wants, start{at: i, req: want})
	}
	many.run(ctx, c)
	b.p.notify()
	return results, nil
}

// starts are the streams of one request.
type starts struct {
	b       *bucket
	inc     index.Incarnation
	at      *kvState
	wants   []start
	results []wire.StartResult
}

// start is one of them: its place among the results and, once it is claimed, its stream.
type start struct {
	at  int
	req wire.StreamStart
	s   *stream
}

// run starts them. Those whose vbuckets nobody else is busy with and that have nothing open at KV, most often all, ask
// together; the others one by one beside them, each waiting for its own vbucket only.
func (m *starts) run(ctx context.Context, c *connection) {
	var together, single []start
	for _, w := range m.wants {
		if int(w.req.VBucket) >= len(m.b.gates) || !m.b.gates[w.req.VBucket].tryLock() {
			single = append(single, w)
			continue
		}
		if old := c.newestOf(w.req.VBucket); old != nil && old.atKV.Load() {
			m.b.gates[w.req.VBucket].unlock()
			single = append(single, w)
			continue
		}
		if m.results[w.at], w.s = m.b.claimed(m.inc, &w.req, m.at); w.s == nil {
			m.b.gates[w.req.VBucket].unlock()
			continue
		}
		together = append(together, w)
	}
	var g errgroup.Group
	g.SetLimit(streamsAtOnce)
	for some := range slices.Chunk(together, mostTogether) {
		g.Go(func() error {
			m.startTogether(ctx, c, some)
			return nil
		})
	}
	for _, w := range single {
		g.Go(func() error {
			m.results[w.at] = m.b.start(ctx, c, m.inc, &w.req, m.at)
			return nil
		})
	}
	_ = g.Wait() // outcomes carry the errors
}

// mostTogether is how many streams wait for each other's answers: a vbucket that KV is silent about holds no more of
// them up.
const mostTogether = 64

// startTogether opens streams whose gates are held, and lets go of them when KV has answered for all, or answers no
// more.
func (m *starts) startTogether(ctx context.Context, c *connection, all []start) {
	streams, vbuuids := make([]*stream, len(all)), make([]uint64, len(all))
	for i := range all {
		streams[i], vbuuids[i] = all[i].s, all[i].req.VBUUID
	}
	var g errgroup.Group
	g.SetLimit(streamsAtOnce)
	for i, err := range c.openAll(ctx, streams, vbuuids) {
		settle := func() error {
			w := &all[i]
			defer m.b.gates[w.req.VBucket].unlock()
			m.results[w.at] = m.b.settled(ctx, c, w.s, &w.req, m.at, err)
			return nil
		}
		if err == nil {
			_ = settle()
		} else { // KV is asked more
			g.Go(settle)
		}
	}
	_ = g.Wait() // outcomes carry the errors
}

// recreated words the refusal of a bucket that is not the one that is meant.
func recreated(name, have, want string) error {
	return rpc.Refuse(errcode.BucketGone, "bucket %q has uuid %s here, the request means %s: it was "+
		"deleted and created again", name, have, want)
}

// start starts one vbucket's stream, or says why not.
func (b *bucket) start(ctx context.Context, c *connection, inc index.Incarnation, req *wire.StreamStart,
	at *kvState) wire.StartResult {
	if int(req.VBucket) >= len(b.gates) {
		return failedStart(req, fmt.Sprintf("the bucket has %d vbuckets", len(b.gates)))
	}
	if err := b.gates[req.VBucket].lock(ctx); err != nil {
		return failedStart(req, err.Error())
	}
	defer b.gates[req.VBucket].unlock()
	r, s := b.claimed(inc, req, at)
	if s == nil {
		return r
	}
	return b.settled(ctx, c, s, req, at, c.open(ctx, s, req.VBUUID))
}

func failedStart(req *wire.StreamStart, why string) wire.StartResult {
	return wire.StartResult{VBucketHistory: wire.VBucketHistory{VBucket: req.VBucket}, Outcome: wire.StartFailed,
		Detail: why}
}

// claimed returns the stream that KV is to be asked for, or the outcome of a request that ends here; the caller holds
// the vbucket's gate.
func (b *bucket) claimed(inc index.Incarnation, req *wire.StreamStart, at *kvState) (wire.StartResult, *stream) {
	r := wire.StartResult{VBucketHistory: wire.VBucketHistory{VBucket: req.VBucket}}
	switch now, outcome := b.claim(req.VBucket, inc); {
	case outcome == wire.StartBegun:
		return now.begunAs(r, at), nil
	case outcome == wire.StartFailed:
		return failedStart(req, "the stream of this incarnation has ended; ask under a new one"), nil
	case outcome != "":
		r.Outcome = outcome
		return r, nil
	}
	end := req.End
	if end == 0 {
		end = mcbp.EndOfTime
	}
	s := newStream(at, req, inc, end)
	tracker := feed.NewTracker(s.start)
	s.complete.Store(tracker.Progress().Complete)
	return r, s
}

// newStream is the stream that a request asks for.
func newStream(at *kvState, req *wire.StreamStart, inc index.Incarnation, end uint64) *stream {
	s := &stream{vb: req.VBucket, inc: inc, revision: at.revision, end: end, branch: req.Branch,
		start: feed.Position{Seqno: req.Seqno, SnapStart: req.Window.Start, SnapEnd: req.Window.End}}
	purge, blind := at.purgeAt(req.VBucket, req.Seqno)
	s.blind = blind
	s.purge.Store(purge)
	return s
}

// settled is the outcome of a stream that KV was asked for, with its answer; the caller holds the vbucket's gate.
func (b *bucket) settled(ctx context.Context, c *connection, s *stream, req *wire.StreamStart, at *kvState,
	err error) wire.StartResult {
	r := wire.StartResult{VBucketHistory: wire.VBucketHistory{VBucket: req.VBucket}}
	for wait := existsWait; errors.Is(err, feed.ErrStreamExists) && wait <= existsMost; wait *= 2 {
		if !sleep(ctx, wait) {
			break
		}
		err = c.open(ctx, s, req.VBUUID)
	}
	if again(err, req) { // the producer may have lost its newest branch, which shares this seqno with the one before
		err = c.open(ctx, s, req.Previous)
	}
	if err != nil {
		return refusal(ctx, c.feed, r, at, err)
	}
	if s.failedOver(s.log) {
		_ = c.closeAtKV(ctx, s) // if KV does not hear this, the next start closes it
		return s.failover(r, at)
	}
	if !b.install(s) {
		_ = c.closeAtKV(ctx, s) // a stop overtook it
		r.Outcome = wire.StartStale
		return r
	}
	return s.begunAs(r, at)
}

// A stream that was closed may be on KV's list for a moment longer, and KV refuses the next one. It is asked for again
// after existsWait, then after twice that, up to existsMost.
const (
	existsWait = 5 * time.Millisecond
	existsMost = 320 * time.Millisecond
)

// sleep waits; false if ctx ended before.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// again reports whether KV's answer is a ROLLBACK that the branch before may not get.
func again(err error, req *wire.StreamStart) bool {
	var rollback *feed.RollbackError
	return errors.As(err, &rollback) && req.Previous != 0 && req.Previous != req.VBUUID
}

// failedOver reports whether KV is on another branch than the asker knew when it chose the start (PR-12).
func (s *stream) failedOver(log timestamp.FailoverLog) bool {
	return s.branch != 0 && log.Newest() != s.branch
}

// failover is the outcome of a stream that was closed because KV has failed over since its log was read.
func (s *stream) failover(r wire.StartResult, at *kvState) wire.StartResult {
	settle(&r, s.log)
	r.Outcome, r.Purge, r.Revision, r.High = wire.StartFailover, s.purge.Load(), s.revision, at.highs[s.vb]
	r.Detail = fmt.Sprintf("the KV node is on branch %d, the request knows %d: read its failover log again",
		s.log.Newest(), s.branch)
	return r
}

// begunAs is the outcome of a stream that runs.
func (s *stream) begunAs(r wire.StartResult, at *kvState) wire.StartResult {
	settle(&r, s.log)
	r.Outcome, r.Purge, r.Revision, r.High = wire.StartBegun, s.purge.Load(), s.revision, at.highs[s.vb]
	r.Stream = timestamp.Position{VBUUID: s.asked, Seqno: s.start.Seqno}
	return r
}

// claim checks the fences of a vbucket and gives its present stream; an outcome other than "" ends the request.
func (b *bucket) claim(vb uint16, inc index.Incarnation) (*stream, wire.StartOutcome) {
	b.mu.Lock()
	defer b.mu.Unlock()
	seen, now := &b.seen[vb], b.streams[vb]
	switch {
	case inc.Compare(seen.highest) < 0 || seen.refuses(inc):
		return now, wire.StartStale
	case now != nil && now.inc == inc && now.ended.Load():
		return now, wire.StartFailed
	case now != nil && now.inc == inc:
		return now, wire.StartBegun // a retry
	}
	seen.highest = inc
	return now, ""
}

// install makes a stream the vbucket's present one, unless a newer request or a stop came meanwhile.
func (b *bucket) install(s *stream) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	seen := &b.seen[s.vb]
	if s.inc.Compare(seen.highest) < 0 || seen.refuses(s.inc) {
		return false
	}
	b.streams[s.vb] = s
	return true
}

// incarnations are the fences of one vbucket.
type incarnations struct {
	highest index.Incarnation // asked for
	stopped index.Incarnation // at or below: refused; zero: none
}

func (i *incarnations) refuses(inc index.Incarnation) bool {
	return !i.stopped.IsZero() && inc.Compare(i.stopped) <= 0
}

// refusal turns KV's error into an outcome. With ROLLBACK goes what the asker needs in order to decide.
func refusal(ctx context.Context, conn feed.Feed, r wire.StartResult, at *kvState, err error) wire.StartResult {
	var rollback *feed.RollbackError
	switch {
	case errors.As(err, &rollback):
		r.Outcome, r.Rollback = wire.StartRollback, rollback.Seqno
		r.Purge, r.Revision, r.High = at.purges[r.VBucket], at.revision, at.highs[r.VBucket]
		if entries, err := conn.FailoverLog(ctx, r.VBucket); err == nil {
			settle(&r, entries)
		}
	case errors.Is(err, feed.ErrNotMyVBucket):
		r.Outcome = wire.StartNotMine
	default:
		r.Outcome, r.Detail = wire.StartFailed, err.Error()
	}
	return r
}

// stop ends streams at or below an incarnation. It holds from the first moment; one that is being started ends when KV
// has answered.
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
	// A node that does not hear it sends on, under an incarnation that counts no more, until the vbucket's next start or
	// stop.
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	var g errgroup.Group
	g.SetLimit(streamsAtOnce)
	for _, s := range closing {
		g.Go(func() error { return c.discard(ctx, s) })
	}
	if err := g.Wait(); err != nil {
		b.p.log.Warn("KV has not heard that streams are stopped; what they bring counts no more", "bucket", b.name,
			"vbuckets", len(closing), "error", err)
	}
}
