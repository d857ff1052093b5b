package timestamp

import (
	"testing"

	"tidemark/internal/testing/allocbound"
)

// Counts in a log, a vector or a delta must not cause allocations beyond the data and the vbuckets of the base.
func TestLengthsBoundAllocations(t *testing.T) {
	allocbound.Check(t, 0, func(b []byte) { _, _, _ = DecodeLog(b) },
		AppendLog(nil, FailoverLog{{VBUUID: 9, Seqno: 50}, {VBUUID: 8, Seqno: 20}, {VBUUID: 7}}))
	base, next := New(64), New(64)
	for v := range 64 {
		next.Set(v, Position{VBUUID: uint64(v) << 32, Seqno: uint64(v * 1000)})
	}
	delta, err := next.AppendDelta(nil, base)
	if err != nil {
		t.Fatal(err)
	}
	allocbound.Check(t, 0, func(b []byte) { _, _, _ = DecodeVector(b) }, next.AppendVector(nil), New(64).AppendVector(nil))
	allocbound.Check(t, 0, func(b []byte) {
		_, _, _ = ApplyDelta(b, base)
		_, _, _ = ApplyDeltaShared(b, base)
	}, delta)
}
