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

func call[Resp any](ctx context.Context, c *Client, timeout time.Duration, method, url string, req any) (*Resp, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	resp := new(Resp)
	if err := c.rpc.Do(ctx, method, url, req, resp); err != nil {
		return nil, err
	}
	return resp, nil
}

// Hello begins a leader's conversation and learns what streams run.
func (c *Client) Hello(ctx context.Context, addr string, req *wire.HelloRequest) (*wire.ProjectorHello, error) {
	return call[wire.ProjectorHello](ctx, c, ControlTimeout, http.MethodPut, addr+"/v1/hello", req)
}

// Definitions hands over definitions and topology.
func (c *Client) Definitions(ctx context.Context, addr string, req *wire.Definitions) (*wire.DefinitionsReply, error) {
	return call[wire.DefinitionsReply](ctx, c, ControlTimeout, http.MethodPut, addr+"/v1/definitions", req)
}

// Bucket asks what KV knows of a bucket.
func (c *Client) Bucket(ctx context.Context, addr string, req *wire.BucketRequest) (*wire.BucketReply, error) {
	return call[wire.BucketReply](ctx, c, ControlTimeout, http.MethodPost, addr+"/v1/bucket", req)
}

// FailoverLogs asks for the failover logs of hosted vbuckets.
func (c *Client) FailoverLogs(ctx context.Context, addr string, req *wire.FailoverLogsRequest) (*wire.FailoverLogsReply, error) {
	return call[wire.FailoverLogsReply](ctx, c, ControlTimeout, http.MethodPost, addr+"/v1/failoverlogs", req)
}

// Start starts maintenance streams.
func (c *Client) Start(ctx context.Context, addr string, req *wire.StartRequest) (*wire.StartReply, error) {
	return call[wire.StartReply](ctx, c, StreamTimeout, http.MethodPost, addr+"/v1/streams", req)
}

// Stop ends maintenance streams.
func (c *Client) Stop(ctx context.Context, addr string, req *wire.StopRequest) error {
	_, err := call[wire.OK](ctx, c, ControlTimeout, http.MethodPost, addr+"/v1/streams:stop", req)
	return err
}

// Side opens a side stream.
func (c *Client) Side(ctx context.Context, addr string, req *wire.SideRequest) (*wire.SideReply, error) {
	return call[wire.SideReply](ctx, c, StreamTimeout, http.MethodPost, addr+"/v1/sidestreams", req)
}

// SideStop ends a side stream.
func (c *Client) SideStop(ctx context.Context, addr string, req *wire.SideStop) error {
	_, err := call[wire.OK](ctx, c, ControlTimeout, http.MethodPost, addr+"/v1/sidestreams:stop", req)
	return err
}

// Seqnos asks for KV's present high seqnos.
func (c *Client) Seqnos(ctx context.Context, addr string, req *wire.SeqnosRequest) (*wire.SeqnosReply, error) {
	return call[wire.SeqnosReply](ctx, c, ReadTimeout, http.MethodPost, addr+"/v1/seqnos", req)
}

// Sync asks for a fresh report on one bucket.
func (c *Client) Sync(ctx context.Context, addr string, req *wire.SyncRequest) (*wire.ProjectorReport, error) {
	return call[wire.ProjectorReport](ctx, c, ReadTimeout+time.Duration(req.WaitMS)*time.Millisecond, http.MethodPost, addr+"/v1/sync", req)
}
