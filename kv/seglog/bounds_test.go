package seglog

import (
	"bufio"
	"bytes"
	"testing"

	"tidemark/internal/testing/allocbound"
)

// TestLengthsBoundAllocations checks that memory is allocated only for bytes that exist, whatever a record's header
// claims, even with a correct checksum beside the length.
func TestLengthsBoundAllocations(t *testing.T) {
	r := bufio.NewReaderSize(nil, readBufferBytes)
	scan := func(content []byte) {
		for _, last := range []bool{false, true} {
			r.Reset(bytes.NewReader(content))
			s := scanner{path: "0000000000000001.seg", r: r, size: int64(len(content)), last: last}
			if done, err := s.header(1, "b/1"); done || err != nil {
				return
			}
			for {
				if _, err := s.next(); err != nil {
					break
				}
			}
		}
	}
	allocbound.Check(t, 0, scan, append(segmentHeader(1, "b/1"), frames("one", "two")...))
	for _, claim := range []int{1 << 10, 1 << 20, MaxPayload} {
		head := FinishFrame(append(BeginFrame(nil), make([]byte, claim)...), 0)[:FrameOverhead]
		allocbound.Check(t, 0, func(tail []byte) {
			scan(append(append(segmentHeader(1, "b/1"), head...), tail...))
		}, []byte("ab"))
	}
}
