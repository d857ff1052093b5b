package coordinator

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/wire"
)

// Queue holds what waits to be told by one lane. It is owned by one goroutine.
type Queue struct{ waiting []Tell }

// Len is how much waits.
func (q *Queue) Len() int { return len(q.waiting) }

// Put adds something. When the queue is full the oldest goes: duties are level-triggered and will tell it again.
func (q *Queue) Put(t Tell) {
	if i := slices.IndexFunc(q.waiting, func(o Tell) bool { return t.Key != "" && o.Key == t.Key }); i >= 0 {
		if old, is := q.waiting[i].Say.(PublishStable); is {
			t.Say = old.and(t.Say.(PublishStable))
		}
		q.waiting[i] = t
		return
	}
	if len(q.waiting) == laneLength {
		q.waiting = append(q.waiting[:0], q.waiting[1:]...)
	}
	q.waiting = append(q.waiting, t)
}

// Take removes the oldest.
func (q *Queue) Take() (Tell, bool) {
	if len(q.waiting) == 0 {
		return Tell{}, false
	}
	t := q.waiting[0]
	q.waiting = append(q.waiting[:0], q.waiting[1:]...)
	return t, true
}

// and is what is told when more is added to what waits: the newest of each bucket.
func (m PublishStable) and(more PublishStable) PublishStable {
	sum := PublishStable{Base: slices.Concat(m.Base, more.Base)}
	for _, s := range m.Newest {
		if !slices.ContainsFunc(more.Newest, func(o wire.Stability) bool { return o.Bucket == s.Bucket }) {
			sum.Newest = append(sum.Newest, s)
		}
	}
	sum.Newest = append(sum.Newest, more.Newest...)
	return sum
}

// sorted lists the newest ones by bucket.
func (m PublishStable) sorted() []wire.Stability {
	return slices.SortedFunc(slices.Values(m.Newest), func(a, b wire.Stability) int { return cmp.Compare(a.Bucket, b.Bucket) })
}

// lane is a bounded queue with goroutines of its own, so that a slow receiver delays nobody else: one, in order, or
// several, in none.
type lane struct {
	mu    sync.Mutex
	queue Queue
	wake  chan struct{} // one slot
}

func newLane() *lane { return &lane{wake: make(chan struct{}, 1)} }

func (q *lane) put(t Tell) {
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

func (q *lane) take() (Tell, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	t, ok := q.queue.Take()
	if q.queue.Len() > 0 {
		q.rouse() // another goroutine may take it meanwhile
	}
	return t, ok
}

// run says what is put in, one after the other, until ctx ends: the work of one goroutine.
func (q *lane) run(ctx context.Context, say func(Tell)) {
	for {
		for {
			if ctx.Err() != nil {
				return
			}
			t, ok := q.take()
			if !ok {
				break
			}
			say(t)
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
