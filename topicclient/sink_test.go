package topicclient

import (
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
				done <- (&sink{s: s}).Receive(t.Context(), &keyversion.Batch{Events: []Event{{VBucket: 3}}}, func() {})
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
