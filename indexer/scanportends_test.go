package indexer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"tidemark/client"
	"tidemark/errcode"
	"tidemark/indexer/scanport"
	"tidemark/indexer/scanserver"
	"tidemark/internal/rpc"
	"tidemark/manager/api/v1"
	"tidemark/manager/auth"
	"tidemark/statecontext"
)

const (
	// endGuard is a hang guard.
	endGuard = testTimeout
	// smallBuffer is the size of the system's send buffer of the indexer, so that a client that does not read is
	// noticed soon.
	smallBuffer = 4 << 10
	// manyRows rows with ids of longID bytes are far more than all system buffers hold.
	manyRows, longID = 8000, 240
)

// straight is an indexer of a world with a scan port of its own, whose internals a test can use.
type straight struct {
	*world
	desk   *desk
	server *scanserver.Server
	tune   func(*scanserver.Options) // before it is made
	counts *prometheus.Registry
	addr   string
	stop   context.CancelFunc // ends the port as the indexer's end does
	issued int
}

// goStraight starts one with index 1 over some documents. tune changes the port before it serves.
func goStraight(t *testing.T, docs []testDoc, tune func(*straight)) *straight {
	t.Helper()
	w := newWorld(t)
	tickets, err := auth.NewTickets(w.manager.URL, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	s := &straight{world: w}
	s.desk = &desk{tickets: tickets, port: func() string { return s.addr }}
	w.users = s.desk
	w.write(docs...)
	if tune != nil {
		tune(s)
	}
	w.serve(10)
	options := w.x.scanOptions()
	s.counts = prometheus.NewRegistry()
	options.Registry = s.counts
	if s.tune != nil {
		s.tune(&options)
	}
	s.server = scanserver.New(options)
	h := w.x.scanTable(s.server).Handler()
	server := httptest.NewUnstartedServer(rpc.Traced(w.x.cfg.Tracer, h))
	server.Listener = tight{server.Listener}
	server.Start()
	s.addr = server.Listener.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.server.Run(ctx) }()
	s.stop = stop
	t.Cleanup(func() {
		stop()
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(endGuard):
			t.Error("the port's connections did not end")
		}
		server.Close()
	})
	return s
}

// tight gives connections small buffers.
type tight struct{ net.Listener }

func (l tight) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		err = c.(*net.TCPConn).SetWriteBuffer(smallBuffer)
	}
	return c, err
}

func long(n int) []testDoc {
	all := make([]testDoc, n)
	for i := range all {
		all[i] = testDoc{id: fmt.Sprintf("%0*d", longID, i), value: 1 + i}
	}
	return all
}

// ticket returns a new ticket.
func (s *straight) ticket() string {
	s.t.Helper()
	s.issued++
	ticket, err := s.desk.tickets.Issue(&auth.Identity{Name: fmt.Sprintf("user-%d", s.issued),
		Role: statecontext.UserReads}, time.Hour)
	if err != nil {
		s.t.Fatal(err)
	}
	return ticket
}

// connect starts a connection as package client does. The error contains the port's answer, if it gave one.
func (s *straight) connect(ticket string) (*websocket.Conn, error) {
	dialer := websocket.Dialer{Subprotocols: []string{scanport.Protocol}, HandshakeTimeout: endGuard,
		NetDialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, network, addr)
			if err == nil {
				err = c.(*net.TCPConn).SetReadBuffer(smallBuffer)
			}
			return c, err
		}}
	ws, answer, err := dialer.DialContext(s.t.Context(), "ws://"+s.addr+scanport.Path,
		http.Header{scanport.HeaderTicket: {ticket}})
	if err != nil {
		if answer != nil {
			err = rpc.ReadProblem(answer)
			_ = answer.Body.Close()
		}
		return nil, err
	}
	s.t.Cleanup(func() { _ = ws.Close() })
	_ = ws.SetReadDeadline(time.Now().Add(endGuard))
	return ws, nil
}

func (s *straight) connected() *websocket.Conn {
	s.t.Helper()
	ws, err := s.connect(s.ticket())
	if err != nil {
		s.t.Fatal(err)
	}
	return ws
}

func ask(t *testing.T, ws *websocket.Conn, req scanport.Request) {
	t.Helper()
	if err := ws.WriteMessage(websocket.BinaryMessage, scanport.AppendRequest(nil, req)); err != nil {
		t.Fatal(err)
	}
}

