package consensus

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"tidemark/internal/rpc"
	"tidemark/internal/tlsconf"
	"tidemark/statecontext"
)

// Node is one Raft server. It takes part in elections and replication from Open to Close; proposals, reads and the
// leader's duties need Run.
type Node struct {
	cfg   Config
	id    raft.ServerID
	fsm   StateMachine
	raft  *raft.Raft
	store *recorder
	disk  *disk
	snaps *snapshots
	trans addressed
	layer *stream
	logs  raft.LogStore

	notify    chan bool     // from Raft, drained by one goroutine
	notifyEnd chan struct{} // closed when Raft has shut down
	drainer   sync.WaitGroup
	asking    sync.WaitGroup // the confirmer's calls

	queue   chan *proposal
	entries chan *entry
	slots   chan struct{} // one for each entry in flight
	reads   chan *read
	// readsDone counts linearizable reads that were answered, readChecks the checks of leadership for them.
	readsDone, readChecks atomic.Uint64

	clock *seenClock

	acked atomic.Uint64 // highest index whose future returned
	noted atomic.Uint64 // format level that the store knows of

	membership sync.Mutex // held during a change of members
	cluster    clusterName
	users      atomic.Bool               // the store says that the cluster has had users
	sees       atomic.Pointer[[]string]  // ids of the managers that Form found at its last look, itself included
	started    atomic.Pointer[raft.Raft] // raft, for connections that come in while Open is at work

	mu      sync.Mutex
	serving reign         // zero while this node does not serve as leader
	changed chan struct{} // closed and replaced when serving changes or leadership is lost
	leads   leadership    // what Raft said last
	setUp   error         // why the leader loop of this term ended, nil while it has not
	stalled bool          // a write to the disk hangs: this node does not serve
	running bool

	gained chan struct{} // holds one signal after any number of changes of leads

	stop     chan struct{} // closed by Close
	stopOnce sync.Once
	done     chan struct{} // closed when Run has ended
	closeErr error
}

// reign is a term in which this node serves.
type reign struct {
	term  uint64
	began uint64 // index of its LeaderStarted
	clock *termClock
}

// Open starts the node: it opens the store, listens, and takes part in elections if it is a member. Errors wrap
// ErrConfig, ErrInUse or ErrStore.
func Open(cfg Config, machine StateMachine) (*Node, error) {
	if err := cfg.withDefaults(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStore, err)
	}
	n := &Node{
		cfg: cfg, fsm: machine,
		notify: make(chan bool, notifySlots), notifyEnd: make(chan struct{}),
		gained:  make(chan struct{}, 1),
		queue:   make(chan *proposal, queueLength),
		entries: make(chan *entry, inflightEntries),
		slots:   make(chan struct{}, inflightEntries),
		reads:   make(chan *read, readQueue),
		cluster: clusterName{unstored: make(chan struct{}, 1)},
		changed: make(chan struct{}),
		stop:    make(chan struct{}),
		done:    make(chan struct{}),
	}
	n.disk = newDisk(&n.cfg)
	n.disk.measure()
	if err := n.openStore(); err != nil {
		return nil, err
	}
	n.clock = &seenClock{began: time.Now()}
	if err := n.openTransport(); err != nil {
		return nil, errors.Join(err, n.store.Close())
	}
	self := n.self()
	if err := statecontext.CheckManager(&self); err != nil { // it could not begin a term
		return nil, errors.Join(fmt.Errorf("%w: %w", ErrConfig, err), n.trans.Close(), n.store.Close())
	}
	var err error
	n.raft, err = raft.NewRaft(cfg.raft(n.id, n.notify), timed{machine, n.clock}, n.logs, n.store, n.snaps, n.trans)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", ErrStore, err), n.trans.Close(), n.store.Close())
	}
	n.started.Store(n.raft)
	n.drainer.Go(func() { n.trans.in.pass(n.trans.NetworkTransport.Consumer(), n.covers) })
	n.drainer.Go(n.drain)
	return n, nil
}

// covers reports whether this node's state has everything up to an entry, and its newest state snapshot ends there.
func (n *Node) covers(p position) bool { return n.snaps.endAt(p) && n.raft.AppliedIndex() >= p.index }

func (n *Node) openTransport() error {
	listener := n.cfg.Listener
	if listener == nil {
		var err error
		if listener, err = net.Listen("tcp", n.cfg.RaftAddr); err != nil {
			return fmt.Errorf("%w: listen for Raft: %w", ErrConfig, err)
		}
	}
	if n.cfg.Advertise == "" {
		n.cfg.Advertise = listener.Addr().String()
	}
	if host, _, err := net.SplitHostPort(n.cfg.Advertise); err == nil && net.ParseIP(host).IsUnspecified() ||
		strings.Contains(n.cfg.Advertise, "@") {
		return errors.Join(fmt.Errorf("%w: other nodes cannot dial %q; set an address to advertise", ErrConfig,
			n.cfg.Advertise), listener.Close())
	}
	dial := n.cfg.Dial
	if dial == nil {
		dial = n.cfg.TLS.Dial(tlsconf.Raft, tlsconf.Manager)
	}
	n.layer = &stream{
		Listener: n.cfg.TLS.Listen(listener, tlsconf.Raft, tlsconf.Manager), id: string(n.id), advertise: n.cfg.Advertise,
		dial:      dial,
		clusterID: n.ClusterID, epoch: func() uint64 { return n.fsm.State().Epoch() }, member: n.isMember,
		log: n.cfg.Logger.Named("transport"), accepted: newPlaces(), moved: make(map[string]string),
	}
	n.trans = addressed{disk: n.disk, in: &incoming{calls: make(chan raft.RPC), ended: make(chan struct{})},
		patience: transportTimeout(n.cfg.Heartbeat),
		NetworkTransport: raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
			Logger:                  n.cfg.Logger.Named("transport"),
			Stream:                  n.layer,
			MaxPool:                 transportPool,
			Timeout:                 transportTimeout(n.cfg.Heartbeat),
			MsgpackUseNewTimeFormat: true,
		})}
	return nil
}

