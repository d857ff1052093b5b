package projector

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"tidemark/feed"
	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/keyversion"
	"tidemark/router"
	"tidemark/wire"
)

// side is a running side stream: one request's vbuckets, from a DCP connection of its own to one indexer (PR-11 forms 2
// and 3). It ends when all its vbuckets have, or when nothing has moved for sideIdleLimit.
type side struct {
	p       *Projector
	req     *wire.SideRequest
	plan    *plan
	conn    *feed.Conn
	topic   *router.Topic
	streams map[feed.StreamID]*stream
	open    int // streams that have not ended
	cancel  context.CancelFunc
	ended   chan struct{}
	beats   atomic.Uint64 // rises with progress
}

// classOf gives a topic's class.
func classOf(topic string) (keyversion.Class, error) {
	switch {
	case strings.HasPrefix(topic, "/backfill/"):
		return keyversion.ClassBackfill, nil
	case strings.HasPrefix(topic, "/catchup/"):
		return keyversion.ClassCatchup, nil
	}
	return 0, rpc.NewProblem(http.StatusBadRequest, rpc.CodeBadRequest, "topic %q: want /backfill/… or /catchup/…", topic)
}

// openSide starts a side stream.
func (p *Projector) openSide(ctx context.Context, req *wire.SideRequest) (*wire.SideReply, error) {
	class, err := classOf(req.Topic)
	if err != nil {
		return nil, err
	}
	if err := p.replaceSides(req); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defs := p.defs
	p.mu.Unlock()
	if defs == nil || defs.Revision < req.Revision {
		return nil, rpc.NewProblem(http.StatusServiceUnavailable, rpc.CodeUnavailable, "projector %s does not have definitions revision %d yet; try again", p.cfg.ID, req.Revision)
	}
	pl, _, err := newPlan(defs, req.Bucket, class, map[index.NodeID]string{req.Node: req.Endpoint}, req.Copies)
	if err != nil {
		return nil, err
	}
	conn, err := p.dial(ctx, req.Bucket, req.Topic)
	if err != nil {
		return nil, kvProblem(req.Bucket, err)
	}
	config, err := conn.ClusterConfig(ctx)
	if err != nil {
		_ = conn.Close()
		return nil, kvProblem(req.Bucket, err)
	}
	topic, err := p.router.Open(router.TopicConfig{Path: req.Topic, Class: class, Bucket: req.Bucket, BucketUUID: req.BucketUUID, VBuckets: config.NumVBuckets()})
	if err != nil {
		_ = conn.Close()
		return nil, rpc.NewProblem(http.StatusServiceUnavailable, rpc.CodeUnavailable, "%v", err)
	}
	run, cancel := context.WithCancel(p.runCtx)
	s := &side{p: p, req: req, plan: pl, conn: conn, topic: topic, streams: map[feed.StreamID]*stream{}, cancel: cancel, ended: make(chan struct{})}
	reply, err := s.openStreams(ctx)
	if err != nil || s.open == 0 {
		cancel()
		_ = conn.Close()
		topic.Close()
		return reply, err
	}
	p.mu.Lock()
	p.sides[req.Topic] = s
	p.mu.Unlock()
	if !p.tasks.Go(func() { s.run(run) }) {
		cancel()
		s.forget()
		_ = conn.Close()
		topic.Close()
		return nil, rpc.NewProblem(http.StatusServiceUnavailable, rpc.CodeUnavailable, "projector %s is shutting down", p.cfg.ID)
	}
	return reply, nil
}

// replaceSides ends the side streams that a request replaces: one of the same topic, and those of an earlier process of
// the same indexer.
func (p *Projector) replaceSides(req *wire.SideRequest) error {
	p.mu.Lock()
	var old []*side
	for topic, s := range p.sides {
		if topic == req.Topic || s.req.Node == req.Node && s.req.BootID != req.BootID {
			old = append(old, s)
		}
	}
	busy := len(p.sides)-len(old) >= maxSideStreams
	p.mu.Unlock()
	if busy {
		return rpc.NewProblem(http.StatusServiceUnavailable, rpc.CodeUnavailable, "projector %s has %d side streams open, the most it can; try again", p.cfg.ID, maxSideStreams)
	}
	for _, s := range old {
		s.cancel()
		<-s.ended
	}
	return nil
}

