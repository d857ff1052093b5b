package api

import (
	"context"
	"errors"
	"net/http"

	"tidemark/errcode"
	"tidemark/expression"
	"tidemark/internal/rpc"
	"tidemark/manager/api/v1"
	"tidemark/manager/consensus"
	"tidemark/manager/coordinator"
	"tidemark/manager/coordinator/core"
	"tidemark/rebalance"
	"tidemark/statecontext"
	"tidemark/timestamp"
)

// errorRoutes are the calls that explain codes: the type of a problem points there.
func (g *ground) errorRoutes() []route {
	return []route{
		{method: "GET", path: "/v1/errors", role: RoleNone, limit: v1.ReadTimeout, doc: operation{
			id: "listErrors", tag: tagNode, summary: "All codes of problems: what each is, and the way out",
			answers: []answer{{status: 200, means: "the codes, by status", body: v1.ErrorList{}}}},
			handle: func(w http.ResponseWriter, r *http.Request) error {
				rpc.Write(w, r, http.StatusOK, v1.ErrorList{Errors: errcode.All()})
				return nil
			}},
		{method: "GET", path: "/v1/errors/{code}", role: RoleNone, limit: v1.ReadTimeout, doc: operation{
			id: "getError", tag: tagNode, summary: "One code of problems: where their type points",
			answers: []answer{{status: 200, means: "the code", body: errcode.CodeInfo{}}},
			codes:   []errcode.Code{errcode.NotFound}},
			handle: func(w http.ResponseWriter, r *http.Request) error {
				code := r.PathValue("code")
				info, ok := errcode.Lookup(errcode.Code(code))
				if !ok {
					return rpc.Refuse(errcode.NotFound, "there is no error code %q; GET /v1/errors lists the codes", code)
				}
				rpc.Write(w, r, http.StatusOK, info)
				return nil
			}},
	}
}

// sentinels maps errors of lower floors to codes: the first match is used. Package errcode describes the codes.
func sentinels() []sentinel {
	return []sentinel{
		{consensus.ErrUnknownOutcome, errcode.OutcomeUnknown, "the write may or may not have been done; send it again with " +
			"the same " + HeaderKey + " to learn which: %v"},
		{consensus.ErrNotLeader, errcode.NoLeader, "no leader can serve this now: %v"},
		{coordinator.ErrNotLeading, errcode.NoLeader, "no leader can serve this now: %v"},
		{consensus.ErrClosed, errcode.NoLeader, "no leader can serve this now: %v"},
		{consensus.ErrUnknownMember, errcode.UnknownNode, "%v"},
		{consensus.ErrNotMember, errcode.NodeRemoved, "%v"},
		{consensus.ErrQuorumAtRisk, errcode.QuorumAtRisk, "%v"},
		{consensus.ErrMemberConflict, errcode.MemberConflict, "%v"},
		{consensus.ErrNoOther, errcode.TransferFailed, "%v"},
		{consensus.ErrFormatTooOld, errcode.FormatTooOld, "nothing was changed: %v"},
		{consensus.ErrCommand, errcode.InvalidArgument, "nothing was changed: %v"},
		{consensus.ErrBusy, errcode.Busy, "too many requests are waiting, nothing was changed: %v"},
		{core.ErrBusy, errcode.Busy, "too many requests are waiting, nothing was changed: %v"},
		{core.ErrUnknownBucket, errcode.BucketNotInKV, "%v"},
		{coordinator.ErrUnknownCollection, errcode.UnknownCollection, "%v"},
		{coordinator.ErrVBuckets, errcode.TooManyVBuckets, "%v"},
		{coordinator.ErrNoProjector, errcode.NoProjector, "%v"},
		{core.ErrNoIndexer, errcode.NoIndexer, "%v"},
		{core.ErrBucketGone, errcode.BucketGone, "%v"},
		{core.ErrNoStreams, errcode.IndexNotReady, "%v"},
		{core.ErrInRollback, errcode.IndexInRollback, "%v"},
		{core.ErrTokenLost, errcode.TokenLost, "%v"},
		{core.ErrBootConflict, errcode.BootConflict, "%v"},
		{coordinator.ErrUnknownComponent, errcode.UnknownNode, "%v"},
		{coordinator.ErrAmbiguous, errcode.MemberConflict, "%v"},
		{coordinator.ErrAlive, errcode.NodeAlive, "%v"},
		{coordinator.ErrNotKnown, errcode.Unavailable, "%v"},
		{coordinator.ErrLastCopies, errcode.LastCopies, "%v"},
		{coordinator.ErrRegistration, errcode.BadRequest, "%v"},
		{timestamp.ErrLength, errcode.BadRequest, "%v"},
		{rebalance.ErrTooFewNodes, errcode.PlacementImpossible, "%v"},
		{rebalance.ErrUnknownNode, errcode.PlacementImpossible, "%v"},
		{rebalance.ErrStale, errcode.StalePlan, "%v"},
		{rebalance.ErrInput, errcode.InvalidArgument, "%v"},
		{expression.ErrUnsupported, errcode.Unsupported, "%v"},
		{expression.ErrSyntax, errcode.SyntaxError, "%v"},
		{expression.ErrDefinition, errcode.BadDefinition, "%v"},
		{context.DeadlineExceeded, errcode.Timeout, "no answer in time: %v"},
	}
}

type sentinel struct {
	is     error
	code   errcode.Code
	detail string // a format with the error as %v
}

// problem converts an error to its answer. Temporary ones get a retry time.
func (g *ground) problem(err error) *rpc.Problem {
	p := g.translate(err)
	if p.Status == http.StatusServiceUnavailable && p.RetryAfterMS == 0 {
		p.RetryAfterMS = retryAfter(p.Code)
	}
	return p
}

// retryAfter returns the time after which a 503 may be retried, in milliseconds.
func retryAfter(code errcode.Code) int64 {
	switch code {
	case errcode.Busy:
		return busyRetryMS
	case errcode.NoLeader:
		return leaderRetryMS
	}
	return retryAfterMS
}

func (g *ground) translate(err error) *rpc.Problem {
	var p *rpc.Problem
	var rejected *statecontext.Rejection
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &rejected) && rejected.Code == errcode.RequestMismatch:
		return rpc.Refuse(rejected.Code, "this %s was used for another request; use a new key for a new request",
			HeaderKey)
	case errors.As(err, &rejected):
		return rpc.Refuse(rejected.Code, "%s", rejected.Message)
	}
	for _, s := range sentinels() {
		if !errors.Is(err, s.is) {
			continue
		}
		p = rpc.Refuse(s.code, s.detail, err)
		if l, ok := g.leaderOf(g.cfg.Raft.State()); ok && s.code == errcode.NoLeader {
			p.Leader = &l
		}
		return p
	}
	if p = rpc.AsProblem(err); p.Code == errcode.Internal {
		g.cfg.Logger.Error("call failed with an error that has no code", "error", err)
	}
	return p
}
