package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	"go.opentelemetry.io/otel/propagation"

	"tidemark/errcode"
	"tidemark/indexer/scanport"
	"tidemark/internal/detector"
	"tidemark/internal/rpc"
	"tidemark/internal/tlsconf"
	"tidemark/manager/api/v1"
	"tidemark/wire"
)

// Scans go directly to an indexer that holds the index. A manager provides the route, which lists these indexers, and
// a ticket; both are renewed in the background before they expire. If an indexer cannot be reached, breaks off, or is
// silent while another one is not (package detector), the scan asks the next one, and this indexer becomes the last
// choice for a while; in the middle of an answer, the next indexer continues at the same timestamp after the last row
// received. Everything else that is unusual — a refusal, an index that does not exist or is not ready, an older
// manager — is left to the managers: the same request goes through one of them, and its answer counts.

const (
	routeFresh   = 5 * time.Second        // a younger route is used as it is; an older one is renewed in the background
	routeGood    = 15 * time.Second       // a route older than this is not used: scans wait for the new one
	locateLimit  = time.Second            // for a manager to return the route
	dialLimit    = 500 * time.Millisecond // for an indexer to accept a connection
	firstDetour  = 250 * time.Millisecond // through the managers after a failure; doubles with each further one
	mostDetour   = 30 * time.Second
	connIdle     = 60 * time.Second // indexers close idle connections after twice that
	tidyEvery    = connIdle / 2
	maxIdleConns = 64   // to one indexer
	maxRoutes    = 1024 // indexes
	mostAsked    = 3    // indexers tried for one scan
	directBuffer = 16 << 10
	maxMessage   = 8 << 20     // of an answer
	maxRoom      = 64 << 10    // buffer size that an idle connection keeps
	deadlineStep = time.Second // a read deadline is only set again if it differs by at least this much
)

// direct manages routes and connections to the indexers.
type direct struct {
	c      *Client
	dialer *websocket.Dialer
	scheme string
	alive  *detector.Detector // of the indexers' scan ports
	load   detector.Load[string]
	probes *rpc.Client
	ctx    context.Context // of background look-ups; ends with Close
	end    context.CancelFunc
	asking sync.WaitGroup
	first  func(n int) int // random choice of the first indexer to ask, out of n

	mu     sync.Mutex
	routes map[string]*way          // by ref
	idle   map[string][]*directConn // by address, most recently used last
	tidies *time.Timer              // nil if no connection is idle
	closed bool
}

// way is the route to an index, and the state of its renewal.
type way struct {
	route   *v1.ScanRoute // replaced, never modified: scans share it
	at      time.Time     // of route; zero: there is none
	asking  chan struct{} // closed when the manager has answered; nil: no request is running
	refused error         // the managers' last answer, if it is the scan's answer as well

	detour time.Duration // how long scans go through the managers after the next failure
	until  time.Time     // end of the present detour
}

// directConn is a connection to an indexer.
type directConn struct {
	ws    *websocket.Conn
	addr  string
	used  time.Time
	until time.Time // when it is replaced by one with a newer ticket
	fresh bool      // no answer has been received on it yet

	out, in  []byte    // buffers for a request and for a message of an answer
	deadline time.Time // for reads; zero: none
}

// newDirect returns nil if scans cannot go directly: with TLS, indexers are recognized by the role in their
// certificates, which requires the cluster's own CA.
func newDirect(c *Client, conf *tls.Config) *direct {
	d := &direct{c: c, scheme: "ws", routes: map[string]*way{}, idle: map[string][]*directConn{},
		first: rand.IntN}
	base := "http"
	if conf != nil {
		d.scheme, base = "wss", "https"
		if conf = tlsconf.ByRole(conf, tlsconf.Indexer); conf == nil {
			return nil
		}
	}
	d.dialer = &websocket.Dialer{NetDialContext: dialSoon, TLSClientConfig: conf,
		HandshakeTimeout: 4 * dialLimit, ReadBufferSize: directBuffer, WriteBufferSize: 4 << 10,
		Subprotocols: []string{scanport.Protocol}}
	d.ctx, d.end = context.WithCancel(context.Background())
	d.probes = rpc.NewClient(probesAtOnce, conf)
	d.alive = detector.New(detector.HTTP(d.probes.HTTP(), func(addr string) string {
		return tlsconf.BaseURL(base, addr) + "/healthz"
	}))
	return d
}

