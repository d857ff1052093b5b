package copies

import (
	"context"
	"sync"
)

// inboxBytes bounds the bytes of batches that wait in one inbox of a bucket's loop, unless a single batch is larger.
// A batch usually has some tens of KiB, but up to a frame (keyversion.MaxFrame) when documents have many keys.
const inboxBytes = 8 << 20

// inboxShare is the divisor of a bucket's queue limit that gives the other bound of one inbox, so that the inboxes of
// all buckets together do not grow with the number of buckets.
const inboxShare = 4

// inboxRoom bounds an inbox by bytes. Waiting batches are admitted in order of arrival, so that small batches do not
// starve a large one.
type inboxRoom struct {
	queue   func() int64 // bytes that the bucket may hold in memory
	mu      sync.Mutex
	held    int64
	waiting []*waiter
}

type waiter struct {
	size int64
	in   chan struct{} // closed when it is admitted
}

func (r *inboxRoom) fits(size int64) bool {
	return r.held == 0 || r.held+size <= min(inboxBytes, r.queue()/inboxShare)
}

// enter waits until there is room for a batch. gone ends the wait, as ctx does.
func (r *inboxRoom) enter(ctx context.Context, size int64, gone <-chan struct{}) error {
	r.mu.Lock()
	if len(r.waiting) == 0 && r.fits(size) {
		r.held += size
		r.mu.Unlock()
		return nil
	}
	w := &waiter{size, make(chan struct{})}
	r.waiting = append(r.waiting, w)
	r.mu.Unlock()
	select {
	case <-w.in:
		return nil
	case <-ctx.Done():
		r.abandon(w)
		return context.Cause(ctx)
	case <-gone:
		r.abandon(w)
		return ErrBucketGone
	}
}

// abandon removes a waiter, and releases its room if it was admitted meanwhile.
func (r *inboxRoom) abandon(w *waiter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, o := range r.waiting {
		if o == w {
			r.waiting = append(r.waiting[:i], r.waiting[i+1:]...)
			r.admit()
			return
		}
	}
	r.held -= w.size
	r.admit()
}

// leave releases a batch's room.
func (r *inboxRoom) leave(size int64) {
	if size == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held -= size
	r.admit()
}

// admit admits waiters that fit, in order. The caller holds the lock.
func (r *inboxRoom) admit() {
	for len(r.waiting) > 0 && r.fits(r.waiting[0].size) {
		r.held += r.waiting[0].size
		close(r.waiting[0].in)
		r.waiting = r.waiting[1:]
	}
}
