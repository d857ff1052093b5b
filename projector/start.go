package projector

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"tidemark/feed"
	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/mcbp"
	"tidemark/statecontext"
	"tidemark/timestamp"
	"tidemark/wire"
)

// startAll answers a request for maintenance streams. Requests of the same vbucket wait for each other, others do not.
func (b *bucket) startAll(ctx context.Context, inc index.Incarnation, restart *wire.RestartTimestamp) ([]wire.StartResult, error) {
	at, err := b.control.state(ctx)
	if err != nil {
		return nil, err
	}
	if at.config.UUID != "" && at.config.UUID != b.uuid {
		return nil, recreated(b.name, at.config.UUID, b.uuid)
	}
	results := make([]wire.StartResult, restart.Len())
	var c *connection
	var g errgroup.Group
	g.SetLimit(streamsAtOnce)
	for i := range results {
		want := restart.At(i)
		if _, hosted := at.highs[want.VBucket]; !hosted {
			results[i] = wire.StartResult{VBucketLog: wire.VBucketLog{VBucket: want.VBucket}, Outcome: wire.StartNotMine}
			continue
		}
		if c == nil {
			if c, err = b.connect(ctx); err != nil {
				_ = g.Wait()
				return nil, kvProblem(b.name, err)
			}
		}
		g.Go(func() error {
			results[i] = b.start(ctx, c, inc, &want, at)
			return nil
		})
	}
	_ = g.Wait() // outcomes carry the errors
	b.p.notify()
	return results, nil
}

// recreated words the refusal of a bucket that is not the one that is meant.
func recreated(name, have, want string) error {
	return rpc.Refuse(string(statecontext.BucketIsGone), "bucket %q has uuid %s here, the request means %s: it was deleted and created again", name, have, want)
}

// start starts one vbucket's stream, or says why not.
func (b *bucket) start(ctx context.Context, c *connection, inc index.Incarnation, req *wire.StreamStart, at *kvState) wire.StartResult {
	r := wire.StartResult{VBucketLog: wire.VBucketLog{VBucket: req.VBucket}}
	fail := func(why string) wire.StartResult {
		r.Outcome, r.Detail = wire.StartFailed, why
		return r
	}
	if int(req.VBucket) >= len(b.streams) {
		return fail(fmt.Sprintf("the bucket has %d vbuckets", len(b.streams)))
	}
	if err := b.gates[req.VBucket].lock(ctx); err != nil {
		return fail(err.Error())
	}
	defer b.gates[req.VBucket].unlock()
	switch now, outcome := b.claim(req.VBucket, inc); {
	case outcome == wire.StartBegun:
		return now.begunAs(r, at)
	case outcome == wire.StartFailed:
		return fail("the stream of this incarnation has ended; ask under a new one")
	case outcome != "":
		r.Outcome = outcome
		return r
	}
	end := req.End
	if end == 0 {
		end = mcbp.EndOfTime
	}
	s := &stream{vb: req.VBucket, inc: inc, purge: at.purges[req.VBucket], revision: at.revision, end: end, branch: req.Branch,
		start: feed.Position{Seqno: req.Seqno, SnapStart: req.Window.Start, SnapEnd: req.Window.End}}
	tracker := feed.NewTracker(s.start)
	s.complete.Store(tracker.Progress().Complete)
	err := c.open(ctx, s, req.VBUUID)
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

// again tells whether KV's answer is a ROLLBACK that the branch before may not get.
func again(err error, req *wire.StreamStart) bool {
	var rollback *feed.RollbackError
	return errors.As(err, &rollback) && req.Previous != 0 && req.Previous != req.VBUUID
}

// failedOver tells whether KV is on another branch than the asker knew when it chose the start (PR-12).
func (s *stream) failedOver(log timestamp.FailoverLog) bool {
	return s.branch != 0 && log.Newest() != s.branch
}

// failover is the outcome of a stream that was closed because KV has failed over since its log was read.
func (s *stream) failover(r wire.StartResult, at *kvState) wire.StartResult {
	settle(&r, s.log)
	r.Outcome, r.Purge, r.Revision, r.High = wire.StartFailover, s.purge, s.revision, at.highs[s.vb]
	r.Detail = fmt.Sprintf("the KV node is on branch %d, the request knows %d: read its failover log again", s.log.Newest(), s.branch)
	return r
}

// begunAs is the outcome of a stream that runs.
func (s *stream) begunAs(r wire.StartResult, at *kvState) wire.StartResult {
	settle(&r, s.log)
	r.Outcome, r.Purge, r.Revision, r.High = wire.StartBegun, s.purge, s.revision, at.highs[s.vb]
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
			settle(&r, convertLog(entries))
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
	var g errgroup.Group
	g.SetLimit(streamsAtOnce)
	for _, s := range closing {
		g.Go(func() error {
			if err := c.discard(ctx, s); err != nil {
				b.p.log.Warn("stopping a stream", "bucket", b.name, "vbucket", s.vb, "error", err)
			}
			return nil
		})
	}
	_ = g.Wait() // logged above
}
