package consensus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"tidemark/internal/rpc"
)

// PeerAnswer describes a manager to its peers before there is a cluster.
type PeerAnswer struct {
	ID        string `json:"id"`         // Raft server id
	Name      string `json:"name"`       // as configured
	REST      string `json:"rest"`       // base URL
	Raft      string `json:"raft"`       // host:port
	ClusterID string `json:"cluster_id"` // empty if it belongs to no cluster
	HasState  bool   `json:"has_state"`  // it has a term, a log or a snapshot
	Expect    int    `json:"expect"`     // its --bootstrap-expect; 0: it only joins
	New       bool   `json:"new"`        // as far as it has recorded, it was never a member of a cluster
	Epoch     uint64 `json:"epoch"`      // of its state
	// Sees holds the ids of the managers that answered it, including itself, ascending, while it waits for a cluster.
	Sees []string `json:"sees,omitempty"`
	// FormatLevel is the format level of its cluster, 0 if it belongs to none.
	FormatLevel uint64 `json:"format_level,omitempty"`
	// NewestFormat is the newest format level that its program supports.
	NewestFormat uint64 `json:"newest_format"`
}

// PeerProbe sends requests to another manager at an address from --join.
type PeerProbe interface {
	Probe(ctx context.Context, addr string) (PeerAnswer, error)
	// Join requests that a manager of an existing cluster add this node.
	Join(ctx context.Context, addr string) error
}

// Verdict is what an empty node should do next.
type Verdict int

// The verdicts.
const (
	VerdictWait      Verdict = iota // some peers have not answered, or another node bootstraps: probe again
	VerdictBootstrap                // this node creates the first configuration, of all that answered
	VerdictJoin                     // a cluster exists: wait to be added to it, never bootstrap
)

// ErrBootstrap is wrapped if the nodes cannot form a cluster as configured.
var ErrBootstrap = errors.New("bootstrap")

// Judge decides whether this node bootstraps. It does only if expect nodes answer, all of them are empty and have the
// same expectation, and each of them sees exactly these nodes: a node common to two sets could otherwise vote in two
// clusters. The node with the lowest server id bootstraps; a node with expect 0 only joins. own is this node's
// answer, others are those of the reachable peers; own may occur among them (a node may list itself in --join) and is
// counted once.
func Judge(own PeerAnswer, others []PeerAnswer, expect int) (Verdict, []Server, error) {
	switch exists, err := clusterAmong(others); {
	case err != nil:
		return VerdictWait, nil, err
	case exists:
		return VerdictJoin, nil, nil
	}
	if expect == 0 {
		return VerdictWait, nil, nil
	}
	known := map[string]PeerAnswer{own.ID: own}
	for _, a := range others {
		known[a.ID] = a
	}
	servers := make([]Server, 0, len(known))
	for _, a := range known {
		if a.Expect != expect {
			return VerdictWait, nil, fmt.Errorf("%w: %s expects %d managers, this node %d; start all with the same "+
				"--bootstrap-expect",
				ErrBootstrap, a.ID, a.Expect, expect)
		}
		servers = append(servers, Server{ID: a.ID, Raft: a.Raft, Voter: true})
	}
	slices.SortFunc(servers, func(a, b Server) int { return strings.Compare(a.ID, b.ID) })
	switch {
	case len(servers) > expect:
		return VerdictWait, nil, fmt.Errorf("%w: %d empty managers answered, but --bootstrap-expect is %d", ErrBootstrap,
			len(servers), expect)
	case len(servers) < expect:
		return VerdictWait, nil, nil
	}
	if err := sameSet(servers, others); err != nil || servers[0].ID != own.ID {
		return VerdictWait, nil, err
	}
	return VerdictBootstrap, servers, nil
}

// clusterAmong reports whether one of the answering managers belongs to a cluster. It returns an error if two belong
// to different clusters.
func clusterAmong(others []PeerAnswer) (exists bool, err error) {
	var cluster PeerAnswer
	for _, a := range others {
		if a.ClusterID != "" && cluster.ClusterID != "" && a.ClusterID != cluster.ClusterID {
			return false, fmt.Errorf("%w: %s belongs to cluster %s and %s to cluster %s; name only managers of one cluster in "+
				"--join",
				ErrBootstrap, cluster.ID, cluster.ClusterID, a.ID, a.ClusterID)
		}
		if a.ClusterID != "" {
			cluster = a
		}
		exists = exists || a.HasState || a.ClusterID != ""
	}
	return exists, nil
}

// sameSet verifies that each of the others sees exactly these servers.
func sameSet(servers []Server, others []PeerAnswer) error {
	var ids []string
	for _, s := range servers {
		ids = append(ids, s.ID)
	}
	for _, a := range others {
		if !slices.Equal(a.Sees, ids) {
			return fmt.Errorf("%w: this node finds the managers %v, and %s finds %v; the --join of each must name all "+
				"managers of the new cluster, and no others",
				ErrBootstrap, ids, a.ID, a.Sees)
		}
	}
	return nil
}

