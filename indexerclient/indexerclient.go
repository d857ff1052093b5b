// Package indexerclient sends the coordinator's messages to an indexer's admin server: one method for each message of
// package wire, each with a deadline.
//
// A call ends at its deadline, and an answer's error is a *rpc.Problem with its code. The package never retries: its
// callers are level-triggered. Its only state is which stability timestamps each indexer has received, so that the
// next ones are sent as deltas.
package indexerclient

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"tidemark/internal/history"
	"tidemark/internal/rpc"
	"tidemark/wire"
)

// Deadlines of the calls.
const (
	ControlTimeout   = 5 * time.Second
	StabilityTimeout = 2 * time.Second
	StatsTimeout     = 3 * time.Second
	RollbackTimeout  = 60 * time.Second // restoring from a checkpoint
)

// Client calls any number of indexers; an address is the base URL of an admin server.
type Client struct {
	rpc *rpc.Client

	mu    sync.Mutex
	acked map[string]wire.StabilityBases // by address: the timestamps that the indexer has acknowledged
}

// maxAcked bounds the number of addresses in acked, above the possible number of indexers. Beyond it acked is cleared,
// and every indexer gets full timestamps once.
const maxAcked = 512

// New returns a client with at most perHost connections to one indexer; conf is for https addresses, nil without TLS.
func New(perHost int, conf *tls.Config) *Client {
	return &Client{rpc: rpc.NewClient(perHost, conf), acked: map[string]wire.StabilityBases{}}
}

// Close closes idle connections.
func (c *Client) Close() { c.rpc.Close() }

// Hello begins a leader's session and returns what the indexer hosts.
func (c *Client) Hello(ctx context.Context, addr string, req *wire.HelloRequest) (*wire.IndexerHello, error) {
	return rpc.Call[wire.IndexerHello](ctx, c.rpc, ControlTimeout, http.MethodPut, addr+"/v1/hello", req)
}

// Definitions sends definitions and topology; the reply's revision is the one for which all copies are allocated.
func (c *Client) Definitions(ctx context.Context, addr string, req *wire.Definitions) (*wire.DefinitionsReply, error) {
	return rpc.Call[wire.DefinitionsReply](ctx, c.rpc, ControlTimeout, http.MethodPut, addr+"/v1/definitions", req)
}

// Change sends what has changed in the definitions since a revision sent before.
func (c *Client) Change(ctx context.Context, addr string, req *wire.DefinitionsChange) (*wire.DefinitionsReply, error) {
	return rpc.Call[wire.DefinitionsReply](ctx, c.rpc, ControlTimeout, http.MethodPost, addr+"/v1/definitions:change", req)
}

// Poll returns positions and fences older incarnations.
func (c *Client) Poll(ctx context.Context, addr string, req *wire.PollRequest) (*wire.PollReply, error) {
	return rpc.Call[wire.PollReply](ctx, c.rpc, ControlTimeout, http.MethodPost, addr+"/v1/poll", req)
}

// Stability publishes the stability timestamps of req, each as a delta against the last one that this client sent to
// the indexer. If the indexer lacks the base of a delta, the full timestamp follows at once. Calls for one address
// should not overlap.
func (c *Client) Stability(ctx context.Context, addr string, req *wire.StabilityRequest) error {
	acked := c.take(addr) // after a failure it is unknown what the indexer has received
	acked.Assume(req.Base)
	brief := acked.Encode(req)
	reply, err := c.stability(ctx, addr, brief)
	if err != nil {
		return err
	}
	whole := wire.StabilityRequest{Fence: req.Fence}
	for i := range req.Stabilities {
		s := &req.Stabilities[i]
		delta := slices.ContainsFunc(brief.Deltas, func(d wire.StabilityDelta) bool { return d.Bucket == s.Bucket })
		if delta && slices.Contains(reply.Missing, s.Bucket) {
			whole.Stabilities = append(whole.Stabilities, *s)
		}
	}
	if len(whole.Stabilities) > 0 {
		if _, err = c.stability(ctx, addr, &whole); err != nil {
			return err
		}
	}
	for i := range req.Stabilities {
		acked.Record(&req.Stabilities[i])
	}
	c.put(addr, acked)
	return nil
}

