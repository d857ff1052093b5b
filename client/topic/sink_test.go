package topic

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"tidemark/keyversion"
	"tidemark/wire"
)

// TestDataBeforeTheAnswer: data that is faster than the projector's answer waits for it, and not for ever.
func TestDataBeforeTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Subscription{handling: make(chan struct{}, 1), known: make(chan struct{})}
		receive := func() <-chan error {
			done := make(chan error, 1)
			go func() {
				done <- (&sink{s: s}).Receive(t.Context(), &keyversion.Batch{Events: []keyversion.Event{{VBucket: 3}}}, func() {})
			}()
			return done
		}
		began := time.Now()
		if err := <-receive(); err == nil || time.Since(began) != answerWait {
			t.Errorf("%v after %v, want a refusal after %v", err, time.Since(began), answerWait)
		}
		done := receive()
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("%v before the answer", err)
		default:
		}
		s.mu.Lock()
		s.begin(&wire.Subscription{VBuckets: 4})
		s.mu.Unlock()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestAConnectionEndsWhileAnEventIsHandled: a function that gives up with its context has not failed; the event is to
// come again. Any other error ends the subscription.
func TestAConnectionEndsWhileAnEventIsHandled(t *testing.T) {
	bad := errors.New("bad")
	for _, tc := range []struct {
		end   bool
		err   error // nil: the context's
		final bool
	}{{true, nil, false}, {true, bad, true}, {false, bad, true}, {false, context.Canceled, true}} {
		ctx, cancel := context.WithCancel(t.Context())
		s := &Subscription{failed: make(chan error, 1), vbuckets: []vbucket{{request: 1}}}
		s.cfg.Handle = func(ctx context.Context, _ *keyversion.Event) error {
			if tc.end {
				cancel()
			}
			if tc.err == nil {
				return ctx.Err()
			}
			return tc.err
		}
		k := &sink{s: s}
		s.vbuckets[0].owner = k
		ev := &keyversion.Event{Kind: keyversion.Insert, Seqno: 5}
		ev.Incarnation.Counter = 1
		if err := k.event(ctx, ev); err == nil {
			t.Errorf("%+v: no error: the connection would go on after what was not handled", tc)
		}
		if final := len(s.failed) == 1; final != tc.final || s.vbuckets[0].at.Seqno != 0 {
			t.Errorf("%+v: final %v, position %+v", tc, final, s.vbuckets[0].at)
		}
		cancel()
	}
}
