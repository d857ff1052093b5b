package mcbp

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Sizes and limits of a frame. Every received length is checked against them before anything is allocated or sliced.
const (
	// HeaderSize is the fixed size of every frame's header in bytes.
	HeaderSize = 24
	// MaxValue is the largest document value in bytes (20 MiB).
	MaxValue = 20 << 20
	// BodySlack is the maximum of a body beside the value: frame extras, extras, key, and up to 1 MiB of extended
	// attributes with their lengths.
	BodySlack = 1<<20 + 128<<10
	// MaxBody is the largest body in bytes that a frame may announce.
	MaxBody = MaxValue + BodySlack
	// MaxSnappyRatio exceeds the maximum compression ratio of snappy, which is 64 to 3. A value that claims more is
	// invalid, and no memory is allocated for it.
	MaxSnappyRatio = 22
	// MaxKey is the longest key that a frame can carry in bytes (the field has 16 bits). Documents have the shorter
	// limit MaxDocumentKey.
	MaxKey = 1<<16 - 1
	// MaxDocumentKey is the longest document key in bytes, without a collection
	// prefix.
	MaxDocumentKey = 250
	// MaxExtras is the longest extras section in bytes.
	MaxExtras = 255
	// MaxFrameExtras is the longest frame extras section in bytes.
	MaxFrameExtras = 255
	// MaxFlexKey is the longest key in a frame with frame extras (the field has 8 bits then).
	MaxFlexKey = 255
)

// Errors of the frame codec. They are wrapped with the value and the limit.
var (
	// ErrShort is returned if the bytes end before the frame does. It is not a protocol violation: read more and parse
	// again. It is not wrapped.
	ErrShort = errors.New("mcbp: incomplete frame")
	// ErrMagic is wrapped if the first byte is not a known magic: the peer uses another protocol, or the reader is out
	// of sync.
	ErrMagic = errors.New("mcbp: unknown magic byte")
	// ErrTooLarge is wrapped if a length exceeds its limit.
	ErrTooLarge = errors.New("mcbp: length exceeds its limit")
	// ErrLengths is wrapped if key, extras and frame extras do not fit into the body.
	ErrLengths = errors.New("mcbp: lengths do not add up")
	// ErrMalformed is wrapped if the fixed fields of a message do not have the size or the content that its opcode
	// requires.
	ErrMalformed = errors.New("mcbp: malformed message")
)

// Magic is the first byte of a frame: direction and header form.
type Magic uint8

// The magics. The flexible forms carry frame extras and a one-byte key length.
const (
	MagicRequest      Magic = 0x80
	MagicResponse     Magic = 0x81
	MagicFlexRequest  Magic = 0x08
	MagicFlexResponse Magic = 0x18
)

// Valid reports whether m is one of the four magics.
func (m Magic) Valid() bool {
	return m == MagicRequest || m == MagicResponse || m == MagicFlexRequest || m == MagicFlexResponse
}

// IsRequest reports whether the frame is a request (or, in DCP, a message of a stream).
func (m Magic) IsRequest() bool { return m == MagicRequest || m == MagicFlexRequest }

// IsResponse reports whether the frame is a response.
func (m Magic) IsResponse() bool { return m == MagicResponse || m == MagicFlexResponse }

// flexible reports whether the header has a frame extras length.
func (m Magic) flexible() bool { return m == MagicFlexRequest || m == MagicFlexResponse }

// Header is the 24 byte header, decoded. BodyLen counts frame extras, extras,
// key and value.
type Header struct {
	Magic          Magic
	Op             Opcode
	Datatype       Datatype
	FrameExtrasLen int
	KeyLen         int
	ExtrasLen      int
	// VBucketOrStatus is the vbucket in a request and the status in a response.
	VBucketOrStatus uint16
	BodyLen         int
	// Opaque is chosen by the requester and repeated in every answer. DCP stream messages carry the opaque of their
	// STREAM_REQ.
	Opaque uint32
	CAS    uint64
}

// Size returns the size of the whole frame in bytes, including the header. DCP flow control counts the same.
func (h *Header) Size() int { return HeaderSize + h.BodyLen }

// VBucket returns the vbucket of a request.
func (h *Header) VBucket() uint16 { return h.VBucketOrStatus }

