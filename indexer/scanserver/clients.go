package scanserver

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/scan"
	"tidemark/indexer/scanport"
	"tidemark/internal/rpc"
	"tidemark/internal/tlsconf"
)

const (
	// MaxClients bounds the connections of clients that scan here without going through a manager.
	MaxClients = 1024
	// clientIdle is how long a client may send no request.
	clientIdle = 120 * time.Second
	// ClientStall is how long a client may accept no data before its scan is ended. Managers use the same limit.
	ClientStall = 30 * time.Second
	// watchEvery is the interval at which the watcher looks for long scans. From the second look at the same scan on,
	// its client is watched: when the client disconnects, the scan ends.
	watchEvery = 10 * time.Millisecond
	// clientFrame is the size of a connection's buffer for requests.
	clientFrame = 4 << 10
	// clientRoom bounds the buffers for requests and answers that a connection keeps for reuse.
	clientRoom = 64 << 10
)

// clients serves connections of package scanport. One goroutine serves a connection: it reads a request, scans, and
// writes the answer. During a long scan a second goroutine waits for the next message, so that the scan ends when its
// client disconnects. One watcher serves all connections, because a timer for each scan would wake a thread each
// time.
type clients struct {
	s       *Server
	tickets *tickets
	most    int           // limit of clients, normally MaxClients
	stall   time.Duration // limit of a stall, normally ClientStall

	mu     sync.Mutex
	there  int // clients, including those whose ticket is being checked
	open   map[*clientConn]struct{}
	closed bool
	serve  sync.WaitGroup

	looking atomic.Bool // the watcher looks every watchEvery
	look    chan struct{}
}

func newClients(s *Server, managers Managers) *clients {
	return &clients{s: s, tickets: newTickets(managers, s.now), most: MaxClients, stall: ClientStall,
		open: map[*clientConn]struct{}{}, look: make(chan struct{}, 1)}
}

// handle serves a connection.
func (c *clients) handle(w http.ResponseWriter, r *http.Request) error {
	if !c.enter(nil) {
		p := rpc.Refuse(errcode.Unavailable, "%d clients are connected to this indexer, its limit, or it is stopping: "+
			"scan through a manager", c.most)
		p.RetryAfterMS = 1000
		return p
	}
	defer c.leave(nil)
	ticket := r.Header.Get(scanport.HeaderTicket)
	if _, err := c.tickets.check(r.Context(), ticket); err != nil {
		return err
	}
	up := websocket.Upgrader{HandshakeTimeout: 5 * time.Second, ReadBufferSize: clientFrame, WriteBufferSize: clientFrame,
		Subprotocols: []string{scanport.Protocol},
		CheckOrigin:  func(*http.Request) bool { return true }} // the caller has checked it
	conn, err := up.Upgrade(hijacker{w}, r, nil)
	if err != nil {
		return nil //nolint:nilerr // it has been answered
	}
	defer conn.Close()
	one := &clientConn{c: c, conn: conn, ticket: ticket, began: c.s.now(), tls: r.TLS != nil}
	if conn.Subprotocol() != scanport.Protocol || !c.enter(one) {
		return nil
	}
	defer c.leave(one)
	conn.SetReadLimit(rpc.MaxUserBody + scanport.MaxResume + clientFrame)
	// The end of the request's context also ends the scan in progress: the client must present its certificate again.
	stop := context.AfterFunc(r.Context(), func() { _ = conn.Close() })
	defer stop()
	one.run(r.Context())
	return nil
}

// hijacker makes the connection available to the WebSocket through any wrappers of the writer.
type hijacker struct{ http.ResponseWriter }

// Hijack implements http.Hijacker.
func (h hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(h.ResponseWriter).Hijack()
}

// enter counts a client if one is nil, otherwise it registers its connection. It returns false if there are too many
// clients, or the node is stopping.
func (c *clients) enter(one *clientConn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || one == nil && c.there >= c.most {
		return false
	}
	if one == nil {
		c.there++
		c.serve.Add(1)
	} else {
		c.open[one] = struct{}{}
	}
	return true
}

func (c *clients) leave(one *clientConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one == nil {
		c.there--
		c.serve.Done()
		return
	}
	delete(c.open, one)
}

