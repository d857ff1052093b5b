// Package health tracks the problems of a node, by source, for reports and people. Setting a problem reports whether
// that changed anything, so that the caller can log it once. It does not judge problems.
package health

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// Hangs is how long a write to disk may take before it is reported as a problem.
const Hangs = 30 * time.Second

// Health holds the current problems. The zero value has none.
type Health struct {
	mu  sync.Mutex
	why map[string]string // by source
}

// Set sets the problem of a source; "" means none. It reports whether the source has a problem now but had none
// before, or the reverse.
func (h *Health) Set(source, why string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.why == nil {
		h.why = map[string]string{}
	}
	was := h.why[source]
	if why == "" {
		delete(h.why, source)
	} else {
		h.why[source] = why
	}
	return (was == "") != (why == "")
}

// Watch runs f. If f takes longer than patience, Watch sets a problem of the source (Hanging), and calls late. The
// problem remains; the caller sets the outcome of f.
func (h *Health) Watch(source, what string, patience time.Duration, late func(), f func() error) error {
	var err error
	Late(patience, func() {
		h.Set(source, Hanging(what, patience))
		late()
	}, func() { err = f() })
	return err
}

// Hanging returns the text for an operation that takes longer than patience.
func Hanging(what string, patience time.Duration) string {
	return fmt.Sprintf("%s has been pending for more than %s: the disk hangs, or is far too slow", what, patience)
}

// Late runs f, and calls late if f takes longer than patience. Both have returned when Late returns.
func Late(patience time.Duration, late, f func()) {
	said := make(chan struct{})
	timer := time.AfterFunc(patience, func() {
		defer close(said)
		late()
	})
	f()
	if !timer.Stop() {
		<-said
	}
}

// Why returns the problem of a source, or else of any other; "" if there is none.
func (h *Health) Why(source string) string {
	h.mu.Lock()
	why := h.why[source]
	h.mu.Unlock()
	if why != "" {
		return why
	}
	return h.First()
}

// All returns all problems, by source.
func (h *Health) All() map[string]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.why)
}

// First returns one of the problems, always the same one while they do not change, and ignores the sources in but; ""
// if there is none.
func (h *Health) First(but ...string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	first := ""
	for source, why := range h.why {
		if t := source + ": " + why; !slices.Contains(but, source) && (first == "" || t < first) {
			first = t
		}
	}
	return first
}
