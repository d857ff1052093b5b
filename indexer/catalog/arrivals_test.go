package catalog

import (
	"testing"
	"time"

	"tidemark/timestamp"
)

// TestNewestTimestampsAreKept checks that the newest timestamps are known, replace older ones, and that nothing is
// known of others.
func TestNewestTimestampsAreKept(t *testing.T) {
	var h arrivals
	ref := func(n int) timestamp.Ref { return timestamp.Ref{Generation: 1, Number: uint64(n)} }
	begin := time.Now()
	for n := range mostArrivals + 10 {
		h.note(ref(n), begin.Add(time.Duration(n)*time.Second))
	}
	for n := range mostArrivals + 20 {
		at, known := h.of(ref(n))
		if want := n >= 10 && n < mostArrivals+10; known != want || known && at.Sub(begin) != time.Duration(n)*time.Second {
			t.Fatalf("%d: %v, %v", n, at.Sub(begin), known)
		}
	}
	if _, known := h.of(timestamp.Ref{Generation: 2, Number: 100}); known {
		t.Error("one of another generation is known")
	}
}
