package projector

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"tidemark/feed"
	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/keyversion"
	"tidemark/router"
	"tidemark/timestamp"
	"tidemark/wire"
)

// side is a side stream: one request's vbuckets, from a DCP connection of its own to one indexer (PR-11 forms 2 and 3).
// It ends when all its vbuckets have, when another one takes its place, or when nothing has moved for sideIdleLimit.
type side struct {
	p       *Projector
	req     *wire.SideRequest
	class   keyversion.Class
	plan    *plan
	conn    feed.Feed     // nil while it is being opened
	topic   *router.Topic // nil while it is being opened
	streams map[feed.StreamID]*stream
	open    int // streams that have not ended
	ctx     context.Context
	cancel  context.CancelCauseFunc
	ended   chan struct{}
	beats   atomic.Uint64 // rises with progress
}

// Why a side stream is given up.
var (
	errSideReplaced = errors.New("a later request takes its place")
	errSideStopped  = errors.New("its indexer has stopped it")
	errSideIdle     = fmt.Errorf("nothing has moved for %v", sideIdleLimit)
)

// classOf gives a topic's class.
func classOf(topic string) (keyversion.Class, error) {
	switch {
	case strings.HasPrefix(topic, "/backfill/"):
		return keyversion.ClassBackfill, nil
	case strings.HasPrefix(topic, "/catchup/"):
		return keyversion.ClassCatchup, nil
	}
	return 0, rpc.Refuse(rpc.CodeBadRequest, "topic %q: want /backfill/… or /catchup/…", topic)
}

// openSide starts a side stream.
func (p *Projector) openSide(ctx context.Context, req *wire.SideRequest) (*wire.SideReply, error) {
	s, err := p.newSide(req)
	if err != nil {
		return nil, err
	}
	old, err := p.reserve(s)
	if err != nil {
		return nil, err
	}
	// Until it runs it ends with its request, and whatever it waits for ends with it.
	running := context.AfterFunc(ctx, func() { s.cancel(context.Cause(ctx)) })
	reply, err := s.begin(old)
	if !running() && err == nil {
		err = context.Cause(s.ctx)
	}
	if err != nil || s.open == 0 {
		s.close()
		return reply, err
	}
	if !p.tasks.Go(s.run) {
		s.close()
		return nil, rpc.Refuse(rpc.CodeUnavailable, "projector %s is shutting down", p.cfg.ID)
	}
	return reply, nil
}

