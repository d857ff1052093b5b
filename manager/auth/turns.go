package auth

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// maxWaiting bounds the logins that wait for a hash; each waits about 10 ms for every login before it.
const maxWaiting = 1024

// turns schedules the slots for computing hashes, to each address in turn, so that a sender of many attempts delays
// only itself.
type turns struct {
	mu      sync.Mutex
	free    int
	waiting int
	queues  map[string][]chan struct{} // by address; never empty
	order   []string                   // the addresses in queues, next first
}

func newTurns(places int) *turns { return &turns{free: places, queues: map[string][]chan struct{}{}} }

// enter waits for a slot; leave releases it. It returns an error if too many logins wait, or ctx ends.
func (q *turns) enter(ctx context.Context, address string) error {
	q.mu.Lock()
	if q.free > 0 {
		q.free--
		q.mu.Unlock()
		return nil
	}
	if q.waiting >= maxWaiting {
		q.mu.Unlock()
		return fmt.Errorf("%w: %d logins are already waiting", ErrTooMany, maxWaiting)
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
	if !q.drop(address, granted) { // the slot was granted at that moment
		q.pass()
	}
	return ctx.Err()
}

// drop removes a waiter from its queue; it returns false if it is no longer waiting.
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

// leave releases a slot.
func (q *turns) leave() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pass()
}

// pass gives a slot to the next address. The caller holds q.mu.
func (q *turns) pass() {
	if len(q.order) == 0 {
		q.free++
		return
	}
	address := q.order[0]
	next := q.queues[address][0]
	q.drop(address, next)
	if len(q.queues[address]) > 0 { // its next waiter comes after all other addresses
		q.order = append(q.order[1:], address)
	}
	close(next)
}
