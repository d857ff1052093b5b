package statecontext

import (
	"fmt"

	"tidemark/index"
)

// Code names why a command was rejected. A Code is an error, so that errors.Is(rejection, UnknownIndex) holds.
type Code string

// The codes. Their text is stored in the request ledger and appears in the API.
const (
	NotBootstrapped       Code = "NOT_BOOTSTRAPPED"       // the cluster has no id yet
	AlreadyBootstrapped   Code = "ALREADY_BOOTSTRAPPED"   // the cluster has an id
	StaleTerm             Code = "STALE_TERM"             // a lower term or epoch than the state's
	StaleRevision         Code = "STALE_REVISION"         // reported under an older definitions revision
	InvalidArgument       Code = "INVALID_ARGUMENT"       // a field is malformed
	NameExists            Code = "NAME_EXISTS"            // the bucket has an index of that name
	UnknownUser           Code = "UNKNOWN_USER"           // no user of that name
	UserExists            Code = "USER_EXISTS"            // a user of that name
	LastAdmin             Code = "LAST_ADMIN"             // nobody would be an administrator
	UnknownToken          Code = "UNKNOWN_TOKEN"          // no token with that id
	TokenExists           Code = "TOKEN_EXISTS"           // the same secret
	UnknownIndex          Code = "UNKNOWN_INDEX"          // no index with that id
	UnknownBucket         Code = "UNKNOWN_BUCKET"         // no bucket of that name
	UnknownNode           Code = "UNKNOWN_NODE"           // no indexer with that number
	UnknownCopy           Code = "UNKNOWN_COPY"           // no copy with that id
	BucketIsGone          Code = "BUCKET_GONE"            // the bucket was deleted or re-created
	CASMismatch           Code = "CAS_MISMATCH"           // the object has changed since (If-Match)
	GenerationMismatch    Code = "GENERATION_MISMATCH"    // the bucket is another one by now
	RollbackMismatch      Code = "ROLLBACK_MISMATCH"      // the bucket was, or is being, rolled back
	StepMismatch          Code = "STEP_MISMATCH"          // the rollback context is in another step
	StateMismatch         Code = "STATE_MISMATCH"         // the index or copy is in another state
	StabilityNotMonotone  Code = "STABILITY_NOT_MONOTONE" // below the last one, or nothing new, or not the next number
	IllegalTransition     Code = "ILLEGAL_TRANSITION"     // that state may not follow
	LimitExceeded         Code = "LIMIT_EXCEEDED"         // a limit of Limits
	NodeInUse             Code = "NODE_IN_USE"            // the indexer still has copies
	NodeRemoved           Code = "NODE_REMOVED"           // the uuid was removed and may not come back
	RequestMismatch       Code = "REQUEST_MISMATCH"       // the idempotency key was used for another body
	LedgerFull            Code = "LEDGER_FULL"            // too many recent requests are remembered; try again later
	FormatNotAllowed      Code = "FORMAT_NOT_ALLOWED"     // above what every voter understands, or below the present level
	PlacementInconsistent Code = "PLACEMENT_INCONSISTENT" // copies missing, doubled, or two replicas on one node
	RebalanceIsRunning    Code = "REBALANCE_RUNNING"      // another rebalance is under way
	UnknownRebalance      Code = "UNKNOWN_REBALANCE"      // no rebalance with that id, or it is over
	StalePlan             Code = "STALE_PLAN"             // made of another placement than there is
	Restoring             Code = "RESTORING"              // a restore is under way: users wait
	RestoreMismatch       Code = "RESTORE_MISMATCH"       // that restore is not under way, or another piece is due
	TooFewIndexers        Code = "PLACEMENT_IMPOSSIBLE"   // a restored index has more replicas than there are indexers for
	BackupUnusable        Code = "BACKUP_UNUSABLE"        // the backup is damaged, or no state that could be
	BackupOfOther         Code = "BACKUP_OF_OTHER"        // of another cluster, or of this one, against what was asked for
)

// Error returns the code's text.
func (c Code) Error() string { return string(c) }

// Passing tells that a rejection with this code says something of the moment and nothing of the request: the same
// request, sent again later, may be done. Such a rejection is never remembered (Request).
func (c Code) Passing() bool {
	switch c {
	case NotBootstrapped, Restoring, LedgerFull:
		return true
	}
	return false
}

// Rejection is the answer to a command that was understood and refused.
type Rejection struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
}

// Error gives code and message.
func (r *Rejection) Error() string { return string(r.Code) + ": " + r.Message }

// Unwrap returns the code.
func (r *Rejection) Unwrap() error { return r.Code }

func reject(c Code, format string, args ...any) *Rejection {
	return &Rejection{Code: c, Message: fmt.Sprintf(format, args...)}
}

// BucketRejection returns why one bucket of an AdvanceStability was left out.
type BucketRejection struct {
	Bucket    string
	Rejection *Rejection
}

// Result is the outcome of one command.
type Result struct {
	// CAS is the cas of the update; of a command that changed nothing, and of a rejection, the present one.
	CAS     uint64
	Changed bool // the command was an update
	// Replayed tells that the outcome was found in the request ledger.
	Replayed bool
	Index    index.ID     // CreateIndex: the index (also the one that IF NOT EXISTS found)
	Node     index.NodeID // RegisterIndexer: the number
	// Number counts what the command concerned, where one number says it: bucket generation (SetBucket, BucketGone),
	// rollback id (SetRollbackStep).
	Number    uint64
	Rejection *Rejection
	// Buckets lists what AdvanceStability left out; it is not kept in the ledger.
	Buckets []BucketRejection
}

// Err returns the rejection as an error, nil when there is none.
func (r *Result) Err() error {
	if r.Rejection == nil {
		return nil
	}
	return r.Rejection
}

// RollbackStep is how far a rollback has come.
type RollbackStep uint8

// The steps of a rollback context (IM-23); NoRollback means that there is none.
const (
	NoRollback  RollbackStep = 0
	Started     RollbackStep = 1 // streams of the bucket are being stopped
	Prepare     RollbackStep = 2 // failover timestamp stored, indexers informed
	Restart     RollbackStep = 3 // restart timestamp stored
	RollingBack RollbackStep = 4 // indexers commanded
)

// String returns the word of IM-23.
func (s RollbackStep) String() string {
	switch s {
	case NoRollback:
		return "none"
	case Started:
		return "started"
	case Prepare:
		return "prepare"
	case Restart:
		return "restart"
	case RollingBack:
		return "rollback"
	}
	return fmt.Sprintf("step(%d)", s)
}

// MarshalText makes the JSON form the word.
func (s RollbackStep) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (s *RollbackStep) UnmarshalText(b []byte) error {
	for c := NoRollback; c <= RollingBack; c++ {
		if c.String() == string(b) {
			*s = c
			return nil
		}
	}
	return fmt.Errorf("unknown rollback step %q", b)
}
