// Package manager implements the IndexManager role: it combines the Raft node, its state machine, the coordinator's
// duties and the REST interface in one process (IM-6).
//
// Managers may start in any order. A manager forms a new cluster only when all expected managers are empty, and
// transfers leadership before it stops.
package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"tidemark/fsm"
	"tidemark/indexerclient"
	"tidemark/internal/rpc"
	"tidemark/internal/rpc/route"
	"tidemark/internal/stop"
	"tidemark/internal/tlsconf"
	"tidemark/internal/version"
	"tidemark/manager/api"
	"tidemark/manager/auth"
	"tidemark/manager/consensus"
	"tidemark/manager/console"
	"tidemark/manager/coordinator"
	"tidemark/manager/coordinator/core"
	"tidemark/manager/watch"
	"tidemark/partition"
	"tidemark/projectorclient"
	"tidemark/rebalance"
	"tidemark/stability"
	"tidemark/statecontext"
)

// Times and limits of a manager's start and stop.
const (
	formInterval = 100 * time.Millisecond  // interval of the probes of the other managers of a new cluster
	drainGrace   = 1500 * time.Millisecond // time for REST requests to finish at the stop
	// stopPatience bounds an orderly stop, in which only the disk has no bound of its own.
	stopPatience = 15 * time.Second
)

// ErrHangs is wrapped by Run's error if not everything in a manager has stopped in time.
var ErrHangs = errors.New("parts of this manager did not stop, which happens if its disk hangs")

// Config configures a manager.
type Config struct {
	Name            string
	Dir             string
	REST            string   // host:port to listen on
	Raft            string   // host:port to listen on
	RESTAdvertise   string   // host:port that other nodes dial; if empty, that of REST's listener
	RaftAdvertise   string   // the same for Raft
	BootstrapExpect int      // number of managers of a new cluster; 0: only join a cluster
	Join            []string // REST addresses of all managers
	Heartbeat       time.Duration
	PromoteAfter    time.Duration // delay before a new member becomes a voter; default consensus.DefaultPromoteAfter
	// newestFormat makes the manager behave as a program with this newest format level, for tests; 0: the program's own.
	newestFormat uint64
	stopPatience time.Duration // 0: the default; shorter in tests
	// StabilitySource moves the stability timestamps of buckets without a setting of their own; 0 is stability.Sync.
	StabilitySource stability.Source
	// RepairAfter is how long an indexer may be offline before its copies are made anew elsewhere; 0:
	// DefaultRepairAfter, below 0: never.
	RepairAfter time.Duration
	// SplitAbove is the number of bytes that a slice may hold: its index is split automatically after a slice has been
	// larger for SplitAfter (0: DefaultSplitAfter); 0: unlimited.
	SplitAbove int64
	// SplitAboveRate is the same for entries written to and read from a slice per second; 0: unlimited.
	SplitAboveRate int64
	SplitAfter     time.Duration
	// MinFree is the number of free bytes below which this manager is not ready and transfers leadership; 0: no minimum.
	MinFree uint64
	// Failpoint, for tests, runs before each write to the Raft log and adds its duration and its error to the write.
	Failpoint func() error
	// OfflineAfter, for tests, is how long a component may be silent before it counts as offline; 0: the default.
	OfflineAfter time.Duration
	// ProjectorWait, for tests, is how long a statement waits for a projector that answers; 0: the default.
	ProjectorWait time.Duration
	// Hold, for tests, is called before each transition of a slice that moves (coordinator.Config).
	Hold func(what string) bool
	// RaftMetrics exports the Raft library's own metrics at /metrics. The library keeps them per process, so only one
	// manager in a process can export them.
	RaftMetrics bool
	Now         func() time.Time // default time.Now
	Logger      hclog.Logger
	Tracer      trace.Tracer    // nil: no spans
	TLS         *tlsconf.Source // for every connection; nil without TLS
	Insecure    bool            // listen beyond loopback without TLS
	// Audit configures the audit log; without a name there is none.
	Audit AuditFile
	// InitialAdmin is the password of the user admin, who is added if the cluster has no users.
	InitialAdmin string
}

// DefaultRepairAfter is the default of Config.RepairAfter.
const DefaultRepairAfter = 15 * time.Minute

// DefaultSplitAfter is the default of Config.SplitAfter.
const DefaultSplitAfter = 10 * time.Minute

