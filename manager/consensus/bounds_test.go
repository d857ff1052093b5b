package consensus

import (
	"bytes"
	"testing"

	"tidemark/internal/testing/allocbound"
)

// The first bytes of an unauthenticated caller, its answer, and a stored entry allocate no memory beyond the data
// present.
func TestLengthsBoundAllocations(t *testing.T) {
	who := handshake{cluster: "0123456789abcdef", wants: "m1-0badcafe", id: "m2-00c0ffee", epoch: 1795223000}
	allocbound.Check(t, 0, func(b []byte) { _, _ = readHandshake(bytes.NewReader(b)) }, who.encode())
	allocbound.Check(t, 0, func(b []byte) { _, _ = readShort(bytes.NewReader(b)) }, []byte("\x03abc"))
	const msgpackAhead = 256 << 10 // allocated by the library for a list before its items
	allocbound.Check(t, msgpackAhead, func(b []byte) { _, _ = examineEntry([]byte{0, 0, 0, 0, 0, 0, 0, 7}, b) },
		[]byte("\x86\xa5Index\x07\xa4Term\x01\xa4Type\x00\xa4Data\xa1x\xaaExtensions\xc0\xaaAppendedAt\xc0"))
}
