package server

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"tidemark/kv/mcbp"
	"tidemark/kv/store"
)

const (
	// readBufferBytes is large enough to hold most frames, which are then handled in place.
	readBufferBytes = 64 << 10
	// flushBytes and flushWriteBytes are the bytes of answers, and of writes that answers wait for, from which answers
	// are sent without looking for more requests.
	flushBytes      = 64 << 10
	flushWriteBytes = 1 << 20
	// writeTLSBytes is the maximum size of one write inside TLS.
	writeTLSBytes = 64 << 10
	// serverDuration is the server duration reported with the mood Frames: about 57 µs.
	serverDuration = 15
	// progressPart divides the timeout for a frame into windows; in each window at least that part of readBufferBytes
	// must arrive of a large frame. So no large frame has to arrive faster than the largest small one.
	progressPart = 6
	// directBytes is the size from which a value is written from where it is stored, without being copied into the
	// answers.
	directBytes = 64 << 10
	// keepBytes is the size of the largest buffer that a connection keeps.
	keepBytes = 1 << 20
	// maxSkipBytes bounds the oversized bodies that are skipped; a connection that announces more is closed.
	maxSkipBytes = 4 * mcbp.MaxBody
)

var (
	// errQuit ends a connection at the client's request.
	errQuit = errors.New("client quits")
	// errUnfinished ends a connection whose request stays incomplete.
	errUnfinished = errors.New("a request is incomplete")
	// errSkipped means that a request was too large, and that it has been answered and skipped.
	errSkipped = errors.New("request ignored")
)

// conn is one client connection. One goroutine (serve) reads requests and answers them; a DCP producer has a second
// one, which writes stream messages under wmu.
type conn struct {
	srv *Server
	nc  net.Conn
	id  uint64

	encrypted bool // by TLS

	r *bufio.Reader

	// Owned by the reading goroutine.
	out          []byte   // answers not sent yet
	waits        []answer // parts of out that wait for the log
	config       configSeen
	sasl         login
	rights       rights
	authFailures int
	unauthSince  time.Time // when the connection was opened or began to authenticate once more

	// Set by the reading goroutine before a producer exists, read-only afterwards.
	authed     bool
	user       string // authenticated user
	bucket     *Bucket
	bucketName string
	features   featureSet
	dcp        *producer

	group *errgroup.Group
	wmu   sync.Mutex // socket writes: whole messages, in order
}

// answer is a part of out that may be sent only after its ticket is in the log.
type answer struct {
	ticket     *store.Ticket
	start, end int
	request    mcbp.Header
}

type featureSet struct{ tokens, json, xattr, snappy, xerror, collections, dedupNMVB, frames bool }

// configSeen is the newest cluster config that the client is known to have.
type configSeen struct{ epoch, rev int64 }

func newConn(s *Server, nc net.Conn, id uint64) *conn {
	c := &conn{srv: s, nc: nc, id: id, r: bufio.NewReaderSize(nc, readBufferBytes), unauthSince: s.opts.Now(),
		sasl: login{auth: s.auth}}
	raw := nc
	if t, ok := nc.(*tls.Conn); ok {
		c.encrypted, raw = true, t.NetConn()
	}
	if tcp, ok := raw.(*net.TCPConn); ok {
		_ = tcp.SetNoDelay(true)
		_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: keepAlivePeriod, Interval: keepAlivePeriod})
	}
	return c
}

func (c *conn) close() { _ = c.nc.Close() }

// warn logs what a client did wrong. Clients without any permission can cause it: see package loglimit.
func (c *conn) warn(what string, args ...any) {
	addr := c.nc.RemoteAddr().String()
	c.srv.mu.Lock()
	leftOut, due := c.srv.warned.Due(what, addr, c.srv.opts.Now())
	c.srv.mu.Unlock()
	if due {
		c.srv.opts.Logger.Warn(what, append([]any{"remote", addr, "left_out", leftOut}, args...)...)
	}
}

