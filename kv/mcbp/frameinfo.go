package mcbp

import "fmt"

// FrameInfo is the kind of one frame extra of a request.
type FrameInfo int

// The frame extras of requests.
const (
	FrameBarrier        FrameInfo = 0 // execute in order
	FrameDurability     FrameInfo = 1 // level u8, optional timeout u16 in ms
	FrameStreamID       FrameInfo = 2 // DCP stream id u16
	FrameTracing        FrameInfo = 3 // an opaque tracing context
	FrameImpersonate    FrameInfo = 4 // on behalf of this user
	FramePreserveExpiry FrameInfo = 5 // a write keeps the document's expiry
)

// FrameServerDuration is the frame extra of a response with the processing time of the server: two bytes, see
// AppendServerDuration.
const FrameServerDuration FrameInfo = 0

// String returns the kind in words.
func (i FrameInfo) String() string {
	names := [...]string{"barrier", "durability requirement", "DCP stream id", "tracing context", "impersonated user",
		"preserved expiry"}
	if i >= 0 && int(i) < len(names) {
		return names[i]
	}
	return fmt.Sprintf("frame info %d", int(i))
}

// NextFrameInfo splits the first frame extra off b. It returns its kind, its content and the rest. An id or a length
// of fifteen is continued in the next byte.
func NextFrameInfo(b []byte) (id FrameInfo, content, rest []byte, err error) {
	if len(b) == 0 {
		return 0, nil, nil, malformed("frame extra", 0, "at least 1")
	}
	kind, n := int(b[0]>>4), int(b[0]&0x0f)
	rest = b[1:]
	for _, p := range [...]*int{&kind, &n} {
		if *p != 0x0f {
			continue
		}
		if len(rest) == 0 {
			return 0, nil, nil, malformed("escaped frame extra", len(b), "another byte")
		}
		*p += int(rest[0])
		rest = rest[1:]
	}
	if n > len(rest) {
		return 0, nil, nil, fmt.Errorf("%w: a frame extra of %d bytes where %d are left", ErrMalformed, n, len(rest))
	}
	return FrameInfo(kind), rest[:n:n], rest[n:], nil
}

// AppendFrameInfo appends one frame extra. Kind and size must be below 15, which is true of all known ones.
func AppendFrameInfo(dst []byte, id FrameInfo, content []byte) []byte {
	return append(append(dst, byte(id)<<4|byte(len(content))&0x0f), content...)
}

// AppendServerDuration appends the frame extra of a response with the processing time of the server, in the unit of
// the protocol (the duration in microseconds is about code^1.74 / 2).
func AppendServerDuration(dst []byte, code uint16) []byte {
	return AppendFrameInfo(dst, FrameServerDuration, []byte{byte(code >> 8), byte(code)})
}
