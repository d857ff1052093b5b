// Package indexerclient is the coordinator's way to an indexer's admin server: one method for each message of package
// wire, with a deadline.
//
// It promises that a call ends at its deadline and that an answer's error is a *rpc.Problem with its code. It never
// retries: callers are level-triggered.
package indexerclient

import (
	"context"
	"crypto/tls"
	"net/http"
	"time"

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
}

// New makes a client with at most perHost connections to one indexer; conf is for https addresses, nil without TLS.
func New(perHost int, conf *tls.Config) *Client { return &Client{rpc: rpc.NewClient(perHost, conf)} }

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

// Poll asks for positions and fences older incarnations.
func (c *Client) Poll(ctx context.Context, addr string, req *wire.PollRequest) (*wire.PollReply, error) {
	return rpc.Call[wire.PollReply](ctx, c.rpc, ControlTimeout, http.MethodPost, addr+"/v1/poll", req)
}

// Stability publishes stability timestamps.
func (c *Client) Stability(ctx context.Context, addr string, req *wire.StabilityRequest) error {
	_, err := rpc.Call[wire.OK](ctx, c.rpc, StabilityTimeout, http.MethodPut, addr+"/v1/stability", req)
	return err
}

// DropOrphans tells which orphans the StateContext does not know.
func (c *Client) DropOrphans(ctx context.Context, addr string, req *wire.DropOrphans) (*wire.DropOrphansReply, error) {
	return rpc.Call[wire.DropOrphansReply](ctx, c.rpc, ControlTimeout, http.MethodPost, addr+"/v1/orphans:drop", req)
}

// Stats gives an indexer's figures.
func (c *Client) Stats(ctx context.Context, addr string) (*wire.IndexerStats, error) {
	return rpc.Call[wire.IndexerStats](ctx, c.rpc, StatsTimeout, http.MethodGet, addr+"/v1/stats", nil)
}

// Rollback tells of a rollback step.
func (c *Client) Rollback(ctx context.Context, addr string, req *wire.RollbackRequest) (*wire.RollbackReply, error) {
	return rpc.Call[wire.RollbackReply](ctx, c.rpc, RollbackTimeout, http.MethodPut, addr+"/v1/rollback", req)
}
