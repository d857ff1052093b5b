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

// side is a side stream: one request's vbuckets of a bucket, from a DCP connection that others may read too (reading),
// to one endpoint (PR-11 forms 2 and 3). When that connection is lost, so are the ones to the endpoint (PR-10).
// It ends when all its vbuckets have, when another one takes its place, or when nothing has moved for sideIdleLimit.
type side struct {
	p       *Projector
	key     core.SideKey
	target  *wire.SideTarget
	want    *wire.StreamBucket
	inc     index.Incarnation
	class   keyversion.Class
	plan    *plan
	awaits  []index.NodeID               // that will want the same
	from    *reader                      // nil while it is being opened
	topic   atomic.Pointer[router.Topic] // nil while it is being opened; others look at it
	streams map[feed.StreamID]*stream
	open    atomic.Int64 // streams that have not ended; others look at it
	broken  brokenOff    // not told yet
	ctx     context.Context
	cancel  context.CancelCauseFunc
	ended   chan struct{}
	beats   atomic.Uint64             // rises with progress
	runs    atomic.Pointer[time.Time] // since when
	dropped marks                     // vbuckets that nobody wants any more
	gone    marks                     // those that the KV node does not have
}

const (
	// reachPatience is how long vbuckets that have been streamed wait for how far KV is, over all tries of one question;
	// those that come meanwhile share the next one.
	reachPatience = 10 * time.Second
	// reachPause is the pause between two tries; it doubles.
	reachPause = 50 * time.Millisecond
)

// Why a side stream is given up.
var (
	errSideReplaced = errors.New("a later request takes its place")
	errSideStopped  = errors.New("its indexer has stopped it")
	errSideIdle     = fmt.Errorf("nothing has moved for %v", sideIdleLimit)
)

