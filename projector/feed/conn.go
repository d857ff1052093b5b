package feed

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"tidemark/kv/kvclient"
	"tidemark/kv/mcbp"
)

// maxUnsent bounds what waits for the socket to take it: requests, noop answers
// and acknowledgements, all small. More means a node that does not read.
const maxUnsent = 1 << 20

// Conn is a DCP connection: see the package comment. All methods may be called
// from any goroutine. Its reader, its writer and its callers share what mu guards,
// which changes together: a block in the queue, and the streams that it begins or ends.
type Conn struct {
	conf     Config
	session  *kvclient.Session
	loops    errgroup.Group
	wake     chan struct{} // 1: the writer has something to do
	ready    chan struct{} // 1: the queue has something, or the end has come
	done     chan struct{} // closed when err is set
	limit    int64         // most bytes that may be unacknowledged
	arrived  atomic.Uint64 // bytes read, for the watchdog
	patience atomic.Int64  // of the watchdog, in its steps
	held     atomic.Int64  // bytes received and not released
	released func(int)     // acknowledge, made once
	chunks   chunks        // free memory to read into

	collections bool                  // keys carry a collection prefix
	endOnClose  bool                  // the node sends STREAM_END after CLOSE_STREAM; set before use
	pacer       atomic.Pointer[pacer] // nil with flow control; set before use

	mu       sync.Mutex // leaf: the fields below
	out      []byte
	unacked  int // released bytes not yet acknowledged
	requests requests
	streams  map[uint16]StreamID // open on the node, as far as we know
	lastID   StreamID
	queue    []*Block
	closed   bool
	err      error
}

// Dialer opens a Feed to the node that the configuration names.
type Dialer func(ctx context.Context, conf Config) (Feed, error)

// DialFeed is Dial as a Dialer.
func DialFeed(ctx context.Context, conf Config) (Feed, error) {
	c, err := Dial(ctx, conf)
	if err != nil {
		return nil, err // and no Feed that holds nil
	}
	return c, nil
}

// Dial opens a DCP connection and negotiates noops and flow control. Errors:
// those of the network, ErrAuth, ErrNoBucket, ErrNotSupported, ErrProtocol.
func Dial(ctx context.Context, conf Config) (*Conn, error) {
	conf, err := conf.Checked()
	if err != nil {
		return nil, err
	}
	s, err := kvclient.Handshake(ctx, conf.Addr, kvclient.Options{
		User: conf.User, Password: conf.Password, Bucket: conf.Bucket, Name: conf.Name,
		Features: []mcbp.Feature{mcbp.FeatureXattr, mcbp.FeatureSnappy, mcbp.FeatureCollections},
		TLS:      conf.TLS, AllowPlain: conf.AllowPlain, DialTimeout: conf.RequestTimeout, Logger: conf.Logger,
	})
	if err != nil {
		return nil, err
	}
	// FAILOVER_LOG and everything else comes after OPEN, or the node hangs up.
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
	c := newConn(s, conf)
	if err := c.negotiate(ctx); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("feed: negotiating DCP with %s: %w", conf.Addr, err)
	}
	return c, nil
}

// newConn starts the loops of an opened session.
func newConn(s *kvclient.Session, conf Config) *Conn {
	c := &Conn{
		conf: conf, session: s,
		wake: make(chan struct{}, 1), ready: make(chan struct{}, 1), done: make(chan struct{}),
		limit:       int64(conf.BufferBytes) + 2*(mcbp.HeaderSize+mcbp.MaxBody),
		collections: s.Granted(mcbp.FeatureCollections),
		requests:    requests{pending: map[uint32]*request{}}, streams: map[uint16]StreamID{},
	}
	c.released = c.acknowledge
	c.patience.Store(watchSteps)
	c.loops.Go(c.readLoop)
	c.loops.Go(c.writeLoop)
	c.loops.Go(c.watchLoop)
	return c
}

// negotiate sends the controls. An unknown one ends the connection only if it is
// essential: control keys differ by the node's version.
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
			c.conf.Logger.Warn("the node knows no flow control: streams are closed when too much is held, and opened again",
				"kv", c.conf.Addr, "error", err)
			c.pacer.Store(newPacer(c))
		case err != nil && k.essential:
			return unsupported(k.key, k.value, err)
		case err != nil:
			c.conf.Logger.Debug("control not known to the node", "control", k.key, "error", err)
		}
	}
	return nil
}

// control sends one.
func (c *Conn) control(ctx context.Context, key, value string) error {
	f, err := c.call(ctx, mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPControl, 0, 0), Key: []byte(key),
		Value: []byte(value)})
	if err != nil {
		return err
	}
	return kvclient.NewStatusError(f)
}

// Refused reports whether an error is a node's answer of no, as against one that is not known: a failure that is
// temporary, or of the connection.
func Refused(err error) bool {
	var se *kvclient.StatusError
	return errors.As(err, &se) && !errors.Is(err, ErrTemporary)
}

// unsupported is the error of a control that cannot be done without.
func unsupported(key, value string, err error) error {
	return fmt.Errorf("%w: control %s=%s: %w", ErrNotSupported, key, value, err)
}

// Close ends the connection and waits for its goroutines. Blocks not yet taken
// are dropped; those taken stay valid until released.
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

// Done is closed when the connection has ended. Blocks may still be waiting.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err is why the connection ended; nil while it lives.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Addr is the node's address, as dialled.
func (c *Conn) Addr() string { return c.conf.Addr }

// Next takes the next block. It waits until there is one, ctx ends, or the
// connection has ended and all blocks have been taken: then it returns why. Only
// one goroutine may call Next at a time, or the order is lost.
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

// Held is how many bytes have been received and not yet released.
func (c *Conn) Held() int64 { return c.held.Load() }

// push queues the block that the reader has made, or adds it to the newest one
// that nobody has taken yet, if they share memory: a trickle of small messages must
// not become a long queue. It returns false, and leaves the block to the caller, if
// there is no event in it.
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

// acknowledge books released bytes and tells the node when they are a fifth of
// the window. Never more than was received: only what a block counted comes here.
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

// sendLocked appends a frame to what the writer sends. Our own frames are within
// the limits, so Append cannot refuse them.
func (c *Conn) sendLocked(f mcbp.Frame) {
	if out, err := mcbp.Append(c.out, f); err == nil {
		c.out = out
	}
}

// poke wakes whoever waits on a channel with room for one.
func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// fail ends the connection once: every waiting request gets err, Next gets it
// after the blocks.
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

// writeLoop sends what has been put together.
func (c *Conn) writeLoop() error {
	var buf []byte
	for {
		select {
		case <-c.wake:
		case <-c.done:
			return nil
		}
		runtime.Gosched() // whoever else is about to send something joins in: many requests, one system call
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
		if k := c.conf.Calm; k != nil {
			poke(k.wake) // an answer may be waited for
		}
	}
}

// lost words the end of a connection.
func (c *Conn) lost(err error) error {
	return fmt.Errorf("%w: DCP connection %q to %s: %w", ErrClosed, c.conf.Name, c.conf.Addr, err)
}
