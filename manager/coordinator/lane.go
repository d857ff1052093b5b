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

// lane is a bounded queue with goroutines of its own, so that a slow receiver delays nobody else: one, in order, or
// several, in none but that of a bucket's commands.
type lane struct {
	mu    sync.Mutex
	queue core.Queue
	wake  chan struct{} // one slot
	// hanging holds a place for what lasts, and no longer keeps one of several goroutines; nil of one, which keeps order.
	hanging chan struct{}
}

func newLane(workers int) *lane {
	q := &lane{wake: make(chan struct{}, 1)}
	if workers > 1 {
		q.hanging = make(chan struct{}, hangAtOnce)
	}
	return q
}

func (q *lane) put(t core.Tell) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.queue.Put(t)
	q.rouse()
}

// rouse wakes one of those who wait for something to say.
func (q *lane) rouse() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *lane) take() (core.Tell, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	t, ok := q.queue.Take()
	if ok && q.queue.Len() > 0 {
		q.rouse() // another goroutine may take it meanwhile
	}
	return t, ok
}

func (q *lane) said(t core.Tell) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.queue.Said(t)
	if q.queue.Len() > 0 {
		q.rouse() // the next of its bucket may be taken now
	}
}

// tell says something. Of a lane with several goroutines it returns before that is over where it lasts longer than
// firstTry, as soon as there is a place among what hangs: begin starts a goroutine.
func (q *lane) tell(t core.Tell, say func(core.Tell), begin func(func())) {
	if q.hanging == nil {
		say(t)
		q.said(t)
		return
	}
	over := make(chan struct{})
	begin(func() {
		defer close(over)
		say(t)
		q.said(t)
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

// run says what is put in until ctx ends: of a lane with one goroutine one after the other, else as tell does, whose
// goroutines begin starts.
func (q *lane) run(ctx context.Context, say func(core.Tell), begin func(func())) {
	for {
		for {
			if ctx.Err() != nil {
				return
			}
			t, ok := q.take()
			if !ok {
				break
			}
			q.tell(t, say, begin)
		}
		select {
		case <-ctx.Done():
			return
		case <-q.wake:
		}
	}
}

// fences hands out the fences of one receiver: the counter rises with every command.
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

// present is the newest fence that was handed out.
func (f *fences) present() wire.Fence {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last
}

// fenced calls send with a fresh fence; one that another lane's command overtook is sent again.
func fenced[T any](ctx context.Context, f *fences, send func(wire.Fence) (T, error)) (T, error) {
	for try := 1; ; try++ {
		v, err := send(f.next())
		var p *rpc.Problem
		if err == nil || try > commandRetries || ctx.Err() != nil || !errors.As(err, &p) || p.Code != errcode.Fenced {
			return v, err
		}
	}
}
