package sides

import (
	"context"
	"sync"

	"go.opentelemetry.io/otel/trace"

	"tidemark/index"
	"tidemark/indexer/core"
	"tidemark/indexer/storage"
	"tidemark/wire"
)

// Origins tracks where copies come from: whether they are new in this process, and which request made them.
type Origins struct {
	traced bool

	mu      sync.Mutex
	known   map[index.CopyID]bool // copies that are not new in this process
	parents map[index.CopyID]trace.SpanContext
}

// NewOrigins returns an empty Origins. traced reports whether requests have spans.
func NewOrigins(traced bool) *Origins {
	return &Origins{traced: traced, known: map[index.CopyID]bool{}, parents: map[index.CopyID]trace.SpanContext{}}
}

// Found records a copy that existed when the process started, or that was placed here and has disappeared.
func (o *Origins) Found(id index.CopyID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.known[id] = true
}

// Made records which request made a copy.
func (o *Origins) Made(ctx context.Context, id index.CopyID) {
	if !o.traced {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.parents[id] = trace.SpanContextFromContext(ctx)
}

// Forget drops a copy that has gone.
func (o *Origins) Forget(id index.CopyID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.known, id)
	delete(o.parents, id)
}

// old reports whether a copy is not new in this process.
func (o *Origins) old(id index.CopyID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.known[id]
}

// parentOf returns the span that made the first of copies that are being built.
func (o *Origins) parentOf(copies []index.CopyID, build bool) trace.SpanContext {
	if !o.traced || !build {
		return trace.SpanContext{}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.parents[copies[0]]
}

// comesBack reports whether copies that were never whole are nevertheless not new: they existed when the process
// started, or had disappeared, and their indexes are ready elsewhere. Nothing waits for them, so that they catch up
// at the rate of returning copies. It runs in the bucket's loop.
func (o *Origins) comesBack(slice func(index.CopyID) *storage.Slice, copies []index.CopyID,
	d *wire.Definitions) bool {
	for _, id := range copies {
		s := slice(id)
		if s == nil || !o.old(id) {
			return false
		}
		if def := core.Definition(d, s.Meta().Index); def == nil || def.State == index.Backfill {
			return false
		}
	}
	return len(copies) > 0
}
