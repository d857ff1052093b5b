// Package health is what is wrong with a node, by source, for reports and people. It promises to tell who notes
// something whether that is new, so that it is logged once. It judges nothing.
package health

import (
	"maps"
	"sync"
)

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
