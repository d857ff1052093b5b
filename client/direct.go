package client

import (
	"context"
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/gorilla/websocket"

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

// mostAsked bounds the indexers that are tried for one scan.
const mostAsked = 3

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
