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

func call[Resp any](ctx context.Context, c *Client, timeout time.Duration, method, url string, req any) (*Resp, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	resp := new(Resp)
	if err := c.rpc.Do(ctx, method, url, req, resp); err != nil {
		return nil, err
	}
	return resp, nil
}

// Hello begins a leader's conversation and learns what is hosted.
func (c *Client) Hello(ctx context.Context, addr string, req *wire.HelloRequest) (*wire.IndexerHello, error) {
	return call[wire.IndexerHello](ctx, c, ControlTimeout, http.MethodPut, addr+"/v1/hello", req)
}

// Definitions hands over definitions and topology; the answer's revision is that of which all copies are allocated.
func (c *Client) Definitions(ctx context.Context, addr string, req *wire.Definitions) (*wire.DefinitionsReply, error) {
	return call[wire.DefinitionsReply](ctx, c, ControlTimeout, http.MethodPut, addr+"/v1/definitions", req)
}

// Poll asks for positions and fences older incarnations.
func (c *Client) Poll(ctx context.Context, addr string, req *wire.PollRequest) (*wire.PollReply, error) {
	return call[wire.PollReply](ctx, c, ControlTimeout, http.MethodPost, addr+"/v1/poll", req)
}

// Stability publishes stability timestamps.
func (c *Client) Stability(ctx context.Context, addr string, req *wire.StabilityRequest) error {
	_, err := call[wire.OK](ctx, c, StabilityTimeout, http.MethodPut, addr+"/v1/stability", req)
	return err
}

// DropOrphans tells which orphans the StateContext does not know.
func (c *Client) DropOrphans(ctx context.Context, addr string, req *wire.DropOrphans) (*wire.DropOrphansReply, error) {
	return call[wire.DropOrphansReply](ctx, c, ControlTimeout, http.MethodPost, addr+"/v1/orphans:drop", req)
}

// Rollback tells of a rollback step.
func (c *Client) Rollback(ctx context.Context, addr string, req *wire.RollbackRequest) (*wire.RollbackReply, error) {
	return call[wire.RollbackReply](ctx, c, RollbackTimeout, http.MethodPut, addr+"/v1/rollback", req)
}
