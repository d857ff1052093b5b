// Package sides asks projectors for what copies lack: side streams, which bring what lies at or below an activation
// timestamp. It promises that what is wanted is asked for until it comes, of others where one cannot; that a projector
// that hangs keeps nobody else waiting; that a stream which brings nothing is given up. What comes is not its business.
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
	// sideTick is how often the loop looks when nobody wakes it, while something is wanted or on its way, and restTick
	// while nothing is: what makes something wanted wakes it.
	sideTick = 100 * time.Millisecond
	restTick = 500 * time.Millisecond
	// sideGather is how long wants are gathered, so that one request serves many vbuckets.
	sideGather = 10 * time.Millisecond
	// answersAtOnce is how many vbuckets' answers a call of a bucket's loop takes over: one that refuses deletes the range
	// of each copy.
	answersAtOnce = 32
)

// Projectors stream what copies lack.
type Projectors interface {
	Streams(ctx context.Context, base string, req *wire.StreamRequest) (*wire.StreamReply, error)
	Stop(ctx context.Context, base string, req *wire.StreamStop) error
}

// Options are what a loop has of its indexer.
type Options struct {
	Endpoint   func() wire.Endpoint
	ClusterID  func() string
	Buckets    func() []*copies.Bucket
	InForce    func() (d wire.Definitions, making map[index.CopyID]bool)
	Projectors Projectors
	Origins    *Origins
	Report     func() // the leader waits for what a request has brought: it is told at once
	Registry   prometheus.Registerer
	Tracer     trace.Tracer // nil: no spans
	Log        hclog.Logger
	Now        func() time.Time
}

// Loop asks projectors for the side streams that buckets want: for each projector one request with all vbuckets
// that it is believed to own. What is asked for, of whom, and what is given up is decided by core.Sides.
type Loop struct {
	Options
	metrics *prometheus.CounterVec
	wake    chan struct{} // capacity 1: side streams may be wanted
	topics  map[uint64]topic
	calls   errgroup.Group

	mu    sync.Mutex // leaf
	sides *core.Sides
}

// topic is a request that may still run at a projector.
type topic struct {
	name string
	span trace.Span
}

// New returns a loop that Run lets look.
func New(o Options) *Loop {
	return &Loop{Options: o, wake: make(chan struct{}, 1), sides: core.NewSides(uint64(o.Now().UnixNano())),
		metrics: meters.Counters(o.Registry, "side_streams_total",
			"Side streams asked for, by vbucket, by what the projector answered.", "outcome"),
		topics: map[uint64]topic{}}
}

// Wake lets it look at once.
func (l *Loop) Wake() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// log is for what concerns a bucket.
func (l *Loop) log(k *copies.Bucket) hclog.Logger { return l.Log.With("bucket", k.Name()) }

// Run looks and asks until ctx ends.
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

// Look asks for what one bucket wants and gives up what has fallen silent. It reports whether anything is wanted or on
// its way.
func (l *Loop) Look(ctx context.Context, k *copies.Bucket) (busy bool) {
	var streams []ingest.SideProgress
	var abandoned []uint64
	var requests []*core.SideRequest
	var d wire.Definitions
	if err := k.Do(ctx, func(st *core.Bucket) {
		var making map[index.CopyID]bool
		d, making = l.InForce() // here: before a copy comes to this loop, it is known that it is being made
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

// giveUp takes streams for failed that bring nothing any more. It runs in the bucket's loop.
func (l *Loop) giveUp(k *copies.Bucket, st *core.Bucket, streams []ingest.SideProgress) {
	l.mu.Lock()
	up := l.sides.Watch(k.Name(), streams, k.SideFull(), l.Now())
	l.mu.Unlock()
	for i := range up {
		p := &up[i]
		if p.Silent {
			l.log(k).Warn("a side stream brings nothing; asking again", "vbucket", p.VBucket, "at", p.At, "to", p.To)
		} else {
			l.log(k).Info("the connection of a side stream was lost and does not come back; asking again", "vbucket",
				p.VBucket, "at", p.At, "to", p.To)
		}
		st.SideFailed(p.VBucket, p.ID)
	}
}

// open opens what is to be asked for now. It runs in the bucket's loop, so that nothing can come before it is expected.
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

// settle forgets the requests of a bucket that bring nothing any more, and stops those that nobody wants.
func (l *Loop) settle(ctx context.Context, bucket string, streams []ingest.SideProgress, abandoned []uint64) {
	l.mu.Lock()
	is := l.sides.Settle(bucket, streams, abandoned, l.Now())
	l.mu.Unlock()
	l.settled(ctx, &is)
}

// forget ends the requests of buckets that are not here any more.
func (l *Loop) forget(ctx context.Context, here map[string]bool) {
	l.mu.Lock()
	is := l.sides.Gone(func(bucket string) bool { return here[bucket] }, l.Now())
	l.mu.Unlock()
	l.settled(ctx, &is)
}

// settled tells traces, and projectors, what has become of requests.
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
			l.Log.Debug("a side stream was stopped", "topic", name, "error", err)
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

// ask sends one request and takes over what the projector says of each vbucket.
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
	l.log(k).Debug("asking for a side stream", "topic", name, "projector", r.Projector.ID, "vbuckets", r.Restart.Len(),
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
			_ = k.Do(ctx, func(st *core.Bucket) { l.answered(k, st, r, some) }) // a bucket that goes wants nothing
		}
	})
}

// call runs what is under way to a projector beside the loop, and wakes it afterwards where others wait for that.
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

// answered runs in the bucket's loop.
func (l *Loop) answered(k *copies.Bucket, st *core.Bucket, r *core.SideRequest, all []core.SideAnswer) {
	for i := range all {
		a := &all[i]
		if a.Result != nil {
			l.metrics.WithLabelValues(string(a.Result.Outcome)).Inc()
		}
		switch a.Fate {
		case core.SideBegins:
		case core.SideRefused:
			l.log(k).Warn("KV refuses the start of a side stream: the vbucket is taken from 0", "vbucket", a.VBucket, "from",
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