// run watches the clients of long scans. When ctx ends, it closes all connections and returns once no client is
// served any more.
func (c *clients) run(ctx context.Context) error {
	c.watch(ctx)
	c.mu.Lock()
	c.closed = true
	for one := range c.open {
		_ = one.conn.Close()
	}
	c.mu.Unlock()
	c.serve.Wait()
	c.tickets.renewals.Wait()
	return nil
}

// watch looks for long scans until ctx ends, whenever there are scans.
func (c *clients) watch(ctx context.Context) {
	tick := time.NewTimer(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-c.look:
			tick.Reset(watchEvery)
		case <-tick.C:
			if c.watchLong() {
				tick.Reset(watchEvery)
				// a scan may have begun before it could see that the watcher paused
			} else if c.looking.Store(false); c.watchLong() {
				c.busy()
			}
		case <-ctx.Done():
			return
		}
	}
}

// busy wakes the watcher if it pauses.
func (c *clients) busy() {
	if !c.looking.Load() && c.looking.CompareAndSwap(false, true) {
		select {
		case c.look <- struct{}{}:
		default: // it is about to look already
		}
	}
}

// watchLong starts watching the clients of scans that it has seen before. It returns false if no scan is in progress,
// nor was one since the last look.
func (c *clients) watchLong() (some bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for one := range c.open {
		if one.look() {
			some = true
		}
	}
	return some
}

// clientConn is one client's connection.
type clientConn struct {
	c          *clients
	conn       *websocket.Conn
	ticket     string
	began      time.Time
	tls        bool
	in         []byte    // the current request
	room       []byte    // buffer for answers
	deadlineAt time.Time // when the read deadline was last set

	mu     sync.Mutex
	number uint64             // number of the current or next request
	seen   uint64             // number that the watcher saw at its last look
	end    context.CancelFunc // cancels the current request; nil: there is none
	ahead  chan incoming      // receives the message that the watcher waits for; nil: it does not
}

// look starts waiting for the next message if it has seen the same request before. It returns false if there was no
// request since the last look.
func (o *clientConn) look() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.end == nil || o.ahead != nil || o.seen != o.number {
		some := o.seen != o.number || o.end != nil
		o.seen = o.number
		return some
	}
	ahead, end := make(chan incoming, 1), o.end
	o.ahead = ahead
	// run sets another deadline when the scan has ended
	_ = o.conn.SetReadDeadline(time.Now().Add(scan.DefaultMaxDuration + clientIdle))
	go func() {
		_, message, err := o.conn.ReadMessage()
		ahead <- incoming{message, err}
		end()
	}()
	return true
}

// incoming is a message, or the error that ended the connection.
type incoming struct {
	message []byte
	err     error
}

// run serves one request after the other until the client disconnects.
func (o *clientConn) run(ctx context.Context) {
	var ahead <-chan incoming // not nil: the watcher waits for the next message already
	for {
		if now := time.Now(); ahead != nil || now.Sub(o.deadlineAt) >= clientIdle/8 {
			_ = o.conn.SetReadDeadline(now.Add(clientIdle))
			o.deadlineAt = now
		}
		if ahead == nil {
			if err := o.read(); err != nil {
				return
			}
		} else {
			next := <-ahead
			if next.err != nil {
				return
			}
			o.in = next.message
		}
		var err error
		if ahead, err = o.answer(ctx); err != nil {
			o.c.s.log.Debug("client of a scan has disconnected", "error", err)
			break
		}
		if cap(o.in) > clientRoom {
			o.in = nil
		}
		if cap(o.room) > clientRoom {
			o.room = nil
		}
		if o.tls && o.c.s.now().Sub(o.began) >= tlsconf.RenewAfter {
			break // the client reconnects and presents its certificate again
		}
	}
	if ahead != nil {
		_ = o.conn.Close()
		<-ahead
	}
}

