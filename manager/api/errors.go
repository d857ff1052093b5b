package api

import (
	"context"
	"errors"
	"net/http"

	"github.com/gorilla/mux"

	"tidemark/client"
	"tidemark/expression"
	"tidemark/indexer/scan"
	"tidemark/internal/rpc"
	"tidemark/manager/consensus"
	"tidemark/manager/coordinator"
	"tidemark/rebalance"
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
	CodeNoIndexer   = "NO_INDEXER"
	// CodeNotCurrent: a manager that may have missed that a user was removed or demoted lets no user in.
	CodeNotCurrent = "MANAGER_NOT_CURRENT"
	CodeTokenLost  = "TOKEN_LOST"
	CodePlacement  = "PLACEMENT_IMPOSSIBLE"
	// CodeFormatTooOld: the feature needs a newer format level; run tidemark cluster finalize-upgrade.
	CodeFormatTooOld = "FORMAT_TOO_OLD"
	// Changes of the cluster's members.
	CodeMemberConflict = "MEMBER_CONFLICT"
	CodeQuorumAtRisk   = "QUORUM_AT_RISK"
	CodeTransferFailed = "TRANSFER_FAILED"
	CodeNodeAlive      = "NODE_ALIVE"
	CodeLastCopies     = "LAST_COPIES"
)

// errorRoutes explain codes: where the type of a problem points.
func (a *API) errorRoutes() []route {
	return []route{
		{method: "GET", path: "/v1/errors", role: RoleNone, limit: ReadTimeout, doc: operation{
			id: "listErrors", tag: tagNode, summary: "All codes of problems: what each is, and the way out",
			answers: []answer{{status: 200, means: "the codes, by status", body: errorList{}}}},
			handle: func(w http.ResponseWriter, r *http.Request) error {
				rpc.Write(w, r, http.StatusOK, errorList{Errors: rpc.Codes()})
				return nil
			}},
		{method: "GET", path: "/v1/errors/{code}", role: RoleNone, limit: ReadTimeout, doc: operation{
			id: "getError", tag: tagNode, summary: "One code of problems: where their type points",
			answers: []answer{{status: 200, means: "the code", body: rpc.CodeInfo{}}}, codes: []string{rpc.CodeNotFound}},
			handle: func(w http.ResponseWriter, r *http.Request) error {
				code := mux.Vars(r)["code"]
				info, ok := rpc.Lookup(code)
				if !ok {
					return rpc.Refuse(rpc.CodeNotFound, "no code is called %q; GET /v1/errors lists them", code)
				}
				rpc.Write(w, r, http.StatusOK, info)
				return nil
			}},
	}
}

// errorList is the answer of GET /v1/errors.
type errorList struct {
	Errors []rpc.CodeInfo `json:"errors"`
}

