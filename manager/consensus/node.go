package consensus

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"tidemark/statecontext"
)

// Node is one Raft server. It takes part in elections and replication from Open to Close; proposals, reads and the
// leader's duties need Run. Each part holds its own state and refers only to the parts before it (DESIGN.md).
type Node struct {
	*base
	*storage
	*links
	*reigns
	*proposals
	*reads
	*terms
	*members

	helpers  sync.WaitGroup // goroutines that run from Open to Close
	running  atomic.Bool
	stopOnce sync.Once
	closeErr error
	endOnce  sync.Once // guards the shutdown of Raft
	endErr   error
}

// Open starts the node: it opens the store, listens, and takes part in elections if it is a member. Errors wrap
// ErrConfig, ErrInUse, ErrStore, ErrRemoved or ErrContradicted.
func Open(cfg Config, machine StateMachine) (*Node, error) {
	if err := cfg.withDefaults(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStore, err)
	}
	n := assemble(cfg, machine)
	n.disk.measure()
	if err := n.openStore(); err != nil {
		return nil, err
	}
	if err := n.checkContradicted(); err != nil {
		return nil, errors.Join(err, n.store.Close())
	}
	if err := n.openTransport(); err != nil {
		return nil, errors.Join(err, n.store.Close())
	}
	self := n.self()
	if err := statecontext.CheckManager(&self); err != nil { // otherwise it could not begin a term
		return nil, errors.Join(fmt.Errorf("%w: %w", ErrConfig, err), n.trans.Close(), n.store.Close())
	}
	var err error
	n.raft, err = raft.NewRaft(cfg.raft(n.id, n.notify), timed{machine, n.clock, n.activity, n.store.committed}, n.logs,
		n.store, n.snaps, n.trans)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", ErrStore, err), n.trans.Close(), n.store.Close())
	}
	n.started.Store(n.raft)
	n.helpers.Go(func() { n.trans.in.pass(n.trans.NetworkTransport.Consumer(), n.covers, n.contradicts) })
	n.helpers.Go(n.drain)
	return n, nil
}

// assemble creates the parts; nothing is opened yet.
func assemble(cfg Config, machine StateMachine) *Node {
	b := &base{cfg: cfg, fsm: machine, clock: &seenClock{began: time.Now()}, activity: newActivity(),
		stop: make(chan struct{}), done: make(chan struct{}), ended: make(chan struct{}), replied: make(chan struct{}, 1)}
	st := &storage{base: b, disk: newDisk(&b.cfg), cluster: clusterName{unstored: make(chan struct{}, 1)},
		contradictions: contradictions{ended: make(chan error, 1)}}
	l := &links{base: b, storage: st}
	rs := &reigns{base: b, notify: make(chan bool, notifySlots), notifyEnd: make(chan struct{}),
		gained: make(chan struct{}, 1), changed: make(chan struct{})}
	q := &proposals{base: b, reigns: rs, queue: make(chan *proposal, queueLength),
		entries: make(chan *entry, inflightEntries), slots: make(chan struct{}, inflightEntries)}
	return &Node{base: b, storage: st, links: l, reigns: rs, proposals: q,
		reads:   &reads{base: b, links: l, reigns: rs, waiting: make(chan *read, readQueue)},
		terms:   &terms{base: b, storage: st, reigns: rs, proposals: q},
		members: &members{base: b, storage: st, links: l, reigns: rs, changing: make(chan struct{}, 1)}}
}

// HasState reports whether the node was ever part of a cluster: it has a term, a log or a snapshot.
func (st *storage) HasState() (bool, error) {
	has, err := raft.HasExistingState(st.logs, st.store, st.snaps)
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

// Bootstrap creates the first configuration of a new cluster, all voters. It is refused if there is state
// (ErrHasState).
func (ms *members) Bootstrap(servers []Server) error {
	if has, err := ms.storage.HasState(); err != nil || has {
		return errors.Join(fmt.Errorf("%w: bootstrap is for empty nodes", ErrHasState), err)
	}
	var c raft.Configuration
	for _, s := range servers {
		c.Servers = append(c.Servers, raft.Server{ID: raft.ServerID(s.ID), Address: raft.ServerAddress(s.Raft)})
	}
	if err := ms.raft.BootstrapCluster(c).Error(); err != nil {
		if errors.Is(err, raft.ErrCantBootstrap) {
			return fmt.Errorf("%w: %w", ErrHasState, err)
		}
		return fmt.Errorf("bootstrap: %w", err)
	}
	return nil
}

// Stats holds figures for status and metrics.
type Stats struct {
	State        string        `json:"state"` // Follower, Candidate, Leader, Shutdown
	Term         uint64        `json:"term"`
	LastIndex    uint64        `json:"last_index"`
	CommitIndex  uint64        `json:"commit_index"`
	AppliedIndex uint64        `json:"applied_index"` // of the state machine
	Queued       int           `json:"queued"`        // number of waiting proposals
	LastContact  time.Duration `json:"last_contact"`  // since contact with the leader; 0 on the leader, -1: none yet
}

// Stats returns the present figures.
func (n *Node) Stats() Stats {
	s := Stats{
		State: n.raft.State().String(), Term: n.raft.CurrentTerm(), LastIndex: n.raft.LastIndex(),
		CommitIndex:  n.raft.CommitIndex(),
		AppliedIndex: n.fsm.State().AppliedIndex(), Queued: len(n.proposals.queue), LastContact: -1,
	}
	if n.raft.State() == raft.Leader {
		s.LastContact = 0
	} else if at := n.raft.LastContact(); !at.IsZero() {
		s.LastContact = n.cfg.Now().Sub(at)
	}
	return s
}

// end shuts Raft down once and waits for it.
func (n *Node) end() error {
	n.endOnce.Do(func() {
		n.activity.signal()
		n.untilReplied()
		n.endErr = n.raft.Shutdown().Error()
		close(n.ended)
	})
	return n.endErr
}

// Close transfers leadership, waits for Run to return, and stops everything. It may be called more than once.
func (n *Node) Close() error {
	n.stopOnce.Do(func() {
		if n.raft.State() == raft.Leader {
			if err := n.TransferLeadership(context.Background()); err != nil {
				n.cfg.Logger.Info("leadership was not transferred", "error", err)
			}
		}
		close(n.stop)
		if n.running.Load() {
			<-n.done
		}
		ended := n.end()
		n.noteCommitted(byClose)
		n.closeErr = errors.Join(ended, n.trans.Close(), n.store.Close())
		close(n.notifyEnd)
		n.helpers.Wait()
		n.asking.Wait() // as Raft waits for its own calls
	})
	return n.closeErr
}
