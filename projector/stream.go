package projector

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"tidemark/expression"
	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/projector/feed"
	"tidemark/projector/router"
	"tidemark/timestamp"
)

// stream is one vbucket's stream under one incarnation. The pump that owns the vbucket changes it; what others read is
// atomic or set before they can see it.
type stream struct {
	vb       uint16
	id       feed.StreamID
	inc      index.Incarnation
	start    feed.Position
	end      uint64 // up to and including it
	blind    bool   // KV tells no purge seqnos
	revision timestamp.MapRevision
	branch   uint64                // newest one that the asker knew; 0: any will do
	asked    uint64                // branch that KV was asked for
	log      timestamp.FailoverLog // of KV's consent

	purge    atomic.Uint64 // KV may have forgotten deletions up to here
	complete atomic.Uint64
	seqno    atomic.Uint64 // last one given to the router, for those who watch
	atKV     atomic.Bool   // it may be open at KV
	ended    atomic.Bool   // nothing more goes downstream
	revoked  atomic.Bool   // the vbucket has left the KV node: to be ended

	looked uint64 // of the watch alone: 1 and the seqno at its last look, 0 before the first

	// Of the pump alone.
	begun   bool
	passed  bool // of a side stream: KV has sent everything up to its end
	tracker feed.Tracker
	plan    *plan
	vbuuid  uint64
	told    timestamp.FailoverLog // by BEGIN
	last    uint64                // last seqno given to the router
	window  timestamp.Window      // of last; Start is the newest complete seqno before it
	reach   uint64                // highest window end seen
	mute    bool                  // documents that no index is on have come since the last SYNC that tells of them
	promise *promise              // nil: nobody asked for it

	// Of the pump, too: the first snapshot of a stream from 0, see marked.
	marked   bool        // it has begun
	firstEnd uint64      // its end
	waits    bool        // for what KV has forgotten by now
	held     []heldBlock // meanwhile
}

// request is what KV is asked for the stream.
func (s *stream) request(vbuuid uint64) feed.StreamRequest {
	return feed.StreamRequest{VBucket: s.vb, ID: s.id, Start: s.start.Seqno, End: s.end, VBUUID: vbuuid,
		SnapStart: s.start.SnapStart, SnapEnd: s.start.SnapEnd}
}

// pump takes the events of streams and gives them to a topic: the evaluation of documents and the way into the router.
// One goroutine uses it.
type pump struct {
	topic    *router.Topic
	counters *counters
	received *traffic // of its class
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
	p.received.versions.Add(p.sums.versions)
	p.received.bytes.Add(p.sums.bytes)
	p.sums = sums{}
}

// errStreamBroken is wrapped when a stream's events contradict each other.
var errStreamBroken = errors.New("stream broken")

// begin makes a stream known downstream when KV has consented to it.
func (p *pump) begin(ctx context.Context, s *stream, e *feed.Event, pl *plan) error {
	log, err := e.FailoverLog()
	if err != nil {
		return fmt.Errorf("%w: vbucket %d: %w", errStreamBroken, s.vb, err)
	}
	if s.failedOver(log) {
		// the answer to the request says so
		return fmt.Errorf("%w: vbucket %d: KV failed over before it began", errStreamBroken, s.vb)
	}
	s.tracker, s.plan, s.last, s.vbuuid, s.told = feed.NewTracker(s.start), pl, s.start.Seqno, log.Newest(), log
	s.window = timestamp.Window{Start: s.start.Seqno, End: s.start.Seqno}
	s.complete.Store(s.tracker.Progress().Complete)
	s.seqno.Store(s.last)
	if err := p.tellBegin(ctx, s); err != nil {
		return err
	}
	s.begun = true
	pl.activate(s.vb, s.start.Seqno)
	return nil
}

// tellBegin says BEGIN downstream, and how far the stream is complete.
func (p *pump) tellBegin(ctx context.Context, s *stream) error {
	begin := keyversion.Begin{Start: s.start.Seqno, Log: s.told, Purge: s.purge.Load(), Revision: s.revision}
	if err := p.topic.Begin(ctx, s.vb, s.inc, s.plan.view, begin); err != nil {
		return err
	}
	return p.topic.Sync(s.vb, s.vbuuid, s.complete.Load())
}

// take returns one event of a begun stream to the router. completed tells that the newest complete seqno has moved.
func (p *pump) take(ctx context.Context, s *stream, e *feed.Event) (completed bool, err error) {
	progress, err := s.tracker.Observe(e)
	if err != nil {
		return false, fmt.Errorf("%w: %w", errStreamBroken, err)
	}
	if e.Kind == feed.SnapshotMarker {
		s.reach = max(s.reach, e.SnapEnd)
		return false, p.marked(ctx, s, e.SnapEnd)
	}
	s.place(progress)
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
		err = p.topic.Delete(ctx, s.vb, &p.doc)
	}
	if err != nil {
		return false, err
	}
	s.last = max(s.last, progress.Seqno)
	s.seqno.Store(s.last)
	if progress.Completed {
		s.complete.Store(progress.Complete)
		err = p.topic.Sync(s.vb, s.vbuuid, progress.Complete)
	}
	return progress.Completed, err
}

// place notes the window of the item that comes now. For those downstream it starts where the stream was last complete,
// wherever KV's marker starts: what lies between was de-duplicated into this window, or is part of one that was cut
// short.
func (s *stream) place(p feed.Progress) {
	if p.SnapEnd != s.window.End {
		s.window = timestamp.Window{Start: s.complete.Load(), End: p.SnapEnd}
		s.reach = max(s.reach, p.SnapEnd)
	}
}

func (p *pump) fill(s *stream, e *feed.Event) {
	p.doc.VBUUID, p.doc.Seqno, p.doc.Window, p.doc.DocID = s.vbuuid, e.Seqno, s.window, e.Key
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
	p.doc.Keys = p.keys
	return p.topic.Mutation(ctx, s.vb, &p.doc)
}

// end says downstream that a begun stream is over.
func (p *pump) end(ctx context.Context, s *stream, reach uint64) {
	if s.begun && !s.ended.Load() {
		var sums keyversion.Sums
		if s.promise != nil {
			sums = s.promise.sums
		}
		_ = p.topic.End(ctx, s.vb, s.last, reach, sums) // a closed topic has nobody left to tell
	}
	s.ended.Store(true)
}