// serve reads and answers requests until the connection ends.
func (c *conn) serve(ctx context.Context, group *errgroup.Group) {
	c.group = group
	err := c.handshake(ctx)
	if err == nil {
		err = c.loop(ctx)
	}
	c.close()
	if c.dcp != nil {
		c.dcp.stop()
	}
	c.srv.forget(c)
	switch {
	case ctx.Err() != nil, errors.Is(err, io.EOF), errors.Is(err, errQuit), errors.Is(err, net.ErrClosed):
		c.srv.opts.Logger.Trace("connection ended", "remote", c.nc.RemoteAddr())
	case errors.Is(err, mcbp.ErrMagic), errors.Is(err, mcbp.ErrTooLarge), errors.Is(err, mcbp.ErrLengths),
		errors.Is(err, mcbp.ErrMalformed):
		c.srv.counters.ProtocolErrors.Add(1)
		c.warn("connection closed: protocol violation", "error", err)
	case errors.Is(err, errUnfinished), errors.Is(err, errStalled), errors.Is(err, errMakeRoom):
		c.warn("connection closed: incomplete request", "user", c.user, "error", err)
	default:
		c.srv.opts.Logger.Debug("connection closed", "remote", c.nc.RemoteAddr(), "error", err)
	}
}

// handshake performs the TLS handshake, if the connection uses TLS.
func (c *conn) handshake(ctx context.Context) error {
	t, ok := c.nc.(*tls.Conn)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.srv.opts.AuthTimeout)
	defer cancel()
	return t.HandshakeContext(ctx)
}

func (c *conn) loop(ctx context.Context) error {
	for {
		if !c.frameBuffered() {
			if err := c.flush(); err != nil {
				return err
			}
		}
		f, used, err := c.read(ctx)
		if errors.Is(err, errSkipped) {
			continue
		}
		if err != nil {
			if errors.Is(err, mcbp.ErrMagic) || errors.Is(err, mcbp.ErrTooLarge) || errors.Is(err, mcbp.ErrLengths) {
				_ = c.flush() // earlier requests were valid
			}
			return err
		}
		err = c.dispatch(ctx, f)
		if used > 0 {
			_, _ = c.r.Discard(used)
		} else {
			c.srv.large.Release(int64(f.BodyLen))
		}
		if err != nil {
			_ = c.flush()
			return err
		}
		if len(c.out) >= flushBytes || c.waiting() >= flushWriteBytes {
			if err := c.flush(); err != nil {
				return err
			}
		}
	}
}

// frameBuffered reports whether the read buffer holds a whole frame, so that pending answers may wait for its answer.
func (c *conn) frameBuffered() bool {
	n := c.r.Buffered()
	if n < mcbp.HeaderSize {
		return false
	}
	head, err := c.r.Peek(mcbp.HeaderSize)
	if err != nil {
		return false
	}
	h, err := mcbp.ParseHeader(head)
	return err == nil && h.Size() <= n
}

func (c *conn) waiting() int {
	if len(c.waits) == 0 {
		return 0
	}
	return c.waits[len(c.waits)-1].ticket.Size()
}

// read waits for the next frame. used is the number of bytes that it occupies in the read buffer (call Discard after
// use). For a large frame used is 0: it has its own buffer, which grows as bytes arrive; release its size from the
// server's budget for large frames after use.
func (c *conn) read(ctx context.Context) (f mcbp.Frame, used int, err error) {
	idle, frame := c.srv.opts.IdleTimeout, c.srv.opts.FrameTimeout
	if !c.authed { // for all its requests together: an unauthenticated client must not keep a connection
		idle = max(c.srv.opts.AuthTimeout-c.srv.opts.Now().Sub(c.unauthSince), 1)
		frame = min(frame, idle)
	}
	if c.dcp != nil {
		idle = 0 // NOOPs and keep-alives detect a dead peer
	}
	c.setReadDeadline(idle)
	head, err := c.r.Peek(1)
	if err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = fmt.Errorf("no request for %v: %w", idle, err)
		}
		return f, 0, err
	}
	if !mcbp.Magic(head[0]).Valid() {
		return f, 0, fmt.Errorf("%w: %#02x", mcbp.ErrMagic, head[0])
	}
	if c.r.Buffered() < mcbp.HeaderSize {
		c.setReadDeadline(frame)
	}
	if head, err = c.r.Peek(mcbp.HeaderSize); err != nil {
		return f, 0, c.unfinished(err, "a header", frame)
	}
	h, err := mcbp.ParseHeader(head)
	if err != nil {
		return f, 0, c.tooLarge(h, err)
	}
	if c.r.Buffered() < h.Size() {
		c.setReadDeadline(frame)
	}
	if h.Size() <= readBufferBytes {
		whole, err := c.r.Peek(h.Size())
		if err != nil {
			return f, 0, c.unfinished(err, h.Op.String(), frame)
		}
		return h.Frame(whole[mcbp.HeaderSize:]), h.Size(), nil
	}
	if !c.authed {
		return f, 0, fmt.Errorf("%w: %v with a body of %d bytes before authentication", mcbp.ErrTooLarge, h.Op, h.BodyLen)
	}
	return c.readLarge(ctx, h)
}

