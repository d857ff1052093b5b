package feed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"tidemark/kv/kvclient"
	"tidemark/kv/mcbp"
)

// maxUnsent bounds the bytes that wait to be written to the socket: requests, noop answers and acknowledgements, all
// small. More means that the node does not read.
const maxUnsent = 1 << 20

// Conn is a DCP connection: see the package comment. All methods may be called from any goroutine. mu guards the
// state that reader, writer and callers share and that must change together, such as a block in the queue and the
// streams that it begins or ends.
type Conn struct {
	conf       Config
	session    *kvclient.Session
	loops      errgroup.Group
	wake       chan struct{} // 1: the writer has something to do
	ready      chan struct{} // 1: the queue has something, or the end has come
	written    chan struct{} // 1: a request was written; ends a rest
	done       chan struct{} // closed when err is set
	limit      int64         // most bytes that may be unacknowledged
	arrived    atomic.Uint64 // for the watchdog: bytes read
	watchLimit atomic.Int64  // of the watchdog, in steps
	held       atomic.Int64  // bytes received and not released
	released   func(int)     // acknowledge; stored to avoid an allocation per block
	chunks     chunks        // free memory to read into

	collections bool                  // keys carry a collection prefix
	endOnClose  bool                  // the node sends STREAM_END after CLOSE_STREAM; set before use
	pacer       atomic.Pointer[pacer] // nil if the node has flow control; set before use

	mu       sync.Mutex // leaf: the fields below
	out      []byte
	unacked  int // released bytes not yet acknowledged
	requests requests
	streams  map[uint16]StreamID // open on the node, as far as this side can tell
	lastID   StreamID
	queue    []*Block
	closed   bool
	err      error
}

// Dialer opens a Feed to the node in the configuration.
type Dialer func(ctx context.Context, conf Config) (Feed, error)

// DialFeed is Dial as a Dialer.
func DialFeed(ctx context.Context, conf Config) (Feed, error) {
	c, err := Dial(ctx, conf)
	if err != nil {
		return nil, err // not a Feed that holds a nil *Conn
	}
	return c, nil
}

// Dial opens a DCP connection and negotiates noops and flow control. Errors: those of the network, ErrAuth,
// ErrNoBucket, ErrNotSupported, ErrProtocol.
func Dial(ctx context.Context, conf Config) (*Conn, error) {
	conf, err := conf.Checked()
	if err != nil {
		return nil, err
	}
	var in *gatherer
	s, err := kvclient.Handshake(ctx, conf.Addr, kvclient.Options{
		Below: func(conn net.Conn) net.Conn {
			in = newGatherer(conn, conf.BufferBytes)
			return in
		},
		User: conf.User, Password: conf.Password, Bucket: conf.Bucket, Name: conf.Name,
		Features: []mcbp.Feature{mcbp.FeatureXattr, mcbp.FeatureSnappy, mcbp.FeatureCollections},
		TLS:      conf.TLS, AllowPlain: conf.AllowPlain, DialTimeout: conf.RequestTimeout, Logger: conf.Logger,
	})
	if err != nil {
		return nil, err
	}
	// FAILOVER_LOG and everything else must follow OPEN, otherwise the node closes the connection.
	flags := mcbp.OpenProducer
	if conf.Xattrs && s.Granted(mcbp.FeatureXattr) {
		flags |= mcbp.OpenXattrs
	}
	if conf.Tombstones {
		flags |= mcbp.OpenDeleteTimes
	}
	open := mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPOpen, 0, 0), Key: []byte(conf.Name),
		Extras: mcbp.Open{Flags: flags}.AppendExtras(nil)}
	octx, cancel := context.WithTimeout(ctx, conf.RequestTimeout)
	f, err := s.RoundTrip(octx, open)
	cancel()
	if err == nil {
		err = kvclient.NewStatusError(f)
	}
	if err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("feed: opening DCP connection %q to %s: %w", conf.Name, conf.Addr, err)
	}
	c := newConn(s, in, conf)
	if err := c.negotiate(ctx); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("feed: negotiating DCP with %s: %w", conf.Addr, err)
	}
	return c, nil
}

