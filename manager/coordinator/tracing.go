package coordinator

import (
	"context"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/manager/coordinator/core"
	"tidemark/statecontext"
)

// traces holds the spans of traced builds (core/builds.go names their stages): one span from the proposal until the
// last component knows that the indexes are ready, and below it one per stage. Messages that the leader sends
// meanwhile belong to the newest build.
type traces struct {
	mu     sync.Mutex
	begun  uint64
	newest *span // the newest build, nil when it is over
	all    map[uint64]*span
}

type span struct {
	bucket   string          // "" if there are several
	ctx      context.Context //nolint:containedctx // it carries the span of the whole, nothing else
	whole    trace.Span
	stage    trace.Span
	followed bool // the Leader tracks it
}

// begin begins a span. It must be called before the proposal: the Leader may act on the state before the statement
// returns. It returns 0 if nothing records a span.
func (t *traces) begin(ctx context.Context, bucket string) uint64 {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return 0
	}
	s := &span{bucket: bucket}
	s.ctx, s.whole = rpc.StartSpan(context.WithoutCancel(ctx), "build index")
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.begun++; t.all == nil {
		t.all = map[uint64]*span{}
	}
	t.all[t.begun], t.newest = s, s
	return t.begun
}

// in returns a context with the span of the newest traced build if it is of the bucket; "" matches any.
func (t *traces) in(ctx context.Context, bucket string) context.Context {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.newest; s != nil && (bucket == "" || s.bucket == "" || s.bucket == bucket) {
		return trace.ContextWithSpan(ctx, s.whole)
	}
	return ctx
}

// describe names an index of the build, which the Leader tracks from now on.
func (t *traces) describe(id uint64, d *index.Definition) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.all[id]; s != nil {
		s.followed = true
		s.whole.SetAttributes(attribute.String("tidemark.index", d.Name), attribute.String("tidemark.bucket", d.Bucket))
	}
}

// enter ends the present stage and begins the next.
func (t *traces) enter(id uint64, stage string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.all[id]; s != nil {
		s.endStage(nil)
		_, s.stage = rpc.StartSpan(s.ctx, stage)
	}
}

func (s *span) endStage(err error) {
	if s.stage != nil {
		rpc.EndSpan(s.ctx, s.stage, err)
	}
}

func (t *traces) end(id uint64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.all[id]
	if s == nil {
		return
	}
	s.endStage(err)
	rpc.EndSpan(context.Background(), s.whole, err)
	if delete(t.all, id); t.newest == s {
		t.newest = nil
	}
}

// endFollowed ends the builds that the term can no longer track.
func (t *traces) endFollowed() {
	t.mu.Lock()
	var ids []uint64
	for id, s := range t.all {
		if s.followed {
			ids = append(ids, id)
		}
	}
	t.mu.Unlock()
	for _, id := range ids {
		t.end(id, ErrNotLeading)
	}
}

// traced passes a build to the Leader after its proposal has committed; with an error, or if none of its indexes is
// built now, it ends the span.
func (t *term) traced(ctx context.Context, build uint64, s *statecontext.State, err error, ids ...index.ID) {
	if build == 0 {
		return
	}
	begun := &core.BuildBegun{Build: build}
	for _, id := range ids {
		if x := s.Index(id); err == nil && x != nil && !x.Waits() {
			begun.IDs = append(begun.IDs, id)
			t.gate.traces.describe(build, &x.Definition)
		}
	}
	if len(begun.IDs) > 0 {
		err = t.post(ctx, begun)
	}
	if len(begun.IDs) == 0 || err != nil {
		t.gate.traces.end(build, err)
	}
}
