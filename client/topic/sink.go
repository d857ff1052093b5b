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

// sink takes the batches of one connection.
type sink struct {
	s       *Subscription
	hello   keyversion.Hello
	request uint64 // counter of the request whose topic it is of
}

// errGap is wrapped when a stream goes on after something that was not handled: it is asked for anew.
var errGap = errors.New("a gap in the stream")

// accept decides on a connection by its hello.
func (s *Subscription) accept(_ context.Context, h keyversion.Hello) (transport.Sink, error) {
	request, ours := s.requestOf(h.Topic)
	if h.Bucket != s.cfg.Bucket || h.Node != 0 || !ours {
		return nil, fmt.Errorf("topic %q of bucket %q for node %d: this is subscription %s of bucket %s", h.Topic, h.Bucket,
			h.Node, s.cfg.ID, s.cfg.Bucket)
	}
	if s.before(h.Topic) {
		s.mu.Lock()
		s.earlier = true
		s.mu.Unlock()
		return nil, fmt.Errorf("topic %q is of an earlier process of subscription %s; it is stopped", h.Topic, s.cfg.ID)
	}
	return &sink{s: s, hello: h, request: request}, nil
}

// Receive implements transport.Sink: the batch is acknowledged when all of it has been handled.
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

// take notes that there is a batch to be handled, until the function that it gives is called. What is behind the batch
// can not come meanwhile: no stream is overdue for the time that the user's functions have taken.
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
		if now.Sub(began) < askInterval {
			return
		}
		for vb := range k.s.vbuckets {
			if k.brings(uint16(vb)) {
				k.s.vbuckets[vb].idle = now
			}
		}
	}
}

// brings reports whether a vbucket's stream is to come on this connection; the lock is held.
func (k *sink) brings(vb uint16) bool {
	return k.s.vbuckets[vb].request == k.request && vb%k.hello.Connections == k.hello.Connection
}

// answerWait is how long data that comes before the answer to the request for it waits for that.
const answerWait = 10 * time.Second

// awaitAnswer waits until it is known how many vbuckets there are, and of what indexes a request's streams are: a
// projector sends its answer when it has begun the streams, and their data may be faster.
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
		return errors.New("the subscription was not answered yet: try again")
	}
}

// Closed implements transport.Sink: the router connects again if it is still there.
func (k *sink) Closed(error) {
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	for vb := range k.s.vbuckets {
		if v := &k.s.vbuckets[vb]; v.owner == k {
			v.owner, v.idle = nil, time.Now()
		}
	}
}

// event takes one event; the user's token is held.
func (k *sink) event(ctx context.Context, ev *keyversion.Event) error {
	wanted, err := k.admit(ctx, ev)
	if err != nil || !wanted {
		return err
	}
	if ev.Rest != nil {
		ev.Statements, ev.Rest = ev.Explicit(nil), nil
	}
	if err := k.s.cfg.Handle(ctx, ev); err != nil {
		if errors.Is(err, ctx.Err()) { // the connection has ended meanwhile: the event comes again on another one
			return err
		}
		err = fmt.Errorf("subscription %s: %s %d of vbucket %d: %w", k.s.cfg.ID, ev.Kind, ev.Seqno, ev.VBucket, err)
		k.s.user.over = err
		select {
		case k.s.failed <- err:
		default: // an earlier one ends it
		}
		return err
	}
	k.s.handled(ev)
	return nil
}

// admit judges an event by its vbucket's state; false: it is none for the user.
func (k *sink) admit(ctx context.Context, ev *keyversion.Event) (wanted bool, err error) {
	s := k.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if int(ev.VBucket) >= len(s.vbuckets) {
		return false, fmt.Errorf("vbucket %d: bucket %s has %d", ev.VBucket, s.cfg.Bucket, len(s.vbuckets))
	}
	v := &s.vbuckets[ev.VBucket]
	request := ev.Incarnation.Counter
	s.runs(ev)
	switch {
	case v.request != request && (ev.Kind != keyversion.StreamBegin || !v.begins(request)):
		s.stray(ctx, request)
		return false, nil // of a stream that was given up
	case ev.Kind == keyversion.StreamBegin:
		return false, k.begin(v, ev)
	case v.owner != k && v.owner != nil:
		return false, nil // it goes on on another connection
	case ev.Kind == keyversion.StreamEnd || ev.Kind == keyversion.DropData:
		v.ended(time.Now()) // asked for anew
		return false, nil
	case v.owner == nil:
		return false, nil // it is not begun on this connection
	}
	return v.at.isBehind(ev), nil
}

// isBehind reports whether an event is one that is not known yet.
func (p Position) isBehind(ev *keyversion.Event) bool {
	if ev.Kind == keyversion.Sync && ev.Seqno == p.Seqno {
		return p.Window != timestamp.Window{Start: ev.Seqno, End: ev.Seqno}
	}
	return (ev.Kind == keyversion.Sync || ev.Kind.Data()) && ev.Seqno > p.Seqno
}

// begin lets the stream that was asked for begin on this connection.
func (k *sink) begin(v *vbucket, ev *keyversion.Event) error {
	if ev.Begin.Start > v.at.Seqno {
		v.none()
		return fmt.Errorf("%w: vbucket %d goes on after %d, %d was handled", errGap, ev.VBucket, ev.Begin.Start,
			v.at.Seqno)
	}
	if ev.Begin.Start < v.at.Seqno && ev.VBUUID != v.at.VBUUID && !ev.Begin.Log.Valid(v.at.VBUUID, v.at.Seqno) {
		// While it was asked for, something of the stream before was still being handled, of a branch that KV has left.
		v.none() // asked for anew: KV says to where it goes back
		return nil
	}
	v.owner = k
	if ev.Begin.Start == v.at.Seqno {
		v.at.VBUUID = ev.VBUUID // KV has accepted it as a position on this branch
	}
	return nil
}

// runs notes which streams a topic has, by what comes of it; the lock is held.
func (s *Subscription) runs(ev *keyversion.Event) {
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
		return // the document is handled with its last part; if that never comes, all of them come again
	}
	v := &s.vbuckets[ev.VBucket]
	v.moved = true
	v.at = Position{VBUUID: ev.VBUUID, Seqno: ev.Seqno, Window: ev.Window}
	if ev.Kind == keyversion.Sync {
		v.at.Window = timestamp.Window{Start: ev.Seqno, End: ev.Seqno}
	}
}
