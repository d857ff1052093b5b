package statecontext

import (
	"fmt"

	"tidemark/errcode"
	"tidemark/index"
)

// Passing reports whether a rejection with this code says something of the moment and nothing of the request: the same
// request, sent again later, may be done. Such a rejection is never remembered (Request).
func Passing(code errcode.Code) bool {
	switch code {
	case errcode.NotBootstrapped, errcode.Restoring, errcode.LedgerFull, errcode.IndexChanged:
		return true
	}
	return false
}

// Rejection is the answer to a command that was understood and refused.
type Rejection struct {
	Code    errcode.Code `json:"code"`
	Message string       `json:"message"`
}

// passes reports whether a command was refused, nil if it was not, for the moment only.
func (r *Rejection) passes() bool { return r != nil && Passing(r.Code) }

// Error gives code and message.
func (r *Rejection) Error() string { return string(r.Code) + ": " + r.Message }

// Unwrap returns the code.
func (r *Rejection) Unwrap() error { return r.Code }

func reject(c errcode.Code, format string, args ...any) *Rejection {
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
	Indexes  []index.ID   // ByName of BuildIndexes: the index of each name
	Node     index.NodeID // RegisterIndexer: the number
	Member   string       // BeginRemoval: the manager's id
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
