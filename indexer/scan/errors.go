package scan

import (
	"context"
	"errors"
	"fmt"
)

// Code is the machine-readable reason of a failed scan.
type Code string

// The codes.
const (
	BadRequest      Code = "BAD_REQUEST"          // the request means nothing
	IndexNotHosted  Code = "INDEX_NOT_HOSTED"     // no such index
	IndexNotReady   Code = "INDEX_NOT_READY"      // it is being built
	IndexInRollback Code = "INDEX_IN_ROLLBACK"    // its bucket is being rolled back
	SnapshotTooOld  Code = "SNAPSHOT_TOO_OLD"     // the timestamp is not held any more
	SnapshotSkipped Code = "SNAPSHOT_SKIPPED"     // the node could not make this timestamp; another will do
	TokenLost       Code = "TOKEN_LOST"           // the write of a token was lost in a failover of KV
	Timeout         Code = "TIMEOUT"              // what was waited for did not come in time
	Cancelled       Code = "CANCELLED"            // the client is gone
	Unavailable     Code = "UNAVAILABLE"          // no healthy replica of some slice
	VBucketsUnowned Code = "VBUCKETS_UNAVAILABLE" // KV's present positions cannot be had
	Damaged         Code = "DAMAGED"              // stored data does not match its checksum
	Internal        Code = "INTERNAL"             // a bug
)

// Error is a failed scan: a code for programs, a detail for people.
type Error struct {
	Code     Code     `json:"code"`
	Detail   string   `json:"detail"`
	VBuckets []uint16 `json:"vbuckets,omitempty"` // of VBUCKETS_UNAVAILABLE and TOKEN_LOST
	Err      error    `json:"-"`                  // cause, for logs
}

// Error gives code and detail.
func (e *Error) Error() string { return string(e.Code) + ": " + e.Detail }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an Error; an error among args that is wrapped with %w is its cause.
func Errorf(c Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: c, Detail: err.Error(), Err: errors.Unwrap(err)}
}

// CodeOf returns the code of an error; of one that is not an *Error: TIMEOUT or CANCELLED of a context, else INTERNAL.
func CodeOf(err error) Code { return AsError(err).Code }

// AsError makes an *Error of any error.
func AsError(err error) *Error {
	var e *Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, context.DeadlineExceeded):
		return &Error{Code: Timeout, Detail: err.Error(), Err: err}
	case errors.Is(err, context.Canceled):
		return &Error{Code: Cancelled, Detail: err.Error(), Err: err}
	}
	return &Error{Code: Internal, Detail: err.Error(), Err: err}
}
