// Package indexer is the role that holds index copies. It receives KeyVersions from routers on its data ports, queues
// them until a stability timestamp can be made, writes them (packages ingest and storage), requests from projectors
// what its copies lack, reports to the leader, and answers scans (IX-1 to IX-7, IM-8, IM-16, IM-17).
//
// It guarantees: commands of a deposed leader or of another cluster change nothing; an admin command never waits for
// data; memory is bounded by configuration, not by load; a full disk stops the intake and nothing else, and is
// reported; after a crash each copy continues from its own last durable batch without disturbing other nodes and
// copies; an orderly stop takes less than five seconds and leaves nothing that needs a rebuild.
//
// It never decides where a copy lives, when a timestamp is promoted, or which stream a vbucket has: the leader does
// (package coordinator).
package indexer

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/go-hclog"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"tidemark/index"
	"tidemark/indexer/catalog"
	"tidemark/indexer/copies"
	"tidemark/indexer/fill"
	"tidemark/indexer/health"
	"tidemark/indexer/keeper"
	"tidemark/indexer/pace"
	"tidemark/indexer/peers"
	"tidemark/indexer/scanserver"
	"tidemark/indexer/sides"
	"tidemark/indexer/snapshots"
	"tidemark/indexer/storage"
	"tidemark/indexer/transfer"
	"tidemark/indexer/transport"
	"tidemark/indexer/verify"
	"tidemark/internal/rpc"
	"tidemark/internal/rpc/route"
	"tidemark/internal/stop"
	"tidemark/internal/tlsconf"
	"tidemark/managerclient"
	"tidemark/projectorclient"
	"tidemark/wire"
)

// Defaults of Config.
const (
	// DefaultKeepSnapshots exceeds the number of outstanding promotions (stability.DefaultConfig: 4), so that the
	// fastest indexer never releases a timestamp that the slowest has still to make.
	DefaultKeepSnapshots = 6
	DefaultPersistEvery  = 5 * time.Second
	DefaultCheckpoint    = 30 * time.Second
	DefaultOrphanGrace   = 10 * time.Minute
	DefaultReplicaLag    = time.Minute // default of the command
	// DefaultCatchupRate is per processor of the machine. It is the rate at which one processor catches up with a
	// third of its time idle, without delaying the session scans of others by more than a tenth
	// (docs/performance.md).
	DefaultCatchupRate = 10_000
	// DefaultTransferRate is the command's default: a gigabyte in 16 s, about half of what a link of 1 Gbit/s
	// carries.
	DefaultTransferRate = 64 << 20
)

const (
	// MinCatchupRate is the smallest limit of catchup. Below it a vbucket could deliver nothing for so long that its
	// stream is given up.
	MinCatchupRate = 1000
	// MaxCheckpoints bounds the checkpoints of a copy: each may keep files that compactions have replaced.
	MaxCheckpoints = 100
)

