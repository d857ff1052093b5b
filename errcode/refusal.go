package errcode

import "fmt"

// Refusal is a code and what is wrong here, for those who decide and know of no HTTP: package internal/rpc makes the
// problem of it.
type Refusal struct {
	Code   Code
	Detail string
}

// Refuse returns the refusal of a code; detail says what was wrong here, what was expected, what to do.
func Refuse(code Code, format string, args ...any) *Refusal {
	return &Refusal{Code: code, Detail: fmt.Sprintf(format, args...)}
}

// Error returns code and detail.
func (r *Refusal) Error() string { return string(r.Code) + ": " + r.Detail }

// Unwrap returns the code.
func (r *Refusal) Unwrap() error { return r.Code }
