package projector

import (
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/projector/core"
	"tidemark/projector/feed"
	"tidemark/timestamp"
	"tidemark/wire"
)

// startAll serves a request for maintenance streams. Requests for the same vbucket wait for each other, others do
// not.
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
			results[i] = core.NotMine(want.VBucket)
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

// starts holds the streams of one request.
type starts struct {
	b       *bucket
	inc     index.Incarnation
	at      *kvState
	wants   []start
	results []wire.StartResult
}

// start is one of them: its position in the results and, once it is claimed, its stream.
type start struct {
	at  int
	req wire.StreamStart
	s   *stream
}

// run starts the streams. Those whose gates are free and that have no stream open at KV, usually all, are requested
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
		if w.s, m.results[w.at] = m.b.claim(m.inc, &w.req, m.at); w.s == nil {
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

// mostTogether bounds the streams that wait for each other's answers: a vbucket for which KV does not answer holds up
// no more than these.
const mostTogether = 64

// startTogether opens streams whose gates are held, and releases each gate when its outcome is known.
func (m *starts) startTogether(ctx context.Context, c *connection, all []start) {
	streams := make([]*stream, len(all))
	for i := range all {
		streams[i] = all[i].s
	}
	var g errgroup.Group
	g.SetLimit(streamsAtOnce)
	for i, answer := range c.openAll(ctx, streams) {
		settle := func() error {
			w := &all[i]
			defer m.b.gates[w.req.VBucket].unlock()
			m.results[w.at] = m.b.settled(ctx, c, w.s, answer.Log, answer.Err)
			return nil
		}
		if answer.Err == nil {
			_ = settle()
		} else { // it sends further queries to KV
			g.Go(settle)
		}
	}
	_ = g.Wait() // outcomes carry the errors
}

// recreated returns the refusal for a bucket whose uuid is not the requested one.
func recreated(name, have, want string) error {
	return rpc.Refuse(errcode.BucketGone, "bucket %q has uuid %s, the request is for %s: it was "+
		"deleted and created again", name, have, want)
}

// start starts one vbucket's stream, and returns the outcome.
func (b *bucket) start(ctx context.Context, c *connection, inc index.Incarnation, req *wire.StreamStart,
	at *kvState) wire.StartResult {
	if int(req.VBucket) < len(b.gates) {
		if err := b.gates[req.VBucket].lock(ctx); err != nil {
			return core.Failed(req.VBucket, err.Error())
		}
		defer b.gates[req.VBucket].unlock()
	}
	s, r := b.claim(inc, req, at)
	if s == nil {
		return r
	}
	log, err := c.open(ctx, s)
	return b.settled(ctx, c, s, log, err)
}

// claim returns the stream to request from KV, or nil and the outcome if the request ends here; the caller holds the
// vbucket's gate.
func (b *bucket) claim(inc index.Incarnation, req *wire.StreamStart, at *kvState) (*stream, wire.StartResult) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, r := b.streams.Claim(inc, req, at.of(req.VBucket))
	if s == nil {
		return nil, r
	}
	return newStream(s), r
}

// install makes a stream the vbucket's newest one, unless a newer request or a stop came meanwhile.
func (b *bucket) install(s *stream) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.streams.Install(s)
}

// settled returns the outcome of a stream that was requested from KV, given its answer; the caller holds the
// vbucket's gate.
func (b *bucket) settled(ctx context.Context, c *connection, s *stream, log timestamp.FailoverLog,
	err error) wire.StartResult {
	for {
		a := answer(log, err)
		switch s.Answered(a, true) {
		case core.RequestLater:
			if !sleep(ctx, s.Pause()) {
				return core.Failed(s.VBucket(), a.Detail)
			}
			log, err = c.open(ctx, s)
		case core.RequestAgain:
			log, err = c.open(ctx, s)
		case core.GiveUp:
			return refusal(ctx, c.feed, &s.Start, a)
		case core.CloseAtKV:
			_ = c.closeAtKV(ctx, s) // if KV does not receive this, the vbucket's next start closes it
			return s.FailedOver()
		case core.Begin:
			if !b.install(s) {
				_ = c.closeAtKV(ctx, s) // a stop overtook it
				return s.Overtaken()
			}
			return s.Began(s.KV.High, s.lacks.Load())
		}
	}
}

// answer classifies KV's answer to a stream request.
func answer(log timestamp.FailoverLog, err error) core.Answer {
	var rollback *feed.RollbackError
	switch {
	case err == nil:
		return core.Answer{Verdict: core.Consents, Log: log}
	case errors.As(err, &rollback):
		return core.Answer{Verdict: core.RollsBack, Rollback: rollback.Seqno, Detail: err.Error()}
	case errors.Is(err, feed.ErrNotMyVBucket):
		return core.Answer{Verdict: core.Elsewhere, Detail: err.Error()}
	case errors.Is(err, feed.ErrStreamExists):
		return core.Answer{Verdict: core.Exists, Detail: err.Error()}
	}
	return core.Answer{Verdict: core.Fails, Detail: err.Error()}
}

// refusal returns the outcome of a start that KV refused. After a rollback it reads KV's failover log, which the
// requester needs.
func refusal(ctx context.Context, conn feed.Feed, s *core.Start, a core.Answer) wire.StartResult {
	var log timestamp.FailoverLog
	if a.Verdict == core.RollsBack {
		log, _ = conn.FailoverLog(ctx, s.VBucket()) // without it the outcome has no log
	}
	return s.Refused(a, log)
}

// sleep waits, and returns false if ctx ended first.
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

// stop ends streams at or below an incarnation. It takes effect immediately; a stream that is being started ends when
// KV has answered.
func (b *bucket) stop(ctx context.Context, vbuckets []uint16, inc index.Incarnation) {
	b.mu.Lock()
	c := b.conn
	closing := b.streams.Stop(vbuckets, inc)
	b.mu.Unlock()
	if c == nil {
		return
	}
	// If KV does not receive the close, it keeps sending, under an incarnation that is no longer valid, until the
	// vbucket's next start or stop.
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	var g errgroup.Group
	g.SetLimit(streamsAtOnce)
	for _, s := range closing {
		g.Go(func() error { return c.discard(ctx, s) })
	}
	if err := g.Wait(); err != nil {
		b.p.log.Warn("KV did not receive the stop of streams; their data is ignored", "bucket", b.name,
			"vbuckets", len(closing), "error", err)
	}
}