// Config configures an indexer. Name, Dir, Managers and Logger are required. Addresses are host:port; port 0 picks a
// free one.
type Config struct {
	Name        string
	Dir         string
	Managers    []string // base URLs
	Admin       string
	Scan        string
	Maintenance string
	Backfill    string
	Catchup     string
	Advertise   string // host that is published instead of the one listened on; the ports stay the same
	// Zone names the failure domain of this indexer: replicas of a slice are placed in different zones as far as
	// possible. Capacity is this indexer's share of the copies relative to the other indexers' (0 counts as 1, at
	// most wire.MaxCapacity).
	Zone     string
	Capacity uint32

	// OwnProcess is set if the process runs this indexer and nothing else. The Go runtime's memory limit and the
	// memory that the C library retains then follow the quota, and the operating system schedules its threads
	// (processors.go).
	OwnProcess    bool
	MemoryQuota   int64         // at least MinMemoryQuota; the next three are parts of it where they are 0
	QueueBytes    int64         // events held in memory, all buckets together
	CacheBytes    int64         // of storage, see storage.Options
	MemTableBytes int64         // of storage
	KeepSnapshots int           // stability timestamps per copy at which scans can run
	PersistEvery  time.Duration // between rounds in which copies are made durable, see package keeper
	Checkpoint    time.Duration // between checkpoints, for rollback
	// KeepCheckpoints is the least number of checkpoints that each copy keeps. 0: the storage's default.
	KeepCheckpoints int
	// ReplicaLag is how far KV's replicas may lag. A failover may go back that far, so each copy keeps enough
	// checkpoints for the oldest to predate it. 0: only KeepCheckpoints counts.
	ReplicaLag time.Duration
	// CatchupRate bounds the events per second that this indexer takes from catchup streams of all projectors
	// together, so that its recovery leaves projectors and KV capacity for other indexers. 0: DefaultCatchupRate for
	// each processor. Below 0: no bound.
	CatchupRate int64
	// TransferRate bounds the bytes per second of copies' files that are sent to other indexers, so that scans keep
	// their share of disk and network. 0: new copies here are filled from KV alone. Below 0: no bound.
	TransferRate int64
	// AuditRate is how many rows and documents per second the continuous audit compares with the data in KV,
	// AuditEvery the pause between two rounds. 0: verify.DefaultAuditRate, verify.DefaultAuditEvery. A rate below 0:
	// no audit.
	AuditRate  int64
	AuditEvery time.Duration
	// SlowScan is the duration from which a scan is recorded as slow. 0: scanserver.DefaultSlow. Below 0: none is
	// recorded.
	SlowScan    time.Duration
	disk        vfs.FS        // file system of the copies, see storage.Options
	verifyRoom  int64         // bytes of KV's data that a verification holds. 0: verify.MaxBytes
	processors  int           // processors that the process may use
	stopMost    time.Duration // bound of an orderly stop. 0: the constant stopMost
	listWait    time.Duration // how long the reply to a list waits for reconcilers. 0: listPatience
	OrphanGrace time.Duration // how long an orphaned copy is kept; below 0: forever
	Logger      hclog.Logger
	Tracer      trace.Tracer // nil: no spans

	// TLS, unless nil, is used on every connection.
	TLS *tlsconf.Source
	// Insecure allows listening beyond loopback without TLS.
	Insecure bool
}

// check returns an error for values that are out of range or missing.
func (c *Config) check() error {
	switch {
	case c.KeepCheckpoints < 0:
		return fmt.Errorf("indexer: %d checkpoints to keep: want at least 1, or 0 for %d", c.KeepCheckpoints,
			storage.DefaultKeepCheckpoints)
	case c.KeepCheckpoints > MaxCheckpoints:
		return fmt.Errorf("indexer: %d checkpoints to keep: want at most %d", c.KeepCheckpoints, MaxCheckpoints)
	case c.CatchupRate > 0 && c.CatchupRate < MinCatchupRate:
		return fmt.Errorf("indexer: a catchup of %d events a second: want at least %d, or less than 0 for no bound",
			c.CatchupRate, MinCatchupRate)
	case c.TransferRate > 0 && c.TransferRate < transfer.MinRate:
		return fmt.Errorf("indexer: a transfer of %d bytes a second: want at least %d, or less than 0 for no bound",
			c.TransferRate, transfer.MinRate)
	case c.AuditRate > 0 && c.AuditRate < verify.MinAuditRate:
		return fmt.Errorf("indexer: an audit of %d rows and documents a second: want at least %d, or less than 0 for none",
			c.AuditRate, verify.MinAuditRate)
	case len(c.Zone) > wire.MaxZone || strings.ContainsFunc(c.Zone, unicode.IsControl):
		return fmt.Errorf("indexer: zone %q: want at most %d bytes without control characters", c.Zone, wire.MaxZone)
	case c.Capacity > wire.MaxCapacity:
		return fmt.Errorf("indexer: capacity %d: want 1 to %d", c.Capacity, wire.MaxCapacity)
	case c.Dir == "":
		return errors.New("indexer: no data folder")
	case len(c.Managers) == 0:
		return errors.New("indexer: no managers")
	}
	return nil
}

