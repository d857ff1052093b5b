package copies

import (
	"errors"
	"testing"
	"time"

	"tidemark/index"
	"tidemark/indexer/core"
	"tidemark/keyversion"
)

// TestStoppedBucketAnswersCalls: a bucket whose loop has ended while its writers hang returns ErrBucketGone to
// calls and incoming data. Otherwise the data would be acknowledged, and a caller that asks all buckets of the node
// would wait for the disk. Removing a copy waits for that copy's writer, and for no other.
func TestStoppedBucketAnswersCalls(t *testing.T) {
	k := testBucketLoop(t)
	ended, begun := make(chan error, 1), make(chan struct{}, 2)
	hangs := map[index.CopyID]chan struct{}{1: make(chan struct{}), 2: make(chan struct{})}
	go func() { ended <- k.Run(t.Context()) }()
	waited := make(chan error, 1)
	if err := k.Do(t.Context(), func(*core.Bucket) {
		k.lanes.do = func(n *lane, _ task) { // like one whose disk hangs
			begun <- struct{}{}
			<-hangs[n.copy]
		}
		for id := range hangs {
			n := &lane{copy: id}
			k.lanes.of[id] = n
			k.lanes.give(n, task{})
			<-begun
		}
		go func() { waited <- k.do(t.Context(), func() {}) }()
		for len(k.calls.queue) == 0 { // the call that waits when the bucket stops
			time.Sleep(time.Millisecond)
		}
		k.Stop()
	}); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil && !errors.Is(err, ErrBucketGone) {
		t.Errorf("a call that waited: %v", err)
	}
	<-k.Gone()
	if err := k.Do(t.Context(), func(*core.Bucket) {}); !errors.Is(err, ErrBucketGone) {
		t.Errorf("a call that comes later: %v", err)
	}
	s := k.Sink(keyversion.Hello{Projector: "p1", Connections: 1}, 1, false, false)
	if err := s.Receive(t.Context(), &keyversion.Batch{}, func() {}); !errors.Is(err, ErrBucketGone) {
		t.Errorf("data: %v", err)
	}
	removed := make(chan error, 1)
	go func() { removed <- k.Remove(t.Context(), 1) }()
	if err := k.Remove(t.Context(), 3); err != nil {
		t.Errorf("a copy that is not being written to: %v", err)
	}
	select {
	case err := <-removed:
		t.Errorf("a copy was released while its writer is at work: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(hangs[1])
	if err := <-removed; err != nil {
		t.Errorf("a copy whose writer has ended, beside one that hangs: %v", err)
	}
	close(hangs[2])
	<-ended
	if err := k.Remove(t.Context(), 2); err != nil {
		t.Errorf("a copy of a bucket of which all has ended: %v", err)
	}
}
