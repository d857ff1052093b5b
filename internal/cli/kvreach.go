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

// errKVUnreached is wrapped when no KV node has taken a connection.
var errKVUnreached = errors.New("no KV node was reached")

// kvReach follows how a command connects to KV. It is safe for concurrent use.
type kvReach struct {
	mu     sync.Mutex
	taken  bool // somebody has taken a connection
	failed map[string]string
}

// dialed takes how an attempt to connect has ended, as kvclient.Options.Dialed.
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

// each lists the addresses that could not be reached, each with its error, and reports whether another one was.
func (r *kvReach) each() (text string, taken bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []string
	for _, addr := range slices.Sorted(maps.Keys(r.failed)) {
		list = append(list, addr+": "+r.failed[addr])
	}
	return strings.Join(list, "; "), r.taken
}

// follow says once what is waited for, and ends a wait in which nobody has taken a connection for as long as unreached;
// 0: it goes on until ctx ends, after limit.
func (r *kvReach) follow(ctx context.Context, w io.Writer, unreached, limit time.Duration,
	end context.CancelCauseFunc) {
	if !pause(ctx, tellAfter) {
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
	fmt.Fprintf(w, "tidemark: no answer of KV yet%s; trying for %s\n", failed, within)
	if unreached == 0 || !pause(ctx, unreached-tellAfter) {
		return
	}
	if failed, taken = r.each(); !taken {
		end(fmt.Errorf("%w in %s: %s; are they nodes of the KV cluster, and does it run?", errKVUnreached, unreached,
			valueOr(failed, "none has answered")))
	}
}

// pause waits; false when ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
