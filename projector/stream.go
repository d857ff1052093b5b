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

// stream is one vbucket's stream under one incarnation: what package core decides of it, and what it takes to run it.
// Its start is set before others can see it; its course and the rest belong to the pump that owns the vbucket.
type stream struct {
	core.Stream
	shown
	id     feed.StreamID
	looked uint64 // of the watch alone: 1 and the seqno at its last look, 0 before the first

	// Of the pump alone.
	tracker feed.Tracker
	plan    *plan
	mute    bool        // documents that no index is on have come since the last SYNC that tells of them
	promise *promise    // nil: nobody asked for it
	held    []heldBlock // while it waits
}

// shown is what others than its pump see of a stream.
type shown struct {
	complete atomic.Uint64
	lacks    atomic.Uint64 // KV may have forgotten deletions up to here
	seqno    atomic.Uint64 // last one given to the router
	atKV     atomic.Bool   // it may be open at KV
	ended    atomic.Bool   // nothing more goes downstream
	revoked  atomic.Bool   // the vbucket has left the KV node: to be ended
}

// newStream returns the stream that KV is to be asked for.
func newStream(c *core.Stream) *stream {
	s := &stream{Stream: *c}
	s.complete.Store(c.From())
	s.lacks.Store(c.Purge)
	return s
}

// Level is how far it is, for whoever asks.
func (s *stream) Level() core.Level {
	return core.Level{Complete: s.complete.Load(), Lacks: s.lacks.Load(), Ended: s.ended.Load()}
}

// start is where KV is asked to start.
func (s *stream) start() feed.Position {
	return feed.Position{Seqno: s.Want.Seqno, SnapStart: s.Want.Window.Start, SnapEnd: s.Want.Window.End}
}

// request is what KV is asked for the stream.
func (s *stream) request() feed.StreamRequest {
	at := s.start()
	return feed.StreamRequest{VBucket: s.VBucket(), ID: s.id, Start: at.Seqno, End: s.Want.End, VBUUID: s.Asked,
		SnapStart: at.SnapStart, SnapEnd: at.SnapEnd}
}

// pump takes the events of streams and gives them to a topic: the evaluation of documents and the way into the router.
// One goroutine uses it.
type pump struct {
	topic    *router.Topic
	counters *counters
	received *traffic // of its class; nil: it is counted where several read
	faults   *faults
	desk     *purgeDesk
	answers  *purgeAnswers // of the desk
	sums     sums
	scratch  expression.Scratch
	keys     [][][]byte
	doc      router.Doc
}

// sums are what a pump has not added to the shared counters yet.
type sums struct{ mutations, deletions, versions, bytes uint64 }

// note counts a document.
func (c *sums) note(e *feed.Event, indexed bool) {
	c.versions++
	c.bytes += uint64(len(e.Key) + len(e.Value))
	switch {
	case !indexed: // of a collection that no index is on: only its seqno counts
	case e.Kind == feed.Mutation:
		c.mutations++
	default:
		c.deletions++
	}
}

// tell adds the sums to the counters that others read: at the end of a block, and before a stream's complete seqno is
// known, so that whoever has seen that also sees the documents counted.
func (p *pump) tell() {
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

// begin makes a stream known downstream when KV has consented to it.
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
	if err := p.tellBegin(ctx, s); err != nil {
		return err
	}
	s.Begun = true
	return nil
}

// tellBegin says BEGIN downstream, and how far the stream is complete.
func (p *pump) tellBegin(ctx context.Context, s *stream) error {
	if err := p.topic.Begin(ctx, s.plan.view, s.Downstream()); err != nil {
		return err
	}
	return p.topic.Sync(s.VBucket(), s.VBUUID, s.Complete)
}

// marked does what a stream's first snapshot, or KV's answer about it, asks for.
func (p *pump) marked(ctx context.Context, s *stream, what core.Marked) error {
	switch what {
	case core.Asks:
		p.desk.ask(s, p.answers)
	case core.Begins:
		s.lacks.Store(s.Lacks)
		return p.tellBegin(ctx, s)
	}
	return nil
}

// take returns one event of a begun stream to the router. completed tells that the newest complete seqno has moved.
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
		p.tell()
	}
	switch {
	case m == nil:
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
		s.complete.Store(s.Complete) // behind the SYNC, which whoever tells the leader of it has sent
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

// end says downstream that a begun stream is over.
func (p *pump) end(ctx context.Context, s *stream, reach uint64) {
	if s.Begun && !s.ended.Load() {
		var sums keyversion.Sums
		if s.promise != nil {
			sums = s.promise.sums
		}
		_ = p.topic.End(ctx, s.VBucket(), s.Last, reach, sums) // a closed topic has nobody left to tell
	}
	s.ended.Store(true)
}
