package kvclient

import (
	"bytes"
	"testing"

	"tidemark/internal/testing/allocbound"
	"tidemark/kv/mcbp"
)

// The header of a frame must not cause allocations beyond the received data, plus one chunk (which bytes.Buffer
// allocates twice under the race detector).
func TestLengthsBoundAllocations(t *testing.T) {
	frame, err := mcbp.Append(nil, mcbp.Frame{Header: mcbp.Response(mcbp.Request(mcbp.OpGet, 1, 2), mcbp.StatusOK),
		Extras: []byte{0, 0, 0, 0}, Value: []byte("value")})
	if err != nil {
		t.Fatal(err)
	}
	allocbound.Check(t, 2*bodyChunk, func(b []byte) { _, _ = ReadFrame(bytes.NewReader(b)) }, frame)
	allocbound.Check(t, 0, func(b []byte) {
		if bytes.Contains(b, []byte("i=16")) { // key derivation is not tested here
			s := newScram(mechSHA1, "u", "p", "abc")
			s.first()
			_, _ = s.final(string(b))
		}
	}, []byte("r=abcd,s=QSXCR+Q6sek8bf92,i=16"))
}
