package coordinator

import (
	"context"
	"errors"
	"slices"
	"sync"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/wire"
)

// task is something to be told to one receiver. A later task with the same key takes the place of one that still
// waits; "" never does.
type task struct {
	key string
	do  func(ctx context.Context)
}

// lane is a bounded queue of tasks with goroutines of its own, so that a slow receiver delays nobody else: one, in
// order, or several, in none.
type lane struct {
	workers int // set before it is opened
	mu      sync.Mutex
	tasks   []task
	wake    chan struct{} // one slot
}

func newLane() *lane { return &lane{workers: 1, wake: make(chan struct{}, 1)} }

// put adds a task. When the lane is full the oldest one goes: duties are level-triggered and will tell it again.
func (q *lane) put(t task) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.IndexFunc(q.tasks, func(o task) bool { return t.key != "" && o.key == t.key }); i >= 0 {
		q.tasks[i] = t
		return
	}
	if len(q.tasks) == laneLength {
		q.tasks = append(q.tasks[:0], q.tasks[1:]...)
	}
	q.tasks = append(q.tasks, t)
	q.rouse()
}

// rouse wakes one of those who wait for a task.
func (q *lane) rouse() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *lane) take() (task, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.tasks) == 0 {
		return task{}, false
	}
	t := q.tasks[0]
	if q.tasks = append(q.tasks[:0], q.tasks[1:]...); len(q.tasks) > 0 {
		q.rouse() // another worker may take it meanwhile
	}
	return t, true
}

// full reports whether one more task would drop the oldest.
func (q *lane) full() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.tasks) == laneLength
}

func (q *lane) waiting() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.tasks) > 0
}

// Run does tasks, one after the other, until ctx ends: the work of one goroutine.
func (q *lane) Run(ctx context.Context) error {
	for {
		for {
			if ctx.Err() != nil {
				return nil
			}
			t, ok := q.take()
			if !ok {
				break
			}
			t.do(ctx)
		}
		select {
		case <-ctx.Done():
			return nil
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