// Manager is a manager whose listeners are open.
type Manager struct {
	cfg      Config
	listener net.Listener
	machine  *fsm.FSM
	raft     *consensus.Node
	steward  *consensus.Steward
	coord    *coordinator.Coordinator
	watch    *watch.Hub
	api      *api.API
	peers    *rpc.Client
	commands [2]interface{ Close() }
	audit    io.WriteCloser // nil: none
	fatal    chan error
	stopped  chan struct{} // closed when Run has stopped everything
	// complained is the text of the newest complaint logged.
	complained atomic.Pointer[string]
	log        hclog.Logger
}

// Open opens the stores and the listeners; nothing is served before Run.
func Open(cfg Config) (*Manager, error) {
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	if cfg.BootstrapExpect < 0 {
		return nil, fmt.Errorf("--bootstrap-expect %d: want the number of managers of a new cluster, or 0 to only join one",
			cfg.BootstrapExpect)
	}
	if err := cfg.TLS.MayListen(cfg.Insecure, tlsconf.Address{Flag: "rest", HostPort: cfg.REST},
		tlsconf.Address{Flag: "raft", HostPort: cfg.Raft}); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	m := &Manager{cfg: cfg, log: cfg.Logger, fatal: make(chan error, 1), stopped: make(chan struct{}),
		peers: rpc.NewClient(4, cfg.TLS.Client(tlsconf.HTTP, tlsconf.Manager))}
	var err error
	if m.audit, err = cfg.Audit.open(); err != nil {
		return nil, err
	}
	if m.listener, err = net.Listen("tcp", cfg.REST); err != nil {
		return nil, errors.Join(fmt.Errorf("REST address: %w", err), m.closeAudit())
	}
	if err := m.open(); err != nil {
		_ = m.listener.Close()
		return nil, errors.Join(err, m.closeAudit())
	}
	return m, nil
}

