package wire

import (
	"testing"

	"tidemark/internal/testing/allocbound"
)

// Counts in a packed list: memory is taken for what is there.
func TestNoMemoryForClaims(t *testing.T) {
	allocbound.Check(t, 0, func(b []byte) { _, _ = UnpackHeld(b) }, PackHeld(nil), PackHeld(heldExample()))
	allocbound.Check(t, 0, func(b []byte) { _, _ = (&PollReply{b}).Positions() }, AnswerPoll(nil).Packed,
		AnswerPoll(pollExample(32)).Packed)
}