// withDefaults checks the configuration and sets what was left open.
func (c Config) withDefaults() (Config, error) {
	if err := c.check(); err != nil {
		return c, err
	}
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	c.processors = takeProcessors(c.OwnProcess)
	if c.stopMost <= 0 {
		c.stopMost = stopMost
	}
	if c.listWait <= 0 {
		c.listWait = listPatience
	}
	if err := c.splitQuota(); err != nil {
		return c, err
	}
	if c.KeepSnapshots <= 0 {
		c.KeepSnapshots = DefaultKeepSnapshots
	}
	if c.PersistEvery <= 0 {
		c.PersistEvery = DefaultPersistEvery
	}
	if c.Checkpoint <= 0 {
		c.Checkpoint = DefaultCheckpoint
	}
	if c.CatchupRate == 0 {
		c.CatchupRate = DefaultCatchupRate * int64(c.processors)
	}
	if err := c.spanLag(); err != nil {
		return c, err
	}
	if c.OrphanGrace == 0 {
		c.OrphanGrace = DefaultOrphanGrace
	}
	for _, a := range []*string{&c.Admin, &c.Scan, &c.Maintenance, &c.Backfill, &c.Catchup} {
		if *a == "" {
			*a = "127.0.0.1:0"
		}
	}
	return c, nil
}

// spanLag raises KeepCheckpoints so that the oldest checkpoint is older than ReplicaLag: checkpoints are at least
// Checkpoint apart.
func (c *Config) spanLag() error {
	if c.KeepCheckpoints == 0 {
		c.KeepCheckpoints = storage.DefaultKeepCheckpoints
	}
	span := (max(c.ReplicaLag, 0) + c.Checkpoint - 1) / c.Checkpoint
	if span >= MaxCheckpoints {
		return fmt.Errorf("indexer: KV replicas that lag by %v take %d checkpoints %v apart, at most %d are kept: raise "+
			"--checkpoint-every to %v or more, or lower --replica-lag",
			c.ReplicaLag, span+1, c.Checkpoint, MaxCheckpoints, (c.ReplicaLag/(MaxCheckpoints-1) +
				time.Second).Truncate(time.Second))
	}
	c.KeepCheckpoints = max(c.KeepCheckpoints, int(span)+1)
	return nil
}

// Indexer is one indexer process.
type Indexer struct {
	cfg        Config
	log        hclog.Logger
	boot       string        // id of this process
	reported   atomic.Uint64 // number of the newest report or hello
	identity   *identity
	store      *storage.Store
	snapshots  *snapshots.Set
	catalog    *catalog.Catalog
	fills      *fill.Filler
	sides      *sides.Loop
	origins    *sides.Origins
	node       *copies.Node // what its buckets share
	managers   *managerclient.Client
	projectors *projectorclient.Client
	truth      *scanserver.Truth
	peers      *peers.Peers
	verify     *verify.Verifier
	scans      *scanserver.Server
	samples    chan struct{} // semaphore of samples in progress
	metrics    *metrics
	ports      ports
	now        func() time.Time

	report     chan struct{} // capacity 1: a report is due at once
	health     health.Health
	room       atomic.Uint64 // see wire.IndexerReport
	began      time.Time
	unstorable refusedKeys
	nearQuota  atomic.Bool // the memory quota is nearly used up

	applying sync.Mutex // serializes lists of definitions
	places   places
	kept     *keptList
	spawn    func(func(context.Context) error)
	buckets  buckets
	orphans  orphans
}

// ports holds the listeners, which are opened before anything runs.
type ports struct {
	admin, scan, maintenance, backfill, catchup net.Listener

	conns atomic.Uint64 // connections on the data ports so far, which numbers them
	rate  *pace.Pace    // limit of catchup streams; nil: no limit
}