func (m *Manager) open() error {
	m.cfg.newestFormat = cmp.Or(m.cfg.newestFormat, statecontext.FormatLevel)
	m.machine = fsm.NewUpTo(m.cfg.newestFormat, m.log.Named("fsm"), func(err error) {
		err = fmt.Errorf("raft store %s: %w", filepath.Join(m.cfg.Dir, "raft", "raft.db"), err)
		m.log.Error("manager stops", "error", err)
		select {
		case m.fatal <- err:
		default: // the first error already ends the process
		}
	})
	var err error
	m.raft, err = consensus.Open(consensus.Config{Name: m.cfg.Name, Dir: filepath.Join(m.cfg.Dir, "raft"), REST: m.url(),
		RaftAddr: m.cfg.Raft,
		TLS:      m.cfg.TLS, Advertise: m.cfg.RaftAdvertise, Heartbeat: m.cfg.Heartbeat, MinFree: m.cfg.MinFree,
		Failpoint: m.cfg.Failpoint,
		Logger:    m.log.Named("raft"), Version: version.Number, FormatLevel: m.cfg.newestFormat, Now: m.cfg.Now}, m.machine)
	if err != nil {
		return err
	}
	m.steward = consensus.NewSteward(consensus.StewardConfig{Node: m.raft, PromoteAfter: m.cfg.PromoteAfter})
	projectors, indexers := projectorclient.New(coordinator.CallsAtOnce,
		m.cfg.TLS.Client(tlsconf.HTTP, tlsconf.Projector)),
		indexerclient.New(coordinator.CallsAtOnce, m.cfg.TLS.Client(tlsconf.HTTP, tlsconf.Indexer))
	m.commands = [2]interface{ Close() }{projectors, indexers}
	settings := core.DefaultSettings()
	settings.Stability.Source = cmp.Or(m.cfg.StabilitySource, settings.Stability.Source)
	settings.RepairAfter = cmp.Or(m.cfg.RepairAfter, settings.RepairAfter)
	settings.SplitAbove, settings.SplitAboveRate = m.cfg.SplitAbove, m.cfg.SplitAboveRate
	settings.SplitAfter = cmp.Or(m.cfg.SplitAfter, settings.SplitAfter)
	settings.OfflineAfter = cmp.Or(m.cfg.OfflineAfter, settings.OfflineAfter)
	settings.ProjectorWait = cmp.Or(m.cfg.ProjectorWait, settings.ProjectorWait)
	m.coord, err = coordinator.New(coordinator.Config{Consensus: m.raft, Machine: m.machine, Projectors: projectors,
		Indexers: indexers,
		REST:     m.url(), Now: m.cfg.Now, Logger: m.log.Named("coordinator"), Settings: settings, Hold: m.cfg.Hold,
		Quantiles: func(ctx context.Context, x *statecontext.Index, n int, within time.Duration) (partition.Cuts, error) {
			return m.api.Quantiles(ctx, x, n, within) // assigned below
		},
		Loads: func(ctx context.Context, x *statecontext.Index, hot []rebalance.Hot,
			within time.Duration) ([]partition.Cuts, error) {
			return m.api.Loads(ctx, x, hot, within)
		}})
	if err != nil {
		return errors.Join(err, m.raft.Close())
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(&collector{raft: m.raft, coord: m.coord}, m.raft.Collector())
	route.RegisterProcess(registry, m.cfg.TLS)
	if m.cfg.RaftMetrics {
		if err := showLibrary(registry); err != nil {
			return errors.Join(err, m.raft.Close())
		}
	}
	m.watch = watch.New(m.machine, m.log.Named("watch"))
	authenticator, err := auth.New(m.machine.State, time.Now)
	if err != nil {
		return errors.Join(err, m.raft.Close())
	}
	tickets, err := auth.NewTickets(m.url(), time.Now)
	if err != nil {
		return errors.Join(err, m.raft.Close())
	}
	open := m.cfg.InitialAdmin == "" && (m.cfg.Insecure || tlsconf.Loopback(m.listener.Addr().String()) &&
		tlsconf.Loopback(m.raft.Addr()))
	host, _, _ := net.SplitHostPort(m.cfg.REST) // it is valid: this manager listens there
	m.api = api.New(api.Config{Name: m.cfg.Name, REST: m.url(), Host: host, Expect: m.cfg.BootstrapExpect, Raft: m.raft,
		Steward: m.steward, JoinTimeout: m.raft.JoinTimeout(), Coordinator: m.coord, Watch: m.watch,
		Registry: registry, TLS: m.cfg.TLS, Auth: authenticator, Tickets: tickets, Open: open,
		FirstUser: m.cfg.InitialAdmin != "", Logger: m.log.Named("api"),
		Audit: m.auditTo(), Tracer: m.cfg.Tracer})
	return nil
}

// url returns the base URL that other nodes use.
func (m *Manager) url() string {
	if m.cfg.RESTAdvertise != "" {
		return m.cfg.TLS.BaseURL(m.cfg.RESTAdvertise)
	}
	return m.cfg.TLS.BaseURL(m.listener.Addr().String())
}

// Run serves until ctx ends. Then it transfers leadership, drains REST and closes the stores. It does not wait for a
// disk that hangs: the error is then ErrHangs, and the process has to exit. Writes that are not on disk by then were
// not acknowledged.
func (m *Manager) Run(ctx context.Context) error {
	stopping := make(chan struct{})
	patience := cmp.Or(m.cfg.stopPatience, stopPatience)
	late, err := stop.Within(stopping, patience, func() error {
		defer close(m.stopped)
		return m.run(ctx, stopping)
	})
	if !late {
		return err
	}
	err = fmt.Errorf("%w; waited %v for: %s", ErrHangs, patience, m.cfg.Dir)
	m.log.Error("manager stops", "error", err)
	return err
}

// run is Run without the bound on the stop; it closes stopping when it begins to stop.
func (m *Manager) run(ctx context.Context, stopping chan<- struct{}) error {
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	g, run := errgroup.WithContext(ctx)
	g.Go(func() error {
		<-run.Done()
		close(stopping)
		return nil
	})
	g.Go(func() error { return m.serve(serving) })
	g.Go(func() error { return m.watch.Run(serving) })
	g.Go(func() error { return m.noteUsers(run) })
	g.Go(func() error { return m.raft.Run(run, m.lead) })
	g.Go(func() error { return m.api.Run(run) })
	g.Go(func() error { return m.form(run) })
	g.Go(func() error { return m.register(run) })
	g.Go(func() error {
		defer stopServing()
		select {
		case err := <-m.fatal:
			return err
		case <-run.Done():
		}
		if _, leads := m.raft.Serving(); leads { // before REST is drained, so that clients find the next leader sooner
			if err := m.raft.TransferLeadership(context.Background()); err != nil {
				m.log.Info("leadership could not be transferred", "error", err)
			}
		}
		return nil
	})
	err := errors.Join(g.Wait(), m.note())
	err = errors.Join(err, m.raft.Close())
	m.api.Close()
	err = errors.Join(err, m.closeAudit())
	m.peers.Close()
	for _, c := range m.commands {
		c.Close()
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// serve serves REST requests until ctx ends.
func (m *Manager) serve(ctx context.Context) error {
	pages, err := console.Handler(m.api.Handler())
	if err != nil {
		return err
	}
	s := &route.Server{Handler: pages, TLS: m.cfg.TLS, Log: m.log, Grace: drainGrace}
	return s.Serve(ctx, m.listener)
}
