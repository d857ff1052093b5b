// Package sides asks projectors for what copies lack: side streams, which bring what lies at or below an activation
// timestamp. It promises that what is wanted is asked for until it comes, of others where one cannot; that a projector
// that hangs keeps nobody else waiting; that a stream which brings nothing is given up. What comes is not its business.
package sides

import (
	"context"
	"fmt"
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
	"tidemark/timestamp"
	"tidemark/wire"
)

const (
	// sideTick is how often the loop looks when nobody wakes it.
	sideTick = 100 * time.Millisecond
	// sideFirst and sideMost bound the growing pause before a vbucket is asked for again. One request asks for all
	// vbuckets of a projector, so that a short one costs little; a long one would go on after what was in the way has
	// passed.
	sideFirst = 100 * time.Millisecond
	sideMost  = time.Second
	// sideSilence is how long a side stream may bring nothing before it is given up.
	sideSilence = 30 * time.Second
	// sideResume is how long a side stream may be without a connection before it is given up: its router opens another one
	// at once, unless it has ended.
	sideResume = 5 * time.Second
	// sideRequests bounds the requests that are under way to one projector. What is wanted beyond waits, and the loop does
	// not: a projector that hangs keeps each of them for StreamTimeout, and nobody waits for it who wants others.
	sideRequests = 8
	// sidePatience is how long a projector that has no room for another request may end none of those under way before
	// others are asked for what it owns: one that is busy ends them within moments, one that hangs does not.
	sidePatience = time.Second
	// sideGather is how long wants are gathered, so that one request serves many vbuckets.
	sideGather = 10 * time.Millisecond
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
	Registry   prometheus.Registerer
	Tracer     trace.Tracer // nil: no spans
	Log        hclog.Logger
	Now        func() time.Time
}

// Loop asks projectors for the side streams that buckets want: for each projector one request with all vbuckets
// that it is believed to own (PR-11 forms 2 and 3). What fails is asked again, with a growing pause.
type Loop struct {
	Options
	metrics *prometheus.CounterVec
	wake    chan struct{} // capacity 1: side streams may be wanted

	next  uint64 // id of the next request
	state map[sideKey]*sideAttempt
	open  map[uint64]*sideTopic
	calls errgroup.Group

	mu    sync.Mutex           // leaf
	under map[string]sideCalls // requests that are under way, by address
}

// sideCalls are the requests that are under way to one projector.
type sideCalls struct {
	n     int
	moved time.Time // when the first of them began, or another one ended
}

type sideKey struct {
	bucket string
	vb     int
}

// sideAttempt is what is known about asking for one vbucket.
type sideAttempt struct {
	tries int       // of projectors that said no, since one has begun
	waits int       // pauses since all that was wanted came, or something did
	after time.Time // not before
	id    uint64    // of the open stream that is watched
	at    uint64
	moved time.Time // when it brought something, or could not be heard
	lost  time.Time // when it was found without a connection; zero while it has one
}

// sideTopic is a request that may still run at a projector.
type sideTopic struct {
	bucket, addr, topic string
	abandoned           bool
	span                trace.Span
	began, came         bool // the span says that all have begun, and that everything has arrived
}

// New returns a loop that Run lets look.
func New(o Options) *Loop {
	return &Loop{Options: o, wake: make(chan struct{}, 1), next: uint64(o.Now().UnixNano()),
		metrics: meters.Counters(o.Registry, "side_streams_total",
			"Side streams asked for, by vbucket, by what the projector answered.", "outcome"),
		state: map[sideKey]*sideAttempt{}, open: map[uint64]*sideTopic{}, under: map[string]sideCalls{}}
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
	tick := time.NewTicker(sideTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return l.calls.Wait()
		case <-tick.C:
		case <-l.wake:
			t := time.NewTimer(sideGather)
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
			}
		}
		for _, k := range l.Buckets() {
			l.Look(ctx, k)
		}
	}
}

// Look asks for what one bucket wants and gives up what has fallen silent.
func (l *Loop) Look(ctx context.Context, k *copies.Bucket) {
	var seen sideLook
	if err := k.Do(ctx, func(st *core.Bucket) { seen = l.seen(k, st, l.Now()) }); err != nil {
		return
	}
	l.end(ctx, k, &seen)
	for key, g := range seen.groups {
		l.ask(ctx, k, key, g, &seen.defs)
	}
}

