// Package managerclient sends the components' messages to the managers: registration, reports and requests for a
// stability timestamp. It has the addresses of all managers and finds the leader by itself.
//
// A call tries the last known leader first, then the other managers one by one (each forwards to the leader), and
// ends at its deadline. The call abandons a manager that hangs as soon as another manager answers probes, whatever
// the deadline of the call; a manager that answers probes keeps its whole deadline. Requests that wait do not block
// other calls. Messages are idempotent, so retrying them on the next manager is safe.
package managerclient

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"tidemark/errcode"
	"tidemark/indexer/scanport"
	"tidemark/internal/detector"
	"tidemark/internal/rpc"
	"tidemark/wire"
)

// Deadlines. A report is soon followed by the next one, so its deadline is short.
const (
	RegisterTimeout = 5 * time.Second
	ReportTimeout   = 2 * time.Second
	perManager      = 1500 * time.Millisecond // limit for one manager before the next is tried
)

// Connections to one manager. Requests that wait have connections of their own: each occupies one while it waits, and
// a component whose reports are delayed would count as offline.
const (
	callsAtOnce  = 8
	waitsAtOnce  = 64 // further requests wait for a connection until their deadlines
	probesAtOnce = 2
)

// ErrNoManager is wrapped if no manager could be reached.
var ErrNoManager = errors.New("no manager could be reached")

// Client calls the managers of one cluster.
type Client struct {
	rpc    *rpc.Client
	waits  *rpc.Client // for requests that the leader may hold back
	probes *rpc.Client
	alive  *detector.Detector // of the managers
	tokens tokens

	mu       sync.Mutex
	leader   string   // base URL, "" if unknown
	managers []string // base URLs
}

// New returns a client for the managers with the given base URLs; conf is for https addresses, nil without TLS.
func New(managers []string, conf *tls.Config) *Client {
	c := &Client{rpc: rpc.NewClient(callsAtOnce, conf), waits: rpc.NewClient(waitsAtOnce, conf),
		probes: rpc.NewClient(probesAtOnce, conf), managers: append([]string(nil), managers...),
		tokens: tokens{trust: tokenGood, asking: rpc.NewPlaces(tokensAtOnce, "checks of tokens")}}
	c.alive = detector.New(detector.HTTP(c.probes.HTTP(), func(addr string) string { return addr + "/healthz" }))
	return c
}

// Close stops probes and closes idle connections.
func (c *Client) Close() {
	c.alive.Close()
	c.probes.Close()
	c.waits.Close()
	c.rpc.Close()
}

// SetLeader sets the leader, as reported by a hello or an answer.
func (c *Client) SetLeader(l wire.Leader) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leader = l.REST
}

// SetManagers replaces the list of managers; it ignores an empty one.
func (c *Client) SetManagers(ms []wire.ManagerEndpoint) {
	if len(ms) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.managers = c.managers[:0:0]
	for _, m := range ms {
		c.managers = append(c.managers, m.REST)
	}
}

// order returns the base URLs of the managers, the leader first.
func (c *Client) order() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []string
	if c.leader != "" {
		all = append(all, c.leader)
	}
	for _, m := range c.managers {
		if m != c.leader {
			all = append(all, m)
		}
	}
	return all
}

// forget clears the leader if it is the given manager, which did not answer.
func (c *Client) forget(addr string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leader == addr {
		c.leader = ""
	}
}

// do tries the managers in order until one returns the leader's answer. The leader may hold its answer back for as
// long as wait; 0: it answers at once.
func (c *Client) do(ctx context.Context, method, path string, wait time.Duration, req, resp any) error {
	client := c.rpc
	if wait > 0 {
		client = c.waits
	}
	var last error
	for _, addr := range c.alive.Order(c.order()) {
		one, cancel := context.WithTimeout(ctx, perManager+wait)
		var watch detector.Wait
		c.alive.Begin(&watch, addr, c.order, cancel)
		err := client.Do(one, method, addr+path, req, resp)
		silent := watch.End()
		cancel()
		if err == nil {
			return nil
		}
		if silent {
			err = fmt.Errorf("%w: %w", detector.ErrSilent, err)
		}
		var p *rpc.Problem
		if errors.As(err, &p) && !elsewhere(p, wait) {
			return err
		}
		last = fmt.Errorf("%s: %w", addr, err)
		c.forget(addr)
		if ctx.Err() != nil {
			break
		}
	}
	if last == nil {
		return fmt.Errorf("%w: no address is configured", ErrNoManager)
	}
	return fmt.Errorf("%w: the last attempt was %w", ErrNoManager, last)
}

