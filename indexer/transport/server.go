package transport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"

	"tidemark/index"
	"tidemark/keyversion"
)

// Sink receives the batches of one connection. Its methods are called one at a time, Closed last and once.
type Sink interface {
	// Receive is called with the batches in order. Returning nil accepts the batch: it is then acknowledged, and the
	// sink must call release exactly once, from any goroutine and at any later time, when it no longer needs b or
	// anything in it (events alias b's frame). Until Receive returns, the sender is held back. An error refuses the
	// batch: its text is sent to the sender, the connection ends, and release must not be called. ctx ends with the
	// connection.
	Receive(ctx context.Context, b *keyversion.Batch, release func()) error
	// Closed is called when no more batches will come. err is the reason and never nil.
	Closed(err error)
}

// Accept accepts or refuses a connection by its hello. The text of an error is sent to the client. When a router
// reconnects (same cluster, projector, topic, bucket and connection number), Closed of the older connection's sink
// has returned before Accept is called: nothing of an older connection arrives after anything of a newer one.
type Accept func(ctx context.Context, hello keyversion.Hello) (Sink, error)

// ServerConfig configures a Server; only Logger is required.
type ServerConfig struct {
	Logger         hclog.Logger
	TLS            *tls.Config // nil: no TLS. With TLS a connection is closed after RenewAfter
	MaxConnections int         // 0: DefaultMaxConnections
	// Now is the clock by which log lines are limited; nil: time.Now.
	Now func() time.Time
}

// Server is the indexer's end, one per data port (maintenance, backfill, catchup).
type Server struct {
	log    hclog.Logger
	accept Accept
	grpc   *grpc.Server
	guard  *guard
	pool   sync.Pool // of *delivery

	mu       sync.Mutex
	sessions map[sessionKey]*session
}

// sessionKey identifies what may have only one connection at a time.
type sessionKey struct {
	cluster, topic, bucket string
	projector              index.ProjectorID
	connection             uint16
}

// session is a connection whose hello was received.
type session struct {
	conn *guarded
	done chan struct{} // closed after its sink was closed
}

// NewServer returns a server. The caller must call Serve.
func NewServer(cfg ServerConfig, accept Accept) *Server {
	most := cfg.MaxConnections
	if most == 0 {
		most = DefaultMaxConnections
	}
	now := cfg.Now
	if now == nil {
		now = time.Now
	}
	s := &Server{log: cfg.Logger, accept: accept, guard: newGuard(cfg.Logger, most, now),
		sessions: make(map[sessionKey]*session)}
	s.pool.New = func() any { return newDelivery(&s.pool) }
	alive := keepalive.ServerParameters{
		MaxConnectionIdle: 2 * HelloTimeout, // a connection without a stream
		Time:              HeartbeatInterval,
		Timeout:           SilenceLimit - HeartbeatInterval,
	}
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxConcurrentStreams(1),
		grpc.MaxHeaderListSize(16 << 10),
		grpc.StaticStreamWindowSize(windowBytes),
		grpc.StaticConnWindowSize(2 * windowBytes),
		grpc.ReadBufferSize(ioBufferBytes),
		grpc.ConnectionTimeout(HelloTimeout),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: HeartbeatInterval, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
	}
	if cfg.TLS != nil {
		alive.MaxConnectionAge, alive.MaxConnectionAgeGrace = RenewAfter, SilenceLimit
		options = append(options, grpc.Creds(credentials.NewTLS(cfg.TLS)))
	}
	options = append(options, grpc.KeepaliveParams(alive))
	s.grpc = grpc.NewServer(options...)
	s.grpc.RegisterService(&grpc.ServiceDesc{
		ServiceName: serviceName,
		HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{
			StreamName: methodName, ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, st grpc.ServerStream) error { return s.serve(st) },
		}},
	}, s)
	return s
}

// Serve accepts connections on lis until Stop, which makes it return nil. It closes lis.
func (s *Server) Serve(lis net.Listener) error {
	if err := s.grpc.Serve(s.guard.listen(lis)); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("data port %s: %w", lis.Addr(), err)
	}
	return nil
}

