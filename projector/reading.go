package projector

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"tidemark/index"
	"tidemark/projector/core"
	"tidemark/projector/feed"
	"tidemark/wire"
)

const (
	// gatherTime is how long a reading waits for nodes that will want the same. They hear of a build, and begin it, at
	// the same time, so that it is mostly over much earlier.
	gatherTime = 200 * time.Millisecond
	// holdTick is how often it is looked at whether one side stream holds up others.
	holdTick = 25 * time.Millisecond
)

// errHoldsUp is why a side stream reads on alone.
var errHoldsUp = errors.New("it holds up others that read with it")

// reading is one DCP connection that side streams of a bucket read together, each as if it were its own: KV sends each
// version once, and every block goes to all (readers). The window of the connection bounds what waits for them: one
// that holds up the others leaves, and its indexer asks for the rest of what it wants, which it then reads alone.
type reading struct {
	p            *Projector
	bucket, uuid string
	name         string // of the DCP connection
	received     *traffic
	desk         *purgeDesk
	ctx          context.Context
	cancel       context.CancelFunc
	connected    chan struct{} // closed when there are conn and at, or err
	opened       chan struct{} // closed when there are answers, or err
	done         chan struct{} // closed when nothing of it runs

	conn    feed.Feed
	at      *kvState
	err     error // why there is none
	answers map[uint16]readingAnswer

	mu        sync.Mutex // leaf
	gathering gathering
	readers   []*reader
	closed    map[uint16]bool // vbuckets that KV is told to send no more of
}

// gathering is what those that join a reading want, before KV is asked: want and xattrs do not change once it
// is over.
type gathering struct {
	over   bool          // nobody joins any more
	whole  chan struct{} // closed when nobody else is awaited
	want   *core.Reading
	xattrs bool // some want the extended attributes of documents
}

func newGathering() gathering { return gathering{whole: make(chan struct{}), want: core.NewReading()} }

// add adds what a side stream wants; false: it cannot join.
func (g *gathering) add(s *side) bool {
	if g.over || !g.want.Join(s.target.Node, &s.want.Restart, s.awaits) {
		return false
	}
	g.xattrs = g.xattrs || s.plan.xattrs()
	if g.want.Whole() {
		g.over = true
		close(g.whole)
	}
	return true
}

// readingAnswer is what has become of what KV was asked for, of a vbucket.
type readingAnswer struct {
	stream *stream // as KV has consented to; nil: there is none
	result wire.StartResult
}

// reader is a side stream's part in a reading. Its fields but ready are under the reading's lock.
type reader struct {
	*reading
	ready    chan struct{} // one slot
	vbuckets map[uint16]bool
	queue    []*feed.Block
	bytes    int // of queue, and of what it is at
	waits    bool
	held     core.Hold
	end      error // why nothing more comes
}

// readings are those that side streams may still join.
type readings struct {
	mu       sync.Mutex
	joinable []*reading
}

func (l *readings) remove(r *reading) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.joinable = slices.DeleteFunc(l.joinable, func(o *reading) bool { return o == r })
}

// read joins a reading that has not begun and that a side stream can share, or begins one.
func (p *Projector) read(s *side) *reader {
	m := &reader{ready: make(chan struct{}, 1), vbuckets: map[uint16]bool{}}
	for _, vb := range s.want.Restart.VBuckets {
		m.vbuckets[vb] = true
	}
	shared := core.Shareable(s.target, &s.want.Restart)
	p.sides.readings.mu.Lock()
	defer p.sides.readings.mu.Unlock()
	for _, r := range p.sides.readings.joinable {
		if shared && r.bucket == s.want.Bucket && r.uuid == s.want.BucketUUID && r.join(m, s) {
			return m
		}
	}
	r := &reading{p: p, bucket: s.want.Bucket, uuid: s.want.BucketUUID, name: s.key.Topic,
		received: p.counters.received[s.class], gathering: newGathering(), closed: map[uint16]bool{},
		connected: make(chan struct{}), opened: make(chan struct{}), done: make(chan struct{})}
	r.ctx, r.cancel = context.WithCancel(p.runCtx)
	r.desk = newPurgeDesk(r.ctx, p, r.bucket, func(context.Context) (feed.Feed, error) { return r.conn, nil })
	r.join(m, s)
	if shared {
		p.sides.readings.joinable = append(p.sides.readings.joinable, r)
	}
	if !p.tasks.Go(r.run) {
		r.cancel()
		r.fail(errShuttingDown)
		close(r.done)
	}
	return m
}

var errShuttingDown = errors.New("the projector is shutting down")

// join adds a side stream; false: it has begun, or reads something else. The caller holds the lock of readings.
func (r *reading) join(m *reader, s *side) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.gathering.add(s) {
		return false
	}
	m.reading = r
	r.readers = append(r.readers, m)
	return true
}

