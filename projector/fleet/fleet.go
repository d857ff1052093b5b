// Package fleet runs the projectors of one process: one for each KV node of a cluster, as listed in the cluster's
// maps (PR-4).
//
// It guarantees that a KV node that joins is served, and that the registration of a projector whose node has left is
// removed, both without an operator; that a node that hangs, or whose projector ends by itself, affects no other
// projector; and that unserved nodes are reported with the reason. It decides nothing about streams: each projector
// is a component of the cluster, and the coordinator distributes a node's vbuckets over the projectors that serve it.
package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/internal/rpc/route"
	"tidemark/internal/tlsconf"
	"tidemark/kv/mcbp"
	"tidemark/managerclient"
	"tidemark/projector"
	"tidemark/projector/core"
	"tidemark/timestamp"
	"tidemark/wire"
)

const (
	// stepInterval is the time between two decisions if nothing wakes the loop.
	stepInterval = 500 * time.Millisecond
	stopGrace    = time.Second
	// defsKept is how long a process that serves no node, because others serve all of them, relies on the last
	// definitions of its members. After that it registers again, to find out whether the others are still there.
	defsKept = 5 * time.Minute
)

// Config configures a Fleet.
type Config struct {
	// Projector is the configuration of each projector: ID is that of the process, to which @ and the node's name are
	// added; KV, KVManager and Host are set by the Fleet.
	Projector projector.Config
	// Seeds are addresses (host:port) of some of the nodes, or Managers are those of some of their cluster managers.
	Seeds, Managers []string
}

// Fleet is the set of a process's projectors.
type Fleet struct {
	cfg      Config
	log      hclog.Logger
	listener net.Listener
	managers *managerclient.Client
	began    time.Time
	run      func(context.Context, *projector.Projector) error // runs a member; tests replace it
	wake     chan struct{}
	leaving  chan []wire.LeaveProjector // room for one: the next step repeats what does not fit
	looking  chan struct{}              // the same, for a seed
	sharers  atomic.Int64               // of one projector's memory allowance: members, including those about to start

	mu       sync.Mutex
	defs     *wire.Definitions // the newest definitions of any member
	defsAt   time.Time
	plan     core.Fleet
	members  map[string]*member // by node name
	seed     core.KVNode
	unserved []core.KVNode
	aside    int    // nodes left to other processes
	seedErr  string // why no seed answers; empty if one does or none was needed
}

// member is the projector of one node.
type member struct {
	fleet  *Fleet
	node   core.KVNode
	p      *projector.Projector
	stop   context.CancelFunc
	ending bool // guarded by Fleet.mu

	serving sync.Mutex
	handler http.Handler // of the projector's admin server; nil while it does not serve
}

// Open listens on the admin address. It makes no connection yet.
func Open(cfg Config) (*Fleet, error) {
	c := &cfg.Projector
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	switch {
	case c.ID == "":
		return nil, errors.New("projector: an id is required")
	case len(c.Managers) == 0:
		return nil, errors.New("projector: the address of a manager is required")
	case len(cfg.Seeds) == 0 && len(cfg.Managers) == 0:
		return nil, errors.New("projector: the address of a KV node is required")
	}
	if err := errors.Join(c.Feed.Check(), c.Throttle.Check()); err != nil {
		return nil, err
	}
	if err := c.TLS.MayListen(c.Insecure, tlsconf.Address{Flag: "admin", HostPort: c.Admin}); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", c.Admin)
	if err != nil {
		return nil, fmt.Errorf("projector: admin address: %w", err)
	}
	return &Fleet{cfg: cfg, log: c.Logger, listener: l, began: time.Now(), wake: make(chan struct{}, 1),
		run:      func(ctx context.Context, p *projector.Projector) error { return p.Run(ctx) },
		managers: managerclient.New(c.Managers, c.TLS.Client(tlsconf.HTTP, tlsconf.Manager)),
		leaving:  make(chan []wire.LeaveProjector, 1), looking: make(chan struct{}, 1),
		members: map[string]*member{}}, nil
}

// AdminAddr returns the address it listens on, host:port.
func (f *Fleet) AdminAddr() string { return f.listener.Addr().String() }

