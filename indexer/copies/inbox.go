package copies

import (
	"context"
	"sync"
)

// inboxBytes is how many bytes of batches wait at most for a bucket's loop in one of its inboxes, or one batch. A batch
// has some tens of KiB most often, and as much as a frame holds (keyversion.MaxFrame) when documents have many keys.
const inboxBytes = 8 << 20

// inboxShare is which part of what a bucket may hold in memory waits at most in one inbox: what all buckets have in
// theirs does not grow with their number.
const inboxShare = 4

// inboxRoom bounds an inbox by bytes. Who waits has its turn in order of arrival, so that a large batch is not passed
// by small ones for ever.
type inboxRoom struct {
	queue   func() int64 // how many bytes the bucket may hold in memory
	mu      sync.Mutex
	held    int64
	waiting []*waiter
}

type waiter struct {
	size int64
	in   chan struct{} // closed: it may
}

func (r *inboxRoom) fits(size int64) bool {
	return r.held == 0 || r.held+size <= min(inboxBytes, r.queue()/inboxShare)
}

// enter waits until there is room for a batch; gone ends the wait, as ctx does.
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

// abandon takes one that waits off the list, and gives back what it was let in with meanwhile.
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

// leave gives a batch's room back.
func (r *inboxRoom) leave(size int64) {
	if size == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held -= size
	r.admit()
}

// admit lets in who fits, in order; the lock is held.
func (r *inboxRoom) admit() {
	for len(r.waiting) > 0 && r.fits(r.waiting[0].size) {
		r.held += r.waiting[0].size
		close(r.waiting[0].in)
		r.waiting = r.waiting[1:]
	}
}
