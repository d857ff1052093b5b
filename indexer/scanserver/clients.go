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
	// MaxClients bounds the connections of clients that scan here without a manager between.
	MaxClients = 1024
	// clientIdle is how long one may ask for nothing.
	clientIdle = 120 * time.Second
	// ClientStall is how long one may take nothing before its scan is ended. Managers give theirs as long.
	ClientStall = 30 * time.Second
	// watchEvery is how often somebody looks for scans that take long. From the second look on at the same scan its client
	// is watched: when it goes, the scan ends.
	watchEvery = 10 * time.Millisecond
	// clientFrame is the size of a connection's buffer for requests.
	clientFrame = 4 << 10
	// clientRoom is the longest request, and the largest message of an answer, whose room a connection keeps for the next.
	clientRoom = 64 << 10
)

// clients serves connections of package scanport. A connection is served by one goroutine, which reads a request,
// scans, and writes the answer; while that takes long a second one waits for the next message, so that a client that
// goes away ends its scan. A timer of its own for each scan would wake a thread each time.
type clients struct {
	s       *Server
	tickets *tickets
	most    int           // MaxClients
	stall   time.Duration // ClientStall

	mu     sync.Mutex
	there  int // clients, those whose ticket is being checked too
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
		p := rpc.Refuse(errcode.Unavailable, "%d clients are connected to this node, the most it takes, or it is stopping: "+
			"go by way of a manager", c.most)
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
		CheckOrigin:  func(*http.Request) bool { return true }} // it was checked before
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
	// What ends the connection's life ends what is under way: its certificate has to be shown again.
	stop := context.AfterFunc(r.Context(), func() { _ = conn.Close() })
	defer stop()
	one.run(r.Context())
	return nil
}

// hijacker lets the WebSocket take the connection from whatever is around the writer.
type hijacker struct{ http.ResponseWriter }

// Hijack implements http.Hijacker.
func (h hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(h.ResponseWriter).Hijack()
}

// enter counts a client, for whom one is nil, or notes its connection; false when there are too many, or the node
// stops.
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

// run watches the clients of long scans. It ends every connection when ctx ends, and returns when nothing is served any
// more.
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

// watch looks for long scans until ctx ends, for as long as there are any scans at all.
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
			} else if c.looking.Store(false); c.watchLong() { // one may have begun before it could see that nobody looks
				c.busy()
			}
		case <-ctx.Done():
			return
		}
	}
}

// busy lets the watcher look, if it does not.
func (c *clients) busy() {
	if !c.looking.Load() && c.looking.CompareAndSwap(false, true) {
		select {
		case c.look <- struct{}{}:
		default: // it has not looked yet since it was told last
		}
	}
}

// watchLong begins to watch the clients of scans that it has seen before; false when no scan is under way, nor was
// since the last time.
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
	c       *clients
	conn    *websocket.Conn
	ticket  string
	began   time.Time
	tls     bool
	in      []byte    // the request under way
	room    []byte    // for answers
	patient time.Time // when the deadline of reading was set

	mu     sync.Mutex
	number uint64             // of the request under way, or that comes next
	seen   uint64             // by the watcher when it looked last
	end    context.CancelFunc // of the request under way; nil: there is none
	ahead  chan incoming      // what the watcher has begun to wait for
}

// look begins to wait for the next message when it has seen the same request before; false when there was none since
// the last time.
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
	// the loop sets another one when the scan has ended
	_ = o.conn.SetReadDeadline(time.Now().Add(scan.DefaultMaxDuration + clientIdle))
	go func() {
		_, message, err := o.conn.ReadMessage()
		ahead <- incoming{message, err}
		end()
	}()
	return true
}

// incoming is a message, or why there is none.
type incoming struct {
	message []byte
	err     error
}

// run serves one request after the other until the client goes.
func (o *clientConn) run(ctx context.Context) {
	var ahead <-chan incoming // somebody waits for the next message already
	for {
		if now := time.Now(); ahead != nil || now.Sub(o.patient) >= clientIdle/8 {
			_ = o.conn.SetReadDeadline(now.Add(clientIdle))
			o.patient = now
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
			o.c.s.log.Debug("a scan's client is gone", "error", err)
			break
		}
		if cap(o.in) > clientRoom {
			o.in = nil
		}
		if cap(o.room) > clientRoom {
			o.room = nil
		}
		if o.tls && o.c.s.now().Sub(o.began) >= tlsconf.RenewAfter {
			break // the client begins another connection, and shows who it is again
		}
	}
	if ahead != nil {
		_ = o.conn.Close()
		<-ahead
	}
}

// read takes the next message into the connection's own room.
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

// write sends a message, for as long as the client takes something now and then.
func (o *clientConn) write(message []byte) error {
	if err := o.conn.SetWriteDeadline(time.Now().Add(o.c.stall)); err != nil {
		return err
	}
	if err := o.conn.WriteMessage(websocket.BinaryMessage, message); err != nil {
		return scan.Errorf(errcode.Cancelled, "writing to the client: %w", err)
	}
	return nil
}

// answer serves the request in o.in. While that takes long, the next message is waited for: one that comes early ends
// the scan, and so does the end of the connection.
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
	if o.end = nil; o.ahead != nil { // ahead is the nil of no channel otherwise
		ahead, o.ahead = o.ahead, nil
	}
	return ahead, err
}

// serve does what a request asks for. The error is that of the connection.
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
	asked, spec, err := s.parse(id, req.Body, req.Resume, "")
	if err != nil {
		s.done(id, began, &spec, scan.Result{}, err)
		return o.refuse(err)
	}
	if req.Op == scanport.Count {
		result, err := s.counted(ctx, &asked, spec)
		s.done(id, began, &spec, scan.Result{Waited: result.Waited}, err)
		if err != nil {
			return o.refuse(err)
		}
		return o.tail(scanport.End, scan.AppendCount(nil, result))
	}
	running, active := s.running.begin(ctx, scanport.Scan, &asked, &spec)
	defer func() { s.running.end(active, err) }()
	p := scan.NewPacker(sending(active.progress, o.write), o.room, &spec)
	defer func() { o.room = p.Room() }()
	result, err := s.coordinator.Scan(running, spec, p)
	s.done(id, began, &spec, result, err)
	if err != nil && ctx.Err() != nil && p.Begun() {
		return err // the client has gone, or this node stops: a cut answer is gone on with elsewhere
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

// problemText is an error as REST would tell it.
func problemText(err error) []byte {
	b, _ := json.Marshal(scan.ProblemOf(err)) // a Problem always marshals
	return b
}