// ID is this node's Raft server id.
func (n *Node) ID() string { return string(n.id) }

// Addr is the address that the other nodes dial.
func (n *Node) Addr() string { return n.cfg.Advertise }

// self is what this node registers as.
func (n *Node) self() statecontext.Manager {
	return statecontext.Manager{ID: string(n.id), Name: n.cfg.Name, REST: n.cfg.REST, Raft: n.cfg.Advertise,
		FormatLevel: n.cfg.FormatLevel}
}

// HasState reports whether the node was ever part of a cluster: it has a term, a log or a snapshot.
func (n *Node) HasState() (bool, error) {
	has, err := raft.HasExistingState(n.logs, n.store, n.snaps)
	if err != nil {
		return false, fmt.Errorf("%w: %w", ErrStore, err)
	}
	return has, nil
}

// Server is a member of the cluster.
type Server struct {
	ID    string `json:"id"`
	Raft  string `json:"raft"` // host:port
	Voter bool   `json:"voter"`
}

// Bootstrap makes the first configuration of a new cluster, of voters. It is refused over existing state (ErrHasState).
func (n *Node) Bootstrap(servers []Server) error {
	if has, err := n.HasState(); err != nil || has {
		return errors.Join(fmt.Errorf("%w: bootstrap is for empty nodes", ErrHasState), err)
	}
	var c raft.Configuration
	for _, s := range servers {
		c.Servers = append(c.Servers, raft.Server{ID: raft.ServerID(s.ID), Address: raft.ServerAddress(s.Raft)})
	}
	if err := n.raft.BootstrapCluster(c).Error(); err != nil {
		if errors.Is(err, raft.ErrCantBootstrap) {
			return fmt.Errorf("%w: %w", ErrHasState, err)
		}
		return fmt.Errorf("bootstrap: %w", err)
	}
	return nil
}

// Leader returns the leader that this node knows.
func (n *Node) Leader() Leader {
	addr, id := n.raft.LeaderWithID()
	return Leader{ID: string(id), Raft: string(addr), Known: addr != ""}
}

// Term is Raft's present term.
func (n *Node) Term() uint64 { return n.raft.CurrentTerm() }

// Serving reports whether this node leads, has begun its term in the state, and in which term.
func (n *Node) Serving() (term uint64, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.serving.term, n.serving.term != 0
}

// WaitApplied returns when the state contains the entry with this index.
func (n *Node) WaitApplied(ctx context.Context, index uint64) error {
	below, span := rpc.StartSpan(ctx, "wait applied")
	err := n.fsm.Wait(below, index)
	rpc.EndSpan(ctx, span, err)
	return err
}

// State returns the newest state of this node.
func (n *Node) State() *statecontext.State { return n.fsm.State() }

// Stats are figures for status and metrics.
type Stats struct {
	State        string        `json:"state"` // Follower, Candidate, Leader, Shutdown
	Term         uint64        `json:"term"`
	LastIndex    uint64        `json:"last_index"`
	CommitIndex  uint64        `json:"commit_index"`
	AppliedIndex uint64        `json:"applied_index"` // of the state machine
	Queued       int           `json:"queued"`        // proposals that wait
	LastContact  time.Duration `json:"last_contact"`  // since the leader was heard; 0 on the leader, -1 when never
}

// Stats returns the figures of now.
func (n *Node) Stats() Stats {
	s := Stats{
		State: n.raft.State().String(), Term: n.raft.CurrentTerm(), LastIndex: n.raft.LastIndex(),
		CommitIndex:  n.raft.CommitIndex(),
		AppliedIndex: n.fsm.State().AppliedIndex(), Queued: len(n.queue), LastContact: -1,
	}
	if n.raft.State() == raft.Leader {
		s.LastContact = 0
	} else if at := n.raft.LastContact(); !at.IsZero() {
		s.LastContact = n.cfg.Now().Sub(at)
	}
	return s
}

// Snapshot takes a state snapshot now; nothing new is no error.
func (n *Node) Snapshot() error {
	if err := n.raft.Snapshot().Error(); err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return fmt.Errorf("state snapshot: %w", err)
	}
	return nil
}

// Close hands leadership on, waits for Run to end, and stops everything. It may be called more than once.
func (n *Node) Close() error {
	n.stopOnce.Do(func() {
		if n.raft.State() == raft.Leader {
			if err := n.TransferLeadership(); err != nil {
				n.cfg.Logger.Info("leadership was not handed on", "error", err)
			}
		}
		close(n.stop)
		n.mu.Lock()
		running := n.running
		n.mu.Unlock()
		if running {
			<-n.done
		}
		n.closeErr = errors.Join(n.raft.Shutdown().Error(), n.trans.Close(), n.store.Close())
		close(n.notifyEnd)
		n.drainer.Wait()
		n.asking.Wait() // as Raft waits for its own calls
	})
	return n.closeErr
}
