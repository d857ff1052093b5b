package projector

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/kv/mcbp"
	"tidemark/projector/core"
	"tidemark/projector/feed"
	"tidemark/projector/feed/gocb"
	"tidemark/timestamp"
	"tidemark/wire"
)

// dial opens a DCP connection to the KV node. Its name is unique, because a second connection of the same name would
// silently close the first.
func (p *Projector) dial(ctx context.Context, bucket, topic string, buffer int, xattrs bool) (feed.Feed, error) {
	return p.dialCalm(ctx, bucket, topic, buffer, xattrs, nil)
}

// dialCalm is dial for a connection that may deliver more slowly, in larger batches, while calm allows it.
func (p *Projector) dialCalm(ctx context.Context, bucket, topic string, buffer int, xattrs bool,
	calm *feed.Calm) (feed.Feed, error) {
	conf, err := p.feedConfig(bucket, topic, buffer, xattrs)
	if err != nil {
		return nil, err
	}
	conf.Calm = calm
	c, err := p.dialNode(ctx, conf)
	if err == nil {
		p.counters.connections.Inc()
	}
	if ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) { // else the caller was cancelled
		p.queried(bucket, err)
	}
	return c, err
}

// feedConfig returns the configuration of a connection to the KV node.
func (p *Projector) feedConfig(bucket, topic string, buffer int, xattrs bool) (feed.Config, error) {
	password, err := p.kvPassword()
	if err != nil {
		return feed.Config{}, fmt.Errorf("%w: %w", feed.ErrAuth, err)
	}
	encrypted, err := p.cfg.TLSToKV()
	if err != nil {
		return feed.Config{}, err
	}
	name := fmt.Sprintf("tidemark:%.40s:%.40s:%.60s:%s", p.clusterID(), p.cfg.ID, topic, rand.Text())
	return feed.Config{Addr: p.cfg.KV, Bucket: bucket, User: p.cfg.User, Password: password,
		Name: name, BufferBytes: buffer, Xattrs: xattrs,
		TLS: encrypted, Network: p.cfg.KVNetwork, Logger: p.log.Named("feed")}, nil
}

// FeedKind names an implementation of the DCP consumer.
type FeedKind string

// The implementations: tidemark's own, and one on Couchbase's client library.
const (
	FeedNative   FeedKind = "native"
	FeedGocbcore FeedKind = "gocbcore"
)

// ErrFeedKind is wrapped when a configuration names an unknown feed.
var ErrFeedKind = errors.New("projector: no such feed")

// Check returns an error for an unknown kind; "" means FeedNative.
func (k FeedKind) Check() error {
	switch k {
	case "", FeedNative, FeedGocbcore:
		return nil
	}
	return fmt.Errorf("%w: %q, want %q or %q", ErrFeedKind, string(k), FeedNative, FeedGocbcore)
}

func (k FeedKind) dialer() feed.Dialer {
	if k == FeedGocbcore {
		return gocb.Dial
	}
	return feed.DialFeed
}

// kvProblem returns the refusal of a request that KV could not serve.
func kvProblem(bucket string, err error) error {
	switch {
	case errors.Is(err, feed.ErrNoBucket):
		return rpc.Refuse(errcode.BucketNotInKV, "bucket %q does not exist in the KV store, or its user may not read it: %v",
			bucket, err)
	case errors.Is(err, feed.ErrAuth):
		return rpc.Refuse(errcode.KVUnavailable, "the KV store refuses the projector's user; check --kv-user and "+
			"--kv-password-file: %v", err)
	case errors.Is(err, feed.ErrNotSupported), errors.Is(err, mcbp.ErrNoVBuckets):
		return rpc.Refuse(errcode.KVUnavailable, "the KV node of bucket %q is no engine with DCP, or is "+
			"too old: %v", bucket, err)
	}
	return rpc.Refuse(errcode.KVUnavailable, "KV of bucket %q does not answer now: %v", bucket, err)
}

// errBucketClosed is wrapped when the bucket is no longer streamed here.
var errBucketClosed = errors.New("this projector has closed the bucket")

// errKVSilent is wrapped when the KV node did not answer the watch's newest look. Requests fail at once until it
// does.
var errKVSilent = errors.New("the KV node did not answer the last request")

// control is a DCP connection without streams, for queries about a bucket. It ends with its context.
type control struct {
	p      *Projector
	bucket string
	ctx    context.Context
	cancel context.CancelFunc
	silent atomic.Bool // the KV node did not answer the watch, which continues its queries; other callers fail at once

	gate   gate // held while dialling; guards the fields below
	conn   feed.Feed
	closed bool
}

