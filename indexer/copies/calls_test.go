package copies

import (
	"errors"
	"testing"
	"time"

	"tidemark/indexer/core"
	"tidemark/keyversion"
)

// TestABucketThatHasStoppedAnswers: a bucket whose loop has ended, while a writer of it hangs, says to whoever asks it,
// or brings it data, that it has gone: what it took was acknowledged, and who asked all buckets of the node waited for
// the disk. Who lets a copy go still waits for the writer.
func TestABucketThatHasStoppedAnswers(t *testing.T) {
	k := testBucketLoop(t)
	ended, hangs := make(chan error, 1), make(chan struct{})
	go func() { ended <- k.Run(t.Context()) }()
	waited := make(chan error, 1)
	if err := k.Do(t.Context(), func(*core.Bucket) {
		k.lanes.all.Go(func() { <-hangs }) // as a writer whose disk does
		go func() { waited <- k.ask(t.Context(), func() {}) }()
		for len(k.calls.queue) == 0 { // the one that waits when the bucket goes
			time.Sleep(time.Millisecond)
		}
		k.Stop()
	}); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil && !errors.Is(err, ErrBucketGone) {
		t.Errorf("a call that waited: %v", err)
	}
	<-k.calls.over
	if err := k.Do(t.Context(), func(*core.Bucket) {}); !errors.Is(err, ErrBucketGone) {
		t.Errorf("a call that comes later: %v", err)
	}
	s := k.Sink(keyversion.Hello{Projector: "p1", Connections: 1}, 1, false, false)
	if err := s.Receive(t.Context(), &keyversion.Batch{}, func() {}); !errors.Is(err, ErrBucketGone) {
		t.Errorf("data: %v", err)
	}
	removed := make(chan error, 1)
	go func() { removed <- k.Remove(t.Context(), 1) }()
	select {
	case err := <-removed:
		t.Errorf("a copy was let go of while a writer is at work: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(hangs)
	if err := <-removed; !errors.Is(err, ErrBucketGone) {
		t.Errorf("Remove: %v", err)
	}
	<-ended
}
