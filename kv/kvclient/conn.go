package kvclient

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"tidemark/kv/mcbp"
)

// Bounds of a connection.
const (
	// maxInFlightBytes bounds what may wait unanswered on one connection. A larger
	// single request still passes, alone.
	maxInFlightBytes = 16 << 20
	// minRequestCost is what the smallest request counts towards maxInFlightBytes, so
	// that at most 4,096 are in flight.
	minRequestCost = 4 << 10
	// readBufferBytes is the size of the read buffer; answers up to it are not copied
	// before their handler sees them.
	readBufferBytes = 64 << 10
	// writeStepBytes is how much is written at once: the watchdog sees how far a large request is.
	writeStepBytes = 64 << 10
	// keptWriteBytes is how large the write buffers may stay between uses.
	keptWriteBytes = 1 << 20
	// watchSteps is how many times per OpTimeout the watchdog looks.
	watchSteps = 4
)

// Conn is one connection to one node, shared by any number of callers: requests
// are pipelined, answers found by their opaque. A node that has the oldest
// unanswered request in whole and sends nothing for Options.OpTimeout is taken
// for dead, and so is one that takes nothing of it for as long: the connection
// ends. A large request over a slow line has its time.
type Conn struct {
	session   *Session
	addr      string
	opTimeout time.Duration
	slots     *semaphore.Weighted
	loops     errgroup.Group
	wake      chan struct{} // 1: there is something to write, or the end
	arrived   atomic.Uint64 // bytes read, for the watchdog
	written   atomic.Uint64 // bytes that the system has taken to send
	unsent    func() int    // of these, those that the node's has not acknowledged
	done      chan struct{} // closed with err set

	mu      sync.Mutex // leaf: the fields below
	out     []byte
	queued  uint64 // bytes that were ever put into out
	pending map[uint32]*call
	opaque  uint32
	err     error
}

// call is one request waiting for its answer.
type call struct {
	op     mcbp.Opcode
	cost   int64
	end    uint64 // what Conn.written is when it is sent
	handle func(mcbp.Frame, error)
}

// Dial opens an authenticated connection to one node.
func Dial(ctx context.Context, addr string, opt Options) (*Conn, error) {
	opt = opt.withDefaults()
	s, err := Handshake(ctx, addr, opt)
	if err != nil {
		return nil, err
	}
	return newConn(s, addr, opt.OpTimeout), nil
}

// newConn starts the reader and the writer of a session.
func newConn(s *Session, addr string, opTimeout time.Duration) *Conn {
	c := &Conn{
		session: s, addr: addr, opTimeout: opTimeout,
		slots:   semaphore.NewWeighted(maxInFlightBytes),
		wake:    make(chan struct{}, 1),
		done:    make(chan struct{}),
		unsent:  func() int { return unsent(s.Conn) },
		pending: map[uint32]*call{},
	}
	c.loops.Go(c.readLoop)
	c.loops.Go(c.writeLoop)
	c.loops.Go(c.watchLoop)
	return c
}

// Addr is the node's address, as dialled.
func (c *Conn) Addr() string { return c.addr }

// Granted reports whether the node granted a feature.
func (c *Conn) Granted(f mcbp.Feature) bool { return c.session.Granted(f) }

// Mechanism is the SASL mechanism by which the node knows the user; empty without one, and where a certificate was
// enough.
func (c *Conn) Mechanism() string { return c.session.Mechanism() }

// TLS is the state of the encryption; not ok on a connection without any.
func (c *Conn) TLS() (state tls.ConnectionState, ok bool) {
	tc, ok := c.session.Conn.(*tls.Conn)
	if !ok {
		return state, false
	}
	return tc.ConnectionState(), true
}

// CommonNameOnly reports whether the node has shown a certificate that names it by its common name alone: this package
// lets that count under a CA that was chosen, others do not.
func (c *Conn) CommonNameOnly() bool {
	state, ok := c.TLS()
	return ok && len(state.PeerCertificates) > 0 && nameless(state.PeerCertificates[0])
}

// Done is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err is why the connection ended; nil while it lives.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the connection: everything unanswered fails with ErrClosed. It
// returns when its loops have ended.
func (c *Conn) Close() error {
	c.fail(ErrClosed)
	_ = c.loops.Wait() // its errors are what fail recorded
	return nil
}

