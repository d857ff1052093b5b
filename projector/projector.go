// Package projector is the role that turns a KV node's mutations into KeyVersions: it streams vbuckets by DCP on the
// coordinator's request, evaluates every active index of the bucket on each document in one pass, and passes the keys
// to its router (PR-1 to PR-5, PR-15).
//
// It guarantees that data never blocks the admin server; that a vbucket's events keep their order; that data from KV
// is acknowledged to KV only when the router has taken it; that an index joins a running stream between two mutations
// of each vbucket, at an activation timestamp sent in band; and that commands of a deposed leader are refused. It
// stores nothing on disk: the coordinator sends it what it needs, and it reports what it streams.
//
// It never decides where a stream starts and never starts one by itself: when a stream ends, for whatever reason, it
// reports that, and the coordinator's ledger requests the stream again.
package projector

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"tidemark/index"
	"tidemark/internal/tlsconf"
	"tidemark/managerclient"
	"tidemark/projector/core"
	"tidemark/projector/router"
	"tidemark/wire"
)

// Limits and times.
const (
	ReportInterval  = 100 * time.Millisecond // between two reports if something has changed
	restInterval    = 400 * time.Millisecond // between two if not; three are not yet suspicious (package liveness)
	syncInterval    = time.Second            // between two SYNCs of an idle vbucket
	fullInterval    = 5 * time.Second        // between two full reports
	reportSpacing   = 5 * time.Millisecond   // at least, between two reports sent at once
	registerPause   = 200 * time.Millisecond
	stopGrace       = time.Second
	maxWorkers      = 4
	sideIdleLimit   = 60 * time.Second // a side stream without progress is closed
	sideBufferBytes = 4 << 20          // DCP buffer of a side stream; a maintenance stream has feed.DefaultBufferBytes
	maxSyncWait     = 5 * time.Second
	streamsAtOnce   = 64 // stream requests in flight on one connection
	// Bounds a query to KV: less than callers wait, so that they get the reason.
	kvTimeout        = 4 * time.Second
	stopTimeout      = time.Second      // for KV to acknowledge that streams are stopped
	workerQueue      = 4                // blocks between a connection and a worker; the rest stays in DCP's buffer
	sideDrainTimeout = 30 * time.Second // how long a side stream's endpoint may take nothing when KV has sent everything

	// definitionsTime is how long a request for side streams waits for the definitions that it is based on.
	definitionsTime = 2 * time.Second
)

// Config configures a projector.
type Config struct {
	ID       index.ProjectorID
	Managers []string // base URLs
	Admin    string   // host:port to listen on
	// Advertise is the host to publish instead of the one listened on; the port is the same.
	Advertise string
	KV        string // host:port of the KV node whose active vbuckets it streams
	// KVManager, if not empty, is the host:port of the KV node's cluster manager, which provides the node's address and
	// new cluster maps; KV is then only the node's name.
	KVManager string
	Share     core.Share // of those vbuckets, if several projectors serve one node
	User      string     // of the KV store
	// KVTLS encrypts the connections to the KV store; nil means none. KVNetwork selects which addresses of the cluster
	// map are used (mcbp.NetworkDefault, mcbp.NetworkExternal); if empty, it is detected. Only FeedGocbcore connects by
	// the map.
	KVTLS *tls.Config
	// ReadKVTLS, if not nil, returns the configuration for each connection instead of KVTLS, so that a new CA needs
	// no restart. KVTLS still decides whether TLS is used.
	ReadKVTLS func() (*tls.Config, error)
	KVNetwork string
	// Feed selects the implementation of the DCP consumer; empty means FeedNative.
	Feed     FeedKind
	Password string
	// ReadPassword, if not nil, is called for each connection instead of using Password, so that a new password needs no
	// restart.
	ReadPassword func() (string, error)
	// Throttle selects what a slow indexer holds back; empty means ThrottleAll.
	Throttle Throttle
	// Connections is the number of data connections of each topic and bucket to an endpoint, each for its own vbuckets
	// (RT-4); 0 means router.DefaultConnections, the maximum is router.MaxConnections.
	Connections int
	// Workers is the number of goroutines that evaluate documents, each for its own vbuckets; 0 means half of the
	// processors, at most 4.
	Workers int
	Logger  hclog.Logger
	Tracer  trace.Tracer // nil: no spans
	// Host, if not nil, listens instead of the projector; Admin and Advertise are ignored then.
	Host Host
	// TLS, if not nil, is used on every connection except those to KV.
	TLS *tlsconf.Source
	// Insecure permits listening beyond loopback without TLS.
	Insecure bool

	purgeTime  time.Duration // 0: purgeTime
	reachTime  time.Duration // 0: reachTime
	lookEvery  time.Duration // 0: lookInterval
	calmLinger time.Duration // 0: the router's
}

// Throttle selects what happens when an indexer is slow on maintenance streams (RT-6, RT-8).
type Throttle string

// The ways to throttle.
const (
	ThrottleAll Throttle = "all" // it holds back its vbuckets for all indexers, and KV: nothing is dropped
	// The data of a slow minority is dropped, and they catch up; if more than half are slow, everything is throttled.
	ThrottleSmart Throttle = "smart"
)

// Check returns an error for an unknown value; an empty one means ThrottleAll.
func (t Throttle) Check() error {
	switch t {
	case "", ThrottleAll, ThrottleSmart:
		return nil
	}
	return fmt.Errorf("throttle %q: want %s or %s", string(t), ThrottleAll, ThrottleSmart)
}

