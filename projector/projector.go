// Package projector is the role that turns a KV node's mutations into KeyVersions: it streams the vbuckets it is told
// to by DCP, evaluates every active index of the bucket on each document in one pass, and hands the keys to its router
// (PR-1 to PR-5, PR-15).
//
// It promises that the admin server is never blocked by data; that a vbucket's events keep their order; that what a KV
// connection has delivered is acknowledged to KV only when the router has taken it; that an index joins a running
// stream between two mutations of each vbucket, at an activation timestamp said in band; and that a command of a
// deposed leader is refused. It holds nothing on disk: what it must know it learns from the coordinator, what it
// streams it reports.
//
// It never decides where a stream starts and never starts one by itself: when a stream ends, for whatever reason, it
// says so, and the coordinator's ledger asks for it again.
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
	ReportInterval  = 100 * time.Millisecond // between two reports while there is news
	restInterval    = 400 * time.Millisecond // between two without; three make nobody suspect (package liveness)
	syncInterval    = time.Second            // between two SYNCs of an idle vbucket
	fullInterval    = 5 * time.Second        // between two reports of everything
	reportSpacing   = 5 * time.Millisecond   // between two reports sent at once
	registerPause   = 200 * time.Millisecond
	stopGrace       = time.Second
	maxWorkers      = 4
	sideIdleLimit   = 60 * time.Second // a side stream without progress is given up
	sideBufferBytes = 4 << 20          // DCP buffer of a side stream; maintenance streams have feed.DefaultBufferBytes
	maxSyncWait     = 5 * time.Second
	streamsAtOnce   = 64 // stream requests in flight on one connection
	// for a question to KV: who asks for it learns why, before its own patience is over
	kvTimeout        = 4 * time.Second
	stopTimeout      = time.Second      // for KV to hear that streams are stopped
	workerQueue      = 4                // blocks between a connection and a worker; DCP's buffer holds the rest
	sideDrainTimeout = 30 * time.Second // how long its endpoint may take nothing when KV has sent all

	// definitionsPatience is how long a request for side streams waits for the definitions that it was made under.
	definitionsPatience = 2 * time.Second
)

// Config configures a projector.
type Config struct {
	ID       index.ProjectorID
	Managers []string // base URLs
	Admin    string   // host:port to listen on
	// Advertise is the host that others are told instead of the one listened on; the port is the same.
	Advertise string
	KV        string // host:port of the KV node whose active vbuckets it streams
	// KVManager, unless empty, is the host:port of that node's cluster manager, which says where the node is and whenever
	// there is another map; KV is then no more than its name.
	KVManager string
	Share     core.Share // of those vbuckets, where several projectors stand at one node
	User      string     // of the KV store
	// KVTLS encrypts the connections to the KV store; nil for none. KVNetwork names whose addresses of the cluster map
	// count (mcbp.NetworkDefault, mcbp.NetworkExternal); empty finds out. Only FeedGocbcore connects by the map.
	KVTLS *tls.Config
	// ReadKVTLS, unless nil, gives it instead of KVTLS, which says that there is TLS: for each connection, so that another
	// CA counts without a restart.
	ReadKVTLS func() (*tls.Config, error)
	KVNetwork string
	// Feed is the implementation of the DCP consumer; empty is FeedNative.
	Feed     FeedKind
	Password string
	// ReadPassword, unless nil, gives it instead: for each connection, so that a new one counts without a restart.
	ReadPassword func() (string, error)
	// Throttle says whom a slow indexer holds back; empty is ThrottleAll.
	Throttle Throttle
	// Connections is how many data connections each topic and bucket has to an endpoint, each for its own vbuckets (RT-4);
	// 0: router.DefaultConnections, at most router.MaxConnections.
	Connections int
	// Workers evaluate documents, each its own vbuckets; 0 chooses half of the processors, at most 4.
	Workers int
	Logger  hclog.Logger
	Tracer  trace.Tracer // nil: no spans
	// Host, unless nil, listens in its stead; Admin and Advertise count for nothing then.
	Host Host
	// TLS, unless nil, is on every connection but those to KV.
	TLS *tlsconf.Source
	// Insecure allows to listen beyond loopback without TLS.
	Insecure bool

	purgePatience time.Duration // 0: purgePatience
	reachPatience time.Duration // 0: reachPatience
	lookEvery     time.Duration // 0: lookInterval
	calmLinger    time.Duration // 0: the router's
}

