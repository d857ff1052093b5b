package projector

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/keyversion"
	"tidemark/projector/core"
	"tidemark/projector/feed"
	"tidemark/projector/router"
	"tidemark/wire"
)

// side is a side stream: one request's vbuckets of a bucket, from a DCP connection that other side streams may share
// (reading), to one endpoint (PR-11 forms 2 and 3). When the DCP connection is lost, the connections to the endpoint
// are closed as well (PR-10). A side stream ends when all its vbuckets have ended, when another one replaces it, or
// when nothing has moved for sideIdleLimit.
type side struct {
	p       *Projector
	key     core.SideKey
	target  *wire.SideTarget
	want    *wire.StreamBucket
	inc     index.Incarnation
	class   keyversion.Class
	plan    *plan
	awaits  []index.NodeID               // nodes expected to want the same data
	from    *reader                      // nil while it is being opened
	topic   atomic.Pointer[router.Topic] // nil while it is being opened; other goroutines read it
	streams map[feed.StreamID]*stream
	open    atomic.Int64 // streams that have not ended; other goroutines read it
	broken  brokenOff    // not logged yet
	ctx     context.Context
	cancel  context.CancelCauseFunc
	ended   chan struct{}
	beats   atomic.Uint64             // incremented on progress
	runs    atomic.Pointer[time.Time] // since when it runs
	dropped marks                     // vbuckets that the indexer has given up
	gone    marks                     // vbuckets that the KV node no longer hosts
}

const (
	// reachTime is how long vbuckets that have been streamed wait for KV's high seqnos, over all attempts of one
	// query; vbuckets that arrive meanwhile share the next one.
	reachTime = 10 * time.Second
	// reachPause is the pause between two attempts; it doubles.
	reachPause = 50 * time.Millisecond
)

// Causes for which a side stream is closed.
var (
	errSideReplaced = errors.New("a later request replaces it")
	errSideStopped  = errors.New("its indexer stopped it")
	errSideIdle     = fmt.Errorf("it made no progress for %v", sideIdleLimit)
)

// openSide handles forms 2 and 3 for one bucket.
func (p *Projector) openSide(ctx context.Context, req *wire.StreamRequest, want *wire.StreamBucket,
	out *wire.StreamOutcome) error {
	below, span := rpc.StartSpan(ctx, "wait for definitions")
	s, err := p.newSide(below, req, want)
	rpc.EndSpan(ctx, span, err)
	if err != nil {
		return err
	}
	old, err := p.sides.put(s)
	if err != nil {
		s.cancel(err)
		return err
	}
	// Until the side stream runs, it ends with its request, and so does everything it waits for.
	running := context.AfterFunc(ctx, func() { s.cancel(context.Cause(ctx)) })
	out.Results, err = s.begin(ctx, old)
	if !running() {
		s.cancel(context.Cause(ctx))
	}
	if err == nil { // it may have been stopped or replaced meanwhile, whatever KV has granted
		err = context.Cause(s.ctx)
	}
	if err != nil || s.open.Load() == 0 {
		s.close()
		return err
	}
	out.Activations = s.activations()
	now := time.Now()
	s.runs.Store(&now)
	if !p.tasks.Go(s.run) {
		s.close()
		return rpc.Refuse(errcode.Unavailable, "projector %s is shutting down", p.cfg.ID)
	}
	return nil
}

// activations returns the seqnos above which the stream carries its indexes: its starts.
func (s *side) activations() []wire.Activation {
	a := wire.Activation{Revision: s.plan.revision, Indexes: s.plan.ids}
	for _, st := range s.streams {
		a.VBuckets, a.Seqnos = append(a.VBuckets, st.VBucket()), append(a.Seqnos, st.Want.Seqno)
	}
	return []wire.Activation{a}
}

