// Package server serves the memcached binary protocol and DCP for the buckets of a KV node.
//
// Answers on a connection come in request order, and an answer that depends on a write is sent only after the write
// has reached the log (many writes share one log write). A DCP stream shows exactly the durable versions of its
// vbucket in ascending seqnos, in snapshots that are states the vbucket really had; it never loses a wake-up and, if
// finite, always ends with STREAM_END. A writer never waits for a DCP consumer. Every length is checked before memory
// is allocated; connections, frames, waits and silence have limits.
//
// The package does not decide where vbuckets are placed (its caller provides the cluster config) and stores nothing
// on disk.
package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"tidemark/internal/loglimit"
	"tidemark/kv/access"
	"tidemark/kv/mcbp"
	"tidemark/kv/store"
)

// Limits of connections.
const (
	DefaultMaxConnections = 4096
	DefaultIdleTimeout    = time.Hour
	DefaultAuthTimeout    = 30 * time.Second
	DefaultFrameTimeout   = time.Minute
	DefaultWriteTimeout   = 30 * time.Second
	// DefaultDCPTimeout is how long a DCP consumer may read nothing, or leave a NOOP unanswered, before its connection
	// is closed.
	DefaultDCPTimeout = 6 * time.Minute

	keepAlivePeriod = 30 * time.Second
	// maxLargeBytes bounds the memory of frames that exceed the read buffers, over all connections.
	maxLargeBytes = 256 << 20
)

// Bucket is a bucket to be served.
type Bucket struct {
	// Store may be set late, but before Ready first returns true.
	Store *store.Bucket
	// Ready reports whether the bucket serves documents; until then requests fail with a temporary failure (warmup).
	Ready func() bool
	// Config returns the present cluster config as JSON, with its revision.
	Config func() ClusterConfig
	// Manifest returns the present manifest of collections.
	Manifest func() *mcbp.Manifest

	gone  atomic.Bool        // the bucket was removed
	users sync.WaitGroup     // goroutines of its connections
	conns map[*conn]struct{} // guarded by the server's mu
}

// ClusterConfig is a cluster config as clients receive it.
type ClusterConfig struct {
	JSON          []byte
	RevEpoch, Rev int64
}

// Options configures a server. Zero durations and numbers take the defaults.
type Options struct {
	NodeID  string
	Version string
	// Buckets holds the initial buckets; see Add and Remove.
	Buckets map[string]*Bucket
	// User and Password are the credentials of the configured user, which has all rights; Users returns the cluster's
	// other users; nil: there are none. AllowPlain offers PLAIN in addition to SCRAM even without TLS, and selects
	// the only bucket for clients that select none.
	User, Password string
	Users          func() *access.Directory
	AllowPlain     bool
	// Moods enables behaviours that are hard on consumers, for tests.
	Moods Moods

	MaxConnections                                       int
	IdleTimeout, AuthTimeout, FrameTimeout, WriteTimeout time.Duration
	DCPTimeout                                           time.Duration

	// Now is the clock; Random fills a slice with random bytes.
	Now    func() time.Time
	Random func([]byte)
	Logger hclog.Logger
}

func (o *Options) setDefaults() {
	if o.MaxConnections <= 0 {
		o.MaxConnections = DefaultMaxConnections
	}
	for _, d := range []struct {
		value    *time.Duration
		fallback time.Duration
	}{
		{&o.IdleTimeout, DefaultIdleTimeout},
		{&o.AuthTimeout, DefaultAuthTimeout},
		{&o.FrameTimeout, DefaultFrameTimeout},
		{&o.WriteTimeout, DefaultWriteTimeout},
		{&o.DCPTimeout, DefaultDCPTimeout},
	} {
		if *d.value <= 0 {
			*d.value = d.fallback
		}
	}
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
}

// Counters holds totals since the start.
type Counters struct {
	Connections, ConnectionsTotal, ConnectionsRefused atomic.Int64
	AuthFailures, ProtocolErrors                      atomic.Int64
	Requests, Gets, GetMisses, Mutations              atomic.Int64
	NotMyVBucket, TemporaryFailures, NoMemory         atomic.Int64

	// DCPOpens and StreamRequests count every request, whatever the answer.
	DCPOpens, StreamRequests                   atomic.Int64
	StreamsAccepted, Rollbacks, Streams        atomic.Int64
	DCPConnections                             atomic.Int64
	DCPMessages, DCPBytes, DCPItems, Snapshots atomic.Int64
}

// Server serves client connections.
type Server struct {
	opts     Options
	auth     *authenticator
	counters Counters
	started  time.Time
	large    *semaphore.Weighted // bytes of large frames
	queued   atomic.Int64        // connections that wait for a part of large
	warmup   atomic.Int64        // requests refused, for the mood Warmup
	fromZero atomic.Int64        // first snapshots of streams that begin at 0, for the mood Purges

	// Counters of moods: requests that may fail for lack of memory, requests refused during WarmupReads, snapshots from
	// memory, snapshots that may be cut short, and writes.
	hard, early, fromMemory, cuts, written atomic.Int64

	mu      sync.Mutex
	conns   map[*conn]struct{}
	buckets map[string]*Bucket
	dcp     map[dcpName]*conn
	nextID  uint64
	warned  loglimit.Limiter

	lagging map[*Bucket]*laggingConfigs // for the mood MapLag
}