// Run serves until ctx ends. When it returns, none of its goroutines is left.
func (f *Fleet) Run(ctx context.Context) error {
	g, run := errgroup.WithContext(ctx)
	server := &route.Server{Handler: f.table().Handler(), TLS: f.cfg.Projector.TLS, Log: f.log,
		Tracer: f.cfg.Projector.Tracer, Grace: stopGrace}
	g.Go(func() error { return server.Serve(run, f.listener) })
	g.Go(func() error { f.unregister(run); return nil })
	g.Go(func() error { f.findSeeds(run); return nil })
	g.Go(func() error { f.steps(run, g); return nil })
	err := g.Wait()
	f.managers.Close()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// nowMS returns the monotonic time used for decisions, in milliseconds.
func (f *Fleet) nowMS() int64 { return time.Since(f.began).Milliseconds() }

// steps runs step regularly and on wake-ups, until ctx ends.
func (f *Fleet) steps(ctx context.Context, g *errgroup.Group) {
	tick := time.NewTicker(stepInterval)
	defer tick.Stop()
	for {
		f.step(ctx, g)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-f.wake:
		}
	}
}

// step decides, and carries out the decision.
func (f *Fleet) step(ctx context.Context, g *errgroup.Group) {
	f.mu.Lock()
	defer f.mu.Unlock()
	x := core.FleetFacts{NowMS: f.nowMS(), Running: map[string]core.FleetMember{}, Seed: f.seed,
		Troubled: f.troubled()}
	for name, m := range f.members {
		x.Running[name] = core.FleetMember{Node: m.node, Ending: m.ending}
	}
	registered := f.registered()
	x.Process, x.Registered = f.cfg.Projector.ID, slices.Collect(maps.Keys(registered))
	s := f.plan.Step(x)
	if !f.plan.Known(x.NowMS) {
		signal(f.looking)
	}
	for _, name := range s.Stop {
		f.log.Info("KV node is no longer served: it has left, has another address, or other processes serve it", "kv", name)
		f.members[name].ending = true
		f.members[name].stop()
	}
	f.sharers.Store(int64(len(f.members) + len(s.Start)))
	for _, n := range s.Start {
		if err := f.start(ctx, g, n); err != nil {
			f.failed(n, 0, err)
			signal(f.wake) // so that the failure is reported soon
		}
	}
	if len(s.Leave) > 0 {
		var gone []wire.LeaveProjector
		for _, name := range s.Leave {
			e := registered[f.idOf(name)]
			gone = append(gone, wire.LeaveProjector{ClusterID: f.defs.Fence.ClusterID, ID: e.ID, BootID: e.BootID})
		}
		select {
		case f.leaving <- gone:
		default: // earlier ones are still being processed
		}
	}
	f.noteUnserved(s.Unserved)
	f.aside = s.Aside
}

// failed records that a node's projector has ended by itself, or could not start. Other projectors are not affected.
// The caller holds f.mu.
func (f *Fleet) failed(n core.KVNode, ran time.Duration, err error) {
	why := "it gave no reason"
	if err != nil {
		why = err.Error()
	}
	backoff := f.plan.Failed(f.nowMS(), n.Name, ran.Milliseconds(), why)
	f.log.Error("projector of a KV node has failed; starting it again", "kv", n.Name, "after",
		ran.Round(time.Millisecond), "backoff", time.Duration(backoff)*time.Millisecond, "error", why)
}

// noteUnserved records the unserved nodes, and logs new ones.
func (f *Fleet) noteUnserved(unserved []core.KVNode) {
	for _, n := range unserved {
		if !slices.Contains(f.unserved, n) {
			f.log.Error("KV node is not served", "kv", n.Name, "error", n.Why)
		}
	}
	f.unserved = unserved
}

// start runs a projector for a node. The caller holds f.mu.
func (f *Fleet) start(ctx context.Context, g *errgroup.Group, n core.KVNode) error {
	m := &member{fleet: f, node: n}
	cfg := f.cfg.Projector
	cfg.ID, cfg.KV, cfg.KVManager, cfg.Host = f.idOf(n.Name), n.Addr, n.Manager, m
	cfg.Logger = cfg.Logger.With("kv_node", n.Name)
	var err error
	if m.p, err = projector.Open(cfg); err != nil {
		return err
	}
	run, stop := context.WithCancel(ctx)
	m.stop = stop
	f.members[n.Name] = m
	f.log.Info("KV node is served", "kv", n.Name, "addr", n.Addr, "manager", n.Manager)
	began := time.Now()
	g.Go(func() error {
		defer stop()
		err := f.run(run, m.p)
		f.mu.Lock()
		if delete(f.members, n.Name); run.Err() == nil {
			f.failed(n, time.Since(began), err)
		}
		f.mu.Unlock()
		signal(f.wake)
		return nil
	})
	return nil
}