// sideLook is what a look at a bucket has found.
type sideLook struct {
	defs      wire.Definitions
	open      map[uint64]*topicProgress // requests that bring something still
	abandoned map[uint64]bool           // those that nobody wants
	groups    map[groupKey]*sideGroup   // what is to be asked for
}

// seen looks at what a bucket has and wants, and opens what may be asked for now. It runs in the bucket's loop.
func (l *Loop) seen(k *copies.Bucket, st *core.Bucket, now time.Time) sideLook {
	s := sideLook{open: map[uint64]*topicProgress{}, abandoned: map[uint64]bool{}, groups: map[groupKey]*sideGroup{}}
	busy, moving := map[int]bool{}, map[uint64]bool{}
	var making map[index.CopyID]bool
	s.defs, making = l.InForce() // here: before a copy comes to this loop, it is known that it is being made
	streams, deaf := st.SideStreams(), k.SideFull()
	for i := range streams {
		p := &streams[i]
		s.open[p.ID], busy[p.VBucket] = s.open[p.ID].add(p), true
		if a := l.attempt(k.Name(), p.VBucket); a.id != p.ID || a.at != p.At {
			moving[p.ID] = true
		}
	}
	for i := range streams {
		l.watch(k, st, &streams[i], now, deaf || moving[streams[i].ID])
	}
	for _, id := range st.Abandoned() {
		s.abandoned[id] = true
	}
	for _, w := range st.Wants() {
		busy[w.VBucket] = true
		if !slices.ContainsFunc(w.Copies, func(id index.CopyID) bool { return !making[id] }) {
			continue // definitions wake us
		}
		l.group(k, st, w, &s.defs, s.groups, now)
	}
	l.satisfied(k.Name(), busy)
	return s
}

// end forgets the requests of a bucket that bring nothing any more, and stops those that nobody wants.
func (l *Loop) end(ctx context.Context, k *copies.Bucket, seen *sideLook) {
	for id, t := range l.open {
		t.abandoned = t.abandoned || seen.abandoned[id]
		if t.bucket != k.Name() {
			continue
		}
		if o := seen.open[id]; o != nil {
			t.note(o)
			continue
		}
		if t.abandoned && !l.room(t.addr) {
			continue
		}
		delete(l.open, id)
		t.span.End()
		if t.abandoned { // it may go on for nobody
			l.call(ctx, t.addr, func(ctx context.Context) {
				err := l.Projectors.Stop(ctx, t.addr, &wire.StreamStop{Fence: wire.Fence{ClusterID: l.ClusterID()},
					Topic: t.topic})
				l.log(k).Debug("a side stream was stopped", "topic", t.topic, "error", err)
			})
		}
	}
}

// watch gives up a stream that has brought nothing for too long, or has lost its connection. waits: it is the turn of
// other vbuckets of the same connection, or nothing is taken from any.
func (l *Loop) watch(k *copies.Bucket, st *core.Bucket, p *ingest.SideProgress, now time.Time, waits bool) {
	a := l.attempt(k.Name(), p.VBucket)
	if !p.Lost || a.id != p.ID {
		a.lost = time.Time{}
	}
	switch {
	case p.Finished:
	case p.Lost && a.lost.IsZero():
		a.lost = now
	case p.Lost && now.Sub(a.lost) > sideResume:
		l.log(k).Info("the connection of a side stream was lost and does not come back; asking again", "vbucket", p.VBucket,
			"at", p.At, "to", p.To)
		st.SideFailed(p.VBucket, p.ID)
		a.lost = time.Time{}
	}
	if a.id != p.ID || a.at != p.At {
		if a.id == p.ID && p.Begun {
			a.waits = 0
		}
		a.id, a.at, a.moved = p.ID, p.At, now
		return
	}
	if waits {
		a.moved = now
	}
	if now.Sub(a.moved) > sideSilence && !p.Finished {
		l.log(k).Warn("a side stream brings nothing; asking again", "vbucket", p.VBucket, "at", p.At, "to", p.To)
		st.SideFailed(p.VBucket, p.ID)
		a.moved = now
	}
}

