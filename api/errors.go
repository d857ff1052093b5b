package api

import (
	"context"
	"errors"
	"net/http"

	"tidemark/client"
	"tidemark/consensus"
	"tidemark/coordinator"
	"tidemark/expression"
	"tidemark/internal/rpc"
	"tidemark/rebalance"
	"tidemark/scan"
	"tidemark/statecontext"
	"tidemark/timestamp"
)

// Codes of this package; those of rejected commands are statecontext.Code, those of scans in package scan.
const (
	CodeSyntax      = "SYNTAX_ERROR"
	CodeUnsupported = "UNSUPPORTED"
	CodeDefinition  = "BAD_DEFINITION"
	CodeNotReady    = "INDEX_NOT_READY"
	CodeBadKey      = "BAD_IDEMPOTENCY_KEY"
	CodeNoProjector = "NO_PROJECTOR"
	CodeTokenLost   = "TOKEN_LOST"
	CodePlacement   = "PLACEMENT_IMPOSSIBLE"
)

// rejections maps what the replicated state refuses to HTTP.
func rejections() map[statecontext.Code]int {
	return map[statecontext.Code]int{
		statecontext.NotBootstrapped: http.StatusServiceUnavailable, statecontext.AlreadyBootstrapped: http.StatusConflict,
		statecontext.StaleTerm: http.StatusConflict, statecontext.StaleRevision: http.StatusConflict,
		statecontext.InvalidArgument: http.StatusBadRequest, statecontext.NameExists: http.StatusConflict,
		statecontext.UnknownIndex: http.StatusNotFound, statecontext.UnknownBucket: http.StatusNotFound,
		statecontext.UnknownNode: http.StatusNotFound, statecontext.UnknownCopy: http.StatusNotFound,
		statecontext.BucketIsGone: http.StatusConflict, statecontext.CASMismatch: http.StatusPreconditionFailed,
		statecontext.GenerationMismatch: http.StatusConflict, statecontext.RollbackMismatch: http.StatusConflict,
		statecontext.StepMismatch: http.StatusConflict, statecontext.StateMismatch: http.StatusConflict,
		statecontext.StabilityNotMonotone: http.StatusConflict, statecontext.IllegalTransition: http.StatusConflict,
		statecontext.LimitExceeded: http.StatusBadRequest, statecontext.NodeInUse: http.StatusConflict,
		statecontext.NodeRemoved: http.StatusGone, statecontext.RequestMismatch: http.StatusUnprocessableEntity,
		statecontext.LedgerFull: http.StatusServiceUnavailable, statecontext.FormatNotAllowed: http.StatusConflict,
		statecontext.PlacementInconsistent: http.StatusConflict,
	}
}

// problem turns an error into its answer. What may be tried again says when.
func (a *API) problem(err error) *rpc.Problem {
	p := a.translate(err)
	if p.Status == http.StatusServiceUnavailable && p.RetryAfterMS == 0 {
		p.RetryAfterMS = retryAfterMS
	}
	return p
}

// translate is the one table from errors to answers.
func (a *API) translate(err error) *rpc.Problem {
	var p *rpc.Problem
	var rejected *statecontext.Rejection
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &rejected):
		status, ok := rejections()[rejected.Code]
		if !ok {
			status = http.StatusConflict
		}
		if rejected.Code == statecontext.RequestMismatch {
			return rpc.NewProblem(status, string(rejected.Code), "this %s was used for another request; take a new key for a new request", HeaderKey)
		}
		return rpc.NewProblem(status, string(rejected.Code), "%s", rejected.Message)
	case errors.Is(err, consensus.ErrUnknownOutcome):
		return rpc.NewProblem(http.StatusGatewayTimeout, client.CodeUnknownOutcome,
			"the write may or may not be done; send it again with the same %s to learn which: %v", HeaderKey, err)
	case errors.Is(err, consensus.ErrNotLeader), errors.Is(err, coordinator.ErrNotLeading), errors.Is(err, consensus.ErrClosed):
		p := noLeader("no leader can serve this now: %v", err)
		if l, ok := a.leaderOf(a.cfg.Raft.State()); ok {
			p.Leader = &l
		}
		return p
	case errors.Is(err, consensus.ErrCommand):
		return rpc.NewProblem(http.StatusBadRequest, string(statecontext.InvalidArgument), "nothing was done: %v", err)
	case errors.Is(err, consensus.ErrBusy), errors.Is(err, coordinator.ErrBusy):
		p := rpc.NewProblem(http.StatusServiceUnavailable, client.CodeBusy, "too much waits already, nothing was done: %v", err)
		p.RetryAfterMS = busyRetryMS
		return p
	case errors.Is(err, coordinator.ErrUnknownBucket):
		return rpc.NewProblem(http.StatusNotFound, rpc.CodeBucket, "%v", err)
	case errors.Is(err, coordinator.ErrNoProjector):
		return rpc.NewProblem(http.StatusServiceUnavailable, CodeNoProjector, "%v", err)
	case errors.Is(err, coordinator.ErrBucketGone):
		return rpc.NewProblem(http.StatusConflict, string(statecontext.BucketIsGone), "%v", err)
	case errors.Is(err, coordinator.ErrNoStreams):
		return rpc.NewProblem(http.StatusConflict, CodeNotReady, "%v", err)
	case errors.Is(err, coordinator.ErrInRollback):
		return rpc.NewProblem(http.StatusConflict, string(scan.IndexInRollback), "%v", err)
	case errors.Is(err, coordinator.ErrTokenLost):
		return rpc.NewProblem(http.StatusConflict, CodeTokenLost, "%v", err)
	case errors.Is(err, coordinator.ErrBootConflict):
		return rpc.NewProblem(http.StatusConflict, rpc.CodeBootConflict, "%v", err)
	case errors.Is(err, coordinator.ErrRegistration), errors.Is(err, timestamp.ErrLength):
		return rpc.NewProblem(http.StatusBadRequest, rpc.CodeBadRequest, "%v", err)
	case errors.Is(err, rebalance.ErrTooFewNodes), errors.Is(err, rebalance.ErrUnknownNode):
		return rpc.NewProblem(http.StatusBadRequest, CodePlacement, "%v", err)
	case errors.Is(err, expression.ErrUnsupported):
		return rpc.NewProblem(http.StatusBadRequest, CodeUnsupported, "%v", err)
	case errors.Is(err, expression.ErrSyntax):
		return rpc.NewProblem(http.StatusBadRequest, CodeSyntax, "%v", err)
	case errors.Is(err, expression.ErrDefinition):
		return rpc.NewProblem(http.StatusBadRequest, CodeDefinition, "%v", err)
	case errors.Is(err, context.DeadlineExceeded):
		return rpc.NewProblem(http.StatusGatewayTimeout, rpc.CodeTimeout, "no answer in time: %v", err)
	}
	if p := rpc.AsProblem(err); p.Code != rpc.CodeInternal {
		return p
	}
	a.cfg.Logger.Error("a call failed for a reason that has no code", "error", err)
	return rpc.AsProblem(err)
}