// newSide checks a request and makes its plan.
func (p *Projector) newSide(ctx context.Context, req *wire.StreamRequest, want *wire.StreamBucket) (*side, error) {
	class, _, err := core.ParseTopic(req.Topic)
	if err != nil {
		return nil, err
	}
	t := req.Side
	defs, err := p.definitionsOf(ctx, t.Revision)
	if err != nil {
		return nil, err
	}
	defs, copies := core.SideFeed(defs, t)
	pl, bad, err := p.assessor.plan(nil, defs, want.Bucket, class, map[index.NodeID]string{t.Node: t.Endpoint}, copies)
	if err != nil {
		return nil, err
	}
	pl.countFaults(&p.faults)
	if err := pl.hasAll(t.Indexes, bad); err != nil {
		return nil, rpc.Refuse(errcode.Unavailable, "topic %q: definitions revision %d, bucket %q: %v; omit it, or "+
			"try again when the cause is fixed", req.Topic, defs.Revision, want.Bucket, err)
	}
	if len(pl.view.Copies(t.Node)) == 0 {
		return nil, rpc.Refuse(errcode.Unavailable, "topic %q: definitions revision %d has none of indexes %v, copies %v "+
			"on node %d in bucket %q that can be evaluated; try again (%v)",
			req.Topic, defs.Revision, t.Indexes, t.Copies, t.Node, want.Bucket, errors.Join(bad...))
	}
	s := &side{p: p, key: core.SideKey{Topic: req.Topic, Bucket: want.Bucket}, target: t, want: want,
		inc: index.Incarnation{Counter: req.Incarnation.Counter}, class: class, plan: pl,
		streams: map[feed.StreamID]*stream{}, ended: make(chan struct{}), dropped: newMarks(), gone: newMarks()}
	if core.Shareable(t, &want.Restart) {
		s.awaits = core.Awaited(defs, t)
	}
	s.ctx, s.cancel = context.WithCancelCause(p.runCtx)
	return s, nil
}

// subscribed reports whether the stream goes to an external subscriber instead of an indexer.
func (s *side) subscribed() bool { return len(s.target.Indexes) > 0 }

// begin waits until the side streams that it replaces have ended, then connects and requests the streams from KV.
// reqCtx carries the span of the request.
func (s *side) begin(reqCtx context.Context, old []*side) ([]wire.StartResult, error) {
	for _, o := range old {
		select {
		case <-o.ended:
		case <-s.ctx.Done():
			return nil, context.Cause(s.ctx)
		}
	}
	bucket, uuid := s.want.Bucket, s.want.BucketUUID
	var err error
	_, span := rpc.StartSpan(reqCtx, "connect to KV")
	defer func() { rpc.EndSpan(reqCtx, span, err) }()
	s.from = s.p.read(s)
	if err = s.until(s.from.connected); err != nil {
		return nil, err
	}
	at := s.from.at
	if at.config.UUID != "" && at.config.UUID != uuid {
		err = recreated(bucket, at.config.UUID, uuid)
		return nil, err
	}
	topic, err := s.p.router.Open(router.TopicConfig{Path: s.key.Topic, Class: s.class, Bucket: bucket, BucketUUID: uuid,
		VBuckets: at.config.NumVBuckets()})
	if err != nil {
		return nil, rpc.Refuse(errcode.Unavailable, "%v", err)
	}
	s.topic.Store(topic)
	rpc.EndSpan(reqCtx, span, nil)
	_, span = rpc.StartSpan(reqCtx, "request the streams from KV")
	if err = s.until(s.from.opened); err != nil {
		return nil, err
	}
	return s.begun(), nil
}

