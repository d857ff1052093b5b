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
	// maxInFlightBytes bounds the unanswered requests on one connection. A larger single request is still sent, alone.
	maxInFlightBytes = 16 << 20
	// minRequestCost is the minimum that a request counts towards maxInFlightBytes, so that at most 4,096 are in flight.
	minRequestCost = 4 << 10
	// readBufferBytes is the size of the read buffer; answers up to this size are passed to their handler without a
	// copy.
	readBufferBytes = 64 << 10
	// writeStepBytes is the size of a single write, so that the watchdog sees the progress of a large request.
	writeStepBytes = 64 << 10
	// keptWriteBytes bounds the capacity of the write buffers that is kept between uses.
	keptWriteBytes = 1 << 20
	// watchSteps is the number of checks of the watchdog per OpTimeout.
	watchSteps = 4
)

// Conn is a connection to one node, shared by any number of callers: requests are pipelined, answers are matched by
// their opaque. The connection is closed if for Options.OpTimeout an answer is due, nothing is received, and the node
// makes no progress in reading the oldest unanswered request. A large request over a slow line may take as long as it
// needs.
type Conn struct {
	session   *Session
	addr      string
	opTimeout time.Duration
	slots     *semaphore.Weighted
	loops     errgroup.Group
	wake      chan struct{} // 1: there is something to write, or the connection ends
	arrived   atomic.Uint64 // bytes read, for the watchdog
	written   atomic.Uint64 // bytes that the operating system has accepted for sending
	unsent    func() int    // how many of these the node's system has not acknowledged
	done      chan struct{} // closed after err is set

	mu      sync.Mutex // leaf lock, guards the fields below
	out     []byte
	queued  uint64 // total of bytes appended to out
	pending map[uint32]*call
	opaque  uint32
	err     error
}

// call is one request waiting for its answer.
type call struct {
	op     mcbp.Opcode
	cost   int64
	end    uint64 // value of Conn.written when it has been sent
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

// newConn starts the reader, the writer and the watchdog of a session.
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

// Addr returns the node's address, as dialled.
func (c *Conn) Addr() string { return c.addr }

// Granted reports whether the node granted a feature.
func (c *Conn) Granted(f mcbp.Feature) bool { return c.session.Granted(f) }

// Mechanism returns the SASL mechanism of the login; "" without one, and if a certificate was sufficient.
func (c *Conn) Mechanism() string { return c.session.Mechanism() }

// TLS returns the state of the encryption; ok is false for an unencrypted connection.
func (c *Conn) TLS() (state tls.ConnectionState, ok bool) {
	tc, ok := c.session.Conn.(*tls.Conn)
	if !ok {
		return state, false
	}
	return tc.ConnectionState(), true
}

// CommonNameOnly reports whether the node's certificate identifies it by its common name alone. This package accepts
// that under an explicitly configured CA, other clients do not.
func (c *Conn) CommonNameOnly() bool {
	state, ok := c.TLS()
	return ok && len(state.PeerCertificates) > 0 && nameless(state.PeerCertificates[0])
}

// Done returns a channel that is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err returns why the connection ended; nil while it is open.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close closes the connection: unanswered requests fail with ErrClosed. It returns when the connection's goroutines
// have ended.
func (c *Conn) Close() error {
	c.fail(ErrClosed)
	_ = c.loops.Wait() // their errors are recorded by fail
	return nil
}

// Do sends a request and waits for its answer, whatever its status. It sets the opaque. The caller owns the answer.
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

// Stat reads a group of the node's statistics, which are tens of thousands for the vbuckets; an empty group is the
// general one. each is called for one entry after the other, by the connection's reader, with slices that are valid
// only during the call. It may still be called after Stat has returned an error.
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

// moreFollows reports whether an answer is not the last one to its request: STAT is answered once per entry, and
// finally with an empty key.
func moreFollows(f mcbp.Frame) bool {
	return f.Op == mcbp.OpStat && f.Status() == mcbp.StatusOK && len(f.Key) > 0
}

// Start sends a request and returns without waiting for the answer. handle is called once (for STAT: once per entry)
// by the connection's reader, with the answer (valid only during the call) or with the error that ended the
// connection. It must not block. If Start returns an error, handle is not called. Start blocks while too much is in
// flight.
func (c *Conn) Start(ctx context.Context, req mcbp.Frame, handle func(mcbp.Frame, error)) error {
	size := int64(mcbp.HeaderSize + len(req.Extras) + len(req.Key) + len(req.Value))
	k := &call{op: req.Op, cost: min(max(size, minRequestCost), maxInFlightBytes), handle: handle}
	// The end of the connection releases everything, so that this wait ends then, too.
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

// kick wakes the write loop.
func (c *Conn) kick() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// fail ends the connection, once; every waiting call gets err.
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

// writeLoop sends what Start has appended, many requests per write.
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

// readLoop passes the answers to their calls.
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

// nextFrame reads a frame in place if it fits the buffer (then discard is its size), else into new memory.
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

// answer passes a response to its call.
func (c *Conn) answer(f mcbp.Frame) error {
	c.mu.Lock()
	k := c.pending[f.Opaque]
	last := !moreFollows(f)
	if k == nil || f.Op != k.op { // the call gets the error
		c.mu.Unlock()
		return fmt.Errorf("%w: %v has the opaque %d, which no request has", ErrProtocol, f.Op, f.Opaque)
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
	// The connection ends before the caller gets the answer: a caller that retries at once must not get this connection.
	err := NewStatusError(f)
	c.fail(c.lost(err))
	k.handle(f, nil)
	return err
}

// watchLoop ends the connection if for OpTimeout an answer is due, nothing is received, and no more of the oldest
// request is acknowledged. Acknowledgements of later requests do not count: the node's operating system sends them
// even if its process hangs.
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
			c.fail(fmt.Errorf("%w: %s owes %d answers and has neither read nor sent data for %v", ErrSilent, c.addr, owed,
				c.opTimeout))
		}
	}
}

// owed returns how many answers are due, and the end of the oldest request without one, as a position in the sent
// bytes.
func (c *Conn) owed() (n int, oldest uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	oldest = c.queued
	for _, k := range c.pending {
		oldest = min(oldest, k.end)
	}
	return len(c.pending), oldest
}

// taken returns how many bytes the node's system has acknowledged.
func (c *Conn) taken() uint64 {
	written := c.written.Load()
	return written - min(written, uint64(c.unsent()))
}

// countingReader counts the bytes read.
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

// lost returns the error for the end of a connection.
func (c *Conn) lost(err error) error {
	if errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF) {
		return fmt.Errorf("%w by %s", ErrClosed, c.addr)
	}
	return fmt.Errorf("%w: %s: %w", ErrClosed, c.addr, err)
}