// elsewhere reports whether another manager may have an answer: this one has no leader, or none that answered in
// time. If a waiting request timed out at the leader, the timeout is the answer, and the manager that returned it is
// healthy.
func elsewhere(p *rpc.Problem, wait time.Duration) bool {
	return p.Temporary() && (wait == 0 || p.Code != errcode.Timeout)
}

// RegisterIndexer registers an indexer.
func (c *Client) RegisterIndexer(ctx context.Context, req *wire.RegisterIndexer) (*wire.RegisterReply, error) {
	return c.register(ctx, "/v1/cluster/indexers", req)
}

// RegisterProjector registers a projector.
func (c *Client) RegisterProjector(ctx context.Context, req *wire.RegisterProjector) (*wire.RegisterReply, error) {
	return c.register(ctx, "/v1/cluster/projectors", req)
}

// LeaveProjector removes a projector's registration.
func (c *Client) LeaveProjector(ctx context.Context, req *wire.LeaveProjector) error {
	ctx, cancel := context.WithTimeout(ctx, RegisterTimeout)
	defer cancel()
	return c.do(ctx, http.MethodPost, "/v1/cluster/projectors:leave", 0, req, nil)
}

func (c *Client) register(ctx context.Context, path string, req any) (*wire.RegisterReply, error) {
	ctx, cancel := context.WithTimeout(ctx, RegisterTimeout)
	defer cancel()
	resp := new(wire.RegisterReply)
	if err := c.do(ctx, http.MethodPost, path, 0, req, resp); err != nil {
		return nil, err
	}
	c.SetLeader(resp.Leader)
	c.rpc.SetCluster(resp.ClusterID)
	c.waits.SetCluster(resp.ClusterID)
	return resp, nil
}

// ReportIndexer sends an indexer's report, addressed by the indexer's uuid.
func (c *Client) ReportIndexer(ctx context.Context, req *wire.IndexerReport) (*wire.ReportReply, error) {
	return c.report(ctx, req.UUID, req)
}

// ReportProjector sends a projector's report.
func (c *Client) ReportProjector(ctx context.Context, req *wire.ProjectorReport) (*wire.ReportReply, error) {
	return c.report(ctx, string(req.ID), req)
}

func (c *Client) report(ctx context.Context, id string, req any) (*wire.ReportReply, error) {
	kind := "indexer"
	if _, ok := req.(*wire.ProjectorReport); ok {
		kind = "projector"
	}
	ctx, cancel := context.WithTimeout(ctx, ReportTimeout)
	defer cancel()
	resp := new(wire.ReportReply)
	if err := c.do(ctx, http.MethodPost, "/v1/components/"+url.PathEscape(id)+"/reports?kind="+kind, 0, req,
		resp); err != nil {
		return nil, err
	}
	if resp.Leader.REST != "" {
		c.SetLeader(resp.Leader)
	}
	return resp, nil
}

// CheckTicket has the manager with the given base URL verify a client's ticket; the URL must be one of the known
// managers. If the ticket is invalid, the error is a *rpc.Problem.
func (c *Client) CheckTicket(ctx context.Context, manager, ticket string) (*scanport.Checked, error) {
	if !slices.Contains(c.order(), manager) {
		return nil, fmt.Errorf("%w: %q, which a ticket names, is not one of the configured managers", ErrNoManager, manager)
	}
	resp := new(scanport.Checked)
	ctx, cancel := context.WithTimeout(ctx, perManager)
	defer cancel()
	if err := c.rpc.Do(ctx, http.MethodPost, manager+scanport.CheckPath, scanport.Check{Ticket: ticket},
		resp); err != nil {
		return nil, err
	}
	return resp, nil
}

// Stabilize requests a stability timestamp at or above req.Need and waits up to req.WaitMS for it.
func (c *Client) Stabilize(ctx context.Context, bucket string,
	req *wire.StabilizeRequest) (*wire.BucketStability, error) {
	resp := new(wire.BucketStability)
	wait := time.Duration(max(req.WaitMS, 1)) * time.Millisecond
	if err := c.do(ctx, http.MethodPost, "/v1/buckets/"+url.PathEscape(bucket)+":stabilize", wait, req, resp); err != nil {
		return nil, err
	}
	return resp, nil
}
