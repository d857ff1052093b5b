package ingest

import (
	"testing"

	"tidemark/internal/testing/allocbound"
	"tidemark/timestamp"
)

// A stored position must not cause allocations beyond its data.
func TestLengthsBoundAllocations(t *testing.T) {
	allocbound.Check(t, 0, func(b []byte) { _, _, _ = DecodePosition(b) },
		AppendPosition(nil, Position{VBUUID: 7, Side: 1, Main: 2, A: 3, Floor: 1 << 40, WindowEnd: timestamp.Infinity}))
}
