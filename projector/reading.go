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
	// gatherTime bounds how long a reading waits for nodes that will want the same data. They receive a build's
	// definitions at the same time and begin then, so the wait usually ends much earlier.
	gatherTime = 200 * time.Millisecond
	// holdTick is how often readers are checked for holding up others.
	holdTick = 25 * time.Millisecond
)

// errHoldsUp is why a side stream continues on its own.
var errHoldsUp = errors.New("it delays other streams that share its connection")

// reading is one DCP connection that side streams of a bucket share, each as if it were its own: KV sends each
// version once, and every block goes to all readers. The connection's window bounds what may be queued for them. A
// reader that holds up the others leaves, and its indexer requests the rest of its data, which is then read on a
// connection of its own.
type reading struct {
	p            *Projector
	bucket, uuid string
	name         string // of the DCP connection
	received     *traffic
	desk         *purgeDesk
	ctx          context.Context
	cancel       context.CancelFunc
	connected    chan struct{} // closed when conn and at are set, or err
	opened       chan struct{} // closed when answers is set, or err
	done         chan struct{} // closed when its goroutines have ended

	conn    feed.Feed
	at      *kvState
	err     error // why it failed
	answers map[uint16]readingAnswer

	mu        sync.Mutex // leaf
	gathering gathering
	readers   []*reader
	closed    map[uint16]bool // vbuckets whose streams were to be closed by KV
}

// gathering collects the requests of the side streams that join a reading, before KV is queried. want and xattrs do not
// change once over is set.
type gathering struct {
	over   bool          // no more side streams may join
	whole  chan struct{} // closed when no other node is awaited
	want   *core.Reading
	xattrs bool // some need the extended attributes of documents
}

func newGathering() gathering { return gathering{whole: make(chan struct{}), want: core.NewReading()} }

// add adds what a side stream wants. It returns false if the side stream cannot join.
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

// readingAnswer is the outcome of a vbucket's stream request to KV.
type readingAnswer struct {
	stream *stream // as granted by KV; nil if it was not granted
	result wire.StartResult
}

// reader is a side stream's part in a reading. The reading's lock guards its fields except ready.
type reader struct {
	*reading
	ready    chan struct{} // one slot
	vbuckets map[uint16]bool
	queue    []*feed.Block
	bytes    int  // of queue, and of the block being processed
	waits    bool // its queue is empty
	held     core.Hold
	end      error // why nothing more comes
}

// readings holds the readings that side streams may still join.
type readings struct {
	mu       sync.Mutex
	joinable []*reading
}

func (l *readings) remove(r *reading) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.joinable = slices.DeleteFunc(l.joinable, func(o *reading) bool { return o == r })
}

// read joins a reading that has not sent its request to KV yet and that the side stream can share, or starts one.
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

// join adds a side stream. It returns false if the reading no longer accepts any, or starts elsewhere. The caller
// holds the lock of readings.
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

// run gathers side streams, sends the request to KV, and distributes blocks until no reader is left.
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
	beside.Go(func() error { r.judge(); return nil }) // with a single reader it returns at once
	r.fan()
	r.cancel()
	_ = beside.Wait()
}

// gather waits for the awaited nodes, and then lets no more side streams join.
func (r *reading) gather() {
	timeout := time.NewTimer(gatherTime)
	defer timeout.Stop()
	select {
	case <-r.gathering.whole:
	case <-timeout.C:
	case <-r.ctx.Done():
	}
	r.p.sides.readings.remove(r)
	r.mu.Lock()
	r.gathering.over = true
	r.mu.Unlock()
}

// fail ends the reading before it began: all readers get err.
func (r *reading) fail(err error) {
	r.err = err
	close(r.connected)
	close(r.opened)
}

// connect connects to KV and reads its state.
func (r *reading) connect() (err error) {
	if r.conn, err = r.p.dial(r.ctx, r.bucket, r.name, sideBufferBytes, r.gathering.xattrs); err != nil {
		return err
	}
	if r.at, err = r.p.stateOf(r.ctx, r.conn, r.bucket); err != nil {
		_ = r.conn.Close()
	}
	return err
}