func (p *ports) each(f func(net.Listener)) {
	for _, l := range []net.Listener{p.admin, p.scan, p.maintenance, p.backfill, p.catchup} {
		if l != nil {
			f(l)
		}
	}
}

const copiesDir = "copies"

// callsToProjector bounds the concurrent calls of a kind to one projector. The side-stream loop uses up to eight of
// the calls that start streams (core.Sides), verifications use the others.
const callsToProjector = 12

// Open opens the data folder and the ports. Its errors name the folder or the address.
func Open(cfg Config) (*Indexer, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := cfg.TLS.MayListen(cfg.Insecure, tlsconf.Address{Flag: "admin", HostPort: cfg.Admin},
		tlsconf.Address{Flag: "scan", HostPort: cfg.Scan},
		tlsconf.Address{Flag: "maintenance", HostPort: cfg.Maintenance},
		tlsconf.Address{Flag: "backfill", HostPort: cfg.Backfill},
		tlsconf.Address{Flag: "catchup", HostPort: cfg.Catchup}); err != nil {
		return nil, fmt.Errorf("indexer: %w", err)
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("indexer: data folder: %w", err)
	}
	boot, err := newID(8)
	if err != nil {
		return nil, err
	}
	x := &Indexer{
		cfg: cfg, log: cfg.Logger, boot: boot, now: time.Now, began: time.Now(),
		buckets: buckets{named: map[string]*copies.Bucket{}},
		places:  newPlaces(cfg.listWait),
		kept:    newKeptList(cfg.Dir),
		orphans: orphans{grace: cfg.OrphanGrace, log: cfg.Logger, now: time.Now, all: map[index.CopyID]*orphan{}},
		report:  make(chan struct{}, 1), metrics: newMetrics(),
		snapshots: snapshots.New(cfg.KeepSnapshots, cfg.Logger, time.Now),
		origins:   sides.NewOrigins(cfg.Tracer != nil), samples: make(chan struct{}, samplesAtOnce),
	}
	x.catalog = catalog.New(func() index.NodeID { return x.identity.get().Node }, x.snapshots)
	if cfg.CatchupRate > 0 {
		x.ports.rate = pace.New(cfg.CatchupRate, 0, x.now)
	}
	background := copies.NewBackground(cfg.processors)
	x.store, err = storage.Open(storage.Options{
		Dir: filepath.Join(cfg.Dir, copiesDir), CacheBytes: cfg.CacheBytes, MemTableBytes: cfg.MemTableBytes,
		KeepCheckpoints: cfg.KeepCheckpoints, Compactions: max(1, cfg.processors/2), Yield: background.Merger,
		Logger: cfg.Logger.Named("storage"), FS: cfg.disk,
	})
	if err != nil {
		return nil, err
	}
	for _, s := range x.store.Slices() {
		x.origins.Found(s.Meta().Copy)
	}
	var marks *copies.Marks
	if x.identity, err = loadIdentity(cfg.Dir, boot, x.storesIdentity); err == nil {
		marks, err = copies.LoadMarks(cfg.Dir, cfg.Logger)
	}
	if err == nil {
		err = x.listen()
	}
	if err != nil {
		x.ports.each(func(l net.Listener) { l.Close() })
		return nil, errors.Join(err, x.store.Close())
	}
	x.managers = managerclient.New(cfg.Managers, cfg.TLS.Client(tlsconf.HTTP, tlsconf.Manager))
	x.projectors = projectorclient.New(callsToProjector, cfg.TLS.Client(tlsconf.HTTP, tlsconf.Projector))
	x.truth = x.newTruth()
	x.peers = peers.New(cfg.TLS, func() (index.NodeID, string) {
		return x.identity.get().Node, x.ports.scan.Addr().String()
	}, func() []wire.Endpoint { return x.present().Indexers })
	x.sides = sides.New(x.sideOptions())
	x.node = &copies.Node{Store: x.store, Snapshots: x.snapshots, Marks: marks, Health: &x.health,
		Background: background, Restores: copies.NewRestores(cfg.processors), Processors: cfg.processors,
		Metrics: copies.NewMetrics(x.metrics.registry), Log: x.log, Now: x.now, Queue: x.queueShare, Piece: cfg.pieceBytes(),
		Catchup: x.ports.rate, Refused: x.refuse, Report: func() { wake(x.report) }, Sides: x.sides.Wake,
		Touch: x.catalog.Touch}
	x.fills = fill.New(x.fillOptions())
	x.verify = verify.New(verify.Options{Name: cfg.Name, Role: verifyRole{x}, Pins: x.pins(), Projectors: x.projectors,
		Nodes: x.peers.Ask(verify.AtOnce), Room: cfg.verifyRoom, AuditRate: cfg.AuditRate, AuditEvery: cfg.AuditEvery,
		Registry: x.metrics.registry, Log: cfg.Logger, Now: x.now})
	x.scans = scanserver.New(x.scanOptions())
	return x, nil
}

