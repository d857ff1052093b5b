// Package projectorclient sends the coordinator's and the indexers' messages to a projector's admin server: one
// method for each message of package wire, each with a deadline.
//
// A call ends at its deadline, long calls do not block others, and an answer's error is a *rpc.Problem with its code.
// The package never retries: its callers are level-triggered.
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

// Deadlines of calls whose requests have no deadline of their own.
const (
	ControlTimeout = 5 * time.Second  // hello, definitions, stop, bucket
	StreamTimeout  = 15 * time.Second // start of streams: one request to KV per vbucket
	ReadTimeout    = 2 * time.Second  // seqnos, sync, fields
)

// Client calls any number of projectors; an address is the base URL of an admin server. Calls of different kinds do
// not wait for each other, so KV's seqnos can be read while KV is slow to start streams.
type Client struct {
	reads    *lane // quick to answer; scans wait for them
	controls *lane
	streams  *lane // one request to KV per vbucket
}

// lane carries the calls of one kind.
type lane struct {
	rpc   *rpc.Client
	limit int

	mu    sync.Mutex
	calls map[string]*calls // by address: projectors with running or waiting calls
}

// calls tracks the calls of one kind to one projector.
type calls struct {
	room chan struct{}
	n    int
}

// New returns a client with at most limit calls of each kind in flight to one projector; conf is for https addresses,
// nil without TLS. A process may run many projectors behind one port: one that hangs does not block calls to the
// others.
func New(limit int, conf *tls.Config) *Client {
	made := func() *lane {
		return &lane{rpc: rpc.NewClient(limit*core.MaxKVNodes, conf), limit: limit, calls: map[string]*calls{}}
	}
	return &Client{reads: made(), controls: made(), streams: made()}
}

// enter waits for a slot for one more call to a projector; the caller must call leave unless there is an error.
func (l *lane) enter(ctx context.Context, addr string) (leave func(), err error) {
	l.mu.Lock()
	x := l.calls[addr]
	if x == nil {
		x = &calls{room: make(chan struct{}, l.limit)}
		l.calls[addr] = x
	}
	x.n++
	l.mu.Unlock()
	over := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if x.n--; x.n == 0 {
			delete(l.calls, addr)
		}
	}
	select {
	case x.room <- struct{}{}:
		return func() { <-x.room; over() }, nil
	case <-ctx.Done():
		over()
		return nil, fmt.Errorf("%s: %d calls of this kind are already running: %w", addr, l.limit, ctx.Err())
	}
}

// call is rpc.Call to a projector once there is a slot.
func call[Resp any](ctx context.Context, l *lane, timeout time.Duration, method, addr, path string, req any) (*Resp,
	error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	leave, err := l.enter(ctx, addr)
	if err != nil {
		return nil, err
	}
	defer leave()
	return rpc.Call[Resp](ctx, l.rpc, timeout, method, addr+path, req)
}

// Close closes idle connections.
func (c *Client) Close() {
	for _, l := range []*lane{c.reads, c.controls, c.streams} {
		l.rpc.Close()
	}
}

// Hello begins a leader's session and returns the streams that run.
func (c *Client) Hello(ctx context.Context, addr string, req *wire.HelloRequest) (*wire.ProjectorHello, error) {
	return call[wire.ProjectorHello](ctx, c.controls, ControlTimeout, http.MethodPut, addr, "/v1/hello", req)
}

// Definitions sends definitions and topology.
func (c *Client) Definitions(ctx context.Context, addr string, req *wire.Definitions) (*wire.DefinitionsReply, error) {
	return call[wire.DefinitionsReply](ctx, c.controls, ControlTimeout, http.MethodPut, addr, "/v1/definitions", req)
}

// Change sends what has changed in the definitions since a revision sent before.
func (c *Client) Change(ctx context.Context, addr string, req *wire.DefinitionsChange) (*wire.DefinitionsReply, error) {
	return call[wire.DefinitionsReply](ctx, c.controls, ControlTimeout, http.MethodPost, addr, "/v1/definitions:change",
		req)
}

// Bucket returns what KV reports about a bucket.
func (c *Client) Bucket(ctx context.Context, addr string, req *wire.BucketRequest) (*wire.BucketReply, error) {
	return call[wire.BucketReply](ctx, c.controls, ControlTimeout, http.MethodPost, addr, "/v1/bucket", req)
}

// Fields returns the fields of some documents.
func (c *Client) Fields(ctx context.Context, addr string, req *wire.FieldsRequest) (*wire.FieldsReply, error) {
	return call[wire.FieldsReply](ctx, c.reads, ReadTimeout, http.MethodPost, addr, "/v1/fields", req)
}

// FailoverLogs returns the failover logs of hosted vbuckets.
func (c *Client) FailoverLogs(ctx context.Context, addr string, req *wire.FailoverLogsRequest) (*wire.FailoverLogsReply,
	error) {
	return call[wire.FailoverLogsReply](ctx, c.controls, ControlTimeout, http.MethodPost, addr, "/v1/failoverlogs", req)
}

// Streams opens streams in one of the three forms.
func (c *Client) Streams(ctx context.Context, addr string, req *wire.StreamRequest) (*wire.StreamReply, error) {
	return call[wire.StreamReply](ctx, c.streams, StreamTimeout, http.MethodPost, addr, "/v1/streams", req)
}

// Stop stops streams of a topic.
func (c *Client) Stop(ctx context.Context, addr string, req *wire.StreamStop) error {
	_, err := call[wire.OK](ctx, c.controls, ControlTimeout, http.MethodPost, addr, "/v1/streams:stop", req)
	return err
}

// State returns the projector's state (PR-2).
func (c *Client) State(ctx context.Context, addr string) (*wire.ProjectorState, error) {
	return call[wire.ProjectorState](ctx, c.reads, ReadTimeout, http.MethodGet, addr, "/v1/state", nil)
}

// Topics returns the open topics.
func (c *Client) Topics(ctx context.Context, addr string) (*wire.TopicList, error) {
	return call[wire.TopicList](ctx, c.reads, ReadTimeout, http.MethodGet, addr, "/v1/topics", nil)
}

// Subscribe opens an external subscriber's topic (RT-9).
func (c *Client) Subscribe(ctx context.Context, addr string, req *wire.Subscribe) (*wire.Subscription, error) {
	return call[wire.Subscription](ctx, c.streams, StreamTimeout, http.MethodPost, addr, "/v1/topics", req)
}

// Seqnos returns KV's present high seqnos.
func (c *Client) Seqnos(ctx context.Context, addr string, req *wire.SeqnosRequest) (*wire.SeqnosReply, error) {
	return call[wire.SeqnosReply](ctx, c.reads, ReadTimeout, http.MethodPost, addr, "/v1/seqnos", req)
}

// Sync requests a fresh report on one bucket.
func (c *Client) Sync(ctx context.Context, addr string, req *wire.SyncRequest) (*wire.ProjectorReport, error) {
	return call[wire.ProjectorReport](ctx, c.reads, ReadTimeout+time.Duration(req.WaitMS)*time.Millisecond,
		http.MethodPost, addr, "/v1/sync", req)
}

// Logging returns the projector's log levels, after applying change unless it is nil.
func (c *Client) Logging(ctx context.Context, addr string, change *wire.LogChange) (*wire.LogLevels, error) {
	if change == nil {
		return call[wire.LogLevels](ctx, c.controls, ControlTimeout, http.MethodGet, addr, "/v1/logging", nil)
	}
	return call[wire.LogLevels](ctx, c.controls, ControlTimeout, http.MethodPut, addr, "/v1/logging", change)
}
