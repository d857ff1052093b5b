package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"tidemark/keyversion"
)

// Options configures a client connection.
type Options struct {
	TLS *tls.Config // nil: no TLS
	// OnAck is called with each acknowledged number, in non-decreasing order and possibly repeated, from the
	// connection's own goroutine. It must not block.
	OnAck func(number uint64)
	// Dial opens the connection; nil: that of a net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// Conn is the router's end of one connection. Send must not be called concurrently; the other methods may.
type Conn struct {
	addr   string
	cc     *grpc.ClientConn
	stream grpc.ClientStream
	cancel context.CancelFunc
	onAck  func(uint64)
	dial   func(ctx context.Context, network, addr string) (net.Conn, error)
	tls    bool
	done   chan struct{}

	mu    sync.Mutex
	raw   net.Conn
	cause error // why the connection ended; set before done is closed
}

// Dial connects to addr (host:port), sends the hello and waits for the answer. ctx bounds that, and nothing after it.
// Errors wrap ErrRefused if the endpoint refused the hello. The connection lasts until Close, or until it fails, which
// Done signals.
func Dial(ctx context.Context, addr string, hello keyversion.Hello, opts Options) (*Conn, error) {
	frame, err := keyversion.AppendHello(nil, &hello)
	if err != nil {
		return nil, err
	}
	c := &Conn{addr: addr, onAck: opts.OnAck, dial: opts.Dial, tls: opts.TLS != nil, done: make(chan struct{})}
	if c.onAck == nil {
		c.onAck = func(uint64) {}
	}
	creds := insecure.NewCredentials()
	if opts.TLS != nil {
		creds = credentials.NewTLS(opts.TLS)
	}
	c.cc, err = grpc.NewClient("passthrough:///"+strings.ReplaceAll(addr, "%", "%25"), // a zone, in a URL
		grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(c.dialRaw),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(newCodec()), grpc.MaxCallRecvMsgSize(keyversion.MaxAckFrame)),
		grpc.WithNoProxy(), grpc.WithDisableRetry(), grpc.WithDisableServiceConfig(), grpc.WithIdleTimeout(0),
		grpc.WithWriteBufferSize(ioBufferBytes),
	)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", addr, err)
	}
	streamCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c.cancel = cancel
	untie := context.AfterFunc(ctx, c.cut)
	if err := c.handshake(streamCtx, frame); err != nil {
		untie()
		c.cut()
		c.cc.Close()
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
		return nil, fmt.Errorf("connect to %s: %w", addr, err)
	}
	if !untie() {
		c.cut()
	}
	go c.run()
	return c, nil
}

// dialRaw opens the socket and keeps it, so that cut can close it.
func (c *Conn) dialRaw(ctx context.Context, addr string) (net.Conn, error) {
	dial := c.dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	raw, err := dial(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	if t, ok := raw.(*net.TCPConn); ok {
		_ = t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: SilenceLimit, Interval: HeartbeatInterval,
			Count: 3}) // an error means that the connection has ended
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raw = raw
	return raw, nil
}

// handshake opens the stream, sends the hello and receives the answer.
func (c *Conn) handshake(ctx context.Context, hello []byte) error {
	stream, err := c.cc.NewStream(ctx, streamDesc(), fullMethod)
	if err != nil {
		return err
	}
	c.stream = stream
	if err := stream.SendMsg(&outbound{hello}); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	_, err = c.receive()
	return err
}

// receive receives the next acknowledgement. A refusal is an error.
func (c *Conn) receive() (uint64, error) {
	var in inbound
	if err := c.stream.RecvMsg(&in); err != nil {
		if errors.Is(err, io.EOF) {
			return 0, fmt.Errorf("%w by the receiver", ErrClosed)
		}
		return 0, err
	}
	defer in.buf.Free()
	ack, err := keyversion.DecodeAck(in.buf.ReadOnlyData())
	if err != nil {
		return 0, err
	}
	if ack.Refused != "" {
		c.onAck(ack.Number)
		return 0, fmt.Errorf("%w: %s", ErrRefused, ack.Refused)
	}
	return ack.Number, nil
}

// run receives acknowledgements until the connection ends.
func (c *Conn) run() {
	silent := time.AfterFunc(SilenceLimit, func() {
		c.fail(fmt.Errorf("%w for %s", ErrSilent, SilenceLimit))
		c.cut()
	})
	if c.tls {
		aged := time.AfterFunc(maxAge, func() {
			c.fail(fmt.Errorf("%w on this side: the receiver has to present its certificate again", ErrClosed))
			c.cut()
		})
		defer aged.Stop()
	}
	for {
		number, err := c.receive()
		if err != nil {
			c.fail(err)
			break
		}
		silent.Reset(SilenceLimit)
		c.onAck(number)
	}
	silent.Stop()
	c.cut()
	c.cc.Close()
	close(c.done)
}

// fail records the first cause.
func (c *Conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause == nil {
		c.cause = fmt.Errorf("connection to %s: %w", c.addr, err)
	}
}

// cut ends the connection at once, without waiting for calls in progress.
func (c *Conn) cut() {
	c.mu.Lock()
	raw := c.raw
	c.mu.Unlock()
	if raw != nil {
		raw.Close()
	}
	c.cancel()
}

// Send sends one frame. It blocks only while the receiver's flow control demands it, and not beyond the end of the
// connection. The frame's memory must not be changed before the frame is acknowledged; if the connection ends first,
// never. An error means that the connection has ended; Err returns the cause.
func (c *Conn) Send(frame []byte) error {
	err := c.stream.SendMsg(&outbound{frame})
	if err == nil {
		return nil
	}
	if !errors.Is(err, io.EOF) { // io.EOF: the stream has ended and the reader has recorded why
		c.fail(err)
		c.cut()
	}
	<-c.done
	return c.Err()
}

// Done returns a channel that is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err returns why the connection ended, nil before Done is closed.
func (c *Conn) Err() error {
	select {
	case <-c.done:
	default:
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// Close ends the connection at once and waits for its goroutines. Frames that are not acknowledged may or may not
// have been received.
func (c *Conn) Close() error {
	c.fail(fmt.Errorf("%w on this side", ErrClosed))
	c.cut()
	<-c.done
	return nil
}