func (x *Indexer) listen() error {
	for _, p := range []struct {
		addr string
		to   *net.Listener
		what string
	}{
		{x.cfg.Admin, &x.ports.admin, "admin"}, {x.cfg.Scan, &x.ports.scan, "scan"},
		{x.cfg.Maintenance, &x.ports.maintenance, "maintenance"}, {x.cfg.Backfill, &x.ports.backfill, "backfill"},
		{x.cfg.Catchup, &x.ports.catchup, "catchup"},
	} {
		l, err := net.Listen("tcp", p.addr)
		if err != nil {
			return fmt.Errorf("indexer: %s port: %w", p.what, err)
		}
		*p.to = l
	}
	return nil
}

// fillOptions returns what package fill uses of this indexer.
func (x *Indexer) fillOptions() fill.Options {
	return fill.Options{Store: x.store, Snapshots: x.snapshots, Marks: x.node.Marks, Nodes: x.peers.Ask(1),
		UUID: func() string { return x.identity.get().UUID }, Rate: x.cfg.TransferRate, Bucket: x.bucketNamed,
		Orphan: x.orphans.has, Settled: x.settled, Present: x.present,
		Spawn: func(run func(context.Context) error) { x.spawn(run) }, Sides: x.sides.Wake, Health: &x.health,
		Registry: x.metrics.registry, Log: x.log, Now: x.now}
}

// sideOptions returns what the side-stream loop uses of this indexer.
func (x *Indexer) sideOptions() sides.Options {
	return sides.Options{Endpoint: x.Endpoint, ClusterID: func() string { return x.identity.get().ClusterID },
		Buckets: x.allBuckets, InForce: x.catalog.InForce, Projectors: x.projectors, Origins: x.origins,
		Report: func() { wake(x.report) }, Registry: x.metrics.registry, Tracer: x.cfg.Tracer, Log: x.log, Now: x.now}
}

// Endpoint returns the addresses at which others reach this indexer.
func (x *Indexer) Endpoint() wire.Endpoint {
	id := x.identity.get()
	addr := func(l net.Listener) string { return rpc.Advertised(l.Addr(), x.cfg.Advertise) }
	return wire.Endpoint{
		Node: id.Node, UUID: id.UUID, BootID: x.boot, Name: x.cfg.Name, Zone: x.cfg.Zone, Capacity: x.cfg.Capacity,
		Admin: x.cfg.TLS.BaseURL(addr(x.ports.admin)),
		Scan:  addr(x.ports.scan), Maintenance: addr(x.ports.maintenance), Backfill: addr(x.ports.backfill),
		Catchup: addr(x.ports.catchup),
	}
}

// stopGrace bounds how long HTTP requests may drain.
const stopGrace = time.Second