// Status returns the status of a response.
func (h *Header) Status() Status { return Status(h.VBucketOrStatus) }

// ParseHeader decodes the first HeaderSize bytes of buf and checks that their
// lengths agree with each other and with the limits. Errors: ErrShort, ErrMagic,
// ErrTooLarge, ErrLengths.
func ParseHeader(buf []byte) (h Header, err error) {
	err = h.parse(buf)
	return h, err
}

// parse is ParseHeader in place, because it runs for every message of a feed.
func (h *Header) parse(buf []byte) error {
	if len(buf) < HeaderSize {
		if len(buf) > 0 && !Magic(buf[0]).Valid() {
			return badMagic(buf[0])
		}
		return ErrShort
	}
	b := buf[:HeaderSize]
	h.Magic, h.Op = Magic(b[0]), Opcode(b[1])
	switch h.Magic {
	case MagicRequest, MagicResponse:
		h.FrameExtrasLen, h.KeyLen = 0, int(binary.BigEndian.Uint16(b[2:]))
	case MagicFlexRequest, MagicFlexResponse:
		h.FrameExtrasLen, h.KeyLen = int(b[2]), int(b[3])
	default:
		return badMagic(b[0])
	}
	h.ExtrasLen, h.Datatype = int(b[4]), Datatype(b[5])
	h.VBucketOrStatus = binary.BigEndian.Uint16(b[6:])
	h.BodyLen = int(binary.BigEndian.Uint32(b[8:]))
	h.Opaque = binary.BigEndian.Uint32(b[12:])
	h.CAS = binary.BigEndian.Uint64(b[16:])
	if h.BodyLen > MaxBody || h.FrameExtrasLen+h.ExtrasLen+h.KeyLen > h.BodyLen {
		return h.badLengths()
	}
	return nil
}

// badMagic returns the error for an unknown magic, outside of the hot path.
func badMagic(b byte) error { return fmt.Errorf("%w: %#02x", ErrMagic, b) }

// badLengths returns the error for the length that is wrong.
func (h *Header) badLengths() error {
	if h.BodyLen > MaxBody {
		return fmt.Errorf("%w: %v announces a body of %d bytes, at most %d are allowed", ErrTooLarge, h.Op, h.BodyLen,
			MaxBody)
	}
	return fmt.Errorf("%w: %v has frame extras %d + extras %d + key %d bytes in a body of %d",
		ErrLengths, h.Op, h.FrameExtrasLen, h.ExtrasLen, h.KeyLen, h.BodyLen)
}

// Frame is one message. The slices of a parsed frame alias the parsed bytes, and are valid as long as those are.
type Frame struct {
	Header
	FrameExtras, Extras, Key, Value []byte
}

// Parse decodes the frame at the beginning of buf and returns its size. The error is ErrShort if buf has only the
// beginning of a frame (n is 0 then).
func Parse(buf []byte) (f Frame, n int, err error) {
	n, err = f.Parse(buf)
	if err != nil {
		return Frame{}, 0, err
	}
	return f, n, nil
}

// Parse is the function Parse in place, for loops over many frames. After an
// error f is undefined.
func (f *Frame) Parse(buf []byte) (n int, err error) {
	if err := f.Header.parse(buf); err != nil {
		return 0, err
	}
	n = f.Size()
	if len(buf) < n {
		return 0, ErrShort
	}
	f.split(buf[HeaderSize:n])
	return n, nil
}

// Frame splits a body by the header's lengths. The header must come from ParseHeader and body must have exactly
// BodyLen bytes, otherwise the frame has only its header.
func (h Header) Frame(body []byte) Frame {
	f := Frame{Header: h}
	if len(body) == h.BodyLen && h.FrameExtrasLen+h.ExtrasLen+h.KeyLen <= len(body) {
		f.split(body)
	}
	return f
}

// split sets the sections, whose lengths have been checked.
func (f *Frame) split(body []byte) {
	a := f.FrameExtrasLen
	b := a + f.ExtrasLen
	c := b + f.KeyLen
	f.FrameExtras, f.Extras, f.Key, f.Value = body[:a:a], body[a:b:b], body[b:c:c], body[c:len(body):len(body)]
}

