package scan

import (
	"encoding/binary"
	"hash/crc32"
	"testing"

	"tidemark/errcode"
	"tidemark/internal/testing/allocbound"
)

// TestLengthsBoundAllocations: whatever lengths frames claim, with correct checksums, memory is allocated only for
// received data.
func TestLengthsBoundAllocations(t *testing.T) {
	rows := []Row{{[]byte("key"), []byte("doc")}, {[]byte("key2"), []byte("doc2")}}
	answers := [][]byte{
		writeFrames(t, rows, (*FrameWriter).End),
		writeFrames(t, nil, func(w *FrameWriter) error { return w.Fail(Errorf(errcode.Timeout, "late")) }),
	}
	read := func(b []byte) { _, _, _ = readAll(b) }
	allocbound.Check(t, readBuffer+chunk, read, answers...)
	for _, answer := range answers {
		for at, n := 0, 0; at < len(answer); at += n {
			n = 5 + int(binary.BigEndian.Uint32(answer[at:])) + 4
			before, kind := answer[:at], answer[at+4]
			allocbound.Check(t, readBuffer+chunk, func(payload []byte) {
				b := binary.BigEndian.AppendUint32(append([]byte(nil), before...), uint32(len(payload)))
				b = append(append(b, kind), payload...)
				read(binary.BigEndian.AppendUint32(b, crc32.Checksum(b[len(before)+4:], castagnoli)))
			}, answer[at+5:at+n-4])
		}
	}
	allocbound.Check(t, 0, func(b []byte) { _, _ = ParseRequest(b) },
		[]byte(`{"range":{"low":[null,1],"high":[{}],"inclusion":"both"},"limit":10}`))
}