// satisfied forgets the failures of vbuckets that want nothing and have no stream: what comes next is a fresh want,
// which pays nothing for older ones.
func (l *Loop) satisfied(bucket string, busy map[int]bool) {
	for key, a := range l.state {
		if key.bucket == bucket && !busy[key.vb] {
			a.tries, a.waits, a.after = 0, 0, time.Time{}
		}
	}
}

func (l *Loop) attempt(bucket string, vb int) *sideAttempt {
	key := sideKey{bucket, vb}
	a := l.state[key]
	if a == nil {
		a = &sideAttempt{}
		l.state[key] = a
	}
	return a
}

// groupKey is what goes into one request: a projector and a class.
type groupKey struct {
	projector index.ProjectorID
	build     bool
}

type sideGroup struct {
	addr     string
	id       uint64
	wants    []ingest.Want
	attempts []*sideAttempt // of the wants
	copies   []index.CopyID
	restart  wire.RestartTimestamp
}

// group opens what may be asked for now. It runs in the bucket's loop, so that nothing can come before it is expected.
func (l *Loop) group(k *copies.Bucket, st *core.Bucket, w ingest.Want, d *wire.Definitions,
	groups map[groupKey]*sideGroup, now time.Time) {
	a := l.attempt(k.Name(), w.VBucket)
	if now.Before(a.after) || len(d.Projectors) == 0 || d.Revision == 0 {
		return
	}
	p, ok := l.roomy(d.Projectors, st.Owner(w.VBucket), a, now)
	if !ok {
		return // the end of a request wakes us
	}
	key := groupKey{p.ID, w.Build && !l.Origins.comesBack(k.Slice, w.Copies, d)}
	g := groups[key]
	if g == nil {
		l.next++
		g = &sideGroup{addr: p.Admin, id: l.next}
		groups[key] = g
	}
	a.after = now.Add(sidePause(a.waits))
	a.tries++
	a.waits++
	st.OpenSide(w, g.id)
	g.wants, g.attempts = append(g.wants, w), append(g.attempts, a)
	for _, c := range w.Copies {
		if i, ok := slices.BinarySearch(g.copies, c); !ok {
			g.copies = slices.Insert(g.copies, i, c)
		}
	}
	g.restart.Add(wire.StreamStart{VBucket: uint16(w.VBucket), VBUUID: w.VBUUID, Seqno: w.From, End: w.To,
		Window: timestamp.Window{Start: w.From, End: w.From}, Branch: w.Branch, Previous: w.Previous})
}

// roomy returns whom to ask next: whoever has no room is waited for, unless it hangs, which may last, and another one
// may serve the vbucket. false: it has to wait, and nothing was tried.
func (l *Loop) roomy(all []wire.ProjectorEndpoint, owner index.ProjectorID, a *sideAttempt, now time.Time) (
	wire.ProjectorEndpoint, bool) {
	for n := range 2 * len(all) { // choose has named each by then
		switch p := core.ChooseProjector(all, owner, a.tries+n); {
		case l.room(p.Admin):
			a.tries += n
			return p, true
		case !l.hangs(p.Admin, now):
			return wire.ProjectorEndpoint{}, false
		}
	}
	return wire.ProjectorEndpoint{}, false
}

// sidePause is the pause after so many others.
func sidePause(waits int) time.Duration { return min(sideFirst<<min(waits, 10), sideMost) }

// topicProgress counts the vbuckets of a request that have a stream still.
type topicProgress struct{ open, begun, finished int }

func (o *topicProgress) add(p *ingest.SideProgress) *topicProgress {
	if o == nil {
		o = &topicProgress{}
	}
	o.open++
	if p.Begun {
		o.begun++
	}
	if p.Finished {
		o.finished++
	}
	return o
}

// note says in the span what has come since. What it ends with is that everything is written.
func (t *sideTopic) note(o *topicProgress) {
	if !t.began && o.begun == o.open {
		t.began = true
		t.span.AddEvent("BEGIN of all vbuckets")
	}
	if !t.came && o.finished == o.open {
		t.came = true
		t.span.AddEvent("END of all vbuckets")
	}
}

