package rpc

import (
	"net/http"

	"tidemark/errcode"
)

// problemTypes is where managers explain a code (RFC 9457: the problem's type, a URI reference).
const problemTypes = "/v1/errors/"

// Refuse makes the Problem of a code; detail says what was wrong here, what was expected, what to do.
func Refuse(code errcode.Code, format string, args ...any) *Problem {
	info, ok := errcode.Lookup(code)
	if !ok { // of a newer version
		info = errcode.CodeInfo{Status: http.StatusInternalServerError,
			Title: http.StatusText(http.StatusInternalServerError)}
	}
	p := NewProblem(info.Status, code, format, args...)
	p.Title = info.Title
	return p
}

// Temporary reports whether the same request may be sent again as it is: nothing was done, or its Idempotency-Key makes
// sure that it is done once.
func (p *Problem) Temporary() bool {
	info, ok := errcode.Lookup(p.Code)
	return ok && info.Retry
}

// Exit returns the exit code of the command line; that of a code that this version does not know follows its status.
func (p *Problem) Exit() int {
	if info, ok := errcode.Lookup(p.Code); ok {
		return info.Exit
	}
	switch p.Status {
	case http.StatusNotFound, http.StatusGone:
		return errcode.ExitNotFound
	case http.StatusConflict, http.StatusPreconditionFailed, http.StatusUnprocessableEntity:
		return errcode.ExitConflict
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		return errcode.ExitUnavailable
	case http.StatusGatewayTimeout:
		return errcode.ExitTimeout
	}
	return errcode.ExitFailed
}