// until waits for a stage of the reading, and returns its error.
func (s *side) until(done <-chan struct{}) error {
	select {
	case <-done:
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
	if s.from.err != nil {
		return kvProblem(s.want.Bucket, s.from.err)
	}
	return nil
}

// begun registers the streams that KV has granted, and returns the outcome of each vbucket.
func (s *side) begun() []wire.StartResult {
	results := make([]wire.StartResult, s.want.Restart.Len())
	for i := range results {
		want := s.want.Restart.At(i)
		var st *stream
		st, results[i] = s.from.of(s.inc, &want)
		results[i].Revision = s.from.at.revision
		if st != nil {
			if s.target.Sums {
				st.promise = &promise{}
			}
			s.streams[st.id] = st
			s.open.Add(1)
		}
	}
	return results
}

// run pumps until every vbucket has ended, then waits until the endpoint has taken everything.
func (s *side) run() {
	defer s.close()
	s.p.tasks.Go(s.watchdog)
	err := s.pumpAll(s.ctx)
	s.from.leave()
	if err == nil {
		err = s.drain()
	}
	if err != nil && s.p.runCtx.Err() == nil {
		s.p.log.Info("side stream ended early; its indexer will request it again if needed", "topic", s.key.Topic,
			"bucket", s.key.Bucket, "error", err)
	}
}

// drain waits until the endpoint has taken everything. It gives up if the endpoint takes nothing for drainFor, unless
// the target requested to retry forever.
func (s *side) drain() error {
	for left := s.queued(); ; {
		ctx, cancel := context.WithTimeout(s.ctx, s.p.sides.drainFor)
		err := s.topic.Load().Drain(ctx)
		cancel()
		now := s.queued()
		if err == nil || s.ctx.Err() != nil || now >= left && !s.target.RetryForever {
			return err
		}
		left = now
		s.beats.Add(1)
	}
}

// queued returns how many bytes the endpoint has not taken.
func (s *side) queued() (n int) {
	for _, l := range s.topic.Load().Lanes() {
		n += l.QueueBytes
	}
	return n
}

// close releases everything and removes the side stream from the list.
func (s *side) close() {
	s.cancel(nil)
	if s.from != nil {
		s.from.leave()
	}
	if topic := s.topic.Load(); topic != nil {
		topic.Close()
	}
	s.p.sides.remove(s)
	close(s.ended)
}

// watchdog cancels a side stream on which nothing moves.
func (s *side) watchdog() {
	tick := time.NewTicker(sideIdleLimit)
	defer tick.Stop()
	seen := uint64(0)
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
		now := s.beats.Load()
		if now == seen && !s.rests() {
			s.cancel(errSideIdle)
			return
		}
		seen = now
	}
}

// rests reports whether it is normal that nothing moves.
func (s *side) rests() bool { return core.MayRest(s.target, &s.want.Restart, s.taken) }

// taken reports whether the endpoint has taken everything sent so far.
func (s *side) taken() bool {
	for _, l := range s.topic.Load().Lanes() {
		if l.State != "connected" || l.QueueBytes > 0 {
			return false
		}
	}
	return true
}

// pumpAll processes blocks until every vbucket has ended. It has released all of them when it returns, because other
// readers may share the window.
func (s *side) pumpAll(ctx context.Context) error {
	p := &pump{topic: s.topic.Load(), counters: &s.p.counters, faults: &s.p.faults, answers: newPurgeAnswers(),
		desk: s.from.desk}
	ctx, stop := context.WithCancel(ctx)
	var beside errgroup.Group
	defer func() {
		stop()
		_ = beside.Wait()
		for _, st := range s.streams {
			st.dropHeld()
		}
	}()
	blocks, failed := make(chan *feed.Block), make(chan error, 1)
	beside.Go(func() error { s.read(ctx, blocks, failed); return nil })
	tick := time.NewTicker(syncInterval)
	defer tick.Stop()
	reached := make(chan reach, 1)
	var over []*stream // streams whose reach has to be queried
	querying := false
	for s.open.Load() > 0 {
		var some []*stream
		var err error
		select {
		case <-tick.C:
			s.sync()
		case <-s.dropped.ready:
			s.drop()
		case <-s.gone.ready:
			s.leave(ctx)
		case <-ctx.Done(): // the reader may have ended while it held a block
			err = context.Cause(ctx)
		case err = <-failed:
			if errors.Is(err, errHoldsUp) {
				s.readAlone(ctx)
				err = nil
			}
		case block := <-blocks:
			some, err = s.block(ctx, p, block)
			s.from.finish(block)
		case <-p.answers.ready:
			some, err = s.answered(ctx, p)
		case r := <-reached:
			querying = false
			s.endAll(ctx, p, r)
		}
		s.logBroken()
		if err != nil {
			return err
		}
		if over = append(over, some...); len(over) > 0 && !querying {
			query := over
			over, querying = nil, true
			beside.Go(func() error {
				reached <- s.reachOf(ctx, query)
				return nil
			})
		}
	}
	return nil
}

// read passes on the connection's blocks until it ends.
func (s *side) read(ctx context.Context, blocks chan<- *feed.Block, failed chan<- error) {
	for {
		block, err := s.from.next(ctx)
		if err != nil {
			failed <- err
			return
		}
		select {
		case blocks <- block:
		case <-ctx.Done(): // other readers may continue with it
			s.from.finish(block)
			return
		}
	}
}

