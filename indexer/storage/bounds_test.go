package storage

import (
	"testing"

	"tidemark/internal/testing/allocbound"
)

// TestLengthsBoundAllocations: whatever counts and lengths stored records claim, memory is allocated only for what is
// there.
func TestLengthsBoundAllocations(t *testing.T) {
	allocbound.Check(t, 0, func(b []byte) { _, _, _ = decodeBackValue(nil, b) },
		appendBackValue(nil, 300, [][]byte{{0x30, 'a'}, {0x10}}))
	prev, next := newState(16), newState(16)
	next.number, next.items = 7, 3
	next.positions[2].Main = 9
	for _, full := range []bool{false, true} {
		record, err := appendStateRecord(nil, &prev, &next, []uint16{2}, full)
		must(t, err)
		allocbound.Check(t, 0, func(b []byte) {
			if r, err := parseStateRecord(b); err == nil {
				s := newState(16)
				_ = s.apply(r)
			}
		}, record)
	}
	allocbound.Check(t, 0, func(b []byte) { _, _, _ = splitFwd(b, []byte{3}) }, []byte("fkeydoc"))
	allocbound.Check(t, 0, func(b []byte) { _, _, _ = splitFwd([]byte("fkeydoc"), b) }, []byte{3})
}
