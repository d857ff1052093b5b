// Package projectorclient is the coordinator's and the indexers' way to a projector's admin server: one method for each
// message of package wire, with a deadline.
//
// It promises that a call ends at its deadline and that an answer's error is a *rpc.Problem with its code. It never
// retries: callers are level-triggered.
package projectorclient

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"sync"
	"time"

	"tidemark/internal/rpc"
	"tidemark/projector/core"
	"tidemark/wire"
)

// Deadlines of calls that carry none of their own.
const (
	ControlTimeout = 5 * time.Second  // hello, definitions, stop, bucket
	StreamTimeout  = 15 * time.Second // start of streams: KV is asked once for each vbucket
	ReadTimeout    = 2 * time.Second  // seqnos, sync, fields
)

// Client speaks to any number of projectors; the address is the base URL of an admin server.
type Client struct {
	rpc   *rpc.Client
	limit int

	mu    sync.Mutex
	calls map[string]*calls // by address: those that are under way or wait
}

// calls are those to one projector.
type calls struct {
	room chan struct{}
	n    int
}

// New makes a client with at most limit calls at a time to one projector; conf is for https addresses, nil without TLS.
// A process may have many projectors behind one port: one that hangs keeps the others' calls waiting for nothing.
func New(limit int, conf *tls.Config) *Client {
	return &Client{rpc: rpc.NewClient(limit*core.MaxKVNodes, conf), limit: limit, calls: map[string]*calls{}}
}

// enter waits for room for one more call to a projector; leave must follow unless there is an error.
func (c *Client) enter(ctx context.Context, addr string) (leave func(), err error) {
	c.mu.Lock()
	x := c.calls[addr]
	if x == nil {
		x = &calls{room: make(chan struct{}, c.limit)}
		c.calls[addr] = x
	}
	x.n++
	c.mu.Unlock()
	over := func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if x.n--; x.n == 0 {
			delete(c.calls, addr)
		}
	}
	select {
	case x.room <- struct{}{}:
		return func() { <-x.room; over() }, nil
	case <-ctx.Done():
		over()
		return nil, fmt.Errorf("%s: %d calls are under way: %w", addr, c.limit, ctx.Err())
	}
}

// call is rpc.Call to a projector, when there is room.
func call[Resp any](ctx context.Context, c *Client, timeout time.Duration, method, addr, path string, req any) (*Resp,
	error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	leave, err := c.enter(ctx, addr)
	if err != nil {
		return nil, err
	}
	defer leave()
	return rpc.Call[Resp](ctx, c.rpc, timeout, method, addr+path, req)
}

// Close drops idle connections.
func (c *Client) Close() { c.rpc.Close() }

// Hello begins a leader's conversation and learns what streams run.
func (c *Client) Hello(ctx context.Context, addr string, req *wire.HelloRequest) (*wire.ProjectorHello, error) {
	return call[wire.ProjectorHello](ctx, c, ControlTimeout, http.MethodPut, addr, "/v1/hello", req)
}

// Definitions hands over definitions and topology.
func (c *Client) Definitions(ctx context.Context, addr string, req *wire.Definitions) (*wire.DefinitionsReply, error) {
	return call[wire.DefinitionsReply](ctx, c, ControlTimeout, http.MethodPut, addr, "/v1/definitions", req)
}

// Change hands over what has changed in them since a revision that was handed over before.
func (c *Client) Change(ctx context.Context, addr string, req *wire.DefinitionsChange) (*wire.DefinitionsReply, error) {
	return call[wire.DefinitionsReply](ctx, c, ControlTimeout, http.MethodPost, addr, "/v1/definitions:change", req)
}

// Bucket asks what KV knows of a bucket.
func (c *Client) Bucket(ctx context.Context, addr string, req *wire.BucketRequest) (*wire.BucketReply, error) {
	return call[wire.BucketReply](ctx, c, ControlTimeout, http.MethodPost, addr, "/v1/bucket", req)
}

// Fields asks which fields some documents have.
func (c *Client) Fields(ctx context.Context, addr string, req *wire.FieldsRequest) (*wire.FieldsReply, error) {
	return call[wire.FieldsReply](ctx, c, ReadTimeout, http.MethodPost, addr, "/v1/fields", req)
}

// FailoverLogs asks for the failover logs of hosted vbuckets.
func (c *Client) FailoverLogs(ctx context.Context, addr string, req *wire.FailoverLogsRequest) (*wire.FailoverLogsReply,
	error) {
	return call[wire.FailoverLogsReply](ctx, c, ControlTimeout, http.MethodPost, addr, "/v1/failoverlogs", req)
}

// Streams opens streams in one of the three forms.
func (c *Client) Streams(ctx context.Context, addr string, req *wire.StreamRequest) (*wire.StreamReply, error) {
	return call[wire.StreamReply](ctx, c, StreamTimeout, http.MethodPost, addr, "/v1/streams", req)
}

// Stop ends streams of a topic.
func (c *Client) Stop(ctx context.Context, addr string, req *wire.StreamStop) error {
	_, err := call[wire.OK](ctx, c, ControlTimeout, http.MethodPost, addr, "/v1/streams:stop", req)
	return err
}

// State asks for the projector's state (PR-2).
func (c *Client) State(ctx context.Context, addr string) (*wire.ProjectorState, error) {
	return call[wire.ProjectorState](ctx, c, ReadTimeout, http.MethodGet, addr, "/v1/state", nil)
}

// Topics asks for the topics that are open.
func (c *Client) Topics(ctx context.Context, addr string) (*wire.TopicList, error) {
	return call[wire.TopicList](ctx, c, ReadTimeout, http.MethodGet, addr, "/v1/topics", nil)
}

// Subscribe opens an external subscriber's topic (RT-9).
func (c *Client) Subscribe(ctx context.Context, addr string, req *wire.Subscribe) (*wire.Subscription, error) {
	return call[wire.Subscription](ctx, c, StreamTimeout, http.MethodPost, addr, "/v1/topics", req)
}

// Seqnos asks for KV's present high seqnos.
func (c *Client) Seqnos(ctx context.Context, addr string, req *wire.SeqnosRequest) (*wire.SeqnosReply, error) {
	return call[wire.SeqnosReply](ctx, c, ReadTimeout, http.MethodPost, addr, "/v1/seqnos", req)
}

// Sync asks for a fresh report on one bucket.
func (c *Client) Sync(ctx context.Context, addr string, req *wire.SyncRequest) (*wire.ProjectorReport, error) {
	return call[wire.ProjectorReport](ctx, c, ReadTimeout+time.Duration(req.WaitMS)*time.Millisecond,
		http.MethodPost, addr, "/v1/sync", req)
}

// Logging returns how much it logs, after a change if there is one.
func (c *Client) Logging(ctx context.Context, addr string, change *wire.LogChange) (*wire.LogLevels, error) {
	if change == nil {
		return call[wire.LogLevels](ctx, c, ControlTimeout, http.MethodGet, addr, "/v1/logging", nil)
	}
	return call[wire.LogLevels](ctx, c, ControlTimeout, http.MethodPut, addr, "/v1/logging", change)
}