// idOf returns the id of a node's projector.
func (f *Fleet) idOf(node string) index.ProjectorID {
	return f.cfg.Projector.ID + "@" + index.ProjectorID(node)
}

// registered returns the projectors that the managers list, from the newest definitions of any member, or from the
// last known ones for defsKept. The caller holds f.mu.
func (f *Fleet) registered() map[index.ProjectorID]wire.ProjectorEndpoint {
	var newest *wire.Definitions
	for _, m := range f.members {
		if d := m.p.Definitions(); d != nil && (newest == nil || d.Revision > newest.Revision) {
			newest = d
		}
	}
	switch {
	case newest != nil:
		f.defs, f.defsAt = newest, time.Now()
	case time.Since(f.defsAt) > defsKept:
		f.defs = nil
	}
	all := map[index.ProjectorID]wire.ProjectorEndpoint{}
	if f.defs == nil {
		return all
	}
	f.managers.SetManagers(f.defs.Managers)
	for _, e := range f.defs.Projectors {
		all[e.ID] = e
	}
	return all
}

// troubled reports whether no member can reach its node. The caller holds f.mu.
func (f *Fleet) troubled() bool {
	for _, m := range f.members {
		if !m.p.Troubled() {
			return false
		}
	}
	return true
}

// unregister removes registrations until ctx ends. The next step repeats those that fail.
func (f *Fleet) unregister(ctx context.Context) {
	var logged troubleLog
	for {
		select {
		case <-ctx.Done():
			return
		case gone := <-f.leaving:
			for _, e := range gone {
				err := f.managers.LeaveProjector(ctx, &e)
				switch {
				case ctx.Err() != nil:
				case err != nil && !logged.news(time.Now(), err.Error()):
				case err != nil:
					f.log.Warn("projector of a departed KV node is still registered; trying again to remove "+
						"it", "projector", e.ID, "error",
						err)
				default:
					f.log.Info("projector of a departed KV node was removed", "projector", e.ID)
				}
			}
		}
	}
}

// signal wakes the goroutine that waits for c, now or at its next wait.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // a signal is pending already
	}
}

// URL implements projector.Host.
func (m *member) URL() string {
	c := &m.fleet.cfg.Projector
	return c.TLS.BaseURL(rpc.Advertised(m.fleet.listener.Addr(), c.Advertise)) + pathOf(m.node.Name)
}

// Sharers implements projector.Host.
func (m *member) Sharers() int { return int(m.fleet.sharers.Load()) }

// Saw implements projector.Host.
func (m *member) Saw(config *mcbp.ClusterConfig, addr string) {
	f := m.fleet
	at := timestamp.MapRevision{Epoch: uint64(max(config.RevEpoch, 0)), Rev: uint64(max(config.Rev, 0))}
	nodes := nodesOf(config, addr, f.cfg.Projector.KVNetwork, f.cfg.Projector.KVTLS != nil, len(f.cfg.Managers) > 0)
	f.mu.Lock()
	news := f.plan.Saw(f.nowMS(), config.Name, at, nodes)
	f.mu.Unlock()
	if news {
		signal(f.wake)
	}
}

// nodesOf returns the nodes of a map that was read at addr. With rest, their managers are included, too.
func nodesOf(config *mcbp.ClusterConfig, addr, network string, tls, rest bool) (nodes []core.KVNode) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = addr
	}
	network = cmp.Or(network, config.NetworkOf(addr))
	for i := range config.NumNodes() {
		n := core.KVNode{}
		if n.Name, err = config.KVAddr(i, host, false); err != nil {
			if n.Name, err = config.KVAddr(i, host, true); err != nil {
				n.Name = fmt.Sprintf("node %d of the map", i)
			}
		}
		if n.Addr, err = config.KVAddrIn(network, i, host, tls); err == nil && rest {
			n.Manager, err = config.ManagerAddrIn(network, i, host, tls)
		}
		if err != nil {
			n.Addr, n.Why = "", fmt.Sprintf("it cannot be reached from here: %v; choose another network (--kv-network)", err)
		}
		nodes = append(nodes, n)
	}
	return nodes
}
