package server

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"tidemark/kv/mcbp"
)

const (
	// sendBytes is how much a producer gathers before it writes.
	sendBytes = 256 << 10
	// stepItems is how many versions a producer takes from a snapshot at a time.
	stepItems = 128
	// streamBytes is a stream's turn: then the next stream with something to say.
	streamBytes = 64 << 10
)

// markerForm is how snapshot markers are written: as was asked for by CONTROL.
type markerForm int32

const (
	markerV1 markerForm = iota
	markerV20
	markerV22 // with the purge seqno
)

// producer is the sending side of a DCP connection. The connection's reading goroutine makes and removes streams; run
// sends. Lock order: a vbucket's lock, then mu; the connection's wmu before both. What is under mu beside flow and
// noops is about its streams, which come, become ready and go one by one.
type producer struct {
	c     *conn
	id    dcpName
	flags mcbp.OpenFlags
	wake  chan struct{} // capacity 1: something changed

	expiryOpcode atomic.Bool
	compress     atomic.Bool  // every value, by CONTROL
	marker       atomic.Int32 // a markerForm
	items        atomic.Int64 // versions sent

	mu         sync.Mutex
	streams    map[uint16]*stream
	ready      []*stream // streams that may have something to send, each once
	flow       flow
	noops      noops
	endOnClose bool
	stopped    bool
	over       map[uint16]bool // streams that have ended, in the mood StreamExists
	backfills  int             // that are read, in the mood Pauses
	bytes      int64

	// Of the goroutine that holds wmu.
	extras, key, packed []byte
	rights              rights // by which its streams go on
}

func newProducer(c *conn, name string, flags mcbp.OpenFlags) *producer {
	p := &producer{
		c: c, id: dcpName{c.bucketName, c.user, name}, flags: flags,
		wake:    make(chan struct{}, 1),
		streams: map[uint16]*stream{},
		over:    map[uint16]bool{},
		noops:   noops{interval: defaultNoopInterval},
	}
	if c.srv.opts.Moods.Has(Overshoot) {
		p.flow.overshoot = 1
	}
	return p
}

// flow is flow control: what is on its way and not acknowledged.
type flow struct {
	window int64 // 0: there is none
	// overshoot is how many bytes beyond the window the first one of a message may be: by the protocol it is the last
	// message that may pass the window's end, in the mood Overshoot one more begins there.
	overshoot int64
	unacked   int64
}

// full reports whether the window is used up.
func (f *flow) full() bool { return f.window > 0 && f.unacked >= f.window+f.overshoot }

// room is how many bytes may still be sent now, at most so many (the last message may overshoot it).
func (f *flow) room(most int64) int64 {
	if f.window <= 0 {
		return most
	}
	return min(f.window+f.overshoot-f.unacked, most)
}

func (f *flow) acknowledged(n int64) { f.unacked = max(0, f.unacked-n) }

// noops are the NOOPs by which each end knows that the other one lives.
type noops struct {
	on       bool
	interval time.Duration
	last     time.Time // when the newest one was sent, or could have been first
	owed     bool      // it is not answered
}

// next reports whether one is to be sent now, and how long to wait for the next look; errNoNoop when one has had no
// answer for longer than patience.
func (n *noops) next(now time.Time, patience time.Duration) (due bool, wait time.Duration, err error) {
	switch since := now.Sub(n.last); {
	case !n.on:
		return false, patience, nil
	case n.owed && since >= patience:
		return false, 0, errNoNoop
	case n.owed:
		return false, patience - since, nil
	default:
		if due = since >= n.interval; due {
			n.last, n.owed = now, true
		}
		return due, max(n.interval-since, minNoopInterval), nil
	}
}

func (p *producer) kick() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// stop makes run end.
func (p *producer) stop() {
	p.mu.Lock()
	p.stopped = true
	p.mu.Unlock()
	p.kick()
}

// releaseAll ends all streams without a word; the connection is gone.
func (p *producer) releaseAll() {
	p.mu.Lock()
	p.stopped = true
	streams := p.streams
	p.streams, p.ready = map[uint16]*stream{}, nil
	p.mu.Unlock()
	p.c.srv.counters.Streams.Add(-int64(len(streams)))
	for _, st := range streams {
		st.release()
	}
}

func (p *producer) needsNoop() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.flags&mcbp.OpenXattrs != 0 && !p.noops.on
}

func (p *producer) wantsEnd() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.endOnClose
}

func (p *producer) has(vb uint16) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.streams[vb] != nil
}

// begin adds a stream and looks at it once. It is subscribed before: whoever takes it out releases it, which may be at
// once.
func (p *producer) begin(st *stream) {
	st.vb.Subscribe(st)
	p.mu.Lock()
	if p.stopped {
		p.mu.Unlock()
		st.release()
		return
	}
	p.streams[st.id] = st
	p.mu.Unlock()
	p.c.srv.counters.Streams.Add(1)
	st.Notify()
}