// dialSoon is rpc.Dial within dialLimit.
func dialSoon(ctx context.Context, network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	return rpc.Dial(ctx, network, addr)
}

func (d *direct) close() {
	d.end()
	d.mu.Lock()
	d.closed = true
	if d.tidies != nil {
		d.tidies.Stop()
	}
	for _, list := range d.idle {
		for _, dc := range list {
			_ = dc.ws.Close()
		}
	}
	clear(d.idle)
	d.mu.Unlock()
	d.asking.Wait()
	d.alive.Close()
	d.probes.Close()
}

// wayTo returns the state of an index's route. The caller holds d.mu.
func (d *direct) wayTo(ref string) *way {
	w := d.routes[ref]
	if w == nil {
		if len(d.routes) >= maxRoutes {
			clear(d.routes) // entries are added again on demand
		}
		w = &way{detour: firstDetour}
		d.routes[ref] = w
	}
	return w
}

// way returns the route to an index, nil if scans go through the managers for now. The error is a manager's refusal
// that applies to the scan as well.
func (d *direct) way(ctx context.Context, ref string) (*v1.ScanRoute, error) {
	d.mu.Lock()
	w := d.wayTo(ref)
	now := time.Now()
	age := now.Sub(w.at)
	switch {
	case d.closed || now.Before(w.until):
		d.mu.Unlock()
		return nil, nil //nolint:nilnil // no way
	case age < routeFresh:
		defer d.mu.Unlock()
		return w.route, nil
	}
	if w.asking == nil {
		w.asking = make(chan struct{})
		d.asking.Go(func() { d.locate(ref, w) })
	}
	asking := w.asking
	if age < routeGood {
		defer d.mu.Unlock()
		return w.route, nil
	}
	d.mu.Unlock()
	select {
	case <-asking:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if time.Since(w.at) < routeGood {
		return w.route, nil
	}
	return nil, w.refused
}

// locate requests the route from a manager.
func (d *direct) locate(ref string, w *way) {
	ctx, cancel := context.WithTimeout(d.ctx, locateLimit)
	defer cancel()
	var route v1.ScanRoute
	at := time.Now()
	err := d.ask(ctx, ref, &route)
	d.mu.Lock()
	defer d.mu.Unlock()
	var p *wire.Problem
	switch refused := errors.As(err, &p); {
	case err == nil:
		w.route, w.at, w.refused = &route, at, nil
	case refused && (p.Status == http.StatusUnauthorized || p.Status == http.StatusForbidden ||
		p.Status == http.StatusTooManyRequests):
		w.at, w.refused = time.Time{}, p // a second attempt would only count against the caller
	case refused && (p.Code == errcode.UnknownIndex || p.Code == errcode.IndexNotReady):
		w.at, w.refused = time.Time{}, nil
		w.until = time.Now().Add(firstDetour) // it may become available at any moment
	default:
		w.at, w.refused = time.Time{}, nil
		d.detour(w)
	}
	close(w.asking)
	w.asking = nil
}

// ask requests the route from the manager that answered last, and no other: if it fails, the scan itself finds a
// manager.
func (d *direct) ask(ctx context.Context, ref string, route *v1.ScanRoute) error {
	c := d.c
	if c.bad != nil {
		return c.bad
	}
	server := c.servers[int(c.next.Load())%len(c.servers)]
	answer, err := c.send(ctx, http.MethodPost, server+"/v1/indexes/"+ref+":locate", http.Header{}, nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if err = c.read(answer, route); err == nil && (route.Index == 0 || route.Ticket == "" || len(route.ScanPorts) == 0) {
		err = fmt.Errorf("%w: no indexer serves index %s", ErrAnswer, ref)
	}
	return err
}

// detour makes scans go through the managers for a while. The caller holds the lock.
func (d *direct) detour(w *way) {
	w.until, w.detour = time.Now().Add(w.detour), min(2*w.detour, mostDetour)
}

// lost records that a route did not work: after a detour another one is requested.
func (d *direct) lost(ref string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if w := d.routes[ref]; w != nil {
		w.at = time.Time{}
		d.detour(w)
	}
}

// found records that a route worked.
func (d *direct) found(ref string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if w := d.routes[ref]; w != nil {
		w.detour = firstDetour
	}
}

// order returns the indexers of a route in the order in which to ask them: first the less loaded of two random ones,
// as seen by this client; suspect ones come last.
func (d *direct) order(route *v1.ScanRoute) []string {
	all := route.ScanPorts
	n := len(all)
	if n <= 1 {
		return all
	}
	turned := make([]string, n)
	first := d.first(n)
	for i := range turned {
		turned[i] = all[(first+i)%n]
	}
	if other := 1 + d.first(n-1); d.load.Busier(turned[0], turned[other], time.Now()) {
		turned[0], turned[other] = turned[other], turned[0]
	}
	return d.alive.Order(turned)
}

// conn returns a connection to an indexer: an idle one unless anew is set, or a new one.
func (d *direct) conn(ctx context.Context, route *v1.ScanRoute, addr string, anew bool) (*directConn, error) {
	if !anew {
		if dc := d.take(addr); dc != nil {
			return dc, nil
		}
	}
	one, cancel := context.WithCancel(ctx)
	defer cancel()
	var wait detector.Wait
	d.alive.Begin(&wait, addr, portsOf(route), cancel)
	header := http.Header{}
	header.Set(scanport.HeaderTicket, route.Ticket)
	ws, answer, err := d.dialer.DialContext(one, tlsconf.BaseURL(d.scheme, addr)+scanport.Path, header)
	silent := wait.End()
	if err == nil {
		ws.SetReadLimit(maxMessage)
		return &directConn{ws: ws, addr: addr, until: time.Now().Add(time.Duration(route.TicketMS) * time.Millisecond / 2),
			fresh: true}, nil
	}
	switch {
	case answer != nil:
		err = fmt.Errorf("%w: %w: %w", errDoor, err, rpc.ReadProblem(answer))
		_ = answer.Body.Close()
	case silent:
		err = fmt.Errorf("%s: %w", addr, detector.ErrSilent)
	case ctx.Err() == nil:
		d.alive.Failed(addr)
	}
	return nil, err
}

// errDoor is wrapped if an indexer refuses a connection, whatever the reason.
var errDoor = errors.New("no connection")

// portsOf returns a function that returns the scan ports of the indexers that hold the index.
func portsOf(r *v1.ScanRoute) func() []string { return func() []string { return r.ScanPorts } }

// take returns the most recently used idle connection, nil if there is none.
func (d *direct) take(addr string) *directConn {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := d.idle[addr]
	if len(list) == 0 {
		return nil
	}
	dc := list[len(list)-1]
	list[len(list)-1] = nil
	d.idle[addr] = list[:len(list)-1]
	return dc
}

// give returns a connection to the idle ones after its answer has ended.
func (d *direct) give(dc *directConn) {
	dc.used, dc.fresh = time.Now(), false
	if cap(dc.in) > maxRoom {
		dc.in = nil
	}
	if cap(dc.out) > maxRoom {
		dc.out = nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || len(d.idle[dc.addr]) >= maxIdleConns || dc.used.After(dc.until) {
		_ = dc.ws.Close()
		return
	}
	d.idle[dc.addr] = append(d.idle[dc.addr], dc)
	if d.tidies == nil {
		d.tidies = time.AfterFunc(tidyEvery, d.tidy)
	}
}

// tidy closes connections that have been idle for long, also those to indexers that have left, before the indexers
// close them. It runs again while there are others.
func (d *direct) tidy() {
	var old []*directConn
	d.mu.Lock()
	for addr, list := range d.idle {
		n := 0
		for n < len(list) && time.Since(list[n].used) >= connIdle {
			n++
		}
		old = append(old, list[:n]...)
		if d.idle[addr] = slices.Delete(list, 0, n); len(list) == n {
			delete(d.idle, addr)
		}
	}
	if d.tidies = nil; len(d.idle) > 0 {
		d.tidies = time.AfterFunc(tidyEvery, d.tidy)
	}
	d.mu.Unlock()
	for _, dc := range old {
		_ = dc.ws.Close()
	}
}

// directScan is an answer from an indexer.
type directScan struct {
	d      *direct
	dc     *directConn // nil once it was returned or closed
	stop   func() bool // of the function that closes the connection when the context ends
	route  *v1.ScanRoute
	wait   detector.Wait
	ctx    context.Context
	answer scanport.Answer

	// For continuing with the answer at another indexer.
	of    string // the index
	req   scanport.Request
	saw   *scanport.Seen // from the last message that contains it
	place []byte         // after the last message received; empty: the answer cannot be continued
	came  time.Time
	idle  time.Duration // how long the caller took before it requested the newest message
}

// slowReader is after how long an indexer may have closed the connection because the caller took nothing; such a
// close does not count against the indexer.
const slowReader = 20 * time.Second

// probesAtOnce bounds the connections to one indexer or manager that only check whether it is alive.
const probesAtOnce = 2

// errDetour means that a scan has to go through the managers.
var errDetour = errors.New("through the managers")

// firstAsked returns the indexers that a scan may ask.
func firstAsked(addrs []string) []string { return addrs[:min(len(addrs), mostAsked)] }

// isCommon reports whether the other indexers would answer the same: about the request, or about its sender.
func isCommon(err error) bool { return isAnswer(err) && !errors.Is(err, errDoor) || unknown(err) }

// begin sends a request and waits for the first message of its answer. errDetour means that a manager has to be
// asked.
func (d *direct) begin(ctx context.Context, q question, body []byte) (*directScan, error) {
	route, err := d.way(ctx, q.of)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, q.gaveUp(ctx, d.c.servers[int(d.c.next.Load())%len(d.c.servers)], err, nil)
	case err != nil:
		return nil, err
	case route == nil:
		return nil, errDetour
	}
	var last string
	var before error
	for _, addr := range firstAsked(d.order(route)) {
		var s *directScan
		before = err
		if s, err = d.try(ctx, route, addr, scanport.Request{Op: q.op, Body: body}); err == nil {
			d.found(q.of)
			s.of = q.of
			return s, nil
		}
		last = addr
		if ctx.Err() != nil || isCommon(err) {
			break
		}
	}
	if ctx.Err() != nil {
		return nil, q.gaveUp(ctx, "indexer "+last, err, before)
	}
	return nil, d.passed(q.of, err)
}

// passed returns the error after no indexer of a route has answered: a refusal that the managers would give as well,
// or errDetour.
func (d *direct) passed(of string, err error) error {
	var p *wire.Problem
	said := errors.As(err, &p)
	if said && !elsewhere(p) {
		return p
	}
	if !said || p.Code != errcode.Busy { // a busy indexer is there, and the next scan may find room
		d.lost(of)
	}
	return errDetour
}

// try asks one indexer.
func (d *direct) try(ctx context.Context, route *v1.ScanRoute, addr string, req scanport.Request) (s *directScan,
	err error) {
	for _, anew := range []bool{false, true} { // the indexer may have closed an idle connection
		dc, err := d.conn(ctx, route, addr, anew)
		if err != nil {
			return nil, err
		}
		fresh := dc.fresh
		s := &directScan{d: d, dc: dc, ctx: ctx, route: route, req: req}
		if err = s.ask(); err == nil {
			return s, nil
		}
		s.abort()
		switch refused := errors.As(err, new(*wire.Problem)); {
		case ctx.Err() != nil, refused && !unknown(err), errors.Is(err, detector.ErrSilent):
			return nil, err
		case fresh:
			if !refused {
				d.alive.Failed(addr)
			}
			return nil, err
		}
	}
	return nil, errDetour // unreachable: a new connection is fresh
}

// unknown reports whether an indexer rejected the ticket with which a connection was made. A newer one may be
// accepted.
func unknown(err error) bool {
	var p *wire.Problem
	return errors.As(err, &p) && (p.Code == errcode.Unauthenticated || p.Code == errcode.Forbidden)
}

// refusal returns an indexer's answer that the managers would give as well; nil for any other error.
func refusal(err error) *wire.Problem {
	var p *wire.Problem
	if errors.As(err, &p) && !elsewhere(p) {
		return p
	}
	return nil
}

// elsewhere reports whether the managers may answer differently from an indexer.
func elsewhere(p *wire.Problem) bool {
	switch p.Code {
	case errcode.IndexNotHosted, errcode.IndexNotReady, errcode.Unauthenticated, errcode.Forbidden:
		return true
	}
	return p.Temporary()
}

// ask sends the request and reads the first message. A refusal is a *wire.Problem; the connection is then returned to
// the idle ones or closed.
func (s *directScan) ask() error {
	ws := s.dc.ws
	s.stop = context.AfterFunc(s.ctx, func() { _ = ws.Close() })
	began := time.Now()
	s.d.load.Begin(s.dc.addr)
	req := s.req
	req.Index, req.RequestID = s.route.Index.String(), rpc.RequestID(s.ctx)
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(s.ctx, carrier)
	req.Parent = carrier["traceparent"]
	deadline := time.Now().Add(scanPatience)
	_ = ws.SetWriteDeadline(deadline)
	s.dc.patience(deadline)
	s.dc.out = scanport.AppendRequest(s.dc.out[:0], req)
	s.d.alive.Begin(&s.wait, s.dc.addr, portsOf(s.route), s.hangUp)
	err := ws.WriteMessage(websocket.BinaryMessage, s.dc.out)
	if err == nil {
		err = s.read()
	}
	if s.wait.End() {
		return fmt.Errorf("%s: %w", s.dc.addr, detector.ErrSilent)
	}
	if err != nil {
		return err
	}
	now := time.Now()
	if s.answer.Tail == scanport.Failure && s.answer.Empty() {
		if p := (*wire.Problem)(nil); errors.As(s.failure(), &p) && elsewhere(p) {
			s.d.load.Refused(s.dc.addr, now)
		}
		return s.finish()
	}
	s.d.load.Answered(s.dc.addr, now.Sub(began), now)
	if s.answer.Tail == scanport.More {
		s.dc.patience(time.Time{}) // rows may come for as long as the context lasts
	}
	return nil
}

// hangUp ends a pending read. Unlike Close, it does not block.
func (s *directScan) hangUp() { _ = s.dc.ws.NetConn().SetDeadline(time.Unix(1, 0)) }

// patience sets the deadline for an answer; zero means none.
func (dc *directConn) patience(until time.Time) {
	if ahead := until.Sub(dc.deadline); until.IsZero() != dc.deadline.IsZero() || ahead < 0 || ahead >= deadlineStep {
		_ = dc.ws.SetReadDeadline(until)
		dc.deadline = until
	}
}

// read reads the next message.
func (s *directScan) read() error {
	_, r, err := s.dc.ws.NextReader()
	if err != nil {
		return err
	}
	in := s.dc.in[:0]
	for {
		if len(in) == cap(in) {
			in = append(in, make([]byte, max(directBuffer, len(in)))...)[:len(in)]
		}
		n, err := r.Read(in[len(in):cap(in)])
		in = in[:len(in)+n]
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	s.dc.in, s.came = in, time.Now()
	if err := s.answer.Read(in); err != nil {
		return err
	}
	if s.place = s.place[:0]; s.answer.Tail == scanport.More {
		s.place = append(s.place, s.answer.Text...)
		if saw, _, err := scanport.CutSeen(s.place); err == nil {
			s.saw = &saw
		}
	}
	return nil
}

// seen implements rowSource.
func (s *directScan) seen() *scanport.Seen {
	if s.dc != nil && s.answer.Tail == scanport.End {
		if end, err := readEnd(&s.answer); err == nil {
			return lastSeen(end.Session)
		}
	}
	return s.saw
}

// lastSeen returns the state in a token; nil if there is none.
func lastSeen(token string) *scanport.Seen {
	all, err := scanport.ParseSession(token)
	if err != nil || len(all) == 0 {
		return nil
	}
	return &all[len(all)-1]
}

// more reads a further message. It keeps waiting for an indexer that makes no progress, because others may no longer
// hold the timestamp.
func (s *directScan) more() error {
	s.idle = time.Since(s.came)
	s.d.alive.Begin(&s.wait, s.dc.addr, nil, s.hangUp)
	err := s.read()
	if s.wait.End() {
		return fmt.Errorf("%s: %w", s.dc.addr, detector.ErrSilent)
	}
	return err
}

// resume requests the rest of an answer from another indexer, at the same timestamp, after the last row received. why
// is how the answer ended. The error is, or wraps, a refusal (*wire.Problem).
func (s *directScan) resume(why error) error {
	lost := s.dc.addr
	s.abort()
	switch {
	case s.ctx.Err() != nil:
		return fmt.Errorf("%w (%w)", context.Cause(s.ctx), why)
	case len(s.place) == 0:
		return why
	case s.idle > slowReader:
		why = fmt.Errorf("the caller read nothing for %v: %w", s.idle.Round(time.Second), why)
	case !errors.Is(why, detector.ErrSilent):
		s.d.alive.Failed(lost)
	}
	// The scan may have taken long: the index may have moved, and the ticket has expired.
	s.reroute()
	s.req.Resume = bytes.Clone(s.place)
	all := slices.Clone(s.d.order(s.route))
	slices.SortStableFunc(all, func(a, b string) int { return tail(a, lost) - tail(b, lost) })
	for _, addr := range firstAsked(all) {
		n, err := s.d.try(s.ctx, s.route, addr, s.req)
		if err == nil {
			s.takeOver(n)
			return s.answer.Read(s.dc.in)
		}
		if p := refusal(err); p != nil && !errors.Is(err, errDoor) {
			return p
		}
		if s.ctx.Err() != nil {
			return fmt.Errorf("%w (%w)", context.Cause(s.ctx), why)
		}
		why = fmt.Errorf("%w; %s was to continue: %w", why, addr, err)
	}
	return why
}

// reroute looks up the present route of the index.
func (s *directScan) reroute() {
	if now, err := s.d.way(s.ctx, s.of); err == nil && now != nil && now.Index == s.route.Index {
		s.route = now
	}
}

// takeOver takes over the connection and the first message of the scan that continues this one.
func (s *directScan) takeOver(n *directScan) {
	s.dc, s.stop, s.place, s.came = n.dc, n.stop, n.place, n.came
	if n.saw != nil { // otherwise the earlier state stays
		s.saw = n.saw
	}
}

// tail returns 1 for the indexer to ask last, 0 for the others.
func tail(addr, last string) int {
	if addr == last {
		return 1
	}
	return 0
}

// finish returns the connection to the idle ones, unless its ticket is no longer valid, and returns the failure that
// ended the answer, if any. The answer must not be read afterwards, because its messages are in the connection's
// buffer.
func (s *directScan) finish() error {
	err := s.failure()
	if unknown(err) {
		s.abort()
		return err
	}
	s.d.load.End(s.dc.addr)
	if s.stop() {
		s.d.give(s.dc)
	}
	s.dc = nil
	return err
}

// failure returns the failure that ended the answer; nil if it ended in order.
func (s *directScan) failure() error {
	if s.answer.Tail != scanport.Failure {
		return nil
	}
	p := struct {
		wire.Problem
		Session string `json:"session"` // a token of what was seen with the rows before
	}{}
	if err := json.Unmarshal(s.answer.Text, &p); err != nil || p.Code == "" {
		return fmt.Errorf("%w: an unreadable failure message", ErrCut)
	}
	if saw := lastSeen(p.Session); saw != nil {
		s.saw = saw
	}
	return &p.Problem
}

// abort closes the connection, unless it was returned.
func (s *directScan) abort() {
	if s.dc == nil {
		return
	}
	s.d.load.End(s.dc.addr)
	s.stop()
	_ = s.dc.ws.Close()
	s.dc = nil
}

// readOn reads the next message, from another indexer if this one fails.
func (s *directScan) readOn() error {
	err := s.more()
	if err != nil {
		err = s.resume(err)
	}
	switch p := refusal(err); {
	case err == nil:
		return nil
	case p != nil && s.ctx.Err() == nil:
		return p
	}
	return fmt.Errorf("%w: %w", ErrCut, err)
}

// next implements rowSource.
func (s *directScan) next(row *v1.Row) (end *v1.ScanEnd, err error) {
	if s.dc == nil {
		return nil, fmt.Errorf("%w: it was closed", ErrCut)
	}
	for {
		key, id, ok, err := s.answer.Next()
		if err != nil {
			s.abort()
			return nil, fmt.Errorf("%w: %w", ErrCut, err)
		}
		if ok {
			row.Key, row.ID = key, id
			return nil, nil //nolint:nilnil // a row, and not the end
		}
		if s.answer.Tail != scanport.More {
			break
		}
		if err := s.readOn(); err != nil {
			return nil, err
		}
	}
	end, unread := readEnd(&s.answer)
	if err := s.finish(); err != nil {
		return nil, err
	}
	return end, unread
}

// readEnd reads the last line of a scan; it returns nil if the answer ended otherwise.
func readEnd(a *scanport.Answer) (*v1.ScanEnd, error) {
	if a.Tail != scanport.End {
		return nil, nil //nolint:nilnil // a failure, which finish returns
	}
	end := &v1.ScanEnd{}
	if parseEnd(a.Text, end) {
		return end, nil
	}
	if err := json.Unmarshal(a.Text, end); err != nil {
		return nil, fmt.Errorf("%w: an unreadable end: %w", ErrCut, err)
	}
	return end, nil
}

// close returns the connection to the idle ones if the whole answer has arrived, whether or not the caller read it.
func (s *directScan) close() error {
	if s.dc != nil && s.answer.Tail != scanport.More {
		_ = s.finish() // the caller no longer needs its end
	}
	s.abort()
	return nil
}