// Do sends a request and waits for its answer, whatever its status. The opaque
// is chosen here; the answer is the caller's own.
func (c *Conn) Do(ctx context.Context, req mcbp.Frame) (mcbp.Frame, error) {
	type answer struct {
		f   mcbp.Frame
		err error
	}
	ch := make(chan answer, 1)
	err := c.Start(ctx, req, func(f mcbp.Frame, err error) {
		if err == nil {
			f = f.Clone()
		}
		ch <- answer{f, err}
	})
	if err != nil {
		return mcbp.Frame{}, err
	}
	select {
	case a := <-ch:
		return a.f, a.err
	case <-ctx.Done():
		return mcbp.Frame{}, fmt.Errorf("kvclient: %v to %s: %w", req.Op, c.addr, context.Cause(ctx))
	}
}

// Stat reads a group of the node's statistics, which for the vbuckets are tens of thousands; an empty group is the
// general one. each gets one after the other, from the connection's reader, and what it gets is valid only during the
// call; when Stat returns an error it may still be called.
func (c *Conn) Stat(ctx context.Context, group string, each func(key, value []byte)) error {
	ch := make(chan error, 1)
	err := c.Start(ctx, mcbp.Frame{Header: mcbp.Request(mcbp.OpStat, 0, 0), Key: []byte(group)},
		func(f mcbp.Frame, err error) {
			switch {
			case err != nil:
				ch <- err
			case !moreFollows(f):
				ch <- NewStatusError(f)
			default:
				each(f.Key, f.Value)
			}
		})
	if err != nil {
		return err
	}
	select {
	case err := <-ch:
		return err
	case <-ctx.Done():
		return fmt.Errorf("kvclient: STAT to %s: %w", c.addr, context.Cause(ctx))
	}
}

// moreFollows reports whether an answer is not the last one to its request: STAT
// sends one per entry and ends with an empty key.
func moreFollows(f mcbp.Frame) bool {
	return f.Op == mcbp.OpStat && f.Status() == mcbp.StatusOK && len(f.Key) > 0
}

// Start sends a request and returns at once; handle is called once (for STAT:
// once per entry), from the connection's reader, with the answer (valid only
// during the call) or with the error that ended the connection. It must not
// block. When Start returns an error, handle is not called. Start waits while too
// much is in flight.
func (c *Conn) Start(ctx context.Context, req mcbp.Frame, handle func(mcbp.Frame, error)) error {
	size := int64(mcbp.HeaderSize + len(req.Extras) + len(req.Key) + len(req.Value))
	k := &call{op: req.Op, cost: min(max(size, minRequestCost), maxInFlightBytes), handle: handle}
	// The end of the connection gives everything back, so this wait ends with it too.
	if err := c.slots.Acquire(ctx, k.cost); err != nil {
		return fmt.Errorf("kvclient: %v to %s: %w", req.Op, c.addr, context.Cause(ctx))
	}
	c.mu.Lock()
	err := c.err
	if err == nil {
		c.opaque++
		req.Opaque = c.opaque
		had := len(c.out)
		c.out, err = mcbp.Append(c.out, req)
		if err == nil {
			c.queued += uint64(len(c.out) - had)
			k.end = c.queued
			c.pending[req.Opaque] = k
		}
	}
	c.mu.Unlock()
	if err != nil {
		c.slots.Release(k.cost)
		return err
	}
	c.kick()
	return nil
}

// kick wakes the writer.
func (c *Conn) kick() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// fail ends the connection once; every waiting call gets err.
func (c *Conn) fail(err error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	pending := c.pending
	c.pending = nil
	close(c.done)
	c.mu.Unlock()
	_ = c.session.Close()
	c.kick()
	for _, k := range pending {
		c.slots.Release(k.cost)
		k.handle(mcbp.Frame{}, err)
	}
}

// writeLoop sends what Start has put together, many requests per write.
func (c *Conn) writeLoop() error {
	var buf []byte
	for {
		<-c.wake
		c.mu.Lock()
		buf, c.out = c.out, buf[:0]
		err := c.err
		c.mu.Unlock()
		if err != nil {
			return nil
		}
		if len(buf) == 0 {
			continue
		}
		for step := range slices.Chunk(buf, writeStepBytes) {
			n, err := c.session.Write(step)
			c.written.Add(uint64(n))
			if err != nil {
				c.fail(c.lost(err))
				return err
			}
		}
		if cap(buf) > keptWriteBytes {
			buf = nil
		}
	}
}