// take removes and returns what an indexer has received; until put is called, the indexer counts as having received
// nothing.
func (c *Client) take(addr string) wire.StabilityBases {
	c.mu.Lock()
	defer c.mu.Unlock()
	acked := c.acked[addr]
	delete(c.acked, addr)
	if acked == nil {
		acked = wire.StabilityBases{}
	}
	return acked
}

func (c *Client) put(addr string, acked wire.StabilityBases) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.acked) >= maxAcked {
		clear(c.acked)
	}
	c.acked[addr] = acked
}

func (c *Client) stability(ctx context.Context, addr string, req *wire.StabilityRequest) (*wire.StabilityReply, error) {
	return rpc.Call[wire.StabilityReply](ctx, c.rpc, StabilityTimeout, http.MethodPut, addr+"/v1/stability", req)
}

// DropOrphans returns which of the given orphans the StateContext does not place.
func (c *Client) DropOrphans(ctx context.Context, addr string, req *wire.DropOrphans) (*wire.DropOrphansReply, error) {
	return rpc.Call[wire.DropOrphansReply](ctx, c.rpc, ControlTimeout, http.MethodPost, addr+"/v1/orphans:drop", req)
}

// Stats returns an indexer's statistics.
func (c *Client) Stats(ctx context.Context, addr string) (*wire.IndexerStats, error) {
	return rpc.Call[wire.IndexerStats](ctx, c.rpc, StatsTimeout, http.MethodGet, addr+"/v1/stats", nil)
}

// SlowFrom sets the duration from which an indexer records scans as slow.
func (c *Client) SlowFrom(ctx context.Context, addr string, req *wire.SlowFrom) error {
	_, err := rpc.Call[wire.OK](ctx, c.rpc, ControlTimeout, http.MethodPost, addr+"/v1/scans:slow", req)
	return err
}

// Scans returns at most running scans that an indexer coordinates, and at most slow of those recorded as slow.
func (c *Client) Scans(ctx context.Context, addr string, running, slow int) (*wire.IndexerScans, error) {
	return rpc.Call[wire.IndexerScans](ctx, c.rpc, StatsTimeout, http.MethodGet,
		fmt.Sprintf("%s/v1/scans?running=%d&slow=%d", addr, running, slow), nil)
}

// History returns an indexer's recorded history of the scans that it has coordinated.
func (c *Client) History(ctx context.Context, addr string, q wire.HistoryQuery) (*wire.History, error) {
	return rpc.Call[wire.History](ctx, c.rpc, StatsTimeout, http.MethodGet, addr+"/v1/history"+history.Query(q), nil)
}

// CancelScan cancels a scan.
func (c *Client) CancelScan(ctx context.Context, addr string, req *wire.CancelScan) error {
	_, err := rpc.Call[wire.OK](ctx, c.rpc, ControlTimeout, http.MethodPost, addr+"/v1/scans:cancel", req)
	return err
}

// Sample returns the distribution of the leading keys of a copy; timeout bounds the call.
func (c *Client) Sample(ctx context.Context, addr string, req *wire.SampleRequest,
	timeout time.Duration) (*wire.SampleReply, error) {
	return rpc.Call[wire.SampleReply](ctx, c.rpc, timeout, http.MethodPost, addr+"/v1/samples", req)
}

// Rollback sends a rollback step.
func (c *Client) Rollback(ctx context.Context, addr string, req *wire.RollbackRequest) (*wire.RollbackReply, error) {
	return rpc.Call[wire.RollbackReply](ctx, c.rpc, RollbackTimeout, http.MethodPut, addr+"/v1/rollback", req)
}

// Logging returns the indexer's log levels, after applying change unless it is nil.
func (c *Client) Logging(ctx context.Context, addr string, change *wire.LogChange) (*wire.LogLevels, error) {
	if change == nil {
		return rpc.Call[wire.LogLevels](ctx, c.rpc, ControlTimeout, http.MethodGet, addr+"/v1/logging", nil)
	}
	return rpc.Call[wire.LogLevels](ctx, c.rpc, ControlTimeout, http.MethodPut, addr+"/v1/logging", change)
}
