package topic

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tidemark/indexer/transport"
	"tidemark/keyversion"
	"tidemark/timestamp"
)

// sink receives the batches of one connection.
type sink struct {
	s       *Subscription
	hello   keyversion.Hello
	request uint64 // counter of the request for its topic
}

// errGap is wrapped if a stream continues after something that was not handled: it is requested again.
var errGap = errors.New("a gap in the stream")

// accept accepts or rejects a connection by its hello.
func (s *Subscription) accept(_ context.Context, h keyversion.Hello) (transport.Sink, error) {
	request, ours := s.requestOf(h.Topic)
	if h.Bucket != s.cfg.Bucket || h.Node != 0 || !ours {
		return nil, fmt.Errorf("topic %q of bucket %q for node %d: this is subscription %s of bucket %s", h.Topic, h.Bucket,
			h.Node, s.cfg.ID, s.cfg.Bucket)
	}
	s.mu.Lock()
	earlier := request <= s.first || request > s.next
	s.earlier = s.earlier || earlier
	s.mu.Unlock()
	if earlier { // a later one could not listen here
		return nil, fmt.Errorf("topic %q belongs to an earlier process of subscription %s; it is stopped", h.Topic, s.cfg.ID)
	}
	return &sink{s: s, hello: h, request: request}, nil
}

// Receive implements transport.Sink: the batch is acknowledged once all of it has been handled.
func (k *sink) Receive(ctx context.Context, b *keyversion.Batch, release func()) error {
	if err := k.s.awaitAnswer(ctx, k.request); err != nil {
		return err
	}
	defer k.take()()
	if err := k.s.user.lock(ctx); err != nil {
		return err
	}
	defer k.s.user.unlock()
	for i := range b.Events {
		if err := k.event(ctx, &b.Events[i]); err != nil {
			return err
		}
	}
	release()
	return nil
}

// take records that a batch is being handled, until the returned function is called. Data after the batch cannot
// arrive meanwhile, so no stream becomes overdue because of the time that the user's functions take.
func (k *sink) take() (taken func()) {
	began := time.Now()
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	k.s.taking[k] = struct{}{}
	return func() {
		k.s.mu.Lock()
		defer k.s.mu.Unlock()
		delete(k.s.taking, k)
		now := time.Now()
		if now.Sub(began) < requestInterval {
			return
		}
		for vb := range k.s.vbuckets {
			if k.carries(uint16(vb)) {
				k.s.vbuckets[vb].idle = now
			}
		}
	}
}

// carries reports whether a vbucket's stream arrives on this connection. The caller holds the lock.
func (k *sink) carries(vb uint16) bool {
	return k.s.vbuckets[vb].request == k.request && vb%k.hello.Connections == k.hello.Connection
}

// answerWait is how long data that arrives before the answer to its request waits for that answer.
const answerWait = 10 * time.Second

// awaitAnswer waits until the number of vbuckets and the indexes of a request's streams are known: a projector
// answers after it has begun the streams, and their data may arrive earlier.
func (s *Subscription) awaitAnswer(ctx context.Context, request uint64) error {
	known := s.known
	s.mu.Lock()
	if r := s.requests[request]; r != nil && r.known != nil {
		known = r.known
	}
	s.mu.Unlock()
	select {
	case <-known:
		return nil
	default:
	}
	late := time.NewTimer(answerWait)
	defer late.Stop()
	select {
	case <-known:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-late.C:
		return errors.New("the request for this topic has no answer yet: try again")
	}
}

// Closed implements transport.Sink: the router connects again if it still runs.
func (k *sink) Closed(error) {
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	for vb := range k.s.vbuckets {
		if v := &k.s.vbuckets[vb]; v.owner == k {
			v.owner, v.idle = nil, time.Now()
		}
	}
}

