package projector

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"tidemark/expression"
	"tidemark/keyversion"
	"tidemark/projector/core"
	"tidemark/projector/feed"
	"tidemark/projector/router"
)

// stream is one vbucket's stream under one incarnation: package core's decisions about it, and the state needed to
// run it. Its start is set before other goroutines see it; its course and the other fields belong to the pump that
// owns the vbucket.
type stream struct {
	core.Stream
	shown
	id     feed.StreamID
	looked uint64 // used by the watch only: 1 plus the seqno at its last look, 0 before the first

	// Used by the pump only.
	tracker feed.Tracker
	plan    *plan
	mute    bool        // documents without an index have come since the last SYNC
	promise *promise    // nil unless the request is for sums
	held    []heldBlock // while the stream waits
}

// shown is the part of a stream that other goroutines read.
type shown struct {
	complete atomic.Uint64
	lacks    atomic.Uint64 // KV may have purged deletions up to here
	seqno    atomic.Uint64 // last one passed to the router
	atKV     atomic.Bool   // it may be open at KV
	ended    atomic.Bool   // nothing more goes downstream
	revoked  atomic.Bool   // the vbucket has left the KV node; the stream has to be ended
}

// newStream returns the stream to request from KV.
func newStream(c *core.Stream) *stream {
	s := &stream{Stream: *c}
	s.complete.Store(c.From())
	s.lacks.Store(c.Purge)
	return s
}

// Level returns the stream's progress. Any goroutine may call it.
func (s *stream) Level() core.Level {
	return core.Level{Complete: s.complete.Load(), Lacks: s.lacks.Load(), Ended: s.ended.Load()}
}

// start returns the position from which the stream is requested.
func (s *stream) start() feed.Position {
	return feed.Position{Seqno: s.Want.Seqno, SnapStart: s.Want.Window.Start, SnapEnd: s.Want.Window.End}
}

// request returns the stream's request to KV.
func (s *stream) request() feed.StreamRequest {
	at := s.start()
	return feed.StreamRequest{VBucket: s.VBucket(), ID: s.id, Start: at.Seqno, End: s.Want.End, VBUUID: s.Branch,
		SnapStart: at.SnapStart, SnapEnd: at.SnapEnd}
}

// pump processes the events of streams for a topic: it evaluates documents and passes their keys to the router. Only
// one goroutine uses it.
type pump struct {
	topic    *router.Topic
	counters *counters
	received *traffic // of its class; nil if the reading counts it
	faults   *faults
	desk     *purgeDesk
	answers  *purgeAnswers // from the desk
	sums     sums
	scratch  expression.Scratch
	keys     [][][]byte
	doc      router.Doc
}

// sums holds what a pump has not added to the shared counters yet.
type sums struct{ mutations, deletions, versions, bytes uint64 }

// note counts a document.
func (c *sums) note(e *feed.Event, indexed bool) {
	c.versions++
	c.bytes += uint64(len(e.Key) + len(e.Value))
	switch {
	case !indexed: // of a collection without an index: only its seqno matters
	case e.Kind == feed.Mutation:
		c.mutations++
	default:
		c.deletions++
	}
}

// publish adds the sums to the shared counters: at the end of a block, and before a stream's new complete seqno is
// visible, so that a reader that sees the seqno also finds the documents counted.
func (p *pump) publish() {
	if p.sums == (sums{}) {
		return
	}
	p.counters.mutations.Add(p.sums.mutations)
	p.counters.deletions.Add(p.sums.deletions)
	if p.received != nil {
		p.received.versions.Add(p.sums.versions)
		p.received.bytes.Add(p.sums.bytes)
	}
	p.sums = sums{}
}

// errStreamBroken is wrapped when a stream's events contradict each other.
var errStreamBroken = errors.New("stream broken")

// begin sends BEGIN downstream when KV has granted a stream.
func (p *pump) begin(ctx context.Context, s *stream, e *feed.Event, pl *plan) error {
	log, err := e.FailoverLog()
	if err == nil {
		err = s.BeginsOn(log)
	}
	if err != nil {
		return fmt.Errorf("%w: vbucket %d: %w", errStreamBroken, s.VBucket(), err)
	}
	s.tracker, s.plan = feed.NewTracker(s.start()), pl
	s.complete.Store(s.Complete)
	s.seqno.Store(s.Last)
	if err := p.sendBegin(ctx, s); err != nil {
		return err
	}
	s.Begun = true
	return nil
}

