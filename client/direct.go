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
// silent while another one is not (package detector), the scan tries the next one, and this indexer becomes the last
// choice for a while; in the middle of an answer, the next indexer continues at the same timestamp after the last row
// received. Everything else — a refusal, an index that does not exist or is not ready, an older manager — is
// left to the managers: the same request goes through one of them, and its answer counts.

// maxTried bounds the indexers that a scan tries.
const maxTried = 3

// direct manages routes and connections to the indexers.
type direct struct {
	c       *Client
	dialer  *websocket.Dialer
	scheme  string
	alive   *detector.Detector // of the indexers' scan ports
	load    detector.Load[string]
	probes  *rpc.Client
	ctx     context.Context // of background look-ups; ends with Close
	end     context.CancelFunc
	lookups sync.WaitGroup
	first   func(n int) int // random choice of the first indexer, out of n

	mu        sync.Mutex
	routes    map[string]*routeState   // by ref
	idle      map[string][]*directConn // by address, most recently used last
	tidyTimer *time.Timer              // nil if no connection is idle
	closed    bool
}

// newDirect returns nil if scans cannot go directly: with TLS, indexers are recognized by the role in their
// certificates, which requires the cluster's own CA.
func newDirect(c *Client, conf *tls.Config) *direct {
	d := &direct{c: c, scheme: "ws", routes: map[string]*routeState{}, idle: map[string][]*directConn{},
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
	if d.tidyTimer != nil {
		d.tidyTimer.Stop()
	}
	for _, list := range d.idle {
		for _, dc := range list {
			_ = dc.ws.Close()
		}
	}
	clear(d.idle)
	d.mu.Unlock()
	d.lookups.Wait()
	d.alive.Close()
	d.probes.Close()
}

// probesAtOnce bounds the connections to one indexer or manager that only check whether it is alive.
const probesAtOnce = 2

// errDetour means that a scan has to go through the managers.
var errDetour = errors.New("through the managers")

// candidates returns the indexers that a scan tries.
func candidates(addrs []string) []string { return addrs[:min(len(addrs), maxTried)] }

// isCommon reports whether the other indexers would answer the same: about the request, or about its sender.
func isCommon(err error) bool {
	return isAnswer(err) && !errors.Is(err, errNotAccepted) || ticketRejected(err)
}

// begin sends a request and waits for the first message of its answer. errDetour means that the request has to go
// through a manager.
func (d *direct) begin(ctx context.Context, q operation, body []byte) (*directScan, error) {
	route, err := d.routeTo(ctx, q.of)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, q.contextError(ctx, d.c.servers[int(d.c.next.Load())%len(d.c.servers)], err, nil)
	case err != nil:
		return nil, err
	case route == nil:
		return nil, errDetour
	}
	var last string
	var before error
	for _, addr := range candidates(d.order(route)) {
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
		return nil, q.contextError(ctx, "indexer "+last, err, before)
	}
	return nil, d.noneAnswered(q.of, err)
}

// noneAnswered returns the error if no indexer of a route has answered: a refusal that the managers would give as well,
// or errDetour.
func (d *direct) noneAnswered(of string, err error) error {
	var p *wire.Problem
	answered := errors.As(err, &p)
	if answered && !viaManagers(p) {
		return p
	}
	if !answered || p.Code != errcode.Busy { // a busy indexer may accept the next scan
		d.lost(of)
	}
	return errDetour
}

// try sends the request to one indexer.
func (d *direct) try(ctx context.Context, route *v1.ScanRoute, addr string, req scanport.Request) (s *directScan,
	err error) {
	for _, anew := range []bool{false, true} { // the indexer may have closed an idle connection
		dc, err := d.conn(ctx, route, addr, anew)
		if err != nil {
			return nil, err
		}
		fresh := dc.fresh
		s := &directScan{d: d, dc: dc, ctx: ctx, route: route, req: req}
		if err = s.send(); err == nil {
			return s, nil
		}
		s.abort()
		switch refused := errors.As(err, new(*wire.Problem)); {
		case ctx.Err() != nil, refused && !ticketRejected(err), errors.Is(err, detector.ErrSilent):
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

// ticketRejected reports whether an indexer rejected the ticket of the connection. A newer one may be accepted.
func ticketRejected(err error) bool {
	var p *wire.Problem
	return errors.As(err, &p) && (p.Code == errcode.Unauthenticated || p.Code == errcode.Forbidden)
}

// refusal returns an indexer's answer that the managers would give as well; nil for any other error.
func refusal(err error) *wire.Problem {
	var p *wire.Problem
	if errors.As(err, &p) && !viaManagers(p) {
		return p
	}
	return nil
}

// viaManagers reports whether the managers may answer differently from an indexer.
func viaManagers(p *wire.Problem) bool {
	switch p.Code {
	case errcode.IndexNotHosted, errcode.IndexNotReady, errcode.Unauthenticated, errcode.Forbidden:
		return true
	}
	return p.Temporary()
}
