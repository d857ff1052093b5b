package wire

import (
	"testing"

	"tidemark/internal/testing/allocbound"
)

// Counts in a packed list: memory is taken for what is there.
func TestNoMemoryForClaims(t *testing.T) {
	allocbound.Check(t, 0, func(b []byte) { _, _ = UnpackHeld(b) }, PackHeld(nil), PackHeld(heldExample()))
	asked := make([]uint16, 256)
	for v := range asked {
		asked[v] = uint16(v)
	}
	allocbound.Check(t, 0, func(b []byte) { _, _ = unpackPoll(asked, b) }, pack(t, asked, nil),
		pack(t, asked, pollExample(32)), pack(t, asked, pollNobody(256)))
}