// Stop closes all connections and waits until every sink has been closed.
func (s *Server) Stop() {
	s.guard.stopping.Store(true)
	s.grpc.Stop()
}

// Allow changes ServerConfig.MaxConnections. Open connections are not affected.
func (s *Server) Allow(connections int) { s.guard.allow(connections) }

// Connections returns the number of open connections.
func (s *Server) Connections() int { return s.guard.open() }

// serve handles the stream of one connection.
func (s *Server) serve(st grpc.ServerStream) error {
	conn := s.guard.find(st.Context())
	log := s.log.With("remote", remoteAddr(st.Context()))
	hello, err := receiveHello(st, conn)
	if err != nil {
		s.guard.say(conn.level(), "connection closed: no valid hello", remoteAddr(st.Context()), "error", err)
		conn.abort()
		return err
	}
	log = log.With("projector", hello.Projector, "topic", hello.Topic, "bucket", hello.Bucket, "connection",
		hello.Connection)
	leave, err := s.enter(st.Context(), hello, conn)
	if err != nil {
		log.Debug("connection closed while its predecessor was ending", "error", err)
		return err
	}
	defer leave()
	sink, err := s.accept(st.Context(), hello)
	if err != nil {
		log.Info("connection refused", "reason", err)
		return st.SendMsg(&outbound{keyversion.AppendAck(nil, keyversion.Ack{Refused: err.Error()})})
	}
	log.Debug("connection open")
	a := &acker{stream: st, wake: make(chan struct{}, 1), much: make(chan struct{}, 1),
		stop: make(chan struct{}), done: make(chan struct{})}
	go a.run()
	err = s.receive(st, sink, a)
	a.end()
	sink.Closed(err)
	switch {
	case errors.Is(err, keyversion.ErrCorrupt) || errors.Is(err, keyversion.ErrFormat):
		log.Error("connection closed: damaged frame", "error", err)
		conn.abort()
	case errors.Is(err, ErrRefused):
		log.Warn("connection closed: batch refused", "error", err)
		refusal := keyversion.Ack{Number: a.taken.Load(), Refused: err.Error()}
		return st.SendMsg(&outbound{keyversion.AppendAck(nil, refusal)})
	default:
		log.Debug("connection closed", "error", err)
	}
	return err
}

