// Package sides requests from projectors what copies lack: side streams, which deliver everything at or below an
// activation timestamp. It guarantees that it requests what is wanted until it arrives, from other projectors if one
// fails; that a hung projector delays no requests to others; and that a stream which delivers nothing is given up. It
// does not process what arrives.
package sides

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"tidemark/index"
	"tidemark/indexer/copies"
	"tidemark/indexer/core"
	"tidemark/indexer/meters"
	"tidemark/ingest"
	"tidemark/internal/rpc"
	"tidemark/wire"
)

const (
	// sideTick is the interval of the loop while something is wanted or in progress, restTick the interval while
	// nothing is; new wants wake the loop.
	sideTick = 100 * time.Millisecond
	restTick = 500 * time.Millisecond
	// sideGather is how long the loop waits after it was woken, so that one request serves many vbuckets.
	sideGather = 10 * time.Millisecond
	// answersAtOnce is the number of vbuckets whose answers one call of a bucket's loop processes: a refused start
	// deletes the range of each copy.
	answersAtOnce = 32
)

// Projectors starts and stops side streams.
type Projectors interface {
	Streams(ctx context.Context, base string, req *wire.StreamRequest) (*wire.StreamReply, error)
	Stop(ctx context.Context, base string, req *wire.StreamStop) error
}

// Options holds what a loop uses of its indexer.
type Options struct {
	Endpoint   func() wire.Endpoint
	ClusterID  func() string
	Buckets    func() []*copies.Bucket
	InForce    func() (d wire.Definitions, making map[index.CopyID]bool)
	Projectors Projectors
	Origins    *Origins
	Report     func() // triggers a report, because the leader waits for what a request has delivered
	Registry   prometheus.Registerer
	Tracer     trace.Tracer // nil: no spans
	Log        hclog.Logger
	Now        func() time.Time
}

// Loop requests the side streams that buckets want: from each projector one request for all vbuckets that the
// projector is assumed to own. core.Sides decides what is requested, from which projector, and what is given up.
type Loop struct {
	Options
	metrics *prometheus.CounterVec
	wake    chan struct{} // capacity 1: side streams may be wanted
	topics  map[uint64]topic
	calls   errgroup.Group

	mu    sync.Mutex // leaf: no other lock is taken under it
	sides *core.Sides
}

// topic is a request that may still be running at a projector.
type topic struct {
	name string
	span trace.Span
}

// New returns a Loop. The caller must call Run.
func New(o Options) *Loop {
	return &Loop{Options: o, wake: make(chan struct{}, 1), sides: core.NewSides(uint64(o.Now().UnixNano())),
		metrics: meters.Counters(o.Registry, "side_streams_total",
			"Requested side streams, per vbucket, by the projector's answer.", "outcome"),
		topics: map[uint64]topic{}}
}

// Wake wakes the loop.
func (l *Loop) Wake() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// log returns the logger for a bucket.
func (l *Loop) log(k *copies.Bucket) hclog.Logger { return l.Log.With("bucket", k.Name()) }

// Run runs the loop until ctx ends.
func (l *Loop) Run(ctx context.Context) error {
	timer := time.NewTimer(sideTick)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return l.calls.Wait()
		case <-timer.C:
		case <-l.wake:
			t := time.NewTimer(sideGather)
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
			}
		}
		pause, here := restTick, map[string]bool{}
		for _, k := range l.Buckets() {
			here[k.Name()] = true
			if l.Look(ctx, k) {
				pause = sideTick
			}
		}
		l.forget(ctx, here)
		timer.Reset(pause)
	}
}

// Look requests what one bucket wants and gives up silent streams. It reports whether anything is wanted or in
// progress.
func (l *Loop) Look(ctx context.Context, k *copies.Bucket) (busy bool) {
	var streams []ingest.SideProgress
	var abandoned []uint64
	var requests []*core.SideRequest
	var d wire.Definitions
	if err := k.Do(ctx, func(st *core.Bucket) {
		var making map[index.CopyID]bool
		d, making = l.InForce() // read here, so that a copy is known as being made before its bucket's loop gets it
		streams = st.SideStreams()
		l.giveUp(k, st, streams)
		abandoned = st.Abandoned()
		wants := st.Wants()
		busy = len(streams) > 0 || len(abandoned) > 0 || len(wants) > 0
		requests = l.open(k, st, &core.SideWants{Bucket: k.Name(), Streams: streams, Wants: wants, Making: making,
			Joining:    len(wants) > 0 && st.Joining(),
			Projectors: d.Projectors, Revision: d.Revision, Owner: st.Owner,
			ComesBack: func(ids []index.CopyID) bool { return l.Origins.comesBack(k.Slice, ids, &d) }})
	}); err != nil {
		return false
	}
	l.settle(ctx, k.Name(), streams, abandoned)
	for _, r := range requests {
		l.ask(ctx, k, r)
	}
	return busy || len(l.topics) > 0
}

// giveUp marks streams that deliver nothing any more as failed. It runs in the bucket's loop.
func (l *Loop) giveUp(k *copies.Bucket, st *core.Bucket, streams []ingest.SideProgress) {
	l.mu.Lock()
	up := l.sides.Watch(k.Name(), streams, k.SideFull(), l.Now())
	l.mu.Unlock()
	for i := range up {
		p := &up[i]
		if p.Silent {
			l.log(k).Warn("side stream delivers nothing; requesting it again", "vbucket", p.VBucket, "at", p.At, "to", p.To)
		} else {
			l.log(k).Info("connection of a side stream is lost; requesting the stream again", "vbucket",
				p.VBucket, "at", p.At, "to", p.To)
		}
		st.SideFailed(p.VBucket, p.ID)
	}
}

