package rpc

import (
	"net/http"

	"tidemark/errcode"
)

// problemTypes is the path at which managers explain a code (RFC 9457: the problem's type, a URI reference).
const problemTypes = "/v1/errors/"

// Refuse returns the Problem of a code; detail describes what was wrong, what was expected, and what to do.
func Refuse(code errcode.Code, format string, args ...any) *Problem {
	info, ok := errcode.Lookup(code)
	if !ok { // from a newer version
		info = errcode.CodeInfo{Status: http.StatusInternalServerError,
			Title: http.StatusText(http.StatusInternalServerError)}
	}
	p := NewProblem(info.Status, code, format, args...)
	p.Title = info.Title
	return p
}
