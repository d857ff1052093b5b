package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/gorilla/websocket"

	"tidemark/indexer/scanport"
	"tidemark/internal/detector"
	"tidemark/internal/rpc"
	"tidemark/internal/tlsconf"
	"tidemark/manager/api/v1"
)

const (
	dialLimit     = 500 * time.Millisecond // for an indexer to accept a connection
	connIdle      = 60 * time.Second       // indexers close idle connections after twice that
	tidyEvery     = connIdle / 2
	maxIdleConns  = 64 // to one indexer
	directBuffer  = 16 << 10
	maxMessage    = 8 << 20     // of an answer
	maxIdleBuffer = 64 << 10    // buffer size that an idle connection keeps
	deadlineStep  = time.Second // a read deadline is only set again if it differs by at least this much
)

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

// dialSoon is rpc.Dial within dialLimit.
func dialSoon(ctx context.Context, network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	return rpc.Dial(ctx, network, addr)
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
		err = fmt.Errorf("%w: %w: %w", errNotAccepted, err, rpc.ReadProblem(answer))
		_ = answer.Body.Close()
	case silent:
		err = fmt.Errorf("%s: %w", addr, detector.ErrSilent)
	case ctx.Err() == nil:
		d.alive.Failed(addr)
	}
	return nil, err
}

// errNotAccepted is wrapped if an indexer refuses a connection, for whatever reason.
var errNotAccepted = errors.New("no connection")

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
	if cap(dc.in) > maxIdleBuffer {
		dc.in = nil
	}
	if cap(dc.out) > maxIdleBuffer {
		dc.out = nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || len(d.idle[dc.addr]) >= maxIdleConns || dc.used.After(dc.until) {
		_ = dc.ws.Close()
		return
	}
	d.idle[dc.addr] = append(d.idle[dc.addr], dc)
	if d.tidyTimer == nil {
		d.tidyTimer = time.AfterFunc(tidyEvery, d.tidy)
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
	if d.tidyTimer = nil; len(d.idle) > 0 {
		d.tidyTimer = time.AfterFunc(tidyEvery, d.tidy)
	}
	d.mu.Unlock()
	for _, dc := range old {
		_ = dc.ws.Close()
	}
}

// setDeadline sets the deadline for an answer; zero means none.
func (dc *directConn) setDeadline(until time.Time) {
	if ahead := until.Sub(dc.deadline); until.IsZero() != dc.deadline.IsZero() || ahead < 0 || ahead >= deadlineStep {
		_ = dc.ws.SetReadDeadline(until)
		dc.deadline = until
	}
}