func (p *Projector) newControl(ctx context.Context, bucket string) *control {
	c := &control{p: p, bucket: bucket, gate: newGate()}
	c.ctx, c.cancel = context.WithCancel(ctx)
	return c
}

// get returns the connection, and opens one if there is none. It fails at once if the KV node is silent.
func (c *control) get(ctx context.Context) (feed.Feed, error) {
	if c.silent.Load() {
		return nil, kvProblem(c.bucket, errKVSilent)
	}
	return c.open(ctx)
}

// open is get for the watch, which finds out whether the node is silent.
func (c *control) open(ctx context.Context) (feed.Feed, error) {
	ctx, done := joined(ctx, c.ctx)
	defer done()
	if err := c.gate.lock(ctx); err != nil {
		return nil, kvProblem(c.bucket, err)
	}
	defer c.gate.unlock()
	if c.closed {
		return nil, kvProblem(c.bucket, errBucketClosed)
	}
	if c.conn != nil {
		select {
		case <-c.conn.Done():
			_ = c.conn.Close()
			c.conn = nil
		default:
			return c.conn, nil
		}
	}
	conn, err := c.p.dial(ctx, c.bucket, "control", feed.MinBufferBytes, false)
	if err != nil {
		return nil, kvProblem(c.bucket, err)
	}
	c.conn = conn
	return conn, nil
}

// close ends the connection and cancels a dial in progress.
func (c *control) close() {
	c.cancel()
	c.gate <- struct{}{}
	defer c.gate.unlock()
	c.closed = true
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn = nil
	}
}

// kvState is KV's state of the vbuckets that it hosts as active now.
type kvState struct {
	revision timestamp.MapRevision
	config   *mcbp.ClusterConfig
	highs    map[uint16]uint64 // high seqnos; only hosted vbuckets
	purges   map[uint16]uint64
}

// state reads the state of all vbuckets.
func (c *control) state(ctx context.Context) (*kvState, error) {
	ctx, cancel := context.WithTimeout(ctx, kvTimeout)
	defer cancel()
	conn, err := c.get(ctx)
	if err != nil {
		return nil, err
	}
	s, err := c.p.stateOf(ctx, conn, c.bucket)
	if err != nil {
		if errors.Is(err, feed.ErrAuth) || errors.Is(err, feed.ErrNoBucket) {
			_ = conn.Close() // permissions are checked again on a new connection; some engines keep those of an old one
		}
		return nil, kvProblem(c.bucket, err)
	}
	return s, nil
}

// of returns the state of one vbucket.
func (s *kvState) of(vb uint16) core.At {
	purge, known := s.purges[vb]
	return core.At{High: s.highs[vb], Purge: purge, PurgeKnown: known, Revision: s.revision}
}

// hostNone reports whether KV hosts none of the vbuckets.
func (s *kvState) hostNone(restart *wire.RestartTimestamp) bool {
	return !slices.ContainsFunc(restart.VBuckets, func(vb uint16) bool { _, hosted := s.highs[vb]; return hosted })
}

func revisionOf(c *mcbp.ClusterConfig) timestamp.MapRevision {
	return timestamp.MapRevision{Epoch: uint64(max(c.RevEpoch, 0)), Rev: uint64(max(c.Rev, 0))}
}

// stateOf returns KV's state of the vbuckets that are in the projector's share.
func (p *Projector) stateOf(ctx context.Context, conn feed.Feed, bucket string) (*kvState, error) {
	s := &kvState{highs: map[uint16]uint64{}}
	var err error
	if s.config, err = conn.ClusterConfig(ctx); err != nil {
		return nil, err
	}
	s.revision = revisionOf(s.config)
	highs, err := conn.HighSeqnos(ctx)
	if err != nil {
		return nil, err
	}
	for _, h := range highs {
		if p.cfg.Share.Has(h.VBucket) {
			s.highs[h.VBucket] = h.Seqno
		}
	}
	// The user may be allowed to stream but not to read statistics, or the engine has no statistics of this name. That
	// is safe: KV itself checks its purge seqnos, and demands a rollback of all starts below them except 0 (see
	// core.At).
	s.purges, err = conn.Purges(ctx, nil)
	if err != nil && !feed.Refused(err) {
		return nil, err
	}
	if err == nil && len(s.purges) == 0 && len(s.highs) > 0 {
		err = errNoPurges
	}
	p.notePurges(bucket, err)
	return s, nil
}

// errNoPurges is recorded for an engine whose statistics contain no purge seqnos.
var errNoPurges = errors.New("its statistics have none")
