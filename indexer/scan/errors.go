package scan

import (
	"context"
	"errors"
	"fmt"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/wire"
)

// Error is a failed scan: a code for programs and a detail for people.
type Error struct {
	Code     errcode.Code `json:"code"`
	Detail   string       `json:"detail"`
	VBuckets []uint16     `json:"vbuckets,omitempty"` // of VBUCKETS_UNAVAILABLE and TOKEN_LOST
	// Lost lists the tokens that the error is about, at most wire.MaxLost.
	Lost []wire.LostWrite `json:"lost,omitempty"`
	Err  error            `json:"-"` // cause, for logs
}

// Error returns code and detail.
func (e *Error) Error() string { return string(e.Code) + ": " + e.Detail }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Errorf returns an Error. An error among args that is wrapped with %w becomes its cause.
func Errorf(c errcode.Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: c, Detail: err.Error(), Err: errors.Unwrap(err)}
}

// lose adds a token that the error is about.
func (e *Error) lose(t Token) {
	if len(e.Lost) < wire.MaxLost {
		e.Lost = append(e.Lost, wire.LostWrite(t))
		e.VBuckets = append(e.VBuckets, t.VBucket)
	}
}

// CodeOf returns the code of an error. For other errors than *Error it is TIMEOUT or CANCELLED if a context ended,
// else INTERNAL.
func CodeOf(err error) errcode.Code { return AsError(err).Code }

// AsError converts any error to an *Error.
func AsError(err error) *Error {
	var e *Error
	var p *rpc.Problem
	switch {
	case errors.As(err, &e):
		return e
	case errors.As(err, &p):
		return &Error{Code: p.Code, Detail: p.Detail, Err: err}
	case errors.Is(err, context.DeadlineExceeded):
		return &Error{Code: errcode.Timeout, Detail: err.Error(), Err: err}
	case errors.Is(err, context.Canceled):
		return &Error{Code: errcode.Cancelled, Detail: err.Error(), Err: err}
	}
	return &Error{Code: errcode.Internal, Detail: err.Error(), Err: err}
}