// read reads the next message into the connection's own buffer.
func (o *clientConn) read() error {
	_, r, err := o.conn.NextReader()
	if err != nil {
		return err
	}
	o.in = o.in[:0]
	for {
		if len(o.in) == cap(o.in) {
			o.in = append(o.in, 0)[:len(o.in)]
		}
		n, err := r.Read(o.in[len(o.in):cap(o.in)])
		o.in = o.in[:len(o.in)+n]
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// write sends a message. It fails if the client accepts no data for the stall limit.
func (o *clientConn) write(message []byte) error {
	if err := o.conn.SetWriteDeadline(time.Now().Add(o.c.stall)); err != nil {
		return err
	}
	if err := o.conn.WriteMessage(websocket.BinaryMessage, message); err != nil {
		return scan.Errorf(errcode.Cancelled, "writing to the client: %w", err)
	}
	return nil
}

// answer serves the request in o.in. If that takes long, the watcher waits for the next message meanwhile; a
// premature message, or the end of the connection, ends the scan.
func (o *clientConn) answer(ctx context.Context) (ahead <-chan incoming, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	o.mu.Lock()
	o.number++
	o.end = cancel
	o.mu.Unlock()
	o.c.busy()
	err = o.serve(ctx, o.in)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.end = nil; o.ahead != nil { // otherwise ahead must remain a nil channel
		ahead, o.ahead = o.ahead, nil
	}
	return ahead, err
}

// serve carries out a request. It returns errors of the connection only.
func (o *clientConn) serve(ctx context.Context, message []byte) error {
	req, err := scanport.ParseRequest(message)
	if err != nil {
		return o.refuse(rpc.Refuse(errcode.BadRequest, "%v", err))
	}
	if rpc.ValidRequestID(req.RequestID) {
		ctx = rpc.WithRequestID(ctx, req.RequestID)
	}
	if tracer := o.c.s.tracer; tracer != nil {
		ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": req.Parent})
		var span trace.Span
		ctx, span = tracer.Start(ctx, "scan port "+req.Op, trace.WithSpanKind(trace.SpanKindServer),
			trace.WithAttributes(attribute.String("tidemark.request_id", req.RequestID)))
		defer span.End()
	}
	who, err := o.c.tickets.check(ctx, o.ticket)
	if err != nil {
		return o.refuse(err)
	}
	ctx = rpc.WithPrincipal(ctx, who)
	if err := o.c.s.scans.Enter(who); err != nil {
		return o.refuse(err)
	}
	defer o.c.s.scans.Leave(who)
	return o.scan(ctx, &req)
}

// scan scans or counts.
func (o *clientConn) scan(ctx context.Context, req *scanport.Request) error {
	s := o.c.s
	began := s.now()
	id, err := index.ParseID(req.Index)
	if err != nil {
		return o.refuse(scan.Errorf(errcode.BadRequest, "%w", err))
	}
	parsed, spec, err := s.parse(id, req.Body, req.Resume, "")
	if err != nil {
		s.done(id, began, &spec, scan.Result{}, err)
		return o.refuse(err)
	}
	if req.Op == scanport.Count {
		result, err := s.counted(ctx, &parsed, spec)
		s.done(id, began, &spec, scan.Result{Waited: result.Waited}, err)
		if err != nil {
			return o.refuse(err)
		}
		return o.tail(scanport.End, scan.AppendCount(nil, result))
	}
	running, active := s.running.begin(ctx, scanport.Scan, &parsed, &spec)
	defer func() { s.running.end(active, err) }()
	p := scan.NewPacker(sending(active.progress, o.write), o.room, &spec)
	defer func() { o.room = p.Room() }()
	result, err := s.coordinator.Scan(running, spec, p)
	s.done(id, began, &spec, result, err)
	if err != nil && ctx.Err() != nil && p.Begun() {
		return err // the client has gone, or this node stops: a cut answer is continued elsewhere
	}
	if err != nil {
		return p.Fail(scan.ProblemOf(err))
	}
	return p.End(result)
}

// refuse answers with an error and no rows.
func (o *clientConn) refuse(err error) error { return o.tail(scanport.Failure, problemText(err)) }

func (o *clientConn) tail(kind byte, text []byte) error {
	head := scanport.AppendHead(o.room[:0], nil)
	o.room = scanport.Finish(head, len(head), kind, text)
	return o.write(o.room)
}

// problemText returns an error as the JSON of a REST problem.
func problemText(err error) []byte {
	b, _ := json.Marshal(scan.ProblemOf(err)) // a Problem always marshals
	return b
}
