// Package health is what is wrong with a node, by source, for reports and people. It promises to tell who notes
// something whether that is new, so that it is logged once. It judges nothing.
package health

import (
	"fmt"
	"maps"
	"sync"
	"time"
)

// Hangs is how long a write to disk may take until what is wrong says so.
const Hangs = 30 * time.Second

// Health is what is wrong. The zero value is well.
type Health struct {
	mu  sync.Mutex
	why map[string]string // by source
}

// Set notes what is wrong with a source; "" is well. It reports whether that is new.
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

// Watch does f and notes, when that takes longer than patience, that what is under way: the disk hangs. late is called
// then. What is noted stays: who calls it says how f has ended.
func (h *Health) Watch(source, what string, patience time.Duration, late func(), f func() error) error {
	var err error
	Late(patience, func() {
		h.Set(source, Hanging(what, patience))
		late()
	}, func() { err = f() })
	return err
}

// Hanging says that what is under way takes longer than patience.
func Hanging(what string, patience time.Duration) string {
	return fmt.Sprintf("%s has been under way for more than %s: the disk hangs, or is far too slow", what, patience)
}

// Late does f, and calls late when that takes longer than patience. Both have ended when it returns.
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

// Why is what is wrong with a source, or else with any other; "" is well.
func (h *Health) Why(source string) string {
	h.mu.Lock()
	why := h.why[source]
	h.mu.Unlock()
	if why != "" {
		return why
	}
	return h.First()
}

// All gives everything that is wrong, by source.
func (h *Health) All() map[string]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.why)
}

// First is one thing that is wrong, always the same one of several; "" is well.
func (h *Health) First() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	first := ""
	for source, why := range h.why {
		if t := source + ": " + why; first == "" || t < first {
			first = t
		}
	}
	return first
}