// event processes one event. The caller holds the user's token.
func (k *sink) event(ctx context.Context, ev *keyversion.Event) error {
	wanted, err := k.admit(ctx, ev)
	if err != nil || !wanted {
		return err
	}
	if ev.Rest != nil {
		ev.Statements, ev.Rest = ev.Explicit(nil), nil
	}
	if err := k.s.cfg.Handle(ctx, ev); err != nil {
		if errors.Is(err, ctx.Err()) { // the connection has ended: the event is sent again on another one
			return err
		}
		err = fmt.Errorf("subscription %s: %s %d of vbucket %d: %w", k.s.cfg.ID, ev.Kind, ev.Seqno, ev.VBucket, err)
		k.s.user.over = err
		select {
		case k.s.failed <- err:
		default: // an earlier failure ends it
		}
		return err
	}
	k.s.handled(ev)
	return nil
}

// admit checks an event against its vbucket's state; it returns false if the event is not for the user.
func (k *sink) admit(ctx context.Context, ev *keyversion.Event) (wanted bool, err error) {
	s := k.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if int(ev.VBucket) >= len(s.vbuckets) {
		return false, fmt.Errorf("vbucket %d: bucket %s has only %d", ev.VBucket, s.cfg.Bucket, len(s.vbuckets))
	}
	v := &s.vbuckets[ev.VBucket]
	request := ev.Incarnation.Counter
	s.noteStreams(ev)
	switch {
	case v.request != request && (ev.Kind != keyversion.StreamBegin || !v.begins(request)):
		s.stopStray(ctx, request)
		return false, nil // of a stream that was given up
	case ev.Kind == keyversion.StreamBegin:
		return false, k.begin(v, ev)
	case v.owner != k && v.owner != nil:
		return false, nil // the stream continues on another connection
	case ev.Kind == keyversion.StreamEnd || ev.Kind == keyversion.DropData:
		v.ended(time.Now()) // it is requested again
		return false, nil
	case v.owner == nil:
		return false, nil // it has not begun on this connection
	}
	return v.at.precedes(ev), nil
}

// precedes reports whether an event is new after position p.
func (p Position) precedes(ev *keyversion.Event) bool {
	if ev.Kind == keyversion.Sync && ev.Seqno == p.Seqno {
		return p.Window != timestamp.Window{Start: ev.Seqno, End: ev.Seqno}
	}
	return (ev.Kind == keyversion.Sync || ev.Kind.Data()) && ev.Seqno > p.Seqno
}

// begin starts the requested stream on this connection.
func (k *sink) begin(v *vbucket, ev *keyversion.Event) error {
	if ev.Begin.Start > v.at.Seqno {
		v.reset()
		return fmt.Errorf("%w: vbucket %d continues after %d, but the last handled seqno is "+
			"%d", errGap, ev.VBucket, ev.Begin.Start,
			v.at.Seqno)
	}
	if ev.Begin.Start < v.at.Seqno && ev.VBUUID != v.at.VBUUID && !ev.Begin.Log.Valid(v.at.VBUUID, v.at.Seqno) {
		// Between the request and this BEGIN, an event of the previous stream was handled, on a branch that KV has left.
		v.reset() // requested again: KV answers with the seqno to roll back to
		return nil
	}
	v.owner = k
	if ev.Begin.Start == v.at.Seqno {
		v.at.VBUUID = ev.VBUUID // KV has accepted it as a position on this branch
	}
	return nil
}

// noteStreams records which streams a topic has, by the events it sends. The caller holds the lock.
func (s *Subscription) noteStreams(ev *keyversion.Event) {
	r := s.requests[ev.Incarnation.Counter]
	switch {
	case r == nil:
	case ev.Kind == keyversion.StreamEnd || ev.Kind == keyversion.DropData:
		delete(r.streams, ev.VBucket)
	case ev.Kind == keyversion.StreamBegin:
		r.streams[ev.VBucket] = true
	}
}

// handled moves a vbucket's position.
func (s *Subscription) handled(ev *keyversion.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ev.More {
		return // the document is handled with its last part; if that does not come, all parts are sent again
	}
	v := &s.vbuckets[ev.VBucket]
	v.moved = true
	v.at = Position{VBUUID: ev.VBUUID, Seqno: ev.Seqno, Window: ev.Window}
	if ev.Kind == keyversion.Sync {
		v.at.Window = timestamp.Window{Start: ev.Seqno, End: ev.Seqno}
	}
}
