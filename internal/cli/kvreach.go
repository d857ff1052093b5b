package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// errKVUnreached is wrapped when no KV node has accepted a connection.
var errKVUnreached = errors.New("no KV node was reached")

// kvReach tracks how a command connects to KV. It is safe for concurrent use.
type kvReach struct {
	mu     sync.Mutex
	taken  bool // a node has accepted a connection
	failed map[string]string
}

// dialed records the outcome of a connection attempt; see kvclient.Options.Dialed.
func (r *kvReach) dialed(addr string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.taken = true
		return
	}
	if r.failed == nil {
		r.failed = map[string]string{}
	}
	r.failed[addr] = err.Error()
}

// each returns the addresses that could not be reached, each with its error, and whether another one was reached.
func (r *kvReach) each() (text string, taken bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []string
	for _, addr := range slices.Sorted(maps.Keys(r.failed)) {
		list = append(list, addr+": "+r.failed[addr])
	}
	return strings.Join(list, "; "), r.taken
}

// follow reports once what the command waits for. It ends the wait if no node accepts a connection within unreached; if
// that is 0, the wait lasts until ctx ends, after limit.
func (r *kvReach) follow(ctx context.Context, w io.Writer, unreached, limit time.Duration,
	end context.CancelCauseFunc) {
	if !pause(ctx, reportAfter) {
		return
	}
	failed, taken := r.each()
	within := fmt.Sprintf("%s (--timeout)", limit)
	if unreached > 0 && !taken {
		within = fmt.Sprintf("%s (longer with --timeout)", unreached)
	}
	if failed != "" {
		failed = " (" + failed + ")"
	}
	fmt.Fprintf(w, "tidemark: no answer from KV yet%s; trying for %s\n", failed, within)
	if unreached == 0 || !pause(ctx, unreached-reportAfter) {
		return
	}
	if failed, taken = r.each(); !taken {
		end(fmt.Errorf("%w in %s: %s; check that these are nodes of the KV cluster and that it runs", errKVUnreached,
			unreached, valueOr(failed, "none has answered")))
	}
}

// pause waits for d; it returns false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
