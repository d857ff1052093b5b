// Package projectorclient is the coordinator's and the indexers' way to a projector's admin server: one method for each
// message of package wire, with a deadline.
//
// It promises that a call ends at its deadline and that an answer's error is a *rpc.Problem with its code. It never
// retries: callers are level-triggered.
package projectorclient

import (
	"context"
	"crypto/tls"
	"net/http"
	"time"

	"tidemark/internal/rpc"
	"tidemark/wire"
)

// Deadlines of calls that carry none of their own.
const (
	ControlTimeout = 5 * time.Second  // hello, definitions, stop, bucket
	StreamTimeout  = 15 * time.Second // start of streams: KV is asked once for each vbucket
	ReadTimeout    = 2 * time.Second  // seqnos, sync
)

// Client speaks to any number of projectors; the address is the base URL of an admin server.
type Client struct {
	rpc *rpc.Client
}

// New makes a client with at most perHost connections to one projector; conf is for https addresses, nil without TLS.
func New(perHost int, conf *tls.Config) *Client { return &Client{rpc: rpc.NewClient(perHost, conf)} }

// Close drops idle connections.
func (c *Client) Close() { c.rpc.Close() }

// Hello begins a leader's conversation and learns what streams run.
func (c *Client) Hello(ctx context.Context, addr string, req *wire.HelloRequest) (*wire.ProjectorHello, error) {
	return rpc.Call[wire.ProjectorHello](ctx, c.rpc, ControlTimeout, http.MethodPut, addr+"/v1/hello", req)
}

// Definitions hands over definitions and topology.
func (c *Client) Definitions(ctx context.Context, addr string, req *wire.Definitions) (*wire.DefinitionsReply, error) {
	return rpc.Call[wire.DefinitionsReply](ctx, c.rpc, ControlTimeout, http.MethodPut, addr+"/v1/definitions", req)
}

// Change hands over what has changed in them since a revision that was handed over before.
func (c *Client) Change(ctx context.Context, addr string, req *wire.DefinitionsChange) (*wire.DefinitionsReply, error) {
	return rpc.Call[wire.DefinitionsReply](ctx, c.rpc, ControlTimeout, http.MethodPost, addr+"/v1/definitions:change", req)
}

// Bucket asks what KV knows of a bucket.
func (c *Client) Bucket(ctx context.Context, addr string, req *wire.BucketRequest) (*wire.BucketReply, error) {
	return rpc.Call[wire.BucketReply](ctx, c.rpc, ControlTimeout, http.MethodPost, addr+"/v1/bucket", req)
}

// FailoverLogs asks for the failover logs of hosted vbuckets.
func (c *Client) FailoverLogs(ctx context.Context, addr string, req *wire.FailoverLogsRequest) (*wire.FailoverLogsReply,
	error) {
	return rpc.Call[wire.FailoverLogsReply](ctx, c.rpc, ControlTimeout, http.MethodPost, addr+"/v1/failoverlogs", req)
}

// Streams opens streams in one of the three forms.
func (c *Client) Streams(ctx context.Context, addr string, req *wire.StreamRequest) (*wire.StreamReply, error) {
	return rpc.Call[wire.StreamReply](ctx, c.rpc, StreamTimeout, http.MethodPost, addr+"/v1/streams", req)
}

// Stop ends streams of a topic.
func (c *Client) Stop(ctx context.Context, addr string, req *wire.StreamStop) error {
	_, err := rpc.Call[wire.OK](ctx, c.rpc, ControlTimeout, http.MethodPost, addr+"/v1/streams:stop", req)
	return err
}

// State asks for the projector's state (PR-2).
func (c *Client) State(ctx context.Context, addr string) (*wire.ProjectorState, error) {
	return rpc.Call[wire.ProjectorState](ctx, c.rpc, ReadTimeout, http.MethodGet, addr+"/v1/state", nil)
}

// Topics asks for the topics that are open.
func (c *Client) Topics(ctx context.Context, addr string) (*wire.TopicList, error) {
	return rpc.Call[wire.TopicList](ctx, c.rpc, ReadTimeout, http.MethodGet, addr+"/v1/topics", nil)
}

// Subscribe opens an external subscriber's topic (RT-9).
func (c *Client) Subscribe(ctx context.Context, addr string, req *wire.Subscribe) (*wire.Subscription, error) {
	return rpc.Call[wire.Subscription](ctx, c.rpc, StreamTimeout, http.MethodPost, addr+"/v1/topics", req)
}

// Seqnos asks for KV's present high seqnos.
func (c *Client) Seqnos(ctx context.Context, addr string, req *wire.SeqnosRequest) (*wire.SeqnosReply, error) {
	return rpc.Call[wire.SeqnosReply](ctx, c.rpc, ReadTimeout, http.MethodPost, addr+"/v1/seqnos", req)
}

// Sync asks for a fresh report on one bucket.
func (c *Client) Sync(ctx context.Context, addr string, req *wire.SyncRequest) (*wire.ProjectorReport, error) {
	return rpc.Call[wire.ProjectorReport](ctx, c.rpc, ReadTimeout+time.Duration(req.WaitMS)*time.Millisecond,
		http.MethodPost, addr+"/v1/sync", req)
}

// Logging returns how much it logs, after a change if there is one.
func (c *Client) Logging(ctx context.Context, addr string, change *wire.LogChange) (*wire.LogLevels, error) {
	if change == nil {
		return rpc.Call[wire.LogLevels](ctx, c.rpc, ControlTimeout, http.MethodGet, addr+"/v1/logging", nil)
	}
	return rpc.Call[wire.LogLevels](ctx, c.rpc, ControlTimeout, http.MethodPut, addr+"/v1/logging", change)
}