// open opens the wants of the requests to be sent. It runs in the bucket's loop, so that nothing can arrive before it
// is expected.
func (l *Loop) open(k *copies.Bucket, st *core.Bucket, w *core.SideWants) []*core.SideRequest {
	l.mu.Lock()
	all := l.sides.Ask(w, l.Now())
	l.mu.Unlock()
	for _, r := range all {
		for _, want := range r.Wants {
			st.OpenSide(want, r.ID)
		}
	}
	return all
}

// settle forgets the requests of a bucket that deliver nothing any more, and stops those that are not needed.
func (l *Loop) settle(ctx context.Context, bucket string, streams []ingest.SideProgress, abandoned []uint64) {
	l.mu.Lock()
	is := l.sides.Settle(bucket, streams, abandoned, l.Now())
	l.mu.Unlock()
	l.settled(ctx, &is)
}

// forget ends the requests of buckets that are no longer on this node.
func (l *Loop) forget(ctx context.Context, here map[string]bool) {
	l.mu.Lock()
	is := l.sides.Gone(func(bucket string) bool { return here[bucket] }, l.Now())
	l.mu.Unlock()
	l.settled(ctx, &is)
}

// settled records the progress of requests in traces, and sends stops to projectors.
func (l *Loop) settled(ctx context.Context, is *core.SideSettled) {
	for _, id := range is.Began {
		l.topics[id].span.AddEvent("BEGIN of all vbuckets")
	}
	for _, id := range is.Came {
		l.topics[id].span.AddEvent("END of all vbuckets")
	}
	for _, s := range is.Stop {
		name := l.topics[s.ID].name
		l.call(s.Addr, func() {
			err := l.Projectors.Stop(ctx, s.Addr, &wire.StreamStop{Fence: wire.Fence{ClusterID: l.ClusterID()},
				Topic: name})
			l.Log.Debug("side stream stopped", "topic", name, "error", err)
		})
	}
	for _, id := range is.Over {
		l.topics[id].span.End()
		delete(l.topics, id)
	}
	if len(is.Over) > 0 {
		l.Report()
	}
}

// ask sends one request and processes the answer for each vbucket.
func (l *Loop) ask(ctx context.Context, k *copies.Bucket, r *core.SideRequest) {
	e := l.Endpoint()
	req := r.Message(l.ClusterID(), k.UUID(), &e)
	name, addr := req.Topic, r.Projector.Admin
	ctx, span := rpc.ResumeSpan(ctx, l.Tracer, l.Origins.parentOf(r.Copies, r.Build), "side stream "+name)
	span.SetAttributes(attribute.String("tidemark.projector", string(r.Projector.ID)),
		attribute.Int("tidemark.vbuckets", len(r.Wants)))
	l.topics[r.ID] = topic{name, span}
	l.mu.Lock()
	l.sides.Sent(r, l.Now())
	l.mu.Unlock()
	l.log(k).Debug("requesting a side stream", "topic", name, "projector", r.Projector.ID, "vbuckets", r.Restart.Len(),
		"copies", r.Copies)
	l.call(addr, func() {
		reply, err := l.Projectors.Streams(ctx, addr, req)
		if err != nil {
			l.log(k).Debug("no side stream", "topic", name, "projector", r.Projector.ID, "error", err)
			l.metrics.WithLabelValues("error").Add(float64(len(r.Wants)))
		}
		span.AddEvent("the projector has answered")
		l.mu.Lock()
		all := l.sides.Answered(r, reply, err != nil)
		l.mu.Unlock()
		for some := range slices.Chunk(all, answersAtOnce) {
			// a bucket that is being removed wants nothing
			_ = k.Do(ctx, func(st *core.Bucket) { l.answered(k, st, r, some) })
		}
	})
}

// call runs a call to a projector outside the loop. Afterwards it wakes the loop if requests were waiting for the
// call's end.
func (l *Loop) call(addr string, f func()) {
	l.calls.Go(func() error {
		f()
		l.mu.Lock()
		look := l.sides.Ended(addr, l.Now())
		l.mu.Unlock()
		if look {
			l.Wake()
		}
		return nil
	})
}

// answered processes the answers for some vbuckets. It runs in the bucket's loop.
func (l *Loop) answered(k *copies.Bucket, st *core.Bucket, r *core.SideRequest, all []core.SideAnswer) {
	for i := range all {
		a := &all[i]
		if a.Result != nil {
			l.metrics.WithLabelValues(string(a.Result.Outcome)).Inc()
		}
		switch a.Fate {
		case core.SideBegins:
		case core.SideRefused:
			l.log(k).Warn("KV refuses the start of a side stream: streaming the vbucket from 0", "vbucket", a.VBucket, "from",
				a.From, "purge", a.Result.Purge)
			st.SideRefused(a.VBucket, r.ID, a.Result.Purge)
		case core.SideFails:
			if a.Result != nil {
				l.log(k).Debug("no side stream", "vbucket", a.VBucket, "outcome", a.Result.Outcome, "detail", a.Result.Detail)
			}
			st.SideFailed(a.VBucket, r.ID)
		}
	}
}
