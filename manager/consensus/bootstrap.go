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

// PeerAnswer is what a manager says of itself before there is a cluster.
type PeerAnswer struct {
	ID        string `json:"id"`         // Raft server id
	Name      string `json:"name"`       // as configured
	REST      string `json:"rest"`       // base URL
	Raft      string `json:"raft"`       // host:port
	ClusterID string `json:"cluster_id"` // empty while it has none
	HasState  bool   `json:"has_state"`  // it has a term, a log or a snapshot
	Expect    int    `json:"expect"`     // its --bootstrap-expect; 0: it only joins
	New       bool   `json:"new"`        // it was no member of a cluster yet, as far as it knows
	Epoch     uint64 `json:"epoch"`      // as far as its state goes
	// Sees are the ids of the managers that answered it, its own included, ascending, while it waits for a cluster.
	Sees []string `json:"sees,omitempty"`
	// FormatLevel is that of its cluster, 0 while it has none.
	FormatLevel uint64 `json:"format_level,omitempty"`
	// NewestFormat is the newest level that its program understands.
	NewestFormat uint64 `json:"newest_format"`
}

// PeerProbe asks another manager, at an address of --join.
type PeerProbe interface {
	Probe(ctx context.Context, addr string) (PeerAnswer, error)
	// Join asks a manager of an existing cluster to have this node added.
	Join(ctx context.Context, addr string) error
}

// Verdict is what an empty node should do.
type Verdict int

// The verdicts.
const (
	VerdictWait      Verdict = iota // not everybody has answered, or another one bootstraps: ask again
	VerdictBootstrap                // this node makes the first configuration, of all answers
	VerdictJoin                     // there is a cluster: wait to be added to it, never bootstrap
)

// ErrBootstrap is wrapped when the nodes cannot form a cluster as configured.
var ErrBootstrap = errors.New("bootstrap")

// Judge is the rule: bootstrap only when expect nodes answer, all of them empty, all with the same expectation, and
// each of them sees just these nodes: a node that two sets have in common would else vote in two clusters. The one with
// the lowest server id does it. A node that expects none only joins. own is this node's answer, others those of the
// reachable peers; an own answer among them (a node is listed in its own --join) does not count twice.
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
		return VerdictWait, nil, fmt.Errorf("%w: %d empty managers answer, --bootstrap-expect is %d", ErrBootstrap,
			len(servers), expect)
	case len(servers) < expect:
		return VerdictWait, nil, nil
	}
	if err := sameSet(servers, others); err != nil || servers[0].ID != own.ID {
		return VerdictWait, nil, err
	}
	return VerdictBootstrap, servers, nil
}

// clusterAmong reports whether one of those that answered belongs to a cluster; an error when two belong to different
// ones.
func clusterAmong(others []PeerAnswer) (exists bool, err error) {
	var cluster PeerAnswer
	for _, a := range others {
		if a.ClusterID != "" && cluster.ClusterID != "" && a.ClusterID != cluster.ClusterID {
			return false, fmt.Errorf("%w: %s is of cluster %s and %s of cluster %s; name managers of one cluster in --join",
				ErrBootstrap, cluster.ID, cluster.ClusterID, a.ID, a.ClusterID)
		}
		if a.ClusterID != "" {
			cluster = a
		}
		exists = exists || a.HasState || a.ClusterID != ""
	}
	return exists, nil
}

// sameSet reports whether each of the others sees these servers and no other ones.
func sameSet(servers []Server, others []PeerAnswer) error {
	var ids []string
	for _, s := range servers {
		ids = append(ids, s.ID)
	}
	for _, a := range others {
		if !slices.Equal(a.Sees, ids) {
			return fmt.Errorf("%w: this node sees the managers %v, and %s sees %v; the --join of each has to name all "+
				"managers of the new cluster, and no others",
				ErrBootstrap, ids, a.ID, a.Sees)
		}
	}
	return nil
}

// probeTimeout bounds one question to all peers.
const probeTimeout = time.Second

// Describe gives this node's own answer.
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

// Form brings an empty node into a cluster: it asks the peers, every interval, until this node or another one has
// bootstrapped, or until it was added to a cluster that exists, and returns when this node has Raft state of a cluster:
// a leader that is lost as it adds this node may leave it a term, and nothing that says of which. A node of a cluster
// returns at once. expect 1 bootstraps alone, expect 0 never bootstraps.
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
				return fmt.Errorf("%w: cluster %s is at format level %d, this program knows up to %d: install the version of "+
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

// noteSeen keeps who answered, for those who ask this node.
func (ms *members) noteSeen(own string, others []PeerAnswer) {
	ids := []string{own}
	for _, a := range others {
		ids = append(ids, a.ID)
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	ms.sees.Store(&ids)
}

// JoinTimeout bounds one request to be added, or to have a new address noted. The leader may ask silent members up to
// three times (Steward.add, storing), each time for as long as a call takes, and a change of members takes a commit or
// two.
func (ms *members) JoinTimeout() time.Duration {
	return 3*transportTimeout(ms.cfg.Heartbeat) + memberTimeout
}

// askToJoin asks the peers in turn, each beside those that hang, to have this node added; the first that does is
// enough. Two that ask the leader for it at once do no harm: a member is added once, by its server id.
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

// ask asks all peers side by side, and returns their answers and who is silent, both in the order of the peers.
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
		if errs[i] != nil {
			silent = append(silent, addr)
			continue
		}
		answers = append(answers, all[i])
	}
	return answers, silent
}
