// Package indexerclient is the coordinator's way to an indexer's admin server: one method for each message of package
// wire, with a deadline.
//
// It promises that a call ends at its deadline and that an answer's error is a *rpc.Problem with its code. It never
// retries: callers are level-triggered. The one thing that it remembers is which stability timestamps an indexer was
// told, so that the next ones travel as changes.
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

// Client speaks to any number of indexers; the address is the base URL of an admin server.
type Client struct {
	rpc *rpc.Client

	mu   sync.Mutex
	told map[string]wire.StabilityBases // by address: what was answered
}

// maxTold bounds the addresses for which it is remembered what they were told: more than there can be indexers. Beyond
// it everybody is told whole timestamps once.
const maxTold = 512

// New makes a client with at most perHost connections to one indexer; conf is for https addresses, nil without TLS.
func New(perHost int, conf *tls.Config) *Client {
	return &Client{rpc: rpc.NewClient(perHost, conf), told: map[string]wire.StabilityBases{}}
}

// Close drops idle connections.
func (c *Client) Close() { c.rpc.Close() }

// Hello begins a leader's conversation and learns what is hosted.
func (c *Client) Hello(ctx context.Context, addr string, req *wire.HelloRequest) (*wire.IndexerHello, error) {
	return rpc.Call[wire.IndexerHello](ctx, c.rpc, ControlTimeout, http.MethodPut, addr+"/v1/hello", req)
}

// Definitions hands over definitions and topology; the answer's revision is that of which all copies are allocated.
func (c *Client) Definitions(ctx context.Context, addr string, req *wire.Definitions) (*wire.DefinitionsReply, error) {
	return rpc.Call[wire.DefinitionsReply](ctx, c.rpc, ControlTimeout, http.MethodPut, addr+"/v1/definitions", req)
}

// Change hands over what has changed in them since a revision that was handed over before.
func (c *Client) Change(ctx context.Context, addr string, req *wire.DefinitionsChange) (*wire.DefinitionsReply, error) {
	return rpc.Call[wire.DefinitionsReply](ctx, c.rpc, ControlTimeout, http.MethodPost, addr+"/v1/definitions:change", req)
}

// Poll asks for positions and fences older incarnations.
func (c *Client) Poll(ctx context.Context, addr string, req *wire.PollRequest) (*wire.PollReply, error) {
	return rpc.Call[wire.PollReply](ctx, c.rpc, ControlTimeout, http.MethodPost, addr+"/v1/poll", req)
}

// Stability publishes the stability timestamps of req, each as a change of what this client last told that indexer;
// what the indexer does not have the base of is told whole at once. Calls for one address should not overlap.
func (c *Client) Stability(ctx context.Context, addr string, req *wire.StabilityRequest) error {
	told := c.take(addr) // after a failure nobody knows what it was told
	told.Assume(req.Base)
	brief := told.Encode(req)
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
		told.Record(&req.Stabilities[i])
	}
	c.put(addr, told)
	return nil
}

// take returns what an indexer was told; until it is put back, that counts as nothing.
func (c *Client) take(addr string) wire.StabilityBases {
	c.mu.Lock()
	defer c.mu.Unlock()
	told := c.told[addr]
	delete(c.told, addr)
	if told == nil {
		told = wire.StabilityBases{}
	}
	return told
}

func (c *Client) put(addr string, told wire.StabilityBases) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.told) >= maxTold {
		clear(c.told)
	}
	c.told[addr] = told
}

func (c *Client) stability(ctx context.Context, addr string, req *wire.StabilityRequest) (*wire.StabilityReply, error) {
	return rpc.Call[wire.StabilityReply](ctx, c.rpc, StabilityTimeout, http.MethodPut, addr+"/v1/stability", req)
}

// DropOrphans returns which orphans the StateContext does not know.
func (c *Client) DropOrphans(ctx context.Context, addr string, req *wire.DropOrphans) (*wire.DropOrphansReply, error) {
	return rpc.Call[wire.DropOrphansReply](ctx, c.rpc, ControlTimeout, http.MethodPost, addr+"/v1/orphans:drop", req)
}

// Stats returns an indexer's figures.
func (c *Client) Stats(ctx context.Context, addr string) (*wire.IndexerStats, error) {
	return rpc.Call[wire.IndexerStats](ctx, c.rpc, StatsTimeout, http.MethodGet, addr+"/v1/stats", nil)
}

// SlowFrom has an indexer remember scans that take so long.
func (c *Client) SlowFrom(ctx context.Context, addr string, req *wire.SlowFrom) error {
	_, err := rpc.Call[wire.OK](ctx, c.rpc, ControlTimeout, http.MethodPost, addr+"/v1/scans:slow", req)
	return err
}

// Scans returns at most so many scans that an indexer coordinates, and so many of those that were slow.
func (c *Client) Scans(ctx context.Context, addr string, running, slow int) (*wire.IndexerScans, error) {
	return rpc.Call[wire.IndexerScans](ctx, c.rpc, StatsTimeout, http.MethodGet,
		fmt.Sprintf("%s/v1/scans?running=%d&slow=%d", addr, running, slow), nil)
}

// History returns what an indexer remembers of the scans that it has coordinated.
func (c *Client) History(ctx context.Context, addr string, q wire.HistoryAsked) (*wire.History, error) {
	return rpc.Call[wire.History](ctx, c.rpc, StatsTimeout, http.MethodGet, addr+"/v1/history"+history.Query(q), nil)
}

// CancelScan ends a scan.
func (c *Client) CancelScan(ctx context.Context, addr string, req *wire.CancelScan) error {
	_, err := rpc.Call[wire.OK](ctx, c.rpc, ControlTimeout, http.MethodPost, addr+"/v1/scans:cancel", req)
	return err
}

// Sample asks how the leading keys of a copy are spread, for so long at most.
func (c *Client) Sample(ctx context.Context, addr string, req *wire.SampleRequest,
	timeout time.Duration) (*wire.SampleReply, error) {
	return rpc.Call[wire.SampleReply](ctx, c.rpc, timeout, http.MethodPost, addr+"/v1/samples", req)
}

// Rollback tells of a rollback step.
func (c *Client) Rollback(ctx context.Context, addr string, req *wire.RollbackRequest) (*wire.RollbackReply, error) {
	return rpc.Call[wire.RollbackReply](ctx, c.rpc, RollbackTimeout, http.MethodPut, addr+"/v1/rollback", req)
}

// Logging returns how much it logs, after a change if there is one.
func (c *Client) Logging(ctx context.Context, addr string, change *wire.LogChange) (*wire.LogLevels, error) {
	if change == nil {
		return rpc.Call[wire.LogLevels](ctx, c.rpc, ControlTimeout, http.MethodGet, addr+"/v1/logging", nil)
	}
	return rpc.Call[wire.LogLevels](ctx, c.rpc, ControlTimeout, http.MethodPut, addr+"/v1/logging", change)
}
