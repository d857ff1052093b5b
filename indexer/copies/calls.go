package copies

import (
	"context"
	"sync/atomic"
)

// ControlInbox is how many commands may wait; a command beyond it waits at its caller.
const ControlInbox = 64

// calls lets others have something done in the loop.
type calls struct {
	queue chan func()
	stop  chan struct{} // closed: the bucket goes
	over  chan struct{} // closed: its loop has ended, and answers nothing any more; writers may still be at work
	done  chan struct{} // closed: these have ended, too
}

func newCalls() calls {
	return calls{queue: make(chan func(), ControlInbox), stop: make(chan struct{}), over: make(chan struct{}),
		done: make(chan struct{})}
}

// do runs f in the loop and waits for it. An error says that f has not run and never will; ErrBucketGone, that nothing
// is written to any copy of the bucket any more, either.
func (k *Bucket) do(ctx context.Context, f func()) error { return k.calls.do(ctx, k.calls.done, f) }

// ask is do for who wants to know something: of a bucket whose loop has ended he waits for no writer, whose disk may
// hang.
func (k *Bucket) ask(ctx context.Context, f func()) error { return k.calls.do(ctx, k.calls.over, f) }

func (c *calls) do(ctx context.Context, gone <-chan struct{}, f func()) error {
	const running, abandoned = 1, 2
	var state atomic.Int32
	ran := make(chan struct{})
	call := func() {
		if state.CompareAndSwap(0, running) {
			f()
			close(ran)
		}
	}
	var err error
	select {
	case c.queue <- call:
		select {
		case <-ran:
			return nil
		case <-gone:
			err = ErrBucketGone
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	case <-gone:
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