// sendBegin sends BEGIN downstream, and a SYNC with the complete seqno.
func (p *pump) sendBegin(ctx context.Context, s *stream) error {
	if err := p.topic.Begin(ctx, s.plan.view, s.Downstream()); err != nil {
		return err
	}
	return p.topic.Sync(s.VBucket(), s.VBUUID, s.Complete)
}

// marked carries out what core requires at a stream's first snapshot, or after KV's answer about it.
func (p *pump) marked(ctx context.Context, s *stream, what core.Marked) error {
	switch what {
	case core.NeedsPurge:
		p.desk.query(s, p.answers)
	case core.Begins:
		s.lacks.Store(s.Lacks)
		return p.sendBegin(ctx, s)
	}
	return nil
}

// take passes one event of a begun stream to the router. completed reports whether the newest complete seqno has
// moved.
func (p *pump) take(ctx context.Context, s *stream, e *feed.Event) (completed bool, err error) {
	progress, err := s.tracker.Observe(e)
	if err != nil {
		return false, fmt.Errorf("%w: %w", errStreamBroken, err)
	}
	if e.Kind == feed.SnapshotMarker {
		return false, p.marked(ctx, s, s.Mark(e.SnapEnd))
	}
	s.Place(progress.SnapEnd)
	var m *part
	if e.Kind.IsDocument() {
		m = s.plan.of(e.Collection)
		p.sums.note(e, m != nil)
		s.mute = s.mute || m == nil
	}
	if progress.Completed {
		p.publish()
	}
	switch {
	case m == nil:
	case s.promise == nil && !s.plan.view.Concerns(e.Collection, e.Key): // whatever its keys are
	case e.Kind == feed.Mutation:
		err = p.mutation(ctx, s, m, e)
	default:
		p.fill(s, e)
		err = p.topic.Delete(ctx, s.VBucket(), &p.doc)
	}
	if err != nil {
		return false, err
	}
	completed = s.Took(progress.Seqno, progress.Completed)
	s.seqno.Store(s.Last)
	if completed {
		err = p.topic.Sync(s.VBucket(), s.VBUUID, s.Complete)
		s.complete.Store(s.Complete) // after the SYNC, which must precede any report of this seqno to the leader
	}
	return completed, err
}

func (p *pump) fill(s *stream, e *feed.Event) {
	p.doc.VBUUID, p.doc.Seqno, p.doc.Window, p.doc.DocID = s.VBUUID, e.Seqno, s.Window, e.Key
	p.doc.Collection = e.Collection
}

func (p *pump) mutation(ctx context.Context, s *stream, m *part, e *feed.Event) error {
	p.fill(s, e)
	result := m.program.EvaluateMeta(&p.scratch, e.Key, expression.DocMeta{CAS: e.CAS, Expiration: e.Expiry,
		Flags: e.Flags, Xattrs: e.Xattrs}, e.Value)
	if result.Errors > 0 {
		p.counters.errors.Add(uint64(result.Errors))
		p.faults.note(m, &result, e)
	}
	p.keys = p.keys[:0]
	for i := range m.program.Sources() {
		p.keys = append(p.keys, result.Keys(i))
	}
	if s.promise != nil {
		s.promise.add(m.promised, e.Key, e.Seqno, p.keys)
	}
	if e.Undecodable {
		p.counters.errors.Add(uint64(p.faults.undecodable(m, p.keys, e)))
	}
	p.doc.Keys = p.keys
	return p.topic.Mutation(ctx, s.VBucket(), &p.doc)
}

// end sends END downstream for a begun stream.
func (p *pump) end(ctx context.Context, s *stream, reach uint64) {
	if s.Begun && !s.ended.Load() {
		var sums keyversion.Sums
		if s.promise != nil {
			sums = s.promise.sums
		}
		_ = p.topic.End(ctx, s.VBucket(), s.Last, reach, sums) // the only error is a closed topic, which has no receiver left
	}
	s.ended.Store(true)
}