// remove takes a stream out; nil when there is none. The caller holds wmu, so that no message of it is on its way.
func (p *producer) remove(vb uint16) *stream {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := p.streams[vb]
	if st != nil {
		p.left(st)
	}
	return st
}

func (p *producer) acknowledged(n int64) {
	p.mu.Lock()
	p.flow.acknowledged(n)
	p.mu.Unlock()
	p.kick()
}

func (p *producer) noopAnswered() {
	p.mu.Lock()
	p.noops.owed = false
	p.mu.Unlock()
	p.kick() // run waits for this answer: let it wait for the next interval
}

// sent counts messages that the consumer will acknowledge.
func (p *producer) sent(bytes, messages int) {
	p.mu.Lock()
	p.flow.unacked += int64(bytes)
	p.bytes += int64(bytes)
	p.mu.Unlock()
	p.c.srv.counters.DCPBytes.Add(int64(bytes))
	p.c.srv.counters.DCPMessages.Add(int64(messages))
}

type producerStatus struct {
	streams                       int
	unacked, buffer, items, bytes int64
}

func (p *producer) status() producerStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	return producerStatus{streams: len(p.streams), unacked: p.flow.unacked, buffer: p.flow.window,
		items: p.items.Load(), bytes: p.bytes}
}

// run sends until the connection ends.
func (p *producer) run(ctx context.Context) {
	timer := time.NewTimer(p.c.srv.opts.DCPTimeout)
	defer timer.Stop()
	defer p.releaseAll()
	defer p.c.close()
	buf := make([]byte, 0, sendBytes+(64<<10))
	p.mu.Lock()
	p.noops.last = p.c.srv.opts.Now()
	p.mu.Unlock()
	for {
		turn, wait := p.next()
		if turn.stopped || turn.err != nil {
			if turn.err != nil {
				p.c.srv.opts.Logger.Warn("dcp connection closed", "name", p.id.name, "remote", p.c.nc.RemoteAddr(),
					"error", turn.err)
			}
			return
		}
		if turn.noop || turn.work {
			var err error
			if buf, err = p.send(buf[:0], turn); err != nil {
				return
			}
			continue
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		case <-timer.C:
		}
	}
}

// send writes one turn's messages: a NOOP when it is due, then what the streams have.
func (p *producer) send(buf []byte, turn turn) ([]byte, error) {
	p.c.wmu.Lock()
	defer p.c.wmu.Unlock()
	if turn.noop {
		var err error
		if buf, err = mcbp.Append(buf, mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPNoop, 0, noopOpaque)}); err != nil {
			return buf, err
		}
	}
	if turn.work {
		buf = p.gather(buf)
	}
	if len(buf) == 0 {
		return buf, nil
	}
	err := p.c.write(buf, p.c.srv.opts.DCPTimeout)
	if cap(buf) > keepBytes+sendBytes {
		buf = make([]byte, 0, sendBytes+(64<<10))
	}
	return buf, err
}

// noopOpaque marks NOOPs of the server.
const noopOpaque = 0xffffffff

// turn is what a producer is to do next.
type turn struct {
	stopped, noop, work bool
	err                 error
}

// next decides: send, or wait for how long.
func (p *producer) next() (t turn, wait time.Duration) {
	now, patience := p.c.srv.opts.Now(), p.c.srv.opts.DCPTimeout
	p.mu.Lock()
	defer p.mu.Unlock()
	t = turn{stopped: p.stopped, work: len(p.ready) > 0 && !p.flow.full()}
	if t.stopped {
		return t, patience
	}
	t.noop, wait, t.err = p.noops.next(now, patience)
	return t, wait
}

// window is how many bytes may still be sent now.
func (p *producer) window() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return int(p.flow.room(sendBytes))
}

// gather fills buf with messages of the streams that are ready, one turn each, up to the flow control window.
func (p *producer) gather(buf []byte) []byte {
	before := len(buf)
	limit := before + p.window()
	messages := 0
	for len(buf) < limit {
		st := p.pop()
		if st == nil {
			break
		}
		var more bool
		var n int
		items := p.items.Load()
		buf, n, more = st.step(buf, min(limit, len(buf)+streamBytes))
		messages += n
		p.c.srv.counters.DCPItems.Add(p.items.Load() - items)
		if more {
			st.Notify()
		}
	}
	if len(buf) > before {
		p.sent(len(buf)-before, messages)
	}
	return buf
}

// pop takes the next ready stream that still exists.
func (p *producer) pop() *stream {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.ready) > 0 {
		st := p.ready[0]
		p.ready[0] = nil
		p.ready = p.ready[1:]
		st.queued.Store(false)
		if p.streams[st.id] == st {
			return st
		}
	}
	p.ready = nil
	return nil
}
