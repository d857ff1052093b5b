package copies

import (
	"context"
	"sync/atomic"

	"tidemark/index"
)

// ControlInbox is how many commands may wait; a command beyond it waits at its caller.
const ControlInbox = 64

// calls lets others have something done in the loop.
type calls struct {
	queue   chan func()
	leaving chan leaving  // taken once the loop has ended
	stop    chan struct{} // closed: the bucket goes
	over    chan struct{} // closed: its loop has ended, and answers nothing any more; writers may still be at work
	done    chan struct{} // closed: these have ended, too
}

// leaving asks what is to be waited for until nothing is written to a copy any more.
type leaving struct {
	id    index.CopyID
	waits chan<- []<-chan struct{}
}

func newCalls() calls {
	return calls{queue: make(chan func(), ControlInbox), leaving: make(chan leaving), stop: make(chan struct{}),
		over: make(chan struct{}), done: make(chan struct{})}
}

// do runs f in the loop and waits for it. An error says that f has not run and never will. Of a bucket whose loop has
// ended nobody waits for a writer, whose disk may hang.
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
	<-ran // it has begun, and nothing in the loop waits
	return nil
}

// leave returns what is to be waited for until nothing is written to a copy of a bucket whose loop has ended: that of
// no other copy, whose disk may hang.
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

// lets answers leave until all writers have ended. The loop has.
func (k *Bucket) lets(ended <-chan struct{}) {
	for {
		select {
		case l := <-k.calls.leaving:
			l.waits <- k.writersOf(l.id)
		case <-ended:
			return
		}
	}
}