// sync sends the position of streams that send nothing else: their documents belong to collections without an index,
// possibly millions of them in one window. An indexer would give up a silent stream and request all of it again. A
// subscriber gets none: it does not give up, and would take a SYNC for a position to resume from.
func (s *side) sync() {
	if s.subscribed() {
		return
	}
	for _, st := range s.streams {
		if st.mute && st.Begun && !st.Done && !st.Waits {
			st.mute = false
			// Sync cannot fail for a stream that has begun.
			_ = s.topic.Load().Sync(st.VBucket(), st.VBUUID, min(st.Last, st.Want.End))
		}
	}
}

// block passes a block's events to the router, and returns the streams that have reached their end.
func (s *side) block(ctx context.Context, p *pump, block *feed.Block) (over []*stream, err error) {
	defer p.publish()
	for i := range block.Events {
		e := &block.Events[i]
		st := s.streams[e.Stream]
		if st == nil {
			continue
		}
		s.beats.Add(1)
		if st.Waits {
			st.hold(block, i)
			continue
		}
		all, err := s.event(ctx, p, st, e)
		if err != nil {
			return nil, err
		}
		if all {
			over = append(over, st)
		}
	}
	return over, nil
}

// answered resumes streams for which KV's purge seqno is known now.
func (s *side) answered(ctx context.Context, p *pump) (over []*stream, err error) {
	defer p.publish()
	for _, a := range p.answers.take() {
		s.beats.Add(1)
		if a.s.Done { // it was dropped meanwhile
			continue
		}
		err = p.marked(ctx, a.s, a.s.Purged(a.purge, a.known))
		a.s.release(func(e *feed.Event) {
			all := false
			if err == nil {
				all, err = s.event(ctx, p, a.s, e)
			}
			if all {
				over = append(over, a.s)
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return over, nil
}

// event processes one event of a stream. over: everything has arrived, and KV's high seqno has to be requested.
func (s *side) event(ctx context.Context, p *pump, st *stream, e *feed.Event) (over bool, err error) {
	switch st.Side(fromKV(e), e.Seqno) {
	case core.SideSkips:
	case core.SideBegins:
		err = p.begin(ctx, st, e, s.plan)
	case core.SideTakes:
		_, err = p.take(ctx, st, e)
	case core.SideReaches:
		over = true
	case core.SideBreaks:
		err = fmt.Errorf("%w: vbucket %d: KV ended it for reason %d", errStreamBroken, st.VBucket(), e.EndReason)
	}
	if errors.Is(err, errStreamBroken) {
		if e.Kind != feed.StreamEnd {
			s.from.drop(st.VBucket())
		}
		s.breakOff(ctx, st, err)
		err = nil
	}
	return over, err
}

// fromKV classifies an event for core.Stream.Side.
func fromKV(e *feed.Event) core.FromKV {
	switch {
	case e.Kind == feed.StreamBegin:
		return core.KVBegins
	case e.Kind == feed.StreamEnd && e.EndReason == 0:
		return core.KVEnds
	case e.Kind == feed.StreamEnd:
		return core.KVBreaks
	case e.Kind.IsDocument():
		return core.KVDocument
	}
	return core.KVMoves
}

// breakOff ends one stream before its end, where it is: its indexer requests this vbucket again, and the others
// continue.
func (s *side) breakOff(ctx context.Context, st *stream, why error) {
	s.broken.add(why)
	_ = s.topic.Load().Break(ctx, st.VBucket(), st.Last) // the only error is a closed topic, which has no receiver left
	s.over(st)
}

// over unregisters a stream before its end.
func (s *side) over(st *stream) {
	st.Done = true // what KV still sends is dropped
	st.dropHeld()
	st.ended.Store(true)
	s.open.Add(-1)
}

// readAlone breaks off the streams that are left: the indexer requests them again, and they are read on another
// connection.
func (s *side) readAlone(ctx context.Context) {
	for _, st := range s.streams {
		if !st.Done {
			s.breakOff(ctx, st, fmt.Errorf("%w: vbucket %d: %w", errStreamBroken, st.VBucket(), errHoldsUp))
		}
	}
}

// marks is a set of vbuckets that wait for an action.
type marks struct {
	ready chan struct{} // one slot
	mu    sync.Mutex    // leaf
	all   map[uint16]bool
}

func newMarks() marks { return marks{ready: make(chan struct{}, 1)} }

func (m *marks) put(vbuckets []uint16) {
	if len(vbuckets) == 0 {
		return
	}
	m.mu.Lock()
	if m.all == nil {
		m.all = map[uint16]bool{}
	}
	for _, vb := range vbuckets {
		m.all[vb] = true
	}
	m.mu.Unlock()
	select {
	case m.ready <- struct{}{}:
	default:
	}
}

func (m *marks) take() map[uint16]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.all
	m.all = nil
	return all
}

// drop ends the streams that the indexer has given up, without an event downstream.
func (s *side) drop() {
	unwanted := s.dropped.take()
	var closing []uint16
	for _, st := range s.streams {
		if unwanted[st.VBucket()] && !st.Done {
			s.topic.Load().Drop(st.VBucket())
			s.over(st)
			closing = append(closing, st.VBucket())
		}
	}
	s.from.drop(closing...)
}

// leave ends the streams of vbuckets that have left the KV node, for which KV may send no END.
func (s *side) leave(ctx context.Context) {
	gone := s.gone.take()
	var closing []uint16
	for _, st := range s.streams {
		if gone[st.VBucket()] && !st.Done {
			s.breakOff(ctx, st, fmt.Errorf("%w: vbucket %d is no longer on this KV node", errStreamBroken, st.VBucket()))
			closing = append(closing, st.VBucket())
		}
	}
	s.from.drop(closing...)
}

// logBroken logs the streams that were broken off since the last call, in one line: a KV node that leaves ends all of
// them at once.
func (s *side) logBroken() {
	if s.broken.count > 0 {
		s.p.log.Info("vbuckets of a side stream ended early; their indexer will request them again", "topic", s.key.Topic,
			"bucket", s.key.Bucket, "vbuckets", s.broken.count, "first", s.broken.first)
		s.broken = brokenOff{}
	}
}

// brokenOff counts streams that were ended before their end.
type brokenOff struct {
	count int
	first error // why
}

func (b *brokenOff) add(why error) {
	if b.count++; b.count == 1 {
		b.first = why
	}
}

// reach is KV's high seqnos, for streams whose end KV has sent; err is set if KV does not report them.
type reach struct {
	of    []*stream
	highs map[uint16]uint64 // only hosted vbuckets
	err   error
}

// reachOf requests the high seqnos from KV, and retries until KV answers or reachTime is over. It runs beside pumpAll,
// which continues with the other streams: KV may be slow to answer, and a reader that does not take its blocks holds
// up all readers of the connection.
func (s *side) reachOf(ctx context.Context, of []*stream) reach {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(s.p.cfg.reachTime, reachTime))
	defer cancel()
	for pause := reachPause; ; pause *= 2 {
		s.beats.Add(1)
		all, err := s.from.conn.HighSeqnos(ctx)
		if err == nil {
			r := reach{of: of, highs: make(map[uint16]uint64, len(all))}
			for _, h := range all {
				r.highs[h.VBucket] = h.Seqno
			}
			return r
		}
		select {
		case <-ctx.Done():
			return reach{of: of, err: err}
		case <-s.from.conn.Done():
			return reach{of: of, err: err}
		case <-time.After(pause):
		}
	}
}

// endAll ends streams whose end KV has sent. If KV does not report its high seqno, the stream is broken off, and the
// indexer requests it again.
func (s *side) endAll(ctx context.Context, p *pump, r reach) {
	for _, st := range r.of {
		high, hosted := r.highs[st.VBucket()]
		switch {
		case r.err != nil:
			s.breakOff(ctx, st, fmt.Errorf("%w: vbucket %d: KV does not report its present seqno: "+
				"%w", errStreamBroken, st.VBucket(),
				r.err))
			continue
		case !hosted:
			s.breakOff(ctx, st, fmt.Errorf("%w: vbucket %d moved away from this KV node before it reported its present "+
				"seqno", errStreamBroken,
				st.VBucket()))
			continue
		}
		p.end(ctx, st, st.Covered(high))
		s.open.Add(-1)
	}
}
