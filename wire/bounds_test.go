package wire

import (
	"testing"

	"tidemark/internal/allocbound"
)

// Counts in a packed list: memory is taken for what is there.
func TestNoMemoryForClaims(t *testing.T) {
	allocbound.Check(t, 0, func(b []byte) { _, _ = UnpackHeld(b) }, PackHeld(nil), PackHeld(heldExample()))
}
