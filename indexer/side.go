package indexer

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"tidemark/index"
	"tidemark/indexer/core"
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

// sideLoop asks projectors for the side streams that buckets want: for each projector one request with all vbuckets
// that it is believed to own (PR-11 forms 2 and 3). What fails is asked again, with a growing pause, see choose.
type sideLoop struct {
	x     *Indexer
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

func newSideLoop(x *Indexer) *sideLoop {
	return &sideLoop{x: x, next: uint64(x.now().UnixNano()), state: map[sideKey]*sideAttempt{},
		open: map[uint64]*sideTopic{}, under: map[string]sideCalls{}}
}

// Run looks and asks until ctx ends.
func (l *sideLoop) Run(ctx context.Context) error {
	tick := time.NewTicker(sideTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return l.calls.Wait()
		case <-tick.C:
		case <-l.x.sides:
			t := time.NewTimer(sideGather)
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
			}
		}
		for _, k := range l.x.allBuckets() {
			l.look(ctx, k)
		}
	}
}

// look asks for what one bucket wants and gives up what has fallen silent.
func (l *sideLoop) look(ctx context.Context, k *bucket) {
	var seen sideLook
	if err := k.do(ctx, func() { seen = l.seen(k, l.x.now()) }); err != nil {
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
func (l *sideLoop) seen(k *bucket, now time.Time) sideLook {
	s := sideLook{open: map[uint64]*topicProgress{}, abandoned: map[uint64]bool{}, groups: map[groupKey]*sideGroup{}}
	busy, moving := map[int]bool{}, map[uint64]bool{}
	var making map[index.CopyID]bool
	s.defs, making = l.x.catalog.InForce() // here: before a copy comes to this loop, it is known that it is being made
	streams, deaf := k.st.SideStreams(), k.sideFull()
	for i := range streams {
		p := &streams[i]
		s.open[p.ID], busy[p.VBucket] = s.open[p.ID].add(p), true
		if a := l.attempt(k.name, p.VBucket); a.id != p.ID || a.at != p.At {
			moving[p.ID] = true
		}
	}
	for i := range streams {
		l.watch(k, &streams[i], now, deaf || moving[streams[i].ID])
	}
	for _, id := range k.st.Abandoned() {
		s.abandoned[id] = true
	}
	for _, w := range k.st.Wants() {
		busy[w.VBucket] = true
		if !slices.ContainsFunc(w.Copies, func(id index.CopyID) bool { return !making[id] }) {
			continue // definitions wake us
		}
		l.group(k, w, &s.defs, s.groups, now)
	}
	l.satisfied(k.name, busy)
	return s
}

// end forgets the requests of a bucket that bring nothing any more, and stops those that nobody wants.
func (l *sideLoop) end(ctx context.Context, k *bucket, seen *sideLook) {
	for id, t := range l.open {
		t.abandoned = t.abandoned || seen.abandoned[id]
		if t.bucket != k.name {
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
				err := l.x.projectors.Stop(ctx, t.addr, &wire.StreamStop{Fence: wire.Fence{ClusterID: l.x.identity.get().ClusterID},
					Topic: t.topic})
				k.log.Debug("a side stream was stopped", "topic", t.topic, "error", err)
			})
		}
	}
}

// watch gives up a stream that has brought nothing for too long, or has lost its connection. waits: it is the turn of
// other vbuckets of the same connection, or nothing is taken from any.
func (l *sideLoop) watch(k *bucket, p *ingest.SideProgress, now time.Time, waits bool) {
	a := l.attempt(k.name, p.VBucket)
	if !p.Lost || a.id != p.ID {
		a.lost = time.Time{}
	}
	switch {
	case p.Finished:
	case p.Lost && a.lost.IsZero():
		a.lost = now
	case p.Lost && now.Sub(a.lost) > sideResume:
		k.log.Info("the connection of a side stream was lost and does not come back; asking again", "vbucket", p.VBucket,
			"at", p.At, "to", p.To)
		k.st.SideFailed(p.VBucket, p.ID)
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
		k.log.Warn("a side stream brings nothing; asking again", "vbucket", p.VBucket, "at", p.At, "to", p.To)
		k.st.SideFailed(p.VBucket, p.ID)
		a.moved = now
	}
}

// satisfied forgets the failures of vbuckets that want nothing and have no stream: what comes next is a fresh want,
// which pays nothing for older ones.
func (l *sideLoop) satisfied(bucket string, busy map[int]bool) {
	for key, a := range l.state {
		if key.bucket == bucket && !busy[key.vb] {
			a.tries, a.waits, a.after = 0, 0, time.Time{}
		}
	}
}