// readLarge reads a frame that does not fit into the read buffer. The frame takes part of the server's budget for
// large frames only once it has filled the read buffer, and only while its bytes arrive: a client that announces much
// and sends little does not block others.
func (c *conn) readLarge(ctx context.Context, h mcbp.Header) (f mcbp.Frame, used int, err error) {
	frame := c.srv.opts.FrameTimeout
	if _, err := c.r.Peek(readBufferBytes); err != nil {
		return f, 0, c.unfinished(err, h.Op.String(), frame)
	}
	_, _ = c.r.Discard(mcbp.HeaderSize)
	size := int64(h.BodyLen)
	if !c.srv.large.TryAcquire(size) {
		c.srv.queued.Add(1)
		err := c.srv.large.Acquire(ctx, size)
		c.srv.queued.Add(-1)
		if err != nil {
			return f, 0, err
		}
	}
	body := make([]byte, 0, min(h.BodyLen, readBufferBytes))
	pace := newPace(frame, h.BodyLen, c.r.Buffered(), c.srv.opts.Now())
	for len(body) < h.BodyLen {
		if len(body) == cap(body) { // fourfold: few bytes are copied twice, and little memory is held for an announced size
			body = append(make([]byte, 0, min(h.BodyLen, 4*len(body))), body...)
		}
		c.setReadDeadline(max(pace.end.Sub(c.srv.opts.Now()), 1))
		n, err := c.r.Read(body[len(body):min(cap(body), len(body)+readBufferBytes)])
		body = body[:len(body)+n]
		if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			err = pace.look(c.srv.opts.Now(), len(body), c.srv.queued.Load() > 0)
		}
		if err != nil {
			c.srv.large.Release(size)
			return f, 0, err
		}
	}
	return h.Frame(body), 0, nil
}

// tooLarge answers a request whose body exceeds the protocol's limit. A body that is not far above it is skipped
// without buffering, and the connection continues (the result wraps errSkipped); otherwise the connection ends.
func (c *conn) tooLarge(h mcbp.Header, err error) error {
	if !errors.Is(err, mcbp.ErrTooLarge) || !c.authed || !h.Magic.IsRequest() {
		return err
	}
	c.status(h, mcbp.StatusTooBig, nil)
	if h.BodyLen > maxSkipBytes {
		return err
	}
	c.setReadDeadline(c.srv.opts.FrameTimeout)
	if _, err := io.CopyN(io.Discard, c.r, int64(h.Size())); err != nil {
		return c.unfinished(err, h.Op.String(), c.srv.opts.FrameTimeout)
	}
	c.srv.counters.Requests.Add(1)
	return fmt.Errorf("%w: %w", errSkipped, err)
}

func (c *conn) setReadDeadline(after time.Duration) {
	deadline := time.Time{}
	if after > 0 {
		deadline = c.srv.opts.Now().Add(after)
	}
	_ = c.nc.SetReadDeadline(deadline)
}

// unfinished turns a timeout in the middle of a request into an error that names what is missing.
func (c *conn) unfinished(err error, what string, after time.Duration) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w: the rest of %s did not arrive within %v", errUnfinished, what, after)
	}
	return err
}

// reply adds an answer. If ticket is not nil, the answer is sent only after the ticket is in the log.
func (c *conn) reply(h mcbp.Header, f mcbp.Frame, ticket *store.Ticket) {
	start := len(c.out)
	f.Header.Magic, f.Header.Op, f.Header.Opaque = mcbp.MagicResponse, h.Op, h.Opaque
	if c.features.frames {
		f.FrameExtras = mcbp.AppendServerDuration(nil, serverDuration)
	}
	out, err := mcbp.Append(c.out, f)
	if err != nil { // our own answer is invalid
		c.srv.opts.Logger.Error("answer cannot be encoded", "opcode", h.Op, "error", err)
		c.status(h, mcbp.StatusInternal, ticket)
		return
	}
	c.out = out
	c.after(h, ticket, start)
}