// newConn returns a connection on an opened session, with its loops started. in is what the session reads from; nil if
// that is not to rest.
func newConn(s *kvclient.Session, in *gatherer, conf Config) *Conn {
	c := &Conn{
		conf: conf, session: s,
		wake: make(chan struct{}, 1), ready: make(chan struct{}, 1), written: make(chan struct{}, 1),
		done:        make(chan struct{}),
		limit:       int64(conf.BufferBytes) + 2*(mcbp.HeaderSize+mcbp.MaxBody),
		collections: s.Granted(mcbp.FeatureCollections),
		requests:    requests{pending: map[uint32]*request{}}, streams: map[uint16]StreamID{},
	}
	c.released = c.acknowledge
	c.watchLimit.Store(watchSteps)
	if in != nil {
		in.start(c.rests(in), conf.TLS != nil)
	}
	c.loops.Go(c.readLoop)
	c.loops.Go(c.writeLoop)
	c.loops.Go(c.watchLoop)
	return c
}

// negotiate sends the controls. If one is unknown to the node, the connection only fails if it is essential: the set
// of control keys depends on the node's version.
func (c *Conn) negotiate(ctx context.Context) error {
	if err := c.negotiateNoops(ctx); err != nil {
		return err
	}
	controls := []struct {
		key, value string
		essential  bool
	}{
		{mcbp.ControlBufferSize, fmt.Sprint(c.conf.BufferBytes), true},
		{mcbp.ControlEndOnClose, "true", false},
		{mcbp.ControlExpiryOpcode, "true", true},
		{mcbp.ControlMaxMarker, "2.2", false},
	}
	if !c.conf.Tombstones {
		controls = controls[:len(controls)-2]
	}
	for _, k := range controls {
		err := c.control(ctx, k.key, k.value)
		if err != nil && !Refused(err) {
			return err
		}
		switch {
		case err == nil && k.key == mcbp.ControlEndOnClose:
			c.mu.Lock()
			c.endOnClose = true
			c.mu.Unlock()
		case err != nil && k.key == mcbp.ControlBufferSize:
			c.conf.Logger.Warn("node has no flow control: streams are closed when too much memory is held, and reopened later",
				"kv", c.conf.Addr, "error", err)
			c.pacer.Store(newPacer(c))
		case err != nil && k.essential:
			return unsupported(k.key, k.value, err)
		case err != nil:
			c.conf.Logger.Debug("node does not support a DCP control", "control", k.key, "error", err)
		}
	}
	return nil
}

// control sends one control.
func (c *Conn) control(ctx context.Context, key, value string) error {
	f, err := c.call(ctx, mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPControl, 0, 0), Key: []byte(key),
		Value: []byte(value)})
	if err != nil {
		return err
	}
	return kvclient.NewStatusError(f)
}

// Refused reports whether an error is a definite refusal by the node, in contrast to a temporary failure or one of
// the connection.
func Refused(err error) bool {
	var se *kvclient.StatusError
	return errors.As(err, &se) && !errors.Is(err, ErrTemporary)
}

// unsupported returns the error for an essential control that the node refuses.
func unsupported(key, value string, err error) error {
	return fmt.Errorf("%w: control %s=%s: %w", ErrNotSupported, key, value, err)
}

// Close ends the connection and waits for its goroutines. Blocks not yet taken are dropped; those taken stay valid
// until released.
func (c *Conn) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.fail(ErrClosed)
	_ = c.loops.Wait() // its errors are what fail recorded
	c.mu.Lock()
	queue := c.queue
	c.queue = nil
	c.mu.Unlock()
	for _, b := range queue {
		b.free()
	}
	return nil
}

// Done is closed when the connection has ended. Blocks may still be queued.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err returns why the connection ended; nil while it is open.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Addr returns the node's address, as dialled.
func (c *Conn) Addr() string { return c.conf.Addr }