// Projector is a running projector. Its parts have locks of their own; mu guards the state received from the
// coordinator.
type Projector struct {
	cfg      Config
	bootID   string
	listener net.Listener
	managers *managerclient.Client
	router   *router.Router
	registry *prometheus.Registry
	cluster  atomic.Value // string: the cluster's id; not under mu, because connections read it
	counters counters
	faults   faults
	assessor *assessor
	troubles troubles // with KV
	purges   purgeErrors
	maps     managedMaps
	log      hclog.Logger

	reporting reporting
	runCtx    context.Context
	tasks     tasks
	sides     sides
	looks     looks

	opening sync.Mutex // held while a bucket is opened

	mu        sync.Mutex
	authority core.Authority
	leaderErr string // why the leader has not received a report lately; empty if it has
	defs      definitions
	buckets   map[string]*bucket
}

// Open listens on the admin address. It makes no connection yet.
func Open(cfg Config) (*Projector, error) {
	switch {
	case cfg.ID == "":
		return nil, errors.New("projector: an id is required")
	case len(cfg.Managers) == 0:
		return nil, errors.New("projector: the address of a manager is required")
	case cfg.Logger == nil:
		cfg.Logger = hclog.NewNullLogger()
	}
	if err := errors.Join(cfg.Feed.Check(), cfg.Throttle.Check()); err != nil {
		return nil, err
	}
	if cfg.Workers == 0 {
		cfg.Workers = min(max(runtime.GOMAXPROCS(0)/2, 1), maxWorkers)
	}
	p := &Projector{
		cfg: cfg, bootID: rand.Text(), managers: managerclient.New(cfg.Managers,
			cfg.TLS.Client(tlsconf.HTTP, tlsconf.Manager)), registry: prometheus.NewRegistry(),
		log: cfg.Logger, reporting: newReporting(), buckets: map[string]*bucket{},
		sides:    sides{of: cfg.ID, open: map[core.SideKey]*side{}, drainFor: sideDrainTimeout},
		looks:    looks{timeout: fieldsTime},
		faults:   faults{all: map[index.ID]*fault{}},
		assessor: newAssessor(),
		defs:     definitions{changed: make(chan struct{}), timeout: definitionsTime},
	}
	p.counters = newCounters(p.registry)
	p.registerGauges(p.registry)
	var err error
	if p.router, err = router.New(router.Config{ClusterID: p.clusterID, Projector: cfg.ID, BootID: p.bootID,
		Logger: cfg.Logger.Named("router"), Refused: p.faults.refused, Registerer: p.registry,
		Sharers: p.sharers, Connections: cfg.Connections, CalmLinger: cfg.calmLinger, Smart: cfg.Throttle == ThrottleSmart,
		TLS: cfg.TLS.Client(tlsconf.GRPC, tlsconf.Indexer)}); err != nil {
		return nil, err
	}
	if err := p.listen(); err != nil {
		p.router.Close()
		p.managers.Close()
		return nil, err
	}
	return p, nil
}

// listen listens on the admin address, unless there is a host.
func (p *Projector) listen() (err error) {
	if p.cfg.Host != nil {
		return nil
	}
	if err := p.cfg.TLS.MayListen(p.cfg.Insecure, tlsconf.Address{Flag: "admin", HostPort: p.cfg.Admin}); err != nil {
		return err
	}
	if p.listener, err = net.Listen("tcp", p.cfg.Admin); err != nil {
		return fmt.Errorf("projector: admin address: %w", err)
	}
	return nil
}

// AdminAddr returns the address it listens on, host:port.
func (p *Projector) AdminAddr() string { return p.listener.Addr().String() }

// clusterID returns the cluster's id, "" before the first registration.
func (p *Projector) clusterID() string {
	id, _ := p.cluster.Load().(string)
	return id
}

// Run serves until ctx ends, then closes its streams. When it returns, none of its goroutines is left.
func (p *Projector) Run(ctx context.Context) error {
	g, run := errgroup.WithContext(ctx)
	p.runCtx = run
	g.Go(func() error { return p.serve(run) })
	g.Go(func() error { return p.report(run) })
	g.Go(func() error { p.openBuckets(run); return nil })
	err := g.Wait()
	p.tasks.wait()
	for _, b := range p.buckets { // no lock: no other goroutine is left
		b.close()
	}
	p.router.Close()
	p.managers.Close()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// admit checks a command's fence; read is true for a read-only request, whose counter may be lower.
func (p *Projector) admit(f wire.Fence, read bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	next, err := p.authority.Admit(p.cfg.ID, p.bootID, f, read)
	if errors.Is(err, wire.ErrFenced) {
		p.counters.fenced.Inc()
	}
	p.authority = next
	return err
}

// register registers with a manager, again and again until one answers: a projector registers at startup before it
// obeys any command.
func (p *Projector) register(ctx context.Context) error {
	req := &wire.RegisterProjector{ClusterID: p.clusterID(), Endpoint: wire.ProjectorEndpoint{ID: p.cfg.ID,
		BootID: p.bootID, Admin: p.url()}}
	for failures := 0; ; failures++ {
		reply, err := p.managers.RegisterProjector(ctx, req)
		if err == nil {
			p.cluster.Store(reply.ClusterID)
			p.mu.Lock()
			p.authority, p.leaderErr = p.authority.Register(reply), ""
			p.mu.Unlock()
			p.log.Info("registered", "cluster", reply.ClusterID, "leader", reply.Leader.ID, "term", reply.Leader.Term)
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		p.noteLeader(err)
		if failures%25 == 0 {
			p.log.Warn("registration failed, trying again", "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(registerPause):
		}
	}
}