// openSide is forms 2 and 3 for one bucket.
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
	// Until it runs it ends with its request, and whatever it waits for ends with it.
	running := context.AfterFunc(ctx, func() { s.cancel(context.Cause(ctx)) })
	out.Results, err = s.begin(ctx, old)
	if !running() {
		s.cancel(context.Cause(ctx))
	}
	if err == nil { // nor does it run when it was stopped or replaced meanwhile, whatever KV has granted by then
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

// activations says what the stream carries of its indexes: everything after its starts.
func (s *side) activations() []wire.Activation {
	a := wire.Activation{Revision: s.plan.revision, Indexes: s.plan.ids}
	for _, st := range s.streams {
		a.VBuckets, a.Seqnos = append(a.VBuckets, st.VBucket()), append(a.Seqnos, st.Want.Seqno)
	}
	return []wire.Activation{a}
}

// newSide checks a request and plans what it asks for.
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
		return nil, rpc.Refuse(errcode.Unavailable, "topic %q: definitions revision %d, bucket %q: %v; ask without it, or "+
			"try again when that is mended", req.Topic, defs.Revision, want.Bucket, err)
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

// subscribed reports whether it goes to somebody who is no indexer.
func (s *side) subscribed() bool { return len(s.target.Indexes) > 0 }

// begin connects and asks KV for the streams, when what it replaces has ended. asked has the span of the request.
func (s *side) begin(asked context.Context, old []*side) ([]wire.StartResult, error) {
	for _, o := range old {
		select {
		case <-o.ended:
		case <-s.ctx.Done():
			return nil, context.Cause(s.ctx)
		}
	}
	bucket, uuid := s.want.Bucket, s.want.BucketUUID
	var err error
	_, span := rpc.StartSpan(asked, "connect to KV")
	defer func() { rpc.EndSpan(asked, span, err) }()
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
	rpc.EndSpan(asked, span, nil)
	_, span = rpc.StartSpan(asked, "ask KV for the streams")
	if err = s.until(s.from.opened); err != nil {
		return nil, err
	}
	return s.begun(), nil
}

// until waits for what the reading has come to.
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

// begun takes the streams that KV has consented to.
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

// run pumps until every vbucket has ended, then waits until the indexer has taken everything.
func (s *side) run() {
	defer s.close()
	s.p.tasks.Go(s.watchdog)
	err := s.pumpAll(s.ctx)
	s.from.leave()
	if err == nil {
		err = s.drain()
	}
	if err != nil && s.p.runCtx.Err() == nil {
		s.p.log.Info("a side stream ended early; its indexer will ask again if it still wants it", "topic", s.key.Topic,
			"bucket", s.key.Bucket, "error", err)
	}
}

// drain waits until the endpoint has taken everything. One that takes nothing for a while is given up, unless it is to
// be retried for ever.
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

// queued is how many bytes the endpoint has not taken.
func (s *side) queued() (n int) {
	for _, l := range s.topic.Load().Lanes() {
		n += l.QueueBytes
	}
	return n
}

// close gives back everything and takes it off the list.
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

// watchdog gives up a side stream on which nothing moves.
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

// rests reports whether it is no failure that nothing moves.
func (s *side) rests() bool { return core.MayRest(s.target, &s.want.Restart, s.taken) }

// taken reports whether its endpoint has taken all that there is.
func (s *side) taken() bool {
	for _, l := range s.topic.Load().Lanes() {
		if l.State != "connected" || l.QueueBytes > 0 {
			return false
		}
	}
	return true
}

// pumpAll takes blocks until every vbucket has ended. It has given back all of them when it returns: others may read
// with the same window.
func (s *side) pumpAll(ctx context.Context) error {
	p := &pump{topic: s.topic.Load(), counters: &s.p.counters, faults: &s.p.faults, answers: newPurgeAnswers(),
		desk: s.from.desk}
	ctx, stop := context.WithCancel(ctx)
	var beside errgroup.Group
	defer func() {
		stop()
		_ = beside.Wait()
		for _, st := range s.streams {
			st.letGo()
		}
	}()
	blocks, failed := make(chan *feed.Block), make(chan error, 1)
	beside.Go(func() error { s.read(ctx, blocks, failed); return nil })
	tick := time.NewTicker(syncInterval)
	defer tick.Stop()
	reached := make(chan reach, 1)
	var over []*stream // whose reach is to be asked for
	asking := false
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
		case <-ctx.Done(): // the reader may have ended with a block in its hand
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
			asking = false
			s.endAll(ctx, p, r)
		}
		s.tellEarly()
		if err != nil {
			return err
		}
		if over = append(over, some...); len(over) > 0 && !asking {
			ask := over
			over, asking = nil, true
			beside.Go(func() error {
				reached <- s.reachOf(ctx, ask)
				return nil
			})
		}
	}
	return nil
}

// read hands over the connection's blocks until it ends.
func (s *side) read(ctx context.Context, blocks chan<- *feed.Block, failed chan<- error) {
	for {
		block, err := s.from.next(ctx)
		if err != nil {
			failed <- err
			return
		}
		select {
		case blocks <- block:
		case <-ctx.Done(): // others may read on with it
			s.from.finish(block)
			return
		}
	}
}

// sync says how far streams have come of which nobody is told anything else: their documents are of collections that
// no index is on, by the million maybe, and one window may have all of them. Who waits for the stream would give up one
// that is silent, and ask for all of it again. A subscriber does not give up, and takes a SYNC for a place to go on at.
func (s *side) sync() {
	if s.subscribed() {
		return
	}
	for _, st := range s.streams {
		if st.mute && st.Begun && !st.Done && !st.Waits {
			st.mute = false
			// a begun stream can be synced
			_ = s.topic.Load().Sync(st.VBucket(), st.VBUUID, min(st.Last, st.Want.End))
		}
	}
}