// Next returns the next block. It waits until there is one, ctx ends, or the connection has ended and all blocks have
// been taken; then it returns the reason. Calls must not be concurrent, otherwise the order of blocks is lost.
func (c *Conn) Next(ctx context.Context) (*Block, error) {
	for {
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return nil, ErrClosed
		}
		if len(c.queue) > 0 {
			b := c.queue[0]
			c.queue[0] = nil
			c.queue = c.queue[1:]
			c.mu.Unlock()
			return b, nil
		}
		err := c.err
		c.mu.Unlock()
		if err != nil {
			return nil, err
		}
		select {
		case <-c.ready:
		case <-c.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Held returns how many bytes have been received and not yet released.
func (c *Conn) Held() int64 { return c.held.Load() }

// push queues the reader's block, or adds it to the newest queued block if they share memory, so that a trickle of
// small messages does not become a long queue. If the block has no event, push returns false and the caller keeps it.
func (c *Conn) push(b *Block) bool {
	c.mu.Lock()
	if p := c.pacer.Load(); p != nil {
		b.Events = append(b.Events, p.ends...)
		p.ends, p.making = nil, false
	}
	if len(b.Events) == 0 {
		c.mu.Unlock()
		return false
	}
	if n := len(c.queue); n > 0 && len(b.chunks) > 0 && len(c.queue[n-1].chunks) > 0 &&
		c.queue[n-1].chunks[0] == b.chunks[0] {
		c.queue[n-1].merge(b)
	} else {
		c.queue = append(c.queue, b)
	}
	c.mu.Unlock()
	poke(c.ready)
	return true
}

// acknowledge counts released bytes and sends an acknowledgement once they reach a fifth of the window. It never
// acknowledges more than was received, because only bytes counted by a block are passed to it.
func (c *Conn) acknowledge(n int) {
	c.held.Add(-int64(n))
	c.mu.Lock()
	if p := c.pacer.Load(); p != nil {
		p.resume()
		c.mu.Unlock()
		return
	}
	c.unacked += n
	due := c.unacked >= c.conf.BufferBytes/ackFraction && c.err == nil
	if due {
		var extras [mcbp.BufferAckSize]byte
		c.sendLocked(mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPBufferAck, 0, 0), Extras: mcbp.AppendBufferAck(extras[:0],
			uint32(c.unacked))})
		c.unacked = 0
	}
	c.mu.Unlock()
	if due {
		poke(c.wake)
	}
}

// sendLocked appends a frame to the writer's buffer. Append cannot fail, because frames made here are within its
// limits.
func (c *Conn) sendLocked(f mcbp.Frame) {
	if out, err := mcbp.Append(c.out, f); err == nil {
		c.out = out
	}
}

// poke wakes the goroutine that waits on a channel with capacity 1.
func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// fail ends the connection once: every waiting request gets err, and Next returns it after the queued blocks.
func (c *Conn) fail(err error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	c.requests.fail(err)
	close(c.done)
	c.mu.Unlock()
	_ = c.session.Close()
	poke(c.wake)
}

// writeLoop writes the buffer that sendLocked fills.
func (c *Conn) writeLoop() error {
	var buf []byte
	for {
		select {
		case <-c.wake:
		case <-c.done:
			return nil
		}
		runtime.Gosched() // lets other goroutines add their requests: many requests, one system call
		c.mu.Lock()
		buf, c.out = c.out, buf[:0]
		c.mu.Unlock()
		if len(buf) == 0 {
			continue
		}
		if _, err := c.session.Write(buf); err != nil {
			c.fail(c.lost(err))
			return err
		}
		poke(c.written)
	}
}

// lost wraps the error that ended the connection.
func (c *Conn) lost(err error) error {
	return fmt.Errorf("%w: DCP connection %q to %s: %w", ErrClosed, c.conf.Name, c.conf.Addr, err)
}