// openStreams asks KV for each vbucket.
func (s *side) openStreams(ctx context.Context) (*wire.SideReply, error) {
	details, err := s.conn.Details(ctx)
	if err != nil {
		return nil, kvProblem(s.req.Bucket, err)
	}
	reply := &wire.SideReply{Results: make([]wire.StartResult, len(s.req.Streams))}
	all := make([]*stream, len(s.req.Streams))
	var g errgroup.Group
	g.SetLimit(streamsAtOnce)
	for i := range s.req.Streams {
		g.Go(func() error {
			all[i], reply.Results[i] = s.openStream(ctx, &s.req.Streams[i], details)
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
	return reply, nil
}

func (s *side) openStream(ctx context.Context, req *wire.SideStream, details map[uint16]feed.VBucketDetails) (*stream, wire.StartResult) {
	r := wire.StartResult{VBucketLog: wire.VBucketLog{VBucket: req.VBucket}}
	purge := details[req.VBucket].PurgeSeqno
	st := &stream{vb: req.VBucket, id: s.conn.NewStreamID(), inc: index.Incarnation{Counter: s.req.ID}, purge: purge, end: req.To,
		start: feed.Position{Seqno: req.From, SnapStart: min(req.Window.Start, req.From), SnapEnd: max(req.Window.End, req.From)}}
	entries, err := s.conn.OpenStream(ctx, feed.StreamRequest{VBucket: st.vb, ID: st.id, Start: req.From, End: req.To, VBUUID: req.VBUUID,
		SnapStart: st.start.SnapStart, SnapEnd: st.start.SnapEnd})
	if err != nil {
		return nil, refusal(r, err)
	}
	if r.Log = convertLog(entries); req.Branch != 0 && r.Log.Newest() != req.Branch {
		_ = s.conn.CloseStream(ctx, st.vb) // the whole connection goes if this fails
		r.Outcome, r.Detail = wire.StartStale, fmt.Sprintf("the KV node is on branch %d, the maintenance stream on %d", r.Log.Newest(), req.Branch)
		return nil, r
	}
	r.Outcome, r.Purge = wire.StartBegun, purge
	return st, r
}

// run pumps until every vbucket has ended, then waits until the indexer has taken everything.
func (s *side) run(ctx context.Context) {
	defer close(s.ended)
	defer s.forget()
	defer s.cancel()
	watch, stop := context.WithCancel(ctx)
	defer stop()
	s.p.tasks.Go(func() { s.watchdog(watch) })
	err := s.pumpAll(ctx)
	if err == nil {
		drain, cancel := context.WithTimeout(ctx, sideDrainTimeout)
		err = s.topic.Drain(drain)
		cancel()
	}
	if err != nil && s.p.runCtx.Err() == nil {
		s.p.log.Info("a side stream ended early; its indexer will ask again", "topic", s.req.Topic, "bucket", s.req.Bucket, "error", err)
	}
	_ = s.conn.Close()
	s.topic.Close()
}

// forget takes it off the list.
func (s *side) forget() {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	if s.p.sides[s.req.Topic] == s {
		delete(s.p.sides, s.req.Topic)
	}
}

// watchdog gives up a side stream on which nothing moves.
func (s *side) watchdog(ctx context.Context) {
	tick := time.NewTicker(sideIdleLimit)
	defer tick.Stop()
	seen := uint64(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := s.beats.Load()
		if now == seen {
			s.cancel()
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
		s.beats.Add(1)
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

// stopSide ends a side stream.
func (p *Projector) stopSide(topic string) {
	p.mu.Lock()
	s := p.sides[topic]
	p.mu.Unlock()
	if s != nil {
		s.cancel()
		<-s.ended
	}
}