// open requests each vbucket's stream from KV.
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
		} else { // it sends further queries to KV
			g.Go(settle)
		}
	}
	_ = g.Wait() // outcomes carry the errors
	for n, st := range all {
		r.answers[st.VBucket()] = settled[n]
	}
}

// settled returns the outcome of a stream that was requested from KV.
func (r *reading) settled(st *stream, from feed.StreamAnswer) readingAnswer {
	for {
		a := answer(from.Log, from.Err)
		switch st.Answered(a, false) {
		case core.RequestAgain, core.RequestLater:
			from.Log, from.Err = r.conn.OpenStream(r.ctx, r.request(st))
		case core.GiveUp:
			return readingAnswer{result: refusal(r.ctx, r.conn, &st.Start, a)}
		case core.CloseAtKV:
			// its events are dropped, and the connection is closed when the other streams have ended
			_ = r.conn.CloseStream(r.ctx, st.VBucket())
			return readingAnswer{result: st.FailedOver()}
		case core.Begin:
			return readingAnswer{stream: st, result: st.Began(st.KV.High, st.Purge)}
		}
	}
}

// request gives a stream a new id and returns its request to KV.
func (r *reading) request(st *stream) feed.StreamRequest {
	st.id = r.conn.NewStreamID()
	return st.request()
}

// of returns a side stream's own stream of a vbucket that it joined the reading for; nil if KV did not grant it.
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

// fan distributes blocks until the connection has ended.
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

// count adds a block to the received traffic.
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

// endAll ends all readers after what is queued for them.
func (r *reading) endAll(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.readers {
		m.end = err
		m.wake()
	}
}

// together reports whether there are several readers; their number does not rise any more.
func (r *reading) together() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.readers) > 1
}

// judge removes readers that hold up others, while there is more than one.
func (r *reading) judge() {
	tick := time.NewTicker(holdTick)
	defer tick.Stop()
	last := time.Now()
	for r.together() {
		select {
		case <-r.ctx.Done():
			return
		case now := <-tick.C:
			since := min(now.Sub(last), 2*holdTick) // if judge itself ran late, the readers' state in between is unknown
			last = now
			r.closeAtKV(r.evict(since))
		}
	}
}

// evict removes the readers that have held up others for too long, and returns the vbuckets that no reader wants any
// more.
func (r *reading) evict(since time.Duration) (unwanted []uint16) {
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

// remove removes a reader and releases its queue. The caller holds the lock.
func (r *reading) remove(m *reader) {
	r.readers = slices.DeleteFunc(r.readers, func(o *reader) bool { return o == m })
	for _, block := range m.queue {
		block.Release()
	}
	m.queue, m.bytes, m.waits = nil, 0, false
}

// unwanted returns those of some vbuckets whose streams KV has granted and no reader wants any more, each of them
// once.
func (r *reading) unwanted(some []uint16) (all []uint16) {
	select {
	case <-r.opened:
	default:
		return nil // run checks all vbuckets once KV has answered
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
				_ = r.conn.CloseStream(ctx, vb) // if it fails, further events of the stream are dropped
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

// finish releases a block that next returned.
func (m *reader) finish(block *feed.Block) {
	m.mu.Lock()
	m.bytes = max(0, m.bytes-block.Bytes()) // not below 0: remove has reset it
	m.mu.Unlock()
	block.Release()
}

// next returns the next block, which counts for the reader until finish. It returns errHoldsUp when the reader was
// removed although the connection still stands.
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

// drop gives up vbuckets.
func (m *reader) drop(vbuckets ...uint16) {
	m.mu.Lock()
	for _, vb := range vbuckets {
		delete(m.vbuckets, vb)
	}
	m.mu.Unlock()
	m.closeAtKV(m.unwanted(vbuckets))
}

// leave ends reading; it may be called more than once. The last reader closes the connection and waits until that is
// done.
func (m *reader) leave() {
	m.mu.Lock()
	m.remove(m)
	last := len(m.readers) == 0
	m.gathering.over = m.gathering.over || last // no side stream can join a reading that ends
	m.mu.Unlock()
	if last {
		m.cancel()
		<-m.done
		return
	}
	m.closeAtKV(m.unwanted(slices.Collect(maps.Keys(m.vbuckets))))
}
