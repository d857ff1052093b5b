package store

import (
	"errors"
	"sync"
)

// Repeated recognizes the failures of something that is tried again until it succeeds, so that the log has one line for
// a row of them. The zero value is ready for use; it is safe for concurrent use.
type Repeated struct {
	mu   sync.Mutex
	last string
}

// First takes the outcome of an attempt at something, and reports whether it is a failure that the last attempt did not
// have. A full disk is one failure, though each error names another vbucket or other numbers. A success ends the row.
func (r *Repeated) First(what string, err error) bool {
	said := ""
	switch {
	case err == nil:
	case errors.Is(err, ErrTemporary) && !errors.Is(err, ErrSealed):
		said = what + ErrTemporary.Error()
	default:
		said = what + err.Error()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	first := said != "" && said != r.last
	r.last = said
	return first
}
