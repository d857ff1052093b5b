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

// CodeUnready is the code of /readyz while there is a leader and this manager cannot serve all the same.
const CodeUnready = errcode.NotReady

// Codes of reasons that this package finds; the others are of package consensus.
const (
	reasonNoCluster = rpc.ReasonNoCluster
	reasonBehind    = "not_caught_up"
)

const (
	// readyPatience bounds the question to the leader how far this manager should be.
	readyPatience = time.Second
	// readyLag is how many log entries a ready manager may be behind; a linearizable read waits for them anyway.
	readyLag = 1024
)

// healthz is 200 while the process lives.
func (g health) healthz(w http.ResponseWriter, r *http.Request) error {
	reasons, _ := g.reasons(g.cfg.Raft.State())
	rpc.Write(w, r, http.StatusOK, v1.Health{Status: "ok", Node: g.cfg.Name, NotReady: reasons})
	return nil
}

// readyz is 200 when this node can serve: it belongs to a cluster, knows a leader that has announced itself, has caught
// up with it, and its disk is well. Else the problem lists what is in the way.
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

// reasons says what keeps this manager from being ready, as far as it knows without asking anybody, and who leads.
func (g health) reasons(s *statecontext.State) (reasons []rpc.Reason, leader wire.Leader) {
	empty, noLeader := s.ClusterID() == "", false
	if empty {
		reasons = append(reasons, rpc.Reason{Code: reasonNoCluster,
			Detail: "this manager belongs to no cluster yet: it waits for the managers of --bootstrap-expect at the addresses " +
				"of --join, or to be added"})
	}
	for _, r := range g.cfg.Raft.Reasons() {
		noLeader = noLeader || r.Code == consensus.ReasonNoLeader
		if !empty || r.Code != consensus.ReasonNoLeader {
			reasons = append(reasons, rpc.Reason{Code: r.Code, Detail: r.Detail})
		}
	}
	if g.cfg.Raft.HasUsers() && !g.current() {
		reasons = append(reasons, rpc.Reason{Code: reasonNotCurrent, Detail: g.notCurrent()})
	}
	leader, ok := g.leaderOf(s)
	if !ok && !noLeader && !empty {
		reasons = append(reasons, rpc.Reason{Code: consensus.ReasonNoLeader,
			Detail: "the leader has not announced itself in this manager's state yet"})
	}
	return reasons, leader
}

// behind asks the leader how far the log goes, and says what this manager lacks; empty when it has caught up.
func (g health) behind(ctx context.Context, leader wire.Leader) string {
	ctx, cancel := context.WithTimeout(ctx, readyPatience)
	defer cancel()
	reply, err := getJSON[readIndexReply](ctx, g.ground, g.readIndex, leader.REST+"/v1/readindex")
	if err != nil {
		return "the leader does not tell how far the log goes: " + err.Error()
	}
	if have := g.cfg.Raft.State().AppliedIndex(); have+readyLag < reply.Index {
		return fmt.Sprintf("this manager is catching up: it is at log entry %d of %d", have, reply.Index)
	}
	return ""
}

// look asks a manager how it is: whether it answers, and what keeps it from being ready.
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
