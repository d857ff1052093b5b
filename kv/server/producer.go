package server

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"tidemark/kv/mcbp"
)

const (
	// sendBytes is the number of bytes that a producer gathers before it writes.
	sendBytes = 256 << 10
	// stepItems is the number of versions that a producer takes from a snapshot at a time.
	stepItems = 128
	// streamBytes is the number of bytes of one stream's turn, after which the next ready stream follows.
	streamBytes = 64 << 10
)

// markerForm is the version of snapshot markers, as selected by DCP_CONTROL.
type markerForm int32

const (
	markerV1 markerForm = iota
	markerV20
	markerV22 // includes the purge seqno
)

// producer is the sending side of a DCP connection. The connection's reading goroutine adds and removes streams; run
// sends. Lock order: a vbucket's lock, then mu; the connection's wmu before both. Besides flow and noops, mu guards
// the streams, which are added, become ready and are removed one by one.
type producer struct {
	c     *conn
	id    dcpName
	flags mcbp.OpenFlags
	wake  chan struct{} // capacity 1: something changed

	expiryOpcode atomic.Bool
	compress     atomic.Bool  // compress every value, set by DCP_CONTROL
	marker       atomic.Int32 // a markerForm
	items        atomic.Int64 // versions sent

	mu         sync.Mutex
	streams    map[uint16]*stream
	ready      []*stream // streams that may have something to send, each listed once
	flow       flow
	noops      noops
	endOnClose bool
	stopped    bool
	over       map[uint16]bool // ended streams, for the mood StreamExists
	backfills  int             // running backfills, for the mood Pauses
	bytes      int64

	// Owned by the goroutine that holds wmu.
	extras, key, packed []byte
	rights              rights // by which the streams are checked
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

// flow is the flow control: bytes that are sent and not acknowledged.
type flow struct {
	window int64 // 0: there is none
	// overshoot is by how many bytes the beginning of a message may exceed the window: 0 by the protocol, whose last
	// message may end beyond the window; with the mood Overshoot one more message may begin there.
	overshoot int64
	unacked   int64
}

// full reports whether the window is used up.
func (f *flow) full() bool { return f.window > 0 && f.unacked >= f.window+f.overshoot }

// room returns how many bytes may be sent now, at most most (the last message may exceed it).
func (f *flow) room(most int64) int64 {
	if f.window <= 0 {
		return most
	}
	return min(f.window+f.overshoot-f.unacked, most)
}

func (f *flow) acknowledged(n int64) { f.unacked = max(0, f.unacked-n) }

// noops tracks the NOOPs by which each end detects that the other one is alive.
type noops struct {
	on       bool
	interval time.Duration
	last     time.Time // when the newest one was sent, or the first could have been
	owed     bool      // it is not answered yet
}

// next reports whether a NOOP is due, and how long to wait until the next check; it returns errNoNoop if a NOOP has
// been unanswered for longer than patience.
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

// stop makes run return.
func (p *producer) stop() {
	p.mu.Lock()
	p.stopped = true
	p.mu.Unlock()
	p.kick()
}

// releaseAll removes all streams without a message; the connection is gone.
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

// begin adds a stream and makes it ready. The stream is subscribed first, so that the code that removes it, possibly
// at once, can release it.
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

// remove removes a stream and returns it, or nil if there is none. The caller holds wmu, so that no message of it is
// being sent.
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
	p.kick() // run waits for this answer: now it waits for the next interval
}

// sent counts sent messages that the consumer has to acknowledge.
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

// run sends messages until the connection ends.
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

// send writes the messages of one turn: a NOOP if it is due, then those of the streams.
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

// noopOpaque is the opaque value of the server's NOOPs.
const noopOpaque = 0xffffffff

// turn is what a producer does next.
type turn struct {
	stopped, noop, work bool
	err                 error
}

// next returns what to do now, or how long to wait.
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

// window returns how many bytes may be sent now.
func (p *producer) window() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return int(p.flow.room(sendBytes))
}

// gather appends messages of the ready streams to buf, one turn each, up to the flow-control window.
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

// pop returns the next ready stream that still exists.
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