// Clone copies the frame's bytes, so that it outlives the buffer from which it was parsed.
func (f Frame) Clone() Frame {
	body := make([]byte, 0, len(f.FrameExtras)+len(f.Extras)+len(f.Key)+len(f.Value))
	take := func(b []byte) []byte {
		at := len(body)
		body = append(body, b...)
		return body[at:len(body):len(body)]
	}
	f.FrameExtras, f.Extras, f.Key, f.Value = take(f.FrameExtras), take(f.Extras), take(f.Key), take(f.Value)
	return f
}

// Append appends the encoded frame to dst. The lengths are taken from the
// slices (the length fields of f.Header are ignored); a frame with frame extras
// gets the flexible form of its magic. On an error dst is returned unchanged.
func Append(dst []byte, f Frame) ([]byte, error) {
	out, err := AppendHeader(dst, f)
	if err != nil {
		return dst, err
	}
	out = append(out, f.FrameExtras...)
	out = append(out, f.Extras...)
	out = append(out, f.Key...)
	return append(out, f.Value...), nil
}

// AppendHeader appends only the header of f, for writers that send the parts of the body separately (in the order
// frame extras, extras, key, value).
func AppendHeader(dst []byte, f Frame) ([]byte, error) {
	magic := f.Magic
	if len(f.FrameExtras) > 0 {
		switch magic {
		case MagicRequest:
			magic = MagicFlexRequest
		case MagicResponse:
			magic = MagicFlexResponse
		}
	}
	if err := checkLengths(magic, f); err != nil {
		return dst, err
	}
	var h [HeaderSize]byte
	h[0], h[1] = byte(magic), byte(f.Op)
	if magic.flexible() {
		h[2], h[3] = byte(len(f.FrameExtras)), byte(len(f.Key))
	} else {
		binary.BigEndian.PutUint16(h[2:], uint16(len(f.Key)))
	}
	h[4], h[5] = byte(len(f.Extras)), byte(f.Datatype)
	binary.BigEndian.PutUint16(h[6:], f.VBucketOrStatus)
	binary.BigEndian.PutUint32(h[8:], uint32(len(f.FrameExtras)+len(f.Extras)+len(f.Key)+len(f.Value)))
	binary.BigEndian.PutUint32(h[12:], f.Opaque)
	binary.BigEndian.PutUint64(h[16:], f.CAS)
	return append(dst, h[:]...), nil
}

// checkLengths refuses lengths that the header's fields cannot represent.
func checkLengths(magic Magic, f Frame) error {
	if !magic.Valid() {
		return fmt.Errorf("%w: %#02x", ErrMagic, byte(magic))
	}
	maxKey := MaxKey
	if magic.flexible() {
		maxKey = MaxFlexKey
	}
	body := len(f.FrameExtras) + len(f.Extras) + len(f.Key) + len(f.Value)
	switch {
	case len(f.FrameExtras) > MaxFrameExtras:
		return fmt.Errorf("%w: %v with %d bytes of frame extras, at most %d", ErrTooLarge, f.Op, len(f.FrameExtras),
			MaxFrameExtras)
	case len(f.Extras) > MaxExtras:
		return fmt.Errorf("%w: %v with %d bytes of extras, at most %d", ErrTooLarge, f.Op, len(f.Extras), MaxExtras)
	case len(f.Key) > maxKey:
		return fmt.Errorf("%w: %v with a key of %d bytes, at most %d", ErrTooLarge, f.Op, len(f.Key), maxKey)
	case body > MaxBody:
		return fmt.Errorf("%w: %v with a body of %d bytes, at most %d", ErrTooLarge, f.Op, body, MaxBody)
	}
	return nil
}

// Request returns the header of a request to a vbucket.
func Request(op Opcode, vbucket uint16, opaque uint32) Header {
	return Header{Magic: MagicRequest, Op: op, VBucketOrStatus: vbucket, Opaque: opaque}
}

// Response returns the header of the answer to a request, with the same opcode and opaque.
func Response(to Header, status Status) Header {
	return Header{Magic: MagicResponse, Op: to.Op, VBucketOrStatus: uint16(status), Opaque: to.Opaque}
}

// malformed returns the error for a message with a section whose size is not the one that its opcode requires.
func malformed(what string, got int, want string) error {
	return fmt.Errorf("%w: %s has %d bytes, want %s", ErrMalformed, what, got, want)
}
