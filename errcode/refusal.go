package errcode

import "fmt"

// Refusal is a code with the details of one case, for packages that do not deal with HTTP: package internal/rpc
// converts it to a problem document.
type Refusal struct {
	Code   Code
	Detail string
}

// Refuse returns a refusal with this code; detail states what was wrong, what was expected, and what to do.
func Refuse(code Code, format string, args ...any) *Refusal {
	return &Refusal{Code: code, Detail: fmt.Sprintf(format, args...)}
}

// Error returns code and detail.
func (r *Refusal) Error() string { return string(r.Code) + ": " + r.Detail }

// Unwrap returns the code.
func (r *Refusal) Unwrap() error { return r.Code }