// answered reads an answer to its end. It returns the documents' ids and what ended the answer, a *rpc.Problem for an
// error.
func answered(ws *websocket.Conn) (ids []string, err error) {
	for {
		_, message, err := ws.ReadMessage()
		if err != nil {
			return ids, err
		}
		var a scanport.Answer
		if err := a.Read(message); err != nil {
			return ids, err
		}
		for {
			_, id, ok, err := a.Next()
			if err != nil {
				return ids, err
			}
			if !ok {
				break
			}
			ids = append(ids, id)
		}
		switch a.Tail {
		case scanport.End:
			return ids, nil
		case scanport.Failure:
			p := &rpc.Problem{}
			return ids, errors.Join(json.Unmarshal(a.Text, p), p)
		}
	}
}

// begun returns a scan of index 1 that has returned its first row, directly from the indexer.
func (s *straight) begun(ctx context.Context, c *client.Client, req v1.ScanRequest) (rows *client.Rows) {
	s.t.Helper()
	straightly(s.t, func() bool {
		var err error
		if rows, err = c.Scan(ctx, "1", req); err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(func() { _ = rows.Close() })
		if !rows.Next() {
			s.t.Fatal(rows.Err())
		}
		return rows.Row().ID != byManager
	})
	return rows
}

// places waits until that many scans are running.
func (s *straight) places(want int) {
	s.t.Helper()
	s.until(fmt.Sprintf("%d scans under way", want), func() bool {
		n, _ := s.server.Load()
		return n == want
	})
}

// ended checks that this many scans were counted as cancelled, and that no others have ended.
func (s *straight) ended(what string, want float64) {
	s.t.Helper()
	if by := s.scans(); len(by) != 1 || by[errcode.Cancelled] != want {
		s.t.Errorf("%s: scans that have ended, by code: %v, want %v %s", what, by, want, errcode.Cancelled)
	}
}

// scans returns how many scans have ended, by code.
func (s *straight) scans() map[errcode.Code]float64 {
	s.t.Helper()
	families, err := s.counts.Gather()
	if err != nil {
		s.t.Fatal(err)
	}
	by := map[errcode.Code]float64{}
	for _, f := range families {
		if f.GetName() != "tidemark_indexer_scans_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			by[errcode.Code(m.GetLabel()[0].GetValue())] = m.GetCounter().GetValue()
		}
	}
	return by
}

func code(err error) errcode.Code {
	var p *rpc.Problem
	if !errors.As(err, &p) {
		return errcode.Code(fmt.Sprint(err))
	}
	return p.Code
}

// TestDisconnectedClientEndsItsScan closes a client while its scan waits for a timestamp that does not come, and in the
// middle of its rows. The scan's place becomes free, and the scan counts as cancelled, not as timed out.
func TestDisconnectedClientEndsItsScan(t *testing.T) {
	asked := make(chan struct{}, 1)
	s := goStraight(t, long(manyRows), func(s *straight) {
		s.slow = func(ctx context.Context) { // until the caller gives up
			asked <- struct{}{}
			<-ctx.Done()
		}
	})
	ws := s.connected()
	ask(t, ws, scanport.Request{Op: scanport.Scan, Index: "1", Body: []byte(`{"consistency":"at_plus","tokens":[{"vbucket":1,"vbuuid":"77","seqno":1000000}]}`)})
	select {
	case <-asked:
	case <-time.After(endGuard):
		t.Fatal("no scan requests a timestamp")
	}
	s.places(1)
	_ = ws.Close()
	s.places(0)
	s.ended("while it waited", 1)

	c := client.New(s.manager.URL)
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	rows := s.begun(ctx, c, v1.ScanRequest{})
	s.places(1)
	cancel()
	s.places(0)
	s.ended("in the middle of its rows", 2)
	for rows.Next() {
	}
	if err := rows.Err(); !errors.Is(err, client.ErrCut) || !errors.Is(err, context.Canceled) {
		t.Errorf("the client gets %v", err)
	}
}