// run gathers, asks KV, and hands out what it sends until nobody wants it any more.
func (r *reading) run() {
	defer close(r.done)
	defer r.cancel()
	r.gather()
	if err := r.connect(); err != nil {
		r.fail(err)
		return
	}
	defer func() { _ = r.conn.Close() }()
	close(r.connected)
	r.open()
	close(r.opened)
	r.closeAtKV(r.unwanted(slices.Collect(maps.Keys(r.answers))))
	var beside errgroup.Group
	beside.Go(func() error { r.judge(); return nil }) // alone it ends at once
	r.fan()
	r.cancel()
	_ = beside.Wait()
}

// gather waits for those that are awaited, and lets nobody join any more.
func (r *reading) gather() {
	patience := time.NewTimer(gatherTime)
	defer patience.Stop()
	select {
	case <-r.gathering.whole:
	case <-patience.C:
	case <-r.ctx.Done():
	}
	r.p.sides.readings.remove(r)
	r.mu.Lock()
	r.gathering.over = true
	r.mu.Unlock()
}

// fail tells all that there is nothing to read.
func (r *reading) fail(err error) {
	r.err = err
	close(r.connected)
	close(r.opened)
}

// connect connects to KV, and asks how its vbuckets are.
func (r *reading) connect() (err error) {
	if r.conn, err = r.p.dial(r.ctx, r.bucket, r.name, sideBufferBytes, r.gathering.xattrs); err != nil {
		return err
	}
	if r.at, err = r.p.stateOf(r.ctx, r.conn, r.bucket); err != nil {
		_ = r.conn.Close()
	}
	return err
}

// open asks KV for each vbucket.
func (r *reading) open() {
	starts := r.gathering.want.Starts()
	r.answers = make(map[uint16]readingAnswer, len(starts))
	var all []*stream
	var reqs []feed.StreamRequest
	for vb, start := range starts {
		if _, hosted := r.at.highs[vb]; !hosted {
			r.answers[vb] = readingAnswer{result: core.NotMine(vb)}
			continue
		}
		st := newStream(core.NewStream(index.Incarnation{}, &start, r.at.of(vb)))
		all, reqs = append(all, st), append(reqs, r.request(st))
	}
	settled := make([]readingAnswer, len(all))
	var g errgroup.Group
	g.SetLimit(streamsAtOnce)
	for n, answer := range r.conn.OpenStreams(r.ctx, reqs) {
		settle := func() error {
			settled[n] = r.settled(all[n], answer)
			return nil
		}
		if answer.Err == nil {
			_ = settle()
		} else { // KV is asked more
			g.Go(settle)
		}
	}
	_ = g.Wait() // outcomes carry the errors
	for n, st := range all {
		r.answers[st.VBucket()] = settled[n]
	}
}

// settled is the outcome of a stream that KV was asked for.
func (r *reading) settled(st *stream, from feed.StreamAnswer) readingAnswer {
	for {
		a := answer(from.Log, from.Err)
		switch st.Answered(a, false) {
		case core.AskAgain, core.AskLater:
			from.Log, from.Err = r.conn.OpenStream(r.ctx, r.request(st))
		case core.GiveUp:
			return readingAnswer{result: refusal(r.ctx, r.conn, &st.Start, a)}
		case core.CloseAtKV:
			// its events find nobody, and the whole connection goes when the others have ended
			_ = r.conn.CloseStream(r.ctx, st.VBucket())
			return readingAnswer{result: st.FailedOver()}
		case core.Begin:
			return readingAnswer{stream: st, result: st.Began(st.KV.High, st.Purge)}
		}
	}
}

// request is what KV is asked for a stream.
func (r *reading) request(st *stream) feed.StreamRequest {
	st.id = r.conn.NewStreamID()
	return st.request()
}

// of is a side stream's own stream of a vbucket that it has joined the reading for; nil: there is none.
func (r *reading) of(inc index.Incarnation, want *wire.StreamStart) (*stream, wire.StartResult) {
	a := r.answers[want.VBucket]
	if a.stream == nil {
		return nil, a.result
	}
	st := newStream(core.NewStream(inc, want, r.at.of(want.VBucket)))
	st.Take(a.stream.Opened())
	st.id = a.stream.id
	return st, a.result
}

// fan hands out blocks until the connection has ended or nobody reads.
func (r *reading) fan() {
	for {
		block, err := r.conn.Next(r.ctx)
		if err != nil {
			r.endAll(err)
			return
		}
		r.count(block)
		r.hand(block)
	}
}

// count adds a block to what KV has sent.
func (r *reading) count(block *feed.Block) {
	var versions, bytes uint64
	for i := range block.Events {
		if e := &block.Events[i]; e.Kind.IsDocument() {
			versions++
			bytes += uint64(len(e.Key) + len(e.Value))
		}
	}
	r.received.versions.Add(versions)
	r.received.bytes.Add(bytes)
}

