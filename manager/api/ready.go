package api

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/manager/api/v1"
	"tidemark/manager/consensus"
	"tidemark/statecontext"
	"tidemark/wire"
)

// CodeUnready is the code of /readyz if there is a leader but this manager cannot serve.
const CodeUnready = errcode.NotReady

// Reason codes of this package; the others are those of package consensus.
const (
	reasonNoCluster = rpc.ReasonNoCluster
	reasonBehind    = "not_caught_up"
)

const (
	// readyPatience limits the request for the leader's log index.
	readyPatience = time.Second
	// readyLag is how many log entries a ready manager may be behind; a linearizable read waits for them anyway.
	readyLag = 1024
)

// healthz answers 200 while the process is alive.
func (g health) healthz(w http.ResponseWriter, r *http.Request) error {
	reasons, _ := g.reasons(g.cfg.Raft.State())
	rpc.Write(w, r, http.StatusOK, v1.Health{Status: "ok", Node: g.cfg.Name, NotReady: reasons})
	return nil
}

// readyz answers 200 if this node can serve: it belongs to a cluster, knows a leader that has announced itself, has
// caught up with it, and its disk works. Otherwise the problem lists the reasons.
func (g health) readyz(w http.ResponseWriter, r *http.Request) error {
	s := g.cfg.Raft.State()
	reasons, leader := g.reasons(s)
	if len(reasons) == 0 && leader.REST != g.cfg.REST {
		if behind := g.behind(r.Context(), leader); behind != "" {
			reasons = append(reasons, rpc.Reason{Code: reasonBehind, Detail: behind})
		}
	}
	if len(reasons) == 0 {
		rpc.Write(w, r, http.StatusOK, v1.Health{Status: "ready", Node: g.cfg.Name, Leader: leader.ID})
		return nil
	}
	code, details := errcode.NotReady, make([]string, len(reasons))
	for i, reason := range reasons {
		details[i] = reason.Detail
		switch reason.Code {
		case reasonNoCluster, consensus.ReasonNoLeader, consensus.ReasonTakingOver:
			code = errcode.NoLeader
		}
	}
	p := rpc.NewProblem(http.StatusServiceUnavailable, code, "%s", strings.Join(details, "; "))
	p.RetryAfterMS, p.Reasons = leaderRetryMS, reasons
	return p
}

// reasons returns why this manager is not ready, as far as it can tell by itself, and the leader.
func (g health) reasons(s *statecontext.State) (reasons []rpc.Reason, leader wire.Leader) {
	empty, noLeader := s.ClusterID() == "", false
	for _, r := range g.cfg.Raft.Reasons() {
		noLeader = noLeader || r.Code == consensus.ReasonNoLeader
		if !empty || r.Code != consensus.ReasonNoLeader {
			reasons = append(reasons, rpc.Reason{Code: r.Code, Detail: r.Detail})
		}
	}
	if empty { // behind what is wrong with its disk, which may be the cause
		reasons = append(reasons, rpc.Reason{Code: reasonNoCluster, Detail: g.noCluster()})
	}
	if g.cfg.Raft.HasUsers() && !g.current() {
		reasons = append(reasons, rpc.Reason{Code: reasonNotCurrent, Detail: g.notCurrent()})
	}
	leader, ok := g.leaderOf(s)
	if !ok && !noLeader && !empty {
		reasons = append(reasons, rpc.Reason{Code: consensus.ReasonNoLeader,
			Detail: "this manager's state does not name the leader yet"})
	}
	return reasons, leader
}

// inNoClusterText describes what a manager waits for that belongs to no cluster.
const inNoClusterText = "this manager belongs to no cluster yet: it waits for the --bootstrap-expect managers at the " +
	"addresses of --join, or for tidemark cluster join"

// noCluster describes what a manager waits for whose state is empty.
func (g health) noCluster() string {
	if g.inNoCluster() {
		return inNoClusterText
	}
	members, _ := g.cfg.Raft.Servers()
	return fmt.Sprintf("this manager has a log of its cluster but no state yet: it waits for a leader, which "+
		"a majority of its %d members elects, and must be able to store the leader's entries", len(members))
}

// behind asks the leader for its log index, and describes what this manager lacks; "" if it has caught up.
func (g health) behind(ctx context.Context, leader wire.Leader) string {
	ctx, cancel := context.WithTimeout(ctx, readyPatience)
	defer cancel()
	reply, err := getJSON[readIndexReply](ctx, g.ground, g.readIndex, leader.REST+"/v1/readindex")
	if err != nil {
		return "the leader did not report its log index: " + err.Error()
	}
	if have := g.cfg.Raft.State().AppliedIndex(); have+readyLag < reply.Index {
		return fmt.Sprintf("this manager is catching up: it is at log entry %d of %d", have, reply.Index)
	}
	return ""
}

// look asks a manager for its health: whether it answers, and why it is not ready.
func (g health) look(ctx context.Context, rest string) (alive bool, notReady []wire.Reason) {
	if rest == g.cfg.REST {
		notReady, _ = g.reasons(g.cfg.Raft.State())
		return true, notReady
	}
	ctx, cancel := context.WithTimeout(ctx, aliveTimeout)
	defer cancel()
	h, err := getJSON[v1.Health](ctx, g.ground, g.looks, rest+"/healthz")
	if err != nil {
		return false, nil
	}
	return true, h.NotReady
}