// ask sends one request and takes over what the projector says of each vbucket.
func (l *Loop) ask(ctx context.Context, k *copies.Bucket, key groupKey, g *sideGroup, d *wire.Definitions) {
	e := l.Endpoint()
	class, port := "catchup", e.Catchup
	if key.build {
		class, port = "backfill", e.Backfill
	}
	topic := fmt.Sprintf("/%s/%d/%d", class, e.Node, g.id)
	req := &wire.StreamRequest{
		Fence: wire.Fence{ClusterID: l.ClusterID()}, Topic: topic,
		Incarnation: index.Incarnation{Counter: g.id},
		Buckets:     []wire.StreamBucket{{Bucket: k.Name(), BucketUUID: k.UUID(), Restart: g.restart}},
		Side:        &wire.SideTarget{Copies: g.copies, Revision: d.Revision, Node: e.Node, BootID: e.BootID, Endpoint: port},
	}
	ctx, span := rpc.ResumeSpan(ctx, l.Tracer, l.Origins.parentOf(g.copies, key.build), "side stream "+topic)
	span.SetAttributes(attribute.String("tidemark.projector", string(key.projector)),
		attribute.Int("tidemark.vbuckets", len(g.wants)))
	l.open[g.id] = &sideTopic{bucket: k.Name(), addr: g.addr, topic: topic, span: span}
	l.log(k).Debug("asking for a side stream", "topic", topic, "projector", key.projector, "vbuckets", g.restart.Len(),
		"copies", g.copies)
	l.call(ctx, g.addr, func(ctx context.Context) {
		reply, err := l.Projectors.Streams(ctx, g.addr, req)
		if err != nil {
			l.log(k).Debug("no side stream", "topic", topic, "projector", key.projector, "error", err)
			l.metrics.WithLabelValues("error").Add(float64(len(g.wants)))
		}
		span.AddEvent("the projector has answered")
		_ = k.Do(ctx, func(st *core.Bucket) { l.answered(k, st, g, reply, err) }) // a bucket that goes wants nothing
	})
}

// room reports whether another request may be made to a projector.
func (l *Loop) room(addr string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.under[addr].n < sideRequests
}

// hangs reports whether a projector has no room and ends nothing.
func (l *Loop) hangs(addr string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.under[addr]
	return c.n >= sideRequests && now.Sub(c.moved) > sidePatience
}

// count adds a request that begins (1) or ends (-1), and reports whether there was no room before.
func (l *Loop) count(addr string, n int) (full bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.under[addr]
	full = c.n >= sideRequests
	if c.n == 0 || n < 0 || c.n+n == sideRequests { // patience begins when there is no room any more
		c.moved = l.Now()
	}
	if c.n += n; c.n == 0 {
		delete(l.under, addr)
		return full
	}
	l.under[addr] = c
	return full
}

// call runs a request to a projector beside the loop, and wakes it afterwards where others wait for that.
func (l *Loop) call(ctx context.Context, addr string, f func(context.Context)) {
	l.count(addr, 1)
	l.calls.Go(func() error {
		f(ctx)
		if l.count(addr, -1) {
			l.Wake()
		}
		return nil
	})
}

// answered runs in the bucket's loop.
func (l *Loop) answered(k *copies.Bucket, st *core.Bucket, g *sideGroup, reply *wire.StreamReply, err error) {
	outcomes := map[uint16]*wire.StartResult{}
	if err == nil {
		for i := range reply.Buckets {
			for n := range reply.Buckets[i].Results {
				r := &reply.Buckets[i].Results[n]
				outcomes[r.VBucket] = r
			}
		}
	}
	for i, w := range g.wants {
		r := outcomes[uint16(w.VBucket)]
		switch {
		case r == nil:
			st.SideFailed(w.VBucket, g.id)
		case r.Outcome == wire.StartBegun:
			g.attempts[i].tries = 0 // it was the right one to ask
		case r.Outcome == wire.StartRollback:
			l.log(k).Warn("KV refuses the start of a side stream: the vbucket is taken from 0", "vbucket", w.VBucket, "from",
				w.From, "purge", r.Purge)
			st.SideRefused(w.VBucket, g.id, r.Purge)
		default:
			l.log(k).Debug("no side stream", "vbucket", w.VBucket, "outcome", r.Outcome, "detail", r.Detail)
			st.SideFailed(w.VBucket, g.id)
		}
		if r != nil {
			l.metrics.WithLabelValues(string(r.Outcome)).Inc()
		}
	}
}