// TestClientThatReadsNothing checks that the scan of a client that does not read is ended, and its place becomes
// free. What the client reads later is cut.
func TestClientThatReadsNothing(t *testing.T) {
	t.Parallel()
	s := goStraight(t, long(manyRows), func(s *straight) {
		if scanserver.ClientStall != 30*time.Second {
			t.Errorf("a client may take nothing for %s: docs/scans.md says 30 s", scanserver.ClientStall)
		}
		s.tune = func(o *scanserver.Options) { o.ClientStall = 300 * time.Millisecond }
	})
	ws := s.connected()
	ask(t, ws, scanport.Request{Op: scanport.Scan, Index: "1", Body: []byte(`{}`)})
	s.until("its scan is given up", func() bool { return s.scans()[errcode.Cancelled] == 1 })
	s.places(0)
	s.ended("whose client takes nothing", 1)
	if ids, err := answered(ws); err == nil || len(ids) >= manyRows {
		t.Errorf("%d rows of %d, %v: want a cut answer", len(ids), manyRows, err)
	}
}

// TestStoppingIndexerCutsAnswers checks that a client never takes a partial answer for a complete one.
func TestStoppingIndexerCutsAnswers(t *testing.T) {
	t.Parallel()
	s := goStraight(t, long(manyRows), nil)
	c := client.New(s.manager.URL)
	defer c.Close()
	rows := s.begun(t.Context(), c, v1.ScanRequest{})
	s.places(1)
	s.stop()
	s.places(0)
	n := 1
	for rows.Next() {
		n++
	}
	if err := rows.Err(); !errors.Is(err, client.ErrCut) || n >= manyRows {
		t.Errorf("%d rows of %d, %v: want %v", n, manyRows, err, client.ErrCut)
	}
	if end, err := rows.End(); err == nil {
		t.Errorf("an end: %+v", end)
	}
}

// TestAnotherIndexOnAKeptConnection checks that on a connection that has served an index, a request for that index is
// refused after it was dropped and made again with another id, and is never answered with the new one's rows.
func TestAnotherIndexOnAKeptConnection(t *testing.T) {
	s := goStraight(t, []testDoc{{id: "a", value: 1}, {id: "b", value: 2}}, nil)
	ws := s.connected()
	one := scanport.Request{Op: scanport.Scan, Index: "1", Body: []byte(`{}`)}
	two, number := one, one
	two.Index, number.Op = "2", scanport.Count
	ask(t, ws, two)
	if ids, err := answered(ws); len(ids) != 0 || code(err) != "INDEX_NOT_HOSTED" {
		t.Errorf("before it is there: %v %v", ids, err)
	}
	ask(t, ws, one)
	if ids, err := answered(ws); err != nil || strings.Join(ids, " ") != "a b" {
		t.Fatalf("%v %v", ids, err)
	}
	if err := s.define(20); err != nil {
		t.Fatal(err)
	}
	s.begin(nil)
	s.promote(t.Context())
	s.held(20)
	for _, req := range []scanport.Request{one, number} {
		ask(t, ws, req)
		if ids, err := answered(ws); len(ids) != 0 || code(err) != "INDEX_NOT_HOSTED" {
			t.Errorf("%s of the old one: %v %v", req.Op, ids, err)
		}
	}
	ask(t, ws, two)
	if ids, err := answered(ws); err != nil || strings.Join(ids, " ") != "a b" {
		t.Errorf("the new one on the same connection: %v %v", ids, err)
	}
}