func (l *sideLoop) attempt(bucket string, vb int) *sideAttempt {
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
func (l *sideLoop) group(k *bucket, w ingest.Want, d *wire.Definitions, groups map[groupKey]*sideGroup, now time.Time) {
	a := l.attempt(k.name, w.VBucket)
	if now.Before(a.after) || len(d.Projectors) == 0 || d.Revision == 0 {
		return
	}
	p, ok := l.roomy(d.Projectors, k.st.Owner(w.VBucket), a, now)
	if !ok {
		return // the end of a request wakes us
	}
	key := groupKey{p.ID, w.Build && !l.x.comesBack(k, w.Copies, d)}
	g := groups[key]
	if g == nil {
		l.next++
		g = &sideGroup{addr: p.Admin, id: l.next}
		groups[key] = g
	}
	a.after = now.Add(sidePause(a.waits))
	a.tries++
	a.waits++
	k.st.OpenSide(w, g.id)
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
func (l *sideLoop) roomy(all []wire.ProjectorEndpoint, owner index.ProjectorID, a *sideAttempt, now time.Time) (
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

// comesBack reports whether copies that were never whole are no new ones: they were here when the process began, or are
// gone though they were, of indexes that are ready elsewhere. Nobody waits for those, so that they catch up at the rate
// of others that come back. It runs in the bucket's loop.
func (x *Indexer) comesBack(k *bucket, copies []index.CopyID, d *wire.Definitions) bool {
	for _, id := range copies {
		s := k.slices[id]
		if s == nil || !x.isOld(id) {
			return false
		}
		i, ok := slices.BinarySearchFunc(d.Indexes, s.Meta().Index,
			func(a index.Definition, id index.ID) int { return cmp.Compare(a.ID, id) })
		if !ok || d.Indexes[i].State == index.Backfill {
			return false
		}
	}
	return len(copies) > 0
}

// isOld reports whether a copy is none that was made by this process for the first time.
func (x *Indexer) isOld(id index.CopyID) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.old[id]
}

// parentOf returns the span by which the first of copies that are being built was made.
func (x *Indexer) parentOf(copies []index.CopyID, build bool) trace.SpanContext {
	if x.cfg.Tracer == nil || !build {
		return trace.SpanContext{}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.parents[copies[0]]
}

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
func (l *sideLoop) ask(ctx context.Context, k *bucket, key groupKey, g *sideGroup, d *wire.Definitions) {
	e := l.x.Endpoint()
	class, port := "catchup", e.Catchup
	if key.build {
		class, port = "backfill", e.Backfill
	}
	topic := fmt.Sprintf("/%s/%d/%d", class, e.Node, g.id)
	req := &wire.StreamRequest{
		Fence: wire.Fence{ClusterID: l.x.identity.get().ClusterID}, Topic: topic,
		Incarnation: index.Incarnation{Counter: g.id},
		Buckets:     []wire.StreamBucket{{Bucket: k.name, BucketUUID: k.uuid, Restart: g.restart}},
		Side:        &wire.SideTarget{Copies: g.copies, Revision: d.Revision, Node: e.Node, BootID: e.BootID, Endpoint: port},
	}
	ctx, span := rpc.ResumeSpan(ctx, l.x.cfg.Tracer, l.x.parentOf(g.copies, key.build), "side stream "+topic)
	span.SetAttributes(attribute.String("tidemark.projector", string(key.projector)),
		attribute.Int("tidemark.vbuckets", len(g.wants)))
	l.open[g.id] = &sideTopic{bucket: k.name, addr: g.addr, topic: topic, span: span}
	k.log.Debug("asking for a side stream", "topic", topic, "projector", key.projector, "vbuckets", g.restart.Len(),
		"copies", g.copies)
	l.call(ctx, g.addr, func(ctx context.Context) {
		reply, err := l.x.projectors.Streams(ctx, g.addr, req)
		if err != nil {
			k.log.Debug("no side stream", "topic", topic, "projector", key.projector, "error", err)
			l.x.metrics.sides.WithLabelValues("error").Add(float64(len(g.wants)))
		}
		span.AddEvent("the projector has answered")
		_ = k.do(ctx, func() { l.answered(k, g, reply, err) }) // a bucket that goes wants nothing
	})
}

// room reports whether another request may be made to a projector.
func (l *sideLoop) room(addr string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.under[addr].n < sideRequests
}

// hangs reports whether a projector has no room and ends nothing.
func (l *sideLoop) hangs(addr string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.under[addr]
	return c.n >= sideRequests && now.Sub(c.moved) > sidePatience
}

// count adds a request that begins (1) or ends (-1), and reports whether there was no room before.
func (l *sideLoop) count(addr string, n int) (full bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.under[addr]
	full = c.n >= sideRequests
	if c.n == 0 || n < 0 || c.n+n == sideRequests { // patience begins when there is no room any more
		c.moved = l.x.now()
	}
	if c.n += n; c.n == 0 {
		delete(l.under, addr)
		return full
	}
	l.under[addr] = c
	return full
}

// call runs a request to a projector beside the loop, and wakes it afterwards where others wait for that.
func (l *sideLoop) call(ctx context.Context, addr string, f func(context.Context)) {
	l.count(addr, 1)
	l.calls.Go(func() error {
		f(ctx)
		if l.count(addr, -1) {
			wake(l.x.sides)
		}
		return nil
	})
}

// answered runs in the bucket's loop.
func (l *sideLoop) answered(k *bucket, g *sideGroup, reply *wire.StreamReply, err error) {
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
			k.st.SideFailed(w.VBucket, g.id)
		case r.Outcome == wire.StartBegun:
			g.attempts[i].tries = 0 // it was the right one to ask
		case r.Outcome == wire.StartRollback:
			k.log.Warn("KV refuses the start of a side stream: the vbucket is taken from 0", "vbucket", w.VBucket, "from",
				w.From, "purge", r.Purge)
			k.st.SideRefused(w.VBucket, g.id, r.Purge)
		default:
			k.log.Debug("no side stream", "vbucket", w.VBucket, "outcome", r.Outcome, "detail", r.Detail)
			k.st.SideFailed(w.VBucket, g.id)
		}
		if r != nil {
			l.x.metrics.sides.WithLabelValues(string(r.Outcome)).Inc()
		}
	}
}
