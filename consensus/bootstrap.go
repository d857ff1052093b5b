package consensus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// PeerAnswer is what a manager says of itself before there is a cluster.
type PeerAnswer struct {
	ID        string `json:"id"`         // Raft server id
	Raft      string `json:"raft"`       // host:port
	ClusterID string `json:"cluster_id"` // empty while it has none
	HasState  bool   `json:"has_state"`  // it has a term, a log or a snapshot
	Expect    int    `json:"expect"`     // its --bootstrap-expect
	// FormatLevel is that of its cluster, 0 while it has none.
	FormatLevel uint64 `json:"format_level,omitempty"`
}

// PeerProbe asks another manager, at an address of --join.
type PeerProbe interface {
	Probe(ctx context.Context, addr string) (PeerAnswer, error)
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

// Judge is the rule: bootstrap only when expect nodes answer, all of them empty, all with the same expectation; the one
// with the lowest server id does it. own is this node's answer, others those of the reachable peers; an own answer
// among them (a node is listed in its own --join) does not count twice.
func Judge(own PeerAnswer, others []PeerAnswer, expect int) (Verdict, []Server, error) {
	known := map[string]PeerAnswer{own.ID: own}
	for _, a := range others {
		known[a.ID] = a
	}
	servers := make([]Server, 0, len(known))
	for _, a := range known {
		if a.HasState || a.ClusterID != "" {
			return VerdictJoin, nil, nil
		}
		if a.Expect != expect {
			return VerdictWait, nil, fmt.Errorf("%w: %s expects %d managers, this node %d; start all with the same --bootstrap-expect",
				ErrBootstrap, a.ID, a.Expect, expect)
		}
		servers = append(servers, Server{ID: a.ID, Raft: a.Raft, Voter: true})
	}
	slices.SortFunc(servers, func(a, b Server) int { return strings.Compare(a.ID, b.ID) })
	switch {
	case len(servers) > expect:
		return VerdictWait, nil, fmt.Errorf("%w: %d empty managers answer, --bootstrap-expect is %d", ErrBootstrap, len(servers), expect)
	case len(servers) < expect || servers[0].ID != own.ID:
		return VerdictWait, nil, nil
	}
	return VerdictBootstrap, servers, nil
}

// probeTimeout bounds one question to a peer.
const probeTimeout = time.Second

// Describe gives this node's own answer.
func (n *Node) Describe(expect int) (PeerAnswer, error) {
	has, err := n.HasState()
	if err != nil {
		return PeerAnswer{}, err
	}
	a := PeerAnswer{ID: n.ID(), Raft: n.Addr(), HasState: has, Expect: expect}
	if s := n.fsm.State(); s.ClusterID() != "" {
		a.ClusterID, a.FormatLevel = s.ClusterID(), s.FormatLevel()
	}
	return a, nil
}

// Form brings an empty node into a cluster: it asks the peers, every interval, until this node or another one has
// bootstrapped, and returns when this node has Raft state. A node that has state returns at once. expect 1 bootstraps
// alone.
func (n *Node) Form(ctx context.Context, probe PeerProbe, peers []string, expect int, interval time.Duration) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	complaint := ""
	for {
		own, err := n.Describe(expect)
		if err != nil {
			return err
		}
		if own.HasState {
			return nil
		}
		others, silent := n.ask(ctx, probe, peers)
		for _, a := range others {
			if a.FormatLevel > n.cfg.FormatLevel {
				return fmt.Errorf("%w: cluster %s is at format level %d, this program knows up to %d: install the version of tidemark that %s runs",
					ErrFormatTooNew, a.ClusterID, a.FormatLevel, n.cfg.FormatLevel, a.ID)
			}
		}
		verdict, servers, err := Judge(own, others, expect)
		if verdict == VerdictBootstrap {
			err := n.Bootstrap(servers)
			if errors.Is(err, ErrHasState) {
				err = nil
			}
			return err
		}
		now := fmt.Sprint(verdict, err, silent)
		if now != complaint {
			complaint = now
			n.cfg.Logger.Info("waiting for a cluster", "answered", len(others), "expected", expect, "silent", silent, "joins", verdict == VerdictJoin, "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrBootstrap, ctx.Err())
		}
	}
}

// ask gives the answers of the peers, and who is silent.
func (n *Node) ask(ctx context.Context, probe PeerProbe, peers []string) (answers []PeerAnswer, silent []string) {
	for _, addr := range peers {
		one, cancel := context.WithTimeout(ctx, probeTimeout)
		a, err := probe.Probe(one, addr)
		cancel()
		if err != nil {
			silent = append(silent, addr)
			continue
		}
		answers = append(answers, a)
	}
	return answers, silent
}
