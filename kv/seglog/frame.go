package seglog

import (
	"encoding/binary"
	"hash/crc32"
)

// FrameOverhead is the number of bytes a frame adds to its payload: length, CRC-32C of the length, CRC-32C of the
// payload.
const FrameOverhead = 12

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// BeginFrame reserves a frame header at the end of dst. Append the payload to the result, then call FinishFrame with
// the length dst had before.
func BeginFrame(dst []byte) []byte {
	var header [FrameOverhead]byte
	return append(dst, header[:]...)
}

// FinishFrame fills the header of the frame that began at offset start of dst and ends at the end of dst.
func FinishFrame(dst []byte, start int) []byte {
	header, payload := dst[start:start+FrameOverhead], dst[start+FrameOverhead:]
	binary.BigEndian.PutUint32(header, uint32(len(payload)))
	binary.BigEndian.PutUint32(header[4:], crc32.Checksum(header[:4], castagnoli))
	binary.BigEndian.PutUint32(header[8:], crc32.Checksum(payload, castagnoli))
	return dst
}

// frameHeader reads a frame header; ok is false when the length does not match its own checksum.
func frameHeader(header []byte) (length, payloadCRC uint32, ok bool) {
	length = binary.BigEndian.Uint32(header)
	ok = crc32.Checksum(header[:4], castagnoli) == binary.BigEndian.Uint32(header[4:])
	return length, binary.BigEndian.Uint32(header[8:]), ok
}

func payloadOK(payload []byte, crc uint32) bool { return crc32.Checksum(payload, castagnoli) == crc }