// sentinels maps what lower floors fail with to codes: the first that matches counts. What a code is, rpc.Codes says.
func sentinels() []sentinel {
	return []sentinel{
		{consensus.ErrUnknownOutcome, client.CodeUnknownOutcome, "the write may or may not be done; send it again with the " +
			"same " + HeaderKey + " to learn which: %v"},
		{consensus.ErrNotLeader, rpc.CodeNoLeader, "no leader can serve this now: %v"},
		{coordinator.ErrNotLeading, rpc.CodeNoLeader, "no leader can serve this now: %v"},
		{consensus.ErrClosed, rpc.CodeNoLeader, "no leader can serve this now: %v"},
		{consensus.ErrUnknownMember, string(statecontext.UnknownNode), "%v"},
		{consensus.ErrNotMember, string(statecontext.NodeRemoved), "%v"},
		{consensus.ErrQuorumAtRisk, CodeQuorumAtRisk, "%v"},
		{consensus.ErrMemberConflict, CodeMemberConflict, "%v"},
		{consensus.ErrNoOther, CodeTransferFailed, "%v"},
		{consensus.ErrFormatTooOld, CodeFormatTooOld, "nothing was done: %v"},
		{consensus.ErrCommand, string(statecontext.InvalidArgument), "nothing was done: %v"},
		{consensus.ErrBusy, client.CodeBusy, "too much waits already, nothing was done: %v"},
		{coordinator.ErrBusy, client.CodeBusy, "too much waits already, nothing was done: %v"},
		{coordinator.ErrUnknownBucket, rpc.CodeNotInKV, "%v"},
		{coordinator.ErrVBuckets, rpc.CodeVBuckets, "%v"},
		{coordinator.ErrNoProjector, CodeNoProjector, "%v"},
		{coordinator.ErrNoIndexer, CodeNoIndexer, "%v"},
		{coordinator.ErrBucketGone, string(statecontext.BucketIsGone), "%v"},
		{coordinator.ErrNoStreams, CodeNotReady, "%v"},
		{coordinator.ErrInRollback, string(scan.IndexInRollback), "%v"},
		{coordinator.ErrTokenLost, CodeTokenLost, "%v"},
		{coordinator.ErrBootConflict, rpc.CodeBootConflict, "%v"},
		{coordinator.ErrUnknownComponent, string(statecontext.UnknownNode), "%v"},
		{coordinator.ErrAmbiguous, CodeMemberConflict, "%v"},
		{coordinator.ErrAlive, CodeNodeAlive, "%v"},
		{coordinator.ErrLastCopies, CodeLastCopies, "%v"},
		{coordinator.ErrRegistration, rpc.CodeBadRequest, "%v"},
		{timestamp.ErrLength, rpc.CodeBadRequest, "%v"},
		{rebalance.ErrTooFewNodes, CodePlacement, "%v"},
		{rebalance.ErrUnknownNode, CodePlacement, "%v"},
		{rebalance.ErrStale, string(statecontext.StalePlan), "%v"},
		{rebalance.ErrInput, string(statecontext.InvalidArgument), "%v"},
		{expression.ErrUnsupported, CodeUnsupported, "%v"},
		{expression.ErrSyntax, CodeSyntax, "%v"},
		{expression.ErrDefinition, CodeDefinition, "%v"},
		{context.DeadlineExceeded, rpc.CodeTimeout, "no answer in time: %v"},
	}
}

type sentinel struct {
	is     error
	code   string
	detail string // with the error as %v
}

// problem turns an error into its answer. What may be tried again says when.
func (a *API) problem(err error) *rpc.Problem {
	p := a.translate(err)
	if p.Status == http.StatusServiceUnavailable && p.RetryAfterMS == 0 {
		p.RetryAfterMS = retryAfter(p.Code)
	}
	return p
}

// retryAfter is when a 503 may be tried again, in milliseconds.
func retryAfter(code string) int64 {
	switch code {
	case client.CodeBusy:
		return busyRetryMS
	case rpc.CodeNoLeader:
		return leaderRetryMS
	}
	return retryAfterMS
}

func (a *API) translate(err error) *rpc.Problem {
	var p *rpc.Problem
	var rejected *statecontext.Rejection
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &rejected) && rejected.Code == statecontext.RequestMismatch:
		return rpc.Refuse(string(rejected.Code), "this %s was used for another request; take a new key for a new request",
			HeaderKey)
	case errors.As(err, &rejected):
		return rpc.Refuse(string(rejected.Code), "%s", rejected.Message)
	}
	for _, s := range sentinels() {
		if !errors.Is(err, s.is) {
			continue
		}
		p = rpc.Refuse(s.code, s.detail, err)
		if l, ok := a.leaderOf(a.cfg.Raft.State()); ok && s.code == rpc.CodeNoLeader {
			p.Leader = &l
		}
		return p
	}
	if p = rpc.AsProblem(err); p.Code == rpc.CodeInternal {
		a.cfg.Logger.Error("a call failed for a reason that has no code", "error", err)
	}
	return p
}
