package projector

import (
	"context"
	"net/http"
	"sync"

	"tidemark/errcode"
	"tidemark/internal/rpc"
)

// tasks are the goroutines and requests of a projector: none begins after wait was called, and wait sees the end of
// all.
type tasks struct {
	mu      sync.Mutex
	over    bool
	running sync.WaitGroup
}

// enter counts one more, unless it is over; leave must follow.
func (t *tasks) enter() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.over {
		t.running.Add(1)
	}
	return !t.over
}

func (t *tasks) leave() { t.running.Done() }

// Go runs f beside the caller; false when it is over.
func (t *tasks) Go(f func()) bool {
	ok := t.enter()
	if ok {
		go func() {
			defer t.leave()
			f()
		}()
	}
	return ok
}

// wait lets nothing begin any more and waits for what runs.
func (t *tasks) wait() {
	t.mu.Lock()
	t.over = true
	t.mu.Unlock()
	t.running.Wait()
}

// counted makes a handler's requests tasks.
func (t *tasks) counted(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !t.enter() {
			rpc.WriteProblem(w, rpc.Refuse(errcode.Unavailable, "the projector is shutting down"))
			return
		}
		defer t.leave()
		h.ServeHTTP(w, r)
	})
}

// gate is a lock whose waiting ends with a context: for what is held while KV is asked.
type gate chan struct{}

func newGate() gate { return make(gate, 1) }

func (g gate) lock(ctx context.Context) error {
	select {
	case g <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// tryLock is lock for one who does not wait.
func (g gate) tryLock() bool {
	select {
	case g <- struct{}{}:
		return true
	default:
		return false
	}
}

func (g gate) unlock() { <-g }

// joined returns a context that ends with either; the function must be called.
func joined(a, b context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(a)
	stop := context.AfterFunc(b, func() { cancel(context.Cause(b)) })
	return ctx, func() { stop(); cancel(nil) }
}