// enter makes the connection the only one with its key: an older one, which its router has abandoned, is closed, and
// so is its sink, before the new one is accepted.
func (s *Server) enter(ctx context.Context, h keyversion.Hello, conn *guarded) (leave func(), err error) {
	key := sessionKey{h.ClusterID, h.Topic, h.Bucket, h.Projector, h.Connection}
	mine := &session{conn: conn, done: make(chan struct{})}
	for {
		s.mu.Lock()
		old := s.sessions[key]
		if old == nil {
			s.sessions[key] = mine
		}
		s.mu.Unlock()
		if old == nil {
			return func() {
				s.mu.Lock()
				delete(s.sessions, key)
				s.mu.Unlock()
				close(mine.done)
			}, nil
		}
		old.conn.abort()
		select {
		case <-old.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func receiveHello(st grpc.ServerStream, conn *guarded) (keyversion.Hello, error) {
	timer := time.AfterFunc(HelloTimeout, conn.abort)
	defer timer.Stop()
	var in inbound
	if err := st.RecvMsg(&in); err != nil {
		return keyversion.Hello{}, fmt.Errorf("waiting for the hello: %w", err)
	}
	defer in.buf.Free()
	hello, err := keyversion.DecodeHello(in.buf.ReadOnlyData())
	if err == nil {
		conn.hello.Store(true)
	}
	return hello, err
}

// receive passes batches to the sink until the connection ends, and returns why.
func (s *Server) receive(st grpc.ServerStream, sink Sink, a *acker) error {
	ctx := st.Context()
	last := uint64(0)
	a.signal() // the answer to the hello
	for {
		d := s.pool.Get().(*delivery)
		if err := d.receive(st); err != nil {
			return err
		}
		number, size := d.batch.Number, d.in.buf.Len()
		if number != 0 && last != 0 && number != last+1 {
			d.free()
			return fmt.Errorf("%w: batch %d follows batch %d", keyversion.ErrCorrupt, number, last)
		}
		if err := sink.Receive(ctx, &d.batch, d.release); err != nil {
			d.free()
			if ctx.Err() != nil {
				return fmt.Errorf("%w: %w", ctx.Err(), err)
			}
			return fmt.Errorf("%w: batch %d: %w", ErrRefused, number, err)
		}
		if number != 0 {
			last = number
			a.took(number, size)
		}
	}
}

// delivery is a decoded batch with its memory.
type delivery struct {
	batch   keyversion.Batch
	in      inbound
	held    atomic.Bool
	pool    *sync.Pool
	release func() // d.free, allocated once
}

func newDelivery(pool *sync.Pool) *delivery {
	d := &delivery{pool: pool}
	d.release = d.free
	return d
}

// receive waits for the next batch. After an error d has been freed.
func (d *delivery) receive(st grpc.ServerStream) error {
	if err := st.RecvMsg(&d.in); err != nil {
		d.pool.Put(d)
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("%w by the sender", ErrClosed)
		}
		return fmt.Errorf("receiving: %w", err)
	}
	d.held.Store(true)
	if err := keyversion.Decode(d.in.buf.ReadOnlyData(), &d.batch); err != nil {
		d.free()
		return err
	}
	return nil
}

// free releases the memory; further calls do nothing.
func (d *delivery) free() {
	if !d.held.Swap(false) {
		return
	}
	d.in.buf.Free()
	d.in.buf = nil
	d.pool.Put(d)
}

// acker sends the newest acknowledgement: at most one per ackSpacing, or one per ackRest while there is little to
// acknowledge, and at least one per HeartbeatInterval, so that the sender gets a sign of life also while the sink
// blocks.
type acker struct {
	stream grpc.ServerStream
	taken  atomic.Uint64
	bytes  atomic.Int64  // received since the last acknowledgement
	wake   chan struct{} // capacity 1: signals a batch
	much   chan struct{} // capacity 1: signals ackBytes
	stop   chan struct{}
	done   chan struct{}
}

func (a *acker) signal() { poke(a.wake) }

func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// took schedules the acknowledgement of a batch. A batch counts at least ackBytes/2, because the sender's limit is on
// the memory of frames, of which little may be in use.
func (a *acker) took(number uint64, size int) {
	a.taken.Store(number)
	if a.bytes.Add(int64(max(size, ackBytes/2))) >= ackBytes {
		poke(a.much)
	}
	a.signal()
}

func (a *acker) end() {
	close(a.stop)
	<-a.done
}

func (a *acker) run() {
	defer close(a.done)
	beat := time.NewTimer(HeartbeatInterval)
	defer beat.Stop()
	spacing := time.NewTimer(ackSpacing)
	defer spacing.Stop()
	for {
		select {
		case <-a.wake:
		case <-beat.C:
		case <-a.stop:
			return
		}
		a.bytes.Store(0)
		frame := keyversion.AppendAck(nil, keyversion.Ack{Number: a.taken.Load()})
		if a.stream.SendMsg(&outbound{frame}) != nil {
			return // receive gets the error of the broken stream, too
		}
		beat.Reset(HeartbeatInterval)
		spacing.Reset(ackSpacing)
		select {
		case <-spacing.C:
		case <-a.stop:
			return
		}
		spacing.Reset(ackRest - ackSpacing)
		select {
		case <-spacing.C:
		case <-a.much: // possibly outdated; then one acknowledgement more than needed is sent
		case <-a.stop:
			return
		}
	}
}

// PeerCertificate returns the client's verified certificate from the context that Accept gets, or nil.
func PeerCertificate(ctx context.Context) *x509.Certificate {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.VerifiedChains) > 0 {
		return info.State.PeerCertificates[0]
	}
	return nil
}

func remoteAddr(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return "unknown"
}
