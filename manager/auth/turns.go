package auth

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// maxWaiting bounds the logins that wait for a hash; each waits for some 10 ms for each that is before it.
const maxWaiting = 1024

// turns gives out the places in which hashes are computed: to each address in turn, so that who sends many tries makes
// only himself wait.
type turns struct {
	mu      sync.Mutex
	free    int
	waiting int
	queues  map[string][]chan struct{} // by address, none of them empty
	order   []string                   // the addresses of queues: whose turn is next
}

func newTurns(places int) *turns { return &turns{free: places, queues: map[string][]chan struct{}{}} }

// enter waits for a place; leave gives it back. It fails when too many wait, or with its context.
func (q *turns) enter(ctx context.Context, address string) error {
	q.mu.Lock()
	if q.free > 0 {
		q.free--
		q.mu.Unlock()
		return nil
	}
	if q.waiting >= maxWaiting {
		q.mu.Unlock()
		return fmt.Errorf("%w: %d logins wait already", ErrTooMany, maxWaiting)
	}
	granted := make(chan struct{})
	if len(q.queues[address]) == 0 {
		q.order = append(q.order, address)
	}
	q.queues[address] = append(q.queues[address], granted)
	q.waiting++
	q.mu.Unlock()
	select {
	case <-granted:
		return nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.drop(address, granted) { // the place came at that moment
		q.pass()
	}
	return ctx.Err()
}

// drop takes somebody who waits out of the queue; false when he waits no more.
func (q *turns) drop(address string, granted chan struct{}) bool {
	queue := q.queues[address]
	i := slices.Index(queue, granted)
	if i < 0 {
		return false
	}
	q.waiting--
	if q.queues[address] = slices.Delete(queue, i, i+1); len(queue) == 1 {
		delete(q.queues, address)
		q.order = slices.DeleteFunc(q.order, func(a string) bool { return a == address })
	}
	return true
}

// leave returns a place back.
func (q *turns) leave() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pass()
}

// pass returns a place to the next address. q.mu is held.
func (q *turns) pass() {
	if len(q.order) == 0 {
		q.free++
		return
	}
	address := q.order[0]
	next := q.queues[address][0]
	q.drop(address, next)
	if len(q.queues[address]) > 0 { // its next one comes after all others
		q.order = append(q.order[1:], address)
	}
	close(next)
}