// readLoop hands the answers to their calls.
func (c *Conn) readLoop() error {
	r := bufio.NewReaderSize(countingReader{c.session, &c.arrived}, readBufferBytes)
	for {
		f, discard, err := nextFrame(r)
		if err == nil && f.Magic.IsResponse() {
			err = c.answer(f)
		}
		if err == nil {
			_, err = r.Discard(discard)
		}
		if err != nil {
			c.fail(c.lost(err))
			return err
		}
	}
}

// nextFrame reads a frame in place if it fits the buffer (then discard is its
// size), else into new memory.
func nextFrame(r *bufio.Reader) (f mcbp.Frame, discard int, err error) {
	head, err := r.Peek(mcbp.HeaderSize)
	if err != nil {
		return mcbp.Frame{}, 0, err
	}
	h, err := mcbp.ParseHeader(head)
	if err != nil {
		return mcbp.Frame{}, 0, err
	}
	if h.Size() > r.Size() {
		f, err = ReadFrame(r)
		return f, 0, err
	}
	whole, err := r.Peek(h.Size())
	if err != nil {
		return mcbp.Frame{}, 0, noEOF(err)
	}
	return h.Frame(whole[mcbp.HeaderSize:]), h.Size(), nil
}

// answer finds the call of a response.
func (c *Conn) answer(f mcbp.Frame) error {
	c.mu.Lock()
	k := c.pending[f.Opaque]
	last := !moreFollows(f)
	if k == nil || f.Op != k.op { // whoever waits gets the error
		c.mu.Unlock()
		return fmt.Errorf("%w: %v answers the opaque %d, for which nobody waits", ErrProtocol, f.Op, f.Opaque)
	}
	if last {
		delete(c.pending, f.Opaque)
	}
	c.mu.Unlock()
	if last {
		c.slots.Release(k.cost)
	}
	if !c.session.Lapsed(f.Status()) {
		k.handle(f, nil)
		return nil
	}
	// Ended before anybody hears of it: who asks again at once must not be given this connection.
	err := NewStatusError(f)
	c.fail(c.lost(err))
	k.handle(f, nil)
	return err
}

// watchLoop ends the connection when an answer is owed, and nothing arrives and nothing more is taken of the oldest
// request. What is taken of later ones says nothing: that is the node's system, also where its process hangs.
func (c *Conn) watchLoop() error {
	tick := time.NewTicker(c.opTimeout / watchSteps)
	defer tick.Stop()
	var seen, had uint64
	silent := 0
	for {
		select {
		case <-c.done:
			return nil
		case <-tick.C:
		}
		owed, oldest := c.owed()
		arrived, taken := c.arrived.Load(), c.taken()
		moved := arrived != seen || had < oldest && had < taken
		seen, had = arrived, max(had, taken)
		if owed == 0 || moved {
			silent = 0
			continue
		}
		if silent++; silent >= watchSteps {
			c.fail(fmt.Errorf("%w: %s owes %d answers and takes and sends nothing for %v", ErrSilent, c.addr, owed,
				c.opTimeout))
		}
	}
}

// owed returns how many answers are, and where the oldest request to which one is ends in what is sent.
func (c *Conn) owed() (n int, oldest uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	oldest = c.queued
	for _, k := range c.pending {
		oldest = min(oldest, k.end)
	}
	return len(c.pending), oldest
}

// taken returns how many bytes the node's system has taken.
func (c *Conn) taken() uint64 {
	written := c.written.Load()
	return written - min(written, uint64(c.unsent()))
}

// countingReader counts what arrives.
type countingReader struct {
	r io.Reader
	n *atomic.Uint64
}

// Read reads and counts.
func (r countingReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	r.n.Add(uint64(n))
	return n, err
}

// lost words the end of a connection.
func (c *Conn) lost(err error) error {
	if errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF) {
		return fmt.Errorf("%w by %s", ErrClosed, c.addr)
	}
	return fmt.Errorf("%w: %s: %w", ErrClosed, c.addr, err)
}