// newSide checks a request and plans what it asks for.
func (p *Projector) newSide(req *wire.SideRequest) (*side, error) {
	class, err := classOf(req.Topic)
	if err != nil {
		return nil, err
	}
	if len(req.Copies) == 0 || len(req.Streams) == 0 || len(req.Streams) > timestamp.MaxVBuckets {
		return nil, rpc.Refuse(rpc.CodeBadRequest, "topic %q: %d copies and %d vbuckets; want one of each at least, and at most %d vbuckets",
			req.Topic, len(req.Copies), len(req.Streams), timestamp.MaxVBuckets)
	}
	p.mu.Lock()
	defs := p.defs
	p.mu.Unlock()
	if defs == nil || defs.Revision < req.Revision {
		return nil, rpc.Refuse(rpc.CodeUnavailable, "projector %s does not have definitions revision %d yet; try again", p.cfg.ID, req.Revision)
	}
	pl, bad, err := newPlan(defs, req.Bucket, class, map[index.NodeID]string{req.Node: req.Endpoint}, req.Copies)
	if err != nil {
		return nil, err
	}
	if len(pl.view.Copies(req.Node)) == 0 {
		return nil, rpc.Refuse(rpc.CodeUnavailable, "topic %q: definitions revision %d has none of copies %v on node %d that can be evaluated; try again (%v)",
			req.Topic, defs.Revision, req.Copies, req.Node, errors.Join(bad...))
	}
	s := &side{p: p, req: req, class: class, plan: pl, streams: map[feed.StreamID]*stream{}, ended: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancelCause(p.runCtx)
	return s, nil
}

// reserve puts a side stream on the list and gives up those that it replaces: one of the same topic, and those of an
// earlier process of the same indexer.
func (p *Projector) reserve(s *side) (old []*side, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for topic, o := range p.sides {
		if topic == s.req.Topic || o.req.Node == s.req.Node && o.req.BootID != s.req.BootID {
			old = append(old, o)
		}
	}
	if len(p.sides)-len(old) >= maxSideStreams {
		return nil, rpc.Refuse(rpc.CodeUnavailable, "projector %s has %d side streams open, the most it can; try again", p.cfg.ID, maxSideStreams)
	}
	for _, o := range old {
		o.cancel(errSideReplaced)
		delete(p.sides, o.req.Topic)
	}
	p.sides[s.req.Topic] = s
	return old, nil
}

// begin connects and asks KV for the streams, when what it replaces has ended.
func (s *side) begin(old []*side) (*wire.SideReply, error) {
	for _, o := range old {
		select {
		case <-o.ended:
		case <-s.ctx.Done():
			return nil, context.Cause(s.ctx)
		}
	}
	req := s.req
	var err error
	if s.conn, err = s.p.dial(s.ctx, req.Bucket, req.Topic, sideBufferBytes); err != nil {
		return nil, kvProblem(req.Bucket, err)
	}
	at, err := stateOf(s.ctx, s.conn)
	if err != nil {
		return nil, kvProblem(req.Bucket, err)
	}
	if at.config.UUID != "" && at.config.UUID != req.BucketUUID {
		return nil, recreated(req.Bucket, at.config.UUID, req.BucketUUID)
	}
	s.topic, err = s.p.router.Open(router.TopicConfig{Path: req.Topic, Class: s.class, Bucket: req.Bucket, BucketUUID: req.BucketUUID, VBuckets: at.config.NumVBuckets()})
	if err != nil {
		return nil, rpc.Refuse(rpc.CodeUnavailable, "%v", err)
	}
	return s.openStreams(at), nil
}

// openStreams asks KV for each vbucket.
func (s *side) openStreams(at *kvState) *wire.SideReply {
	reply := &wire.SideReply{Results: make([]wire.StartResult, len(s.req.Streams))}
	all := make([]*stream, len(s.req.Streams))
	var g errgroup.Group
	g.SetLimit(streamsAtOnce)
	for i := range s.req.Streams {
		g.Go(func() error {
			all[i], reply.Results[i] = s.openStream(&s.req.Streams[i], at)
			return nil
		})
	}
	_ = g.Wait() // outcomes carry the errors
	for _, st := range all {
		if st != nil {
			s.streams[st.id] = st
			s.open++
		}
	}
	return reply
}

func (s *side) openStream(req *wire.SideStream, at *kvState) (*stream, wire.StartResult) {
	r := wire.StartResult{VBucketLog: wire.VBucketLog{VBucket: req.VBucket, Revision: at.revision}}
	st := &stream{vb: req.VBucket, id: s.conn.NewStreamID(), inc: index.Incarnation{Counter: s.req.ID}, purge: at.purges[req.VBucket],
		revision: at.revision, end: req.To,
		start: feed.Position{Seqno: req.From, SnapStart: min(req.Window.Start, req.From), SnapEnd: max(req.Window.End, req.From)}}
	entries, err := s.conn.OpenStream(s.ctx, feed.StreamRequest{VBucket: st.vb, ID: st.id, Start: req.From, End: req.To, VBUUID: req.VBUUID,
		SnapStart: st.start.SnapStart, SnapEnd: st.start.SnapEnd})
	if err != nil {
		return nil, refusal(s.ctx, s.conn, r, at, err)
	}
	r.Log, r.Purge, r.High = convertLog(entries), st.purge, at.highs[st.vb]
	if req.Branch != 0 && r.Log.Newest() != req.Branch {
		_ = s.conn.CloseStream(s.ctx, st.vb) // its events find nobody, and the whole connection goes when the others have ended
		r.Outcome, r.Detail = wire.StartStale, fmt.Sprintf("the KV node is on branch %d, the maintenance stream on %d", r.Log.Newest(), req.Branch)
		return nil, r
	}
	r.Outcome = wire.StartBegun
	return st, r
}

// run pumps until every vbucket has ended, then waits until the indexer has taken everything.
func (s *side) run() {
	defer s.close()
	s.p.tasks.Go(s.watchdog)
	err := s.pumpAll(s.ctx)
	if err == nil {
		drain, cancel := context.WithTimeout(s.ctx, sideDrainTimeout)
		err = s.topic.Drain(drain)
		cancel()
	}
	if err != nil && s.p.runCtx.Err() == nil {
		s.p.log.Info("a side stream ended early; its indexer will ask again if it still wants it", "topic", s.req.Topic, "bucket", s.req.Bucket, "error", err)
	}
}

// close gives back everything and takes it off the list.
func (s *side) close() {
	s.cancel(nil)
	if s.conn != nil {
		_ = s.conn.Close()
	}
	if s.topic != nil {
		s.topic.Close()
	}
	s.p.mu.Lock()
	if s.p.sides[s.req.Topic] == s {
		delete(s.p.sides, s.req.Topic)
	}
	s.p.mu.Unlock()
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
		if now == seen {
			s.cancel(errSideIdle)
			return
		}
		seen = now
	}
}