// replyDirect sends an answer with a large value without copying the value: many slow clients may be receiving such
// values at the same time. A failure ends the connection.
func (c *conn) replyDirect(h mcbp.Header, f mcbp.Frame, ticket *store.Ticket) {
	f.Header.Magic, f.Header.Op, f.Header.Opaque = mcbp.MagicResponse, h.Op, h.Opaque
	if c.features.frames {
		f.FrameExtras = mcbp.AppendServerDuration(nil, serverDuration)
	}
	head, err := mcbp.AppendHeader(nil, f)
	if err != nil || ticket.Wait() != nil || c.flush() != nil {
		c.reply(h, f, ticket) // reports the problem, if the connection still works
		return
	}
	head = append(append(append(head, f.FrameExtras...), f.Extras...), f.Key...)
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if c.write(head, c.srv.opts.WriteTimeout) == nil {
		_ = c.write(f.Value, c.srv.opts.WriteTimeout)
	}
}

// after makes the answers added since start wait for a ticket; there may be none (a quiet request).
func (c *conn) after(h mcbp.Header, ticket *store.Ticket, start int) {
	if ticket != nil {
		c.waits = append(c.waits, answer{ticket: ticket, start: start, end: len(c.out), request: h})
	}
}

// status adds an answer that consists of a status only.
func (c *conn) status(h mcbp.Header, s mcbp.Status, ticket *store.Ticket) {
	c.reply(h, mcbp.Frame{Header: mcbp.Header{VBucketOrStatus: uint16(s)}}, ticket)
}

// refuse adds an answer with a reason, if the client has negotiated error contexts.
func (c *conn) refuse(h mcbp.Header, s mcbp.Status, why string) {
	answer := mcbp.Frame{Header: mcbp.Header{VBucketOrStatus: uint16(s)}}
	if c.features.xerror {
		body, err := json.Marshal(map[string]map[string]string{"error": {"context": why}})
		if err == nil {
			answer.Value, answer.Datatype = body, c.jsonType()
		}
	}
	c.reply(h, answer, nil)
}

// value adds a successful answer with a value.
func (c *conn) value(h mcbp.Header, value []byte) {
	c.reply(h, mcbp.Frame{Value: value}, nil)
}

// flush sends the answers after everything that they depend on is in the log.
func (c *conn) flush() error {
	if len(c.out) == 0 && len(c.waits) == 0 {
		return nil
	}
	c.settle()
	if len(c.out) == 0 {
		return nil
	}
	c.wmu.Lock()
	err := c.write(c.out, c.srv.opts.WriteTimeout)
	c.wmu.Unlock()
	if cap(c.out) > keepBytes {
		c.out = nil
	}
	c.out = c.out[:0]
	return err
}

// settle waits for the log, and replaces answers whose write failed by "temporary failure".
func (c *conn) settle() {
	failed := false
	for i := len(c.waits) - 1; i >= 0; i-- { // the last one first: one write then completes all
		failed = c.waits[i].ticket.Wait() != nil || failed
	}
	if failed {
		var out []byte
		at := 0
		for _, w := range c.waits {
			out = append(out, c.out[at:w.start]...)
			at = w.end
			if w.ticket.Wait() == nil {
				out = append(out, c.out[w.start:w.end]...)
				continue
			}
			c.srv.counters.TemporaryFailures.Add(1)
			out, _ = mcbp.Append(out, mcbp.Frame{Header: mcbp.Response(w.request, mcbp.StatusTemporary)})
		}
		c.out = append(out, c.out[at:]...)
	}
	clear(c.waits)
	c.waits = c.waits[:0]
}

// write sends bytes; the caller holds wmu. The timeout restarts with every progress.
func (c *conn) write(b []byte, limit time.Duration) error {
	for len(b) > 0 {
		part := b
		if c.encrypted { // a TLS write that was interrupted cannot be resumed
			part = b[:min(len(b), writeTLSBytes)]
		}
		_ = c.nc.SetWriteDeadline(c.srv.opts.Now().Add(limit))
		n, err := c.nc.Write(part)
		b = b[n:]
		if err != nil && (n == 0 || !errors.Is(err, os.ErrDeadlineExceeded)) {
			c.close()
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return fmt.Errorf("the client read no bytes for %v: %w", limit, err)
			}
			return err
		}
	}
	return nil
}
