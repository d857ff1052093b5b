package api

import (
	"context"
	"net/http"
	"slices"
	"sync"

	"tidemark/internal/rpc"
)

// onceKept is of how many requests the outcome is kept.
const onceKept = 64

// once answers a request that comes again, as from a client that heard nothing and asked another manager, by what
// became of it the first time: what it removes is not there any more then. It is memory of one leader.
type once struct {
	mu    sync.Mutex
	known map[string]*outcomeOf
	order []string // of known, the oldest first
}

// outcomeOf is what becomes of a request.
type outcomeOf struct {
	over   chan struct{} // closed when the rest is there
	failed bool          // it may be made again
	status int
	body   any
}

// do makes a request, unless it was made before, and returns what is answered. A refusal is not kept.
func (o *once) do(r *http.Request, work func(ctx context.Context) (status int, body any, err error)) (int, any, error) {
	key := rpc.Principal(r.Context()) + " " + r.Method + " " + r.URL.String() + " " + rpc.RequestID(r.Context())
	for {
		x, mine := o.begin(key)
		if mine {
			status, body, err := work(r.Context())
			o.end(key, x, status, body, err)
			return status, body, err
		}
		select {
		case <-x.over:
		case <-r.Context().Done():
			return 0, nil, r.Context().Err()
		}
		if !x.failed {
			return x.status, x.body, nil
		}
	}
}

// begin returns what becomes of a request; mine: the caller makes it.
func (o *once) begin(key string) (x *outcomeOf, mine bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if x = o.known[key]; x != nil {
		return x, false
	}
	if o.known == nil {
		o.known = map[string]*outcomeOf{}
	}
	x = &outcomeOf{over: make(chan struct{})}
	o.known[key], o.order = x, append(o.order, key)
	if len(o.order) > onceKept {
		delete(o.known, o.order[0])
		o.order = o.order[1:]
	}
	return x, true
}

// end notes what has become of a request.
func (o *once) end(key string, x *outcomeOf, status int, body any, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	x.status, x.body, x.failed = status, body, err != nil
	if err != nil && o.known[key] == x {
		delete(o.known, key)
		o.order = slices.DeleteFunc(o.order, func(k string) bool { return k == key })
	}
	close(x.over)
}
