package copies

import (
	"context"
	"sync/atomic"

	"tidemark/index"
)

// ControlInbox bounds the waiting calls. Further callers block.
const ControlInbox = 64

// calls answerLeaves other goroutines run functions in the loop.
type calls struct {
	queue   chan func()
	leaving chan leaving  // served after the loop has ended
	stop    chan struct{} // closed to stop the loop
	over    chan struct{} // closed when the loop has ended and answers no calls any more; writers may still be running
	done    chan struct{} // closed when the writers have ended, too
}

// leaving requests the channels that are closed when nothing is written to a copy any more.
type leaving struct {
	id    index.CopyID
	waits chan<- []<-chan struct{}
}

func newCalls() calls {
	return calls{queue: make(chan func(), ControlInbox), leaving: make(chan leaving), stop: make(chan struct{}),
		over: make(chan struct{}), done: make(chan struct{})}
}

// do runs f in the loop and waits for it. An error means that f has not run and never will. Once the loop has ended,
// do returns without waiting for writers, whose disk may hang.
func (k *Bucket) do(ctx context.Context, f func()) error {
	const running, abandoned = 1, 2
	var state atomic.Int32
	ran := make(chan struct{})
	call := func() {
		if state.CompareAndSwap(0, running) {
			f()
			close(ran)
		}
	}
	c, err := &k.calls, error(nil)
	select {
	case c.queue <- call:
		select {
		case <-ran:
			return nil
		case <-c.over:
			err = ErrBucketGone
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	case <-c.over:
		return ErrBucketGone
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if state.CompareAndSwap(0, abandoned) {
		return err
	}
	<-ran // f has begun, and nothing in the loop blocks
	return nil
}

// leave returns the channels to wait for until nothing is written to a copy of a bucket whose loop has ended. It
// covers this copy only, because the disk of another one may hang.
func (k *Bucket) leave(ctx context.Context, id index.CopyID) (waits []<-chan struct{}, err error) {
	answer := make(chan []<-chan struct{}, 1)
	select {
	case k.calls.leaving <- leaving{id, answer}:
		return <-answer, nil
	case <-k.calls.done:
		return nil, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// answerLeaves answers leave after the loop has ended, until all writers have ended.
func (k *Bucket) answerLeaves(ended <-chan struct{}) {
	for {
		select {
		case l := <-k.calls.leaving:
			l.waits <- k.writersOf(l.id)
		case <-ended:
			return
		}
	}
}
