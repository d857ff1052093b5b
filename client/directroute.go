package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"tidemark/errcode"
	"tidemark/manager/api/v1"
	"tidemark/wire"
)

const (
	routeFresh  = 5 * time.Second        // a younger route is used as it is; an older one is renewed in the background
	routeGood   = 15 * time.Second       // a route older than this is not used: scans wait for the new one
	locateLimit = time.Second            // for a manager to return the route
	firstDetour = 250 * time.Millisecond // through the managers after a failure; doubles with each further one
	maxDetour   = 30 * time.Second
	maxRoutes   = 1024 // indexes
)

// routeState is the route to an index, and the state of its renewal.
type routeState struct {
	route   *v1.ScanRoute // replaced, never modified: scans share it
	at      time.Time     // of route; zero: there is none
	pending chan struct{} // closed when the manager has answered; nil: no request is pending
	refused error         // the managers' last answer, if it also answers the scan

	detour time.Duration // how long scans go through the managers after the next failure
	until  time.Time     // end of the present detour
}

// stateOf returns the state of the route to an index. The caller holds d.mu.
func (d *direct) stateOf(ref string) *routeState {
	w := d.routes[ref]
	if w == nil {
		if len(d.routes) >= maxRoutes {
			clear(d.routes) // entries are added again on demand
		}
		w = &routeState{detour: firstDetour}
		d.routes[ref] = w
	}
	return w
}

// routeTo returns the route to an index, nil if scans go through the managers for now. The error is a manager's refusal
// that applies to the scan as well.
func (d *direct) routeTo(ctx context.Context, ref string) (*v1.ScanRoute, error) {
	d.mu.Lock()
	w := d.stateOf(ref)
	now := time.Now()
	age := now.Sub(w.at)
	switch {
	case d.closed || now.Before(w.until):
		d.mu.Unlock()
		return nil, nil //nolint:nilnil // no route for now
	case age < routeFresh:
		defer d.mu.Unlock()
		return w.route, nil
	}
	if w.pending == nil {
		w.pending = make(chan struct{})
		d.lookups.Go(func() { d.locate(ref, w) })
	}
	pending := w.pending
	if age < routeGood {
		defer d.mu.Unlock()
		return w.route, nil
	}
	d.mu.Unlock()
	select {
	case <-pending:
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
func (d *direct) locate(ref string, w *routeState) {
	ctx, cancel := context.WithTimeout(d.ctx, locateLimit)
	defer cancel()
	var route v1.ScanRoute
	at := time.Now()
	err := d.request(ctx, ref, &route)
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
	close(w.pending)
	w.pending = nil
}

// request requests the route from the manager that answered last, and no other: if it fails, the scan itself finds a
// manager.
func (d *direct) request(ctx context.Context, ref string, route *v1.ScanRoute) error {
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
func (d *direct) detour(w *routeState) {
	w.until, w.detour = time.Now().Add(w.detour), min(2*w.detour, maxDetour)
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

// order returns the indexers of a route in the order in which to try them: first the less loaded of two random ones,
// as seen by this client; suspect ones come last.
func (d *direct) order(route *v1.ScanRoute) []string {
	all := route.ScanPorts
	n := len(all)
	if n <= 1 {
		return all
	}
	rotated := make([]string, n)
	first := d.first(n)
	for i := range rotated {
		rotated[i] = all[(first+i)%n]
	}
	if other := 1 + d.first(n-1); d.load.Busier(rotated[0], rotated[other], time.Now()) {
		rotated[0], rotated[other] = rotated[other], rotated[0]
	}
	return d.alive.Order(rotated)
}