// dcpName identifies a DCP connection; only one may have it at a time. Names are per user, so no user can end or keep
// out the connections of others.
type dcpName struct{ bucket, user, name string }

// New returns a server; Serve runs it.
func New(opts Options) *Server {
	opts.setDefaults()
	s := &Server{
		opts:  opts,
		large: semaphore.NewWeighted(maxLargeBytes), started: opts.Now(), conns: map[*conn]struct{}{},
		dcp:     map[dcpName]*conn{},
		buckets: maps.Clone(opts.Buckets), lagging: map[*Bucket]*laggingConfigs{},
	}
	s.auth = newAuthenticator(opts.User, opts.Password, s.users, opts.Random)
	return s
}

// Counters returns the server's running totals.
func (s *Server) Counters() *Counters { return &s.counters }

// Serve accepts connections until ctx ends, then closes all of them and returns when they have finished. Listeners
// may use TLS.
func (s *Server) Serve(ctx context.Context, listeners ...net.Listener) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		<-ctx.Done()
		for _, l := range listeners {
			_ = l.Close()
		}
		s.closeAll(&s.conns)
		return nil
	})
	for _, l := range listeners {
		group.Go(func() error { return s.accept(ctx, group, l) })
	}
	return group.Wait()
}

func (s *Server) accept(ctx context.Context, group *errgroup.Group, listener net.Listener) error {
	for {
		nc, err := listener.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("listener on %s was closed", listener.Addr())
			}
			s.opts.Logger.Warn("cannot accept a connection", "error", err)
			select { // usually out of file handles: let some connections end
			case <-ctx.Done():
				return nil
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		c := s.admit(ctx, nc)
		if c == nil {
			_ = nc.Close()
			continue
		}
		group.Go(func() error {
			c.serve(ctx, group)
			return nil
		})
	}
}

// admit registers a connection, or returns nil if there are too many.
func (s *Server) admit(ctx context.Context, nc net.Conn) *conn {
	s.counters.ConnectionsTotal.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return nil
	}
	if len(s.conns) >= s.opts.MaxConnections {
		if s.counters.ConnectionsRefused.Add(1)%1000 == 1 {
			s.opts.Logger.Warn("connection refused: too many", "limit", s.opts.MaxConnections, "remote", nc.RemoteAddr())
		}
		return nil
	}
	s.nextID++
	c := newConn(s, nc, s.nextID)
	s.conns[c] = struct{}{}
	s.counters.Connections.Store(int64(len(s.conns)))
	return c
}

func (s *Server) forget(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	c.leave()
	s.counters.Connections.Store(int64(len(s.conns)))
	if c.dcp != nil {
		if s.dcp[c.dcp.id] == c {
			delete(s.dcp, c.dcp.id)
		}
		s.counters.DCPConnections.Store(int64(len(s.dcp)))
	}
}

// claim registers a producer's connection under its name; an older connection with the name is closed.
func (s *Server) claim(p *producer) {
	c := p.c
	s.mu.Lock()
	old := s.dcp[p.id]
	s.dcp[p.id] = c
	s.counters.DCPConnections.Store(int64(len(s.dcp)))
	s.mu.Unlock()
	if old != nil && old != c {
		s.opts.Logger.Info("dcp connection replaced by one with the same name", "name", p.id.name, "old", old.nc.RemoteAddr(),
			"new", c.nc.RemoteAddr())
		old.close()
	}
}

// closeAll closes the connections of a set that mu guards, concurrently: closing a TLS connection whose peer reads
// nothing takes some seconds.
func (s *Server) closeAll(of *map[*conn]struct{}) {
	s.mu.Lock()
	all := slices.Collect(maps.Keys(*of))
	s.mu.Unlock()
	var g sync.WaitGroup
	for _, c := range all {
		g.Go(c.close)
	}
	g.Wait()
}

// producers returns the DCP connections of a bucket.
func (s *Server) producers(bucket string) []*producer {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*producer
	for key, c := range s.dcp {
		if key.bucket == bucket {
			out = append(out, c.dcp)
		}
	}
	return out
}

// granted reports whether the server grants a HELLO feature.
func (s *Server) granted(f mcbp.Feature) bool {
	switch f {
	case mcbp.FeatureTracing: // nothing is traced, but real engines send it
		return s.opts.Moods.Has(Frames)
	case mcbp.FeatureMutationToken, mcbp.FeatureXattr, mcbp.FeatureSnappy, mcbp.FeatureXerror, mcbp.FeatureSelectBucket,
		mcbp.FeatureJSON,
		mcbp.FeatureFlexibleFrames, mcbp.FeatureCollections, mcbp.FeatureKnownConfig, mcbp.FeatureDedupNMVB:
		return true
	}
	return false
}