// probeTimeout bounds one round of probes to all peers.
const probeTimeout = time.Second

// Describe returns this node's own PeerAnswer.
func (ms *members) Describe(expect int) (PeerAnswer, error) {
	has, err := ms.storage.HasState()
	if err != nil {
		return PeerAnswer{}, err
	}
	a := PeerAnswer{ID: ms.ID(), Name: ms.cfg.Name, REST: ms.cfg.REST, Raft: ms.Addr(), ClusterID: ms.storage.ClusterID(),
		HasState: has, New: ms.storage.New(), Epoch: ms.storage.Epoch(), Expect: expect, NewestFormat: ms.cfg.FormatLevel}
	if sees := ms.sees.Load(); sees != nil && !has {
		a.Sees = *sees
	}
	if s := ms.fsm.State(); s.ClusterID() != "" {
		a.FormatLevel = s.FormatLevel()
	}
	return a, nil
}

// Form brings an empty node into a cluster. Every interval it probes the peers, until this node or another one has
// bootstrapped, or this node was added to an existing cluster. It returns once this node has Raft state and knows its
// cluster: a leader that is lost while it adds this node may leave it a term without the cluster id. A node that
// already belongs to a cluster returns at once. With expect 1 the node bootstraps alone, with expect 0 it never
// bootstraps.
func (ms *members) Form(ctx context.Context, probe PeerProbe, peers []string, expect int,
	interval time.Duration) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	complaint := ""
	for {
		own, err := ms.Describe(expect)
		if err != nil {
			return err
		}
		if own.HasState && own.ClusterID != "" {
			return nil
		}
		others, silent := ms.ask(ctx, probe, peers)
		ms.noteSeen(own.ID, others)
		for _, a := range others {
			if a.FormatLevel > ms.cfg.FormatLevel {
				return fmt.Errorf("%w: cluster %s is at format level %d, this program supports up to %d: install the version of "+
					"tidemark that %s runs",
					ErrFormatTooNew, a.ClusterID, a.FormatLevel, ms.cfg.FormatLevel, a.ID)
			}
		}
		verdict, servers, err := Judge(own, others, expect)
		if verdict == VerdictBootstrap {
			err := ms.Bootstrap(servers)
			if errors.Is(err, ErrHasState) {
				err = nil
			}
			return err
		}
		if verdict == VerdictJoin {
			err = ms.askToJoin(ctx, probe, peers)
		}
		now := fmt.Sprint(verdict, err, silent)
		if now != complaint {
			complaint = now
			ms.cfg.Logger.Info("waiting for a cluster", "answered", len(others), "expected", expect, "silent", silent, "joins",
				verdict == VerdictJoin, "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrBootstrap, ctx.Err())
		}
	}
}

// noteSeen stores the ids of the managers that answered, for the answers of this node.
func (ms *members) noteSeen(own string, others []PeerAnswer) {
	ids := []string{own}
	for _, a := range others {
		ids = append(ids, a.ID)
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	ms.sees.Store(&ids)
}

// JoinTimeout bounds one request to be added or to have a new address recorded. The leader may survey silent members
// up to three times (Steward.add, storing), each time for the duration of one call, and a change of members takes one
// or two commits.
func (ms *members) JoinTimeout() time.Duration {
	return 3*transportTimeout(ms.cfg.Heartbeat) + memberTimeout
}

// askToJoin requests from the peers in turn, without waiting for those that hang, that they add this node; the first
// success is enough. Two concurrent requests to the leader are harmless: a member is added once, by its server id.
func (ms *members) askToJoin(ctx context.Context, probe PeerProbe, peers []string) (err error) {
	for addr, e := range rpc.Hedged(ctx, peers, func(ctx context.Context, addr string) error {
		ctx, cancel := context.WithTimeout(ctx, ms.JoinTimeout())
		defer cancel()
		return probe.Join(ctx, addr)
	}) {
		if e == nil {
			return nil
		}
		err = fmt.Errorf("%s: %w", addr, e)
	}
	return err
}

// ask probes all peers concurrently and returns their answers and the silent peers, both in the order of peers.
func (ms *members) ask(ctx context.Context, probe PeerProbe, peers []string) (answers []PeerAnswer, silent []string) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	all, errs := make([]PeerAnswer, len(peers)), make([]error, len(peers))
	var asking sync.WaitGroup
	for i, addr := range peers {
		asking.Go(func() { all[i], errs[i] = probe.Probe(ctx, addr) })
	}
	asking.Wait()
	for i, addr := range peers {
		if p := (*rpc.Problem)(nil); errors.As(errs[i], &p) { // its answer, and not how the network fails: that varies
			addr += " (" + p.Error() + ")"
		}
		if errs[i] != nil {
			silent = append(silent, addr)
			continue
		}
		answers = append(answers, all[i])
	}
	return answers, silent
}