// block returns a block's events to the router, and the streams that have ended back.
func (s *side) block(ctx context.Context, p *pump, block *feed.Block) (over []*stream, err error) {
	defer p.tell()
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

// answered lets streams go on of which it is known now what KV has forgotten.
func (s *side) answered(ctx context.Context, p *pump) (over []*stream, err error) {
	defer p.tell()
	for _, a := range p.answers.take() {
		s.beats.Add(1)
		if a.s.Done { // it was dropped meanwhile
			continue
		}
		err = p.marked(ctx, a.s, a.s.Forgot(a.purge, a.known))
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

// event takes one event of a stream; over: everything has come, and KV is to be asked how far it is.
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

// fromKV is what an event is to a side stream.
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

// breakOff ends one stream before its end, where it is: its indexer asks again for this vbucket, and the others go on.
func (s *side) breakOff(ctx context.Context, st *stream, why error) {
	s.broken.add(why)
	_ = s.topic.Load().Break(ctx, st.VBucket(), st.Last) // a closed topic has nobody left to tell
	s.over(st)
}

// over takes a stream off before its end.
func (s *side) over(st *stream) {
	st.Done = true // what KV sends until it hears is for nobody
	st.letGo()
	st.ended.Store(true)
	s.open.Add(-1)
}

// readAlone ends what is left before its end: the indexer asks for it again, which is read over another connection.
func (s *side) readAlone(ctx context.Context) {
	for _, st := range s.streams {
		if !st.Done {
			s.breakOff(ctx, st, fmt.Errorf("%w: vbucket %d: %w", errStreamBroken, st.VBucket(), errHoldsUp))
		}
	}
}

// marks are vbuckets that something is to be done with.
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

// drop ends the streams that nobody wants any more, without a word downstream.
func (s *side) drop() {
	unwanted := s.dropped.take()
	var closing []uint16
	for _, st := range s.streams {
		if unwanted[st.VBucket()] && !st.Done {
			s.topic.Load().Forget(st.VBucket())
			s.over(st)
			closing = append(closing, st.VBucket())
		}
	}
	s.from.drop(closing...)
}

// leave ends the streams of vbuckets that have left the KV node, of which it may say nothing on the stream.
func (s *side) leave(ctx context.Context) {
	gone := s.gone.take()
	var closing []uint16
	for _, st := range s.streams {
		if gone[st.VBucket()] && !st.Done {
			s.breakOff(ctx, st, fmt.Errorf("%w: vbucket %d has left this KV node", errStreamBroken, st.VBucket()))
			closing = append(closing, st.VBucket())
		}
	}
	s.from.drop(closing...)
}

// tellEarly logs the streams that were broken off since it was called last: a KV node that goes ends all at once.
func (s *side) tellEarly() {
	if s.broken.count > 0 {
		s.p.log.Info("vbuckets of a side stream ended early; their indexer will ask again", "topic", s.key.Topic,
			"bucket", s.key.Bucket, "vbuckets", s.broken.count, "first", s.broken.first)
		s.broken = brokenOff{}
	}
}

// brokenOff are streams that were ended before their end.
type brokenOff struct {
	count int
	first error // why
}

func (b *brokenOff) add(why error) {
	if b.count++; b.count == 1 {
		b.first = why
	}
}

// reach is what KV says of streams that it has sent up to their end. err: it says nothing.
type reach struct {
	of    []*stream
	highs map[uint16]uint64 // only hosted vbuckets
	err   error
}

// reachOf asks KV how far vbuckets are, again and again as long as there is no answer and patience. It runs beside the
// loop, which goes on with the other streams: KV may be slow to answer, and what is full of a connection holds up all.
func (s *side) reachOf(ctx context.Context, of []*stream) reach {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(s.p.cfg.reachPatience, reachPatience))
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

// endAll ends streams that KV has sent up to their end. Where KV does not say how far it is, the indexer is told that
// the stream is over before its end: it asks again.
func (s *side) endAll(ctx context.Context, p *pump, r reach) {
	for _, st := range r.of {
		high, hosted := r.highs[st.VBucket()]
		switch {
		case r.err != nil:
			s.breakOff(ctx, st, fmt.Errorf("%w: vbucket %d: KV does not say how far it is: %w", errStreamBroken, st.VBucket(),
				r.err))
			continue
		case !hosted:
			s.breakOff(ctx, st, fmt.Errorf("%w: vbucket %d left this KV node before its reach was known", errStreamBroken,
				st.VBucket()))
			continue
		}
		p.end(ctx, st, st.Covered(high))
		s.open.Add(-1)
	}
}
