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

// Origins is how copies came here: whether they are new to this process, and by which request they were made.
type Origins struct {
	traced bool

	mu      sync.Mutex
	known   map[index.CopyID]bool // that are not new to this process
	parents map[index.CopyID]trace.SpanContext
}

// NewOrigins returns those of a folder without copies. traced: requests have spans.
func NewOrigins(traced bool) *Origins {
	return &Origins{traced: traced, known: map[index.CopyID]bool{}, parents: map[index.CopyID]trace.SpanContext{}}
}

// Found notes a copy that was here when the process began, or was placed here and is gone.
func (o *Origins) Found(id index.CopyID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.known[id] = true
}

// Made notes by which request a copy was made.
func (o *Origins) Made(ctx context.Context, id index.CopyID) {
	if !o.traced {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.parents[id] = trace.SpanContextFromContext(ctx)
}

// Forget drops what is known of a copy that has gone.
func (o *Origins) Forget(id index.CopyID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.known, id)
	delete(o.parents, id)
}

// old reports whether a copy is none that was made by this process for the first time.
func (o *Origins) old(id index.CopyID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.known[id]
}

// parentOf returns the span by which the first of copies that are being built was made.
func (o *Origins) parentOf(copies []index.CopyID, build bool) trace.SpanContext {
	if !o.traced || !build {
		return trace.SpanContext{}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.parents[copies[0]]
}

// comesBack reports whether copies that were never whole are no new ones: they were here when the process began, or are
// gone though they were, of indexes that are ready elsewhere. Nobody waits for those, so that they catch up at the rate
// of others that come back. It runs in the bucket's loop.
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