// Throttle says what happens when an indexer is slow on maintenance streams (RT-6, RT-8).
type Throttle string

// The ways to throttle.
const (
	ThrottleAll Throttle = "all" // it holds back its vbuckets for everybody, and KV: nothing is dropped
	// the slow few are dropped and catch up; everybody is throttled when more than half are slow
	ThrottleSmart Throttle = "smart"
)

// Check reports whether it is one; an empty one is ThrottleAll.
func (t Throttle) Check() error {
	switch t {
	case "", ThrottleAll, ThrottleSmart:
		return nil
	}
	return fmt.Errorf("throttle %q: want %s or %s", string(t), ThrottleAll, ThrottleSmart)
}

// Projector is a running projector: its parts, which have locks of their own, and under mu what the coordinator has
// told it.
type Projector struct {
	cfg      Config
	bootID   string
	listener net.Listener
	managers *managerclient.Client
	router   *router.Router
	registry *prometheus.Registry
	cluster  atomic.Value // string: the cluster's id; without p.mu, for connections ask for it
	counters counters
	faults   faults
	assessor *assessor
	troubles troubles // with KV
	purges   untold
	maps     managedMaps
	log      hclog.Logger

	reporting reporting
	runCtx    context.Context
	tasks     tasks
	sides     sides
	looks     looks

	opening sync.Mutex // of buckets

	mu        sync.Mutex
	authority core.Authority
	unheard   string // why the leader has not heard of it lately; empty: it has
	defs      definitions
	buckets   map[string]*bucket
}

// Open listens on the admin address and connects to nobody yet.
func Open(cfg Config) (*Projector, error) {
	switch {
	case cfg.ID == "":
		return nil, errors.New("projector: an id is needed")
	case len(cfg.Managers) == 0:
		return nil, errors.New("projector: the address of a manager is needed")
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
		looks:    looks{patience: fieldsTime},
		faults:   faults{all: map[index.ID]*fault{}},
		assessor: newAssessor(),
		defs:     definitions{changed: make(chan struct{}), patience: definitionsPatience},
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

// listen takes the admin address, unless its host does.
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

// AdminAddr is the address it listens on, host:port.
func (p *Projector) AdminAddr() string { return p.listener.Addr().String() }

// clusterID is "" before the first registration.
func (p *Projector) clusterID() string {
	id, _ := p.cluster.Load().(string)
	return id
}

// Run serves until ctx ends, then closes its streams. Nothing of it runs when it has returned.
func (p *Projector) Run(ctx context.Context) error {
	g, run := errgroup.WithContext(ctx)
	p.runCtx = run
	g.Go(func() error { return p.serve(run) })
	g.Go(func() error { return p.report(run) })
	g.Go(func() error { p.attend(run); return nil })
	err := g.Wait()
	p.tasks.wait()
	for _, b := range p.buckets { // nobody else is left to look at them
		b.close()
	}
	p.router.Close()
	p.managers.Close()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// admit checks a command's fence; read lets one pass that only asks, whatever its counter.
func (p *Projector) admit(f wire.Fence, read bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	next, err := p.authority.Admit(p.cfg.ID, f, read)
	if errors.Is(err, wire.ErrFenced) {
		p.counters.fenced.Inc()
	}
	p.authority = next
	return err
}

// register makes itself known until a manager answers: a projector that starts asks before it obeys.
func (p *Projector) register(ctx context.Context) error {
	req := &wire.RegisterProjector{ClusterID: p.clusterID(), Endpoint: wire.ProjectorEndpoint{ID: p.cfg.ID,
		BootID: p.bootID, Admin: p.url()}}
	for failures := 0; ; failures++ {
		reply, err := p.managers.RegisterProjector(ctx, req)
		if err == nil {
			p.cluster.Store(reply.ClusterID)
			p.mu.Lock()
			p.authority, p.unheard = p.authority.Register(reply), ""
			p.mu.Unlock()
			p.log.Info("registered", "cluster", reply.ClusterID, "leader", reply.Leader.ID, "term", reply.Leader.Term)
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		p.heard(err)
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
