package coordinator

import (
	"context"
	"errors"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/liveness"
	"tidemark/partition"
	"tidemark/statecontext"
)

// stages of a build, as spans: what each of them waits for.
var stages = [...]string{"build: hosts make copies", "build: streams begin", "build: copies are filled",
	"build: copies are exact at a stability timestamp",
	"build: everybody is told that it is ready"}

// build is a traced statement that asks for indexes to be built: one span from the proposal to the last component that
// knows them as ready, and below it one for each stage. What the leader sends meanwhile is part of it.
type build struct {
	bucket string          // "" of several
	ids    []index.ID      // known when the proposal is committed
	ctx    context.Context //nolint:containedctx // it carries the span of the whole, nothing else
	whole  trace.Span
	stage  trace.Span
	name   string
}

// beginBuild is called before the proposal: the loop may act on the state before the statement knows that it is
// committed. It gives nil when nothing records a span.
func (l *leader) beginBuild(ctx context.Context, bucket string) *build {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return nil
	}
	b := &build{bucket: bucket}
	b.ctx, b.whole = rpc.StartSpan(context.WithoutCancel(ctx), "build index")
	l.builds.newest.Store(b)
	return b
}

// proposed tells what has become of the proposal; with an error, or without indexes that are built now, the span ends.
func (b *build) proposed(ctx context.Context, l *leader, s *statecontext.State, err error, ids ...index.ID) {
	if b == nil {
		return
	}
	for _, id := range ids {
		if x := s.Index(id); err == nil && x != nil && !x.Waits() {
			b.ids = append(b.ids, id)
			b.whole.SetAttributes(attribute.String("tidemark.index", x.Definition.Name),
				attribute.String("tidemark.bucket", x.Definition.Bucket))
		}
	}
	if len(b.ids) == 0 {
		l.endBuild(b, err)
	} else if err := l.post(ctx, b); err != nil {
		l.endBuild(b, err)
	}
}

func (b *build) apply(l *leader) {
	l.sync() // it is committed
	l.builds.all = append(l.builds.all, b)
	l.followBuilds()
}

// traced returns a context the span of the newest traced build, of a bucket or, with "", of any.
func (l *leader) traced(ctx context.Context, bucket string) context.Context {
	b := l.builds.newest.Load()
	if b == nil || bucket != "" && b.bucket != "" && b.bucket != bucket {
		return ctx
	}
	return trace.ContextWithSpan(ctx, b.whole)
}

func (b *build) enter(name string) {
	if b.name == name {
		return
	}
	b.endStage(nil)
	b.name = name
	_, b.stage = rpc.StartSpan(b.ctx, name)
}

func (b *build) endStage(err error) {
	if b.stage != nil {
		rpc.EndSpan(b.ctx, b.stage, err)
	}
}

func (l *leader) endBuild(b *build, err error) {
	b.endStage(err)
	rpc.EndSpan(context.Background(), b.whole, err)
	l.builds.newest.CompareAndSwap(b, nil)
}

// followBuilds moves the spans of traced builds on, and ends those of builds that are over.
func (l *leader) followBuilds() {
	l.builds.all = slices.DeleteFunc(l.builds.all, func(b *build) bool {
		over, err := l.follow(b)
		if over {
			l.endBuild(b, err)
		}
		return over
	})
}

// endBuilds ends what the term cannot follow any more.
func (l *leader) endBuilds() {
	for _, b := range l.builds.all {
		l.endBuild(b, ErrNotLeading)
	}
}

var errDropped = errors.New("the index was dropped")

// follow enters the stage of the index that is the furthest behind.
func (l *leader) follow(b *build) (over bool, err error) {
	least, over := len(stages), true
	for _, id := range b.ids {
		x := l.now.state.Index(id)
		switch {
		case x == nil || x.Definition.State == index.Dropping:
			err = errDropped
			continue
		case x.Definition.State == index.Error:
			err = errors.New(x.Definition.Reason)
			continue
		}
		stage := l.stageOf(x)
		least, over = min(least, stage), over && stage == len(stages)
	}
	if least < len(stages) {
		b.enter(stages[least])
	}
	return over, err
}

// stageOf returns the place among stages of an index that is not in error; behind them all when nothing is to be done
// for it any more.
func (l *leader) stageOf(x *statecontext.Index) int {
	d, b := &x.Definition, l.buckets.byName[x.Definition.Bucket]
	switch {
	case d.State == index.Pending:
		return 0
	case d.State == index.Maintenance && l.everybodyWorksWith(d.ModifiedCAS):
		return len(stages)
	case d.State == index.Maintenance:
		return 4
	case b == nil || b.ledger.Summary(l.nowMS).Begun < b.ledger.Len():
		return 1
	case slices.ContainsFunc(x.Topology.Copies, func(c partition.Copy) bool { return !l.filled(c) }):
		return 2
	}
	return 3
}

// filled reports whether a copy has said that its side streams have brought everything.
func (l *leader) filled(c partition.Copy) bool {
	n := l.components.indexers[c.Node]
	if n == nil {
		return false
	}
	r, has := n.copies[c.ID]
	return has && r.Done >= r.Total && (r.Total > 0 || r.Ready)
}

// everybodyWorksWith reports whether all components that live have taken over a revision.
func (l *leader) everybodyWorksWith(revision uint64) bool {
	for _, p := range l.components.projectors {
		if p.acked < revision && l.life(&p.component) != liveness.Offline {
			return false
		}
	}
	for _, n := range l.components.indexers {
		if n.acked < revision && l.life(&n.component) != liveness.Offline {
			return false
		}
	}
	return true
}