// pumpAll takes blocks until every vbucket has ended.
func (s *side) pumpAll(ctx context.Context) error {
	p := &pump{topic: s.topic, counters: &s.p.counters}
	for s.open > 0 {
		block, err := s.conn.Next(ctx)
		if err != nil {
			return err
		}
		over, err := s.block(ctx, p, block)
		block.Release()
		if err == nil && len(over) > 0 {
			err = s.endAll(ctx, p, over)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// block gives a block's events to the router, and the streams that have ended back.
func (s *side) block(ctx context.Context, p *pump, block *feed.Block) (over []*stream, err error) {
	for i := range block.Events {
		e := &block.Events[i]
		st := s.streams[e.Stream]
		if st == nil {
			continue
		}
		s.beats.Add(1)
		switch {
		case e.Kind == feed.StreamBegin:
			err = p.begin(ctx, st, e, s.plan)
		case !st.begun:
		case e.Kind == feed.StreamEnd && e.EndReason == 0:
			over = append(over, st)
		case e.Kind == feed.StreamEnd:
			err = fmt.Errorf("%w: vbucket %d: KV ended it for reason %d", errStreamBroken, st.vb, e.EndReason)
		default:
			_, err = p.take(ctx, st, e)
		}
		if err != nil {
			return nil, err
		}
	}
	return over, nil
}

// endAll ends streams that KV has sent to their end. What KV left out as de-duplicated has a newer version at or below
// KV's present high seqno, so that is the reach that the indexer is told: no marker of a finite stream says it. The last
// version at or below the end may be among what was left out, so the end itself is what has been covered.
func (s *side) endAll(ctx context.Context, p *pump, over []*stream) error {
	all, err := s.conn.HighSeqnos(ctx)
	if err != nil {
		return err
	}
	highs := make(map[uint16]uint64, len(all))
	for _, h := range all {
		highs[h.VBucket] = h.Seqno
	}
	for _, st := range over {
		high, hosted := highs[st.vb]
		if !hosted {
			return fmt.Errorf("%w: vbucket %d left this KV node before its reach was known", errStreamBroken, st.vb)
		}
		st.last = max(st.last, st.end)
		p.end(ctx, st, max(st.reach, high))
		s.open--
	}
	return nil
}

// stopSide ends a side stream and waits for its end.
func (p *Projector) stopSide(ctx context.Context, topic string) error {
	p.mu.Lock()
	s := p.sides[topic]
	p.mu.Unlock()
	if s == nil {
		return nil
	}
	s.cancel(errSideStopped)
	select {
	case <-s.ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
