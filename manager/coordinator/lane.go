package coordinator

import (
	"context"
	"errors"
	"sync"
	"time"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/manager/coordinator/core"
	"tidemark/wire"
)

// lane is a bounded queue with its own goroutines, so that a slow receiver delays no other: one goroutine, which
// keeps the order, or several, which keep it only among the commands of one bucket.
type lane struct {
	mu    sync.Mutex
	queue core.Queue
	wake  chan struct{} // capacity 1
	// hanging holds one element per slow message that no longer occupies a worker; nil if there is one worker, which
	// keeps the order.
	hanging chan struct{}
}

func newLane(workers int) *lane {
	q := &lane{wake: make(chan struct{}, 1)}
	if workers > 1 {
		q.hanging = make(chan struct{}, hangAtOnce)
	}
	return q
}

func (q *lane) put(t core.Send) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.queue.Put(t)
	q.wakeOne()
}

// wakeOne wakes one waiting worker.
func (q *lane) wakeOne() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *lane) take() (core.Send, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	t, ok := q.queue.Take()
	if ok && q.queue.Len() > 0 {
		q.wakeOne() // another worker may take the next one
	}
	return t, ok
}

func (q *lane) done(t core.Send) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.queue.Done(t)
	if q.queue.Len() > 0 {
		q.wakeOne() // the next command of its bucket may be taken now
	}
}

// send sends a message. In a lane with several workers it returns after firstTry although the message is still being
// sent, as soon as there is room in hanging. begin starts a goroutine.
func (q *lane) send(t core.Send, deliver func(core.Send), begin func(func())) {
	if q.hanging == nil {
		deliver(t)
		q.done(t)
		return
	}
	over := make(chan struct{})
	begin(func() {
		defer close(over)
		deliver(t)
		q.done(t)
	})
	first := time.NewTimer(firstTry)
	defer first.Stop()
	select {
	case <-over:
		return
	case <-first.C:
	}
	select {
	case <-over:
	case q.hanging <- struct{}{}:
		begin(func() {
			<-over
			<-q.hanging
		})
	}
}

// run sends the queued messages until ctx ends. begin starts goroutines for send.
func (q *lane) run(ctx context.Context, deliver func(core.Send), begin func(func())) {
	for {
		for {
			if ctx.Err() != nil {
				return
			}
			t, ok := q.take()
			if !ok {
				break
			}
			q.send(t, deliver, begin)
		}
		select {
		case <-ctx.Done():
			return
		case <-q.wake:
		}
	}
}

// fences issues the fences of one receiver: the counter rises with every command.
type fences struct {
	mu   sync.Mutex
	last wire.Fence
}

func (f *fences) next() wire.Fence {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last.Counter++
	return f.last
}

// raise makes all fences from now on newer than first.
func (f *fences) raise(first wire.Fence) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last.Less(first) {
		f.last = first
	}
}

// present returns the newest issued fence.
func (f *fences) present() wire.Fence {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last
}

// fenced calls send with a new fence, and again if a command of another lane overtook it.
func fenced[T any](ctx context.Context, r *receiver, send func(wire.Fence) (T, error)) (T, error) {
	for try := 1; ; try++ {
		v, err := send(r.next())
		var p *rpc.Problem
		if err == nil || try > commandRetries || ctx.Err() != nil || !errors.As(err, &p) || p.Code != errcode.Fenced {
			return v, err
		}
	}
}