func (r *reading) hand(block *feed.Block) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.readers) == 0 {
		block.Release()
		return
	}
	block.Retain(len(r.readers) - 1)
	for _, m := range r.readers {
		m.queue, m.bytes = append(m.queue, block), m.bytes+block.Bytes()
		m.wake()
	}
}

// endAll tells all readers that nothing comes after what they have.
func (r *reading) endAll(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.readers {
		m.end = err
		m.wake()
	}
}

// together reports whether there are several readers: nobody joins any more.
func (r *reading) together() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.readers) > 1
}

// judge puts out readers that hold up others, as long as there are others.
func (r *reading) judge() {
	tick := time.NewTicker(holdTick)
	defer tick.Stop()
	last := time.Now()
	for r.together() {
		select {
		case <-r.ctx.Done():
			return
		case now := <-tick.C:
			since := min(now.Sub(last), 2*holdTick) // who did not look does not know
			last = now
			r.closeAtKV(r.putOut(since))
		}
	}
}

// putOut puts out the readers that have held up others for too long, and returns the vbuckets that nobody wants any
// more.
func (r *reading) putOut(since time.Duration) (unwanted []uint16) {
	r.mu.Lock()
	var left []uint16
	for _, m := range slices.Clone(r.readers) {
		waited := slices.ContainsFunc(r.readers, func(o *reader) bool { return o != m && o.waits })
		if m.held.Look(waited && m.bytes >= sideBufferBytes/2, since) {
			m.end = errHoldsUp
			r.remove(m)
			m.wake()
			left = slices.AppendSeq(left, maps.Keys(m.vbuckets))
		}
	}
	r.mu.Unlock()
	return r.unwanted(left)
}

// remove lets nothing come to a reader any more; under the lock.
func (r *reading) remove(m *reader) {
	r.readers = slices.DeleteFunc(r.readers, func(o *reader) bool { return o == m })
	for _, block := range m.queue {
		block.Release()
	}
	m.queue, m.bytes, m.waits = nil, 0, false
}

// unwanted takes those of some vbuckets that KV was asked for and that nobody reads any more.
func (r *reading) unwanted(some []uint16) (all []uint16) {
	select {
	case <-r.opened:
	default:
		return nil // run looks at all of them when it has asked
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, vb := range some {
		if r.answers[vb].stream != nil && !r.closed[vb] &&
			!slices.ContainsFunc(r.readers, func(m *reader) bool { return m.vbuckets[vb] }) {
			r.closed[vb] = true
			all = append(all, vb)
		}
	}
	return all
}

// closeAtKV closes streams at KV without waiting for it.
func (r *reading) closeAtKV(vbuckets []uint16) {
	if len(vbuckets) == 0 {
		return
	}
	r.p.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(r.ctx, kvTimeout)
		defer cancel()
		var g errgroup.Group
		g.SetLimit(streamsAtOnce)
		for _, vb := range vbuckets {
			g.Go(func() error {
				_ = r.conn.CloseStream(ctx, vb) // what comes of one that goes on is for nobody
				return nil
			})
		}
		_ = g.Wait()
	})
}

func (m *reader) wake() {
	select {
	case m.ready <- struct{}{}:
	default:
	}
}

// finish gives back a block that next has returned.
func (m *reader) finish(block *feed.Block) {
	m.mu.Lock()
	m.bytes = max(0, m.bytes-block.Bytes()) // nothing counts any more for one that was put out
	m.mu.Unlock()
	block.Release()
}

// next takes the next block, which counts for the reader until finish. errHoldsUp: nothing comes here any more, though
// the connection stands.
func (m *reader) next(ctx context.Context) (*feed.Block, error) {
	for {
		m.mu.Lock()
		m.waits = len(m.queue) == 0 && m.end == nil
		if len(m.queue) > 0 {
			block := m.queue[0]
			m.queue[0] = nil
			m.queue = m.queue[1:]
			m.mu.Unlock()
			return block, nil
		}
		end := m.end
		m.mu.Unlock()
		if end != nil {
			return nil, end
		}
		select {
		case <-m.ready:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// drop says that vbuckets are not wanted any more.
func (m *reader) drop(vbuckets ...uint16) {
	m.mu.Lock()
	for _, vb := range vbuckets {
		delete(m.vbuckets, vb)
	}
	m.mu.Unlock()
	m.closeAtKV(m.unwanted(vbuckets))
}

// leave ends reading; it may be called more than once. The last one ends the connection, and waits for that.
func (m *reader) leave() {
	m.mu.Lock()
	m.remove(m)
	last := len(m.readers) == 0
	m.gathering.over = m.gathering.over || last // nobody can join what ends
	m.mu.Unlock()
	if last {
		m.cancel()
		<-m.done
		return
	}
	m.closeAtKV(m.unwanted(slices.Collect(maps.Keys(m.vbuckets))))
}
