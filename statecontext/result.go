package statecontext

import (
	"fmt"

	"tidemark/errcode"
	"tidemark/index"
)

// Passing reports whether a rejection with this code is due to the moment rather than the request: the same request
// may succeed later. Such a rejection is never remembered (see Request).
func Passing(code errcode.Code) bool {
	switch code {
	case errcode.NotBootstrapped, errcode.Restoring, errcode.LedgerFull, errcode.IndexChanged:
		return true
	}
	return false
}

// Rejection is the result of a command that was decoded but refused.
type Rejection struct {
	Code    errcode.Code `json:"code"`
	Message string       `json:"message"`
}

// passes reports whether a command was refused only for the moment; r is nil if it was not refused.
func (r *Rejection) passes() bool { return r != nil && Passing(r.Code) }

// Error returns code and message.
func (r *Rejection) Error() string { return string(r.Code) + ": " + r.Message }

// Unwrap returns the code.
func (r *Rejection) Unwrap() error { return r.Code }

func reject(c errcode.Code, format string, args ...any) *Rejection {
	return &Rejection{Code: c, Message: fmt.Sprintf(format, args...)}
}

// BucketRejection names a bucket that an AdvanceStability left out, and the reason.
type BucketRejection struct {
	Bucket    string
	Rejection *Rejection
}

// Result is the outcome of one command.
type Result struct {
	// CAS is the cas of the update, or the present cas if the command changed nothing or was rejected.
	CAS     uint64
	Changed bool // the command was an update
	// Replayed reports whether the outcome came from the request ledger.
	Replayed bool
	Index    index.ID     // CreateIndex: the index, or the existing one with IF NOT EXISTS
	Indexes  []index.ID   // ByName with BuildIndexes: the index of each name
	Node     index.NodeID // RegisterIndexer: the node id
	Member   string       // BeginRemoval: the manager's id
	// Number is the bucket generation (SetBucket, BucketGone) or rollback id (SetRollbackStep) that the command
	// concerned.
	Number    uint64
	Rejection *Rejection
	// Buckets lists the buckets that AdvanceStability left out; the ledger does not keep it.
	Buckets []BucketRejection
}

// Err returns the rejection as an error, or nil if there is none.
func (r *Result) Err() error {
	if r.Rejection == nil {
		return nil
	}
	return r.Rejection
}

// RollbackStep is the progress of a rollback.
type RollbackStep uint8

// The steps of a rollback context (IM-23); NoRollback means that there is no context.
const (
	NoRollback  RollbackStep = 0
	Started     RollbackStep = 1 // streams of the bucket are being stopped
	Prepare     RollbackStep = 2 // failover timestamp stored, indexers notified
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

// MarshalText encodes the step as its word.
func (s RollbackStep) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText decodes what MarshalText wrote.
func (s *RollbackStep) UnmarshalText(b []byte) error {
	for c := NoRollback; c <= RollingBack; c++ {
		if c.String() == string(b) {
			*s = c
			return nil
		}
	}
	return fmt.Errorf("unknown rollback step %q", b)
}