// TestInvalidatedTicketIsRefused checks that on an open connection a request is refused, with the manager's error code,
// when the manager no longer accepts the ticket and its last answer has expired. A new connection is refused as well.
func TestInvalidatedTicketIsRefused(t *testing.T) {
	for _, want := range []errcode.Code{errcode.Forbidden, errcode.Unauthenticated} {
		t.Run(string(want), func(t *testing.T) {
			var clock sync.Mutex
			now := time.Now()
			s := goStraight(t, []testDoc{{id: "a", value: 1}}, func(s *straight) {
				s.tune = func(o *scanserver.Options) {
					o.Now = func() time.Time { clock.Lock(); defer clock.Unlock(); return now }
				}
			})
			ticket := s.ticket()
			ws, err := s.connect(ticket)
			if err != nil {
				t.Fatal(err)
			}
			req := scanport.Request{Op: scanport.Scan, Index: "1", Body: []byte(`{}`)}
			s.desk.set(func() { s.desk.revoked, s.desk.lower = want == errcode.Unauthenticated, want == errcode.Forbidden })
			ask(t, ws, req)
			if ids, err := answered(ws); err != nil || len(ids) != 1 {
				t.Errorf("while its word counts: %v %v", ids, err)
			}
			clock.Lock()
			now = now.Add(scanserver.TicketTrust)
			clock.Unlock()
			ask(t, ws, req)
			if ids, err := answered(ws); len(ids) != 0 || code(err) != want {
				t.Errorf("when its word is old: %v %v", ids, err)
			}
			if _, err := s.connect(ticket); code(err) != want {
				t.Errorf("another connection: %v", err)
			}
			s.desk.set(func() { s.desk.revoked, s.desk.lower = false, false })
			ask(t, ws, req)
			if ids, err := answered(ws); err != nil || len(ids) != 1 {
				t.Errorf("once it is good again: %v %v", ids, err)
			}
		})
	}
}

// TestWaitingClientsCount checks that clients whose ticket is being checked count among the clients of a node.
func TestWaitingClientsCount(t *testing.T) {
	s := goStraight(t, []testDoc{{id: "a", value: 1}}, func(s *straight) {
		s.tune = func(o *scanserver.Options) { o.MaxClients = 2 }
	})
	there := func(want int) {
		t.Helper()
		s.until(fmt.Sprintf("%d clients", want), func() bool {
			_, n := s.server.Load()
			return n == want
		})
	}
	first := s.connected()
	there(1)
	ticket := s.ticket()
	waiting := make(chan error, 1)
	s.desk.set(func() { // the manager does not answer until this ends
		go func() {
			ws, err := s.connect(ticket)
			if err == nil {
				err = ws.Close()
			}
			waiting <- err
		}()
		there(2)
		_, err := s.connect(ticket)
		if code(err) != errcode.Unavailable {
			t.Errorf("a third client: %v", err)
		}
	})
	select {
	case err := <-waiting:
		if err != nil {
			t.Errorf("the one that waited: %v", err)
		}
	case <-time.After(endGuard):
		t.Fatal("the one that waited hangs")
	}
	there(1)
	_ = first.Close()
	there(0)
	ask(t, s.connected(), scanport.Request{Op: scanport.Scan, Index: "1", Body: []byte(`{}`)})
	there(1)
}

// TestSpansOfTheScanPort checks that the span of a request is a child of the client's, whatever connection it came
// on, and has its request id.
func TestSpansOfTheScanPort(t *testing.T) {
	seen := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(seen))
	tracer := provider.Tracer("test")
	s := goStraight(t, []testDoc{{id: "a", value: 1}},
		func(s *straight) { s.tweak = func(c *Config) { c.Tracer = tracer } })
	ws := s.connected()
	for i, op := range []string{scanport.Scan, scanport.Count} {
		ctx, span := tracer.Start(t.Context(), "client "+op)
		carrier := propagation.MapCarrier{}
		propagation.TraceContext{}.Inject(ctx, carrier)
		id := fmt.Sprintf("request-%d", i)
		ask(t, ws, scanport.Request{Op: op, Index: "1", RequestID: id, Parent: carrier["traceparent"], Body: []byte(`{}`)})
		if _, err := answered(ws); err != nil {
			t.Fatal(err)
		}
		span.End()
		var got sdktrace.ReadOnlySpan
		s.until("the span of "+op, func() bool {
			for _, one := range seen.Ended() {
				if one.Name() == "scan port "+op {
					got = one
				}
			}
			return got != nil
		})
		if got.SpanContext().TraceID() != span.SpanContext().TraceID() ||
			got.Parent().SpanID() != span.SpanContext().SpanID() || !got.Parent().IsRemote() {
			t.Errorf("%s: parent %+v in trace %s, want %s in %s", op, got.Parent(), got.SpanContext().TraceID(),
				span.SpanContext().SpanID(), span.SpanContext().TraceID())
		}
		requestID := ""
		for _, a := range got.Attributes() {
			if a.Key == "tidemark.request_id" {
				requestID = a.Value.AsString()
			}
		}
		if requestID != id {
			t.Errorf("%s: request id %q, want %q", op, requestID, id)
		}
	}
}