// Run serves until ctx ends, then flushes memory to disk and releases all resources. It may be called once.
func (x *Indexer) Run(ctx context.Context) error {
	g, inner := errgroup.WithContext(ctx)
	x.spawn = func(f func(context.Context) error) { g.Go(func() error { return f(inner) }) }
	if err := x.resume(); err != nil {
		x.log.Error("stored definitions cannot be used; waiting for the leader's", "error", err)
	}
	servers := []*transport.Server{ // from here on the leader may send commands
		x.dataServer(portMaintenance), x.dataServer(portBackfill), x.dataServer(portCatchup),
	}
	for i, l := range []net.Listener{x.ports.maintenance, x.ports.backfill, x.ports.catchup} {
		s := servers[i]
		g.Go(func() error { return s.Serve(l) })
	}
	g.Go(func() error {
		<-inner.Done()
		for _, s := range servers {
			s.Stop()
		}
		return nil
	})
	x.metrics.registry.MustRegister(collector{x})
	route.RegisterProcess(x.metrics.registry, x.cfg.TLS)
	g.Go(func() error { return x.serve(inner, x.adminTable(), x.ports.admin) })
	g.Go(func() error { return x.serve(inner, x.scanTable(x.scans), x.ports.scan) })
	g.Go(func() error { return x.scans.Run(inner) })
	g.Go(func() error { return (&reporter{x: x}).Run(inner) })
	g.Go(func() error { return x.sides.Run(inner) })
	g.Go(func() error { return x.fills.Sender().Run(inner) })
	g.Go(func() error { return x.fills.Run(inner) })
	g.Go(func() error { return x.fills.Watch(inner) })
	keep := keeper.New(keeper.Options{Store: x.store, Snapshots: x.snapshots, PersistEvery: x.cfg.PersistEvery,
		Memory: x.cfg.MemTableBytes, Checkpoint: x.cfg.Checkpoint, Skips: x.orphans.has, Measure: x.measure, Log: x.log,
		Now: x.now})
	g.Go(func() error { return keep.Run(inner) })
	g.Go(func() error { return x.verify.Audit(inner) })
	g.Go(func() error { return x.watchMemory(inner) })
	e := x.Endpoint()
	x.log.Info("indexer runs", "name", e.Name, "uuid", e.UUID, "admin", e.Admin, "scan", e.Scan, "maintenance",
		e.Maintenance)
	return stopWithin(inner, x.cfg.stopMost, func() error { // inner also ends when a part fails
		err := g.Wait()
		x.snapshots.CloseAll()
		err = errors.Join(err, x.store.Close())
		x.managers.Close()
		x.projectors.Close()
		x.fills.Nodes.Close()
		x.peers.Close()
		return err
	})
}

// stopMost bounds an orderly stop. Files on a hung disk cannot be closed, and everything that is lost with them can
// be read from KV again.
const stopMost = 15 * time.Second

// ErrHangs is wrapped by Run's error when the process could not stop in order.
var ErrHangs = errors.New("indexer does not stop; its disk hangs")

// stopWithin waits for f, but no longer than most after ctx has ended. The error then includes the cause of ctx's
// end, unless it is a plain cancellation.
func stopWithin(ctx context.Context, most time.Duration, f func() error) error {
	late, err := stop.Within(ctx.Done(), most, f)
	if !late {
		return err
	}
	err = fmt.Errorf("%w: gave up after %s; data in memory will be streamed from KV again", ErrHangs, most)
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		err = errors.Join(cause, err)
	}
	return err
}

// serve serves HTTP requests on a port until ctx ends.
func (x *Indexer) serve(ctx context.Context, t *route.Table, l net.Listener) error {
	s := &route.Server{Handler: t.Handler(), TLS: x.cfg.TLS, Log: x.log, Tracer: x.cfg.Tracer, Grace: stopGrace}
	return s.Serve(ctx, l)
}

// wake wakes a loop without blocking.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func newID(bytes int) (string, error) {
	b := make([]byte, bytes)
	if _, err := rand.Read(b); err != nil {
		return "", fmt.Errorf("random id: %w", err)
	}
	return hex.EncodeToString(b), nil
}

// Sources of health problems. For copies see copies.CopySource.
const (
	healthRegistration = "registration"
	healthManagers     = "managers"
	healthIdentity     = "identity"
)
