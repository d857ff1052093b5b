package projector

import (
	"context"
	"net/http"
	"sync"

	"tidemark/errcode"
	"tidemark/internal/rpc"
)

// tasks tracks the goroutines and requests of a projector: none starts after wait was called, and wait returns when
// all have ended.
type tasks struct {
	mu      sync.Mutex
	over    bool
	running sync.WaitGroup
}

// enter counts one more task and reports whether it may run; if so, leave must follow.
func (t *tasks) enter() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.over {
		t.running.Add(1)
	}
	return !t.over
}

func (t *tasks) leave() { t.running.Done() }

// Go runs f in a goroutine. It returns false, without running f, after wait was called.
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

// wait prevents new tasks and waits for the running ones.
func (t *tasks) wait() {
	t.mu.Lock()
	t.over = true
	t.mu.Unlock()
	t.running.Wait()
}

// counted wraps a handler so that its requests count as tasks.
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

// gate is a lock that can be waited for under a context: it is held while KV is queried.
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

// tryLock locks the gate if it is free, and reports whether it did.
func (g gate) tryLock() bool {
	select {
	case g <- struct{}{}:
		return true
	default:
		return false
	}
}

func (g gate) unlock() { <-g }

// joined returns a context that ends when either of a and b does. The caller must call the function.
func joined(a, b context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(a)
	stop := context.AfterFunc(b, func() { cancel(context.Cause(b)) })
	return ctx, func() { stop(); cancel(nil) }
}
