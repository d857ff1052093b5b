package keyversion

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// Every frame begins with a header of HeaderSize bytes, integers little-endian:
//
//	0  2  magic "TK"
//	2  1  frame type: 1 batch, 2 hello, 3 acknowledgement
//	3  1  format version of that type
//	4  4  length of the body that follows
//	8  8  number of the batch; 0 in the other types
//	16 4  crc32c of the body
//	20 4  crc32c of the first 20 bytes
//
// The number is not covered by the body's checksum, so that Finish needs only one pass over the body.
const (
	HeaderSize = 24

	magic0 = 'T'
	magic1 = 'K'

	frameBatch byte = 1
	frameHello byte = 2
	frameAck   byte = 3
)

// Format versions, one per type of frame. A reader refuses unknown ones.
const (
	BatchFormat = 1
	HelloFormat = 1
	AckFormat   = 1
)

// Limits. Encoders refuse what decoders would refuse. The keys of a document in one index are never split across
// frames, so a frame must have room for the most and the longest keys that an index may have for one document. The
// keys of all indexes together may exceed that: then the event is sent in parts (Event.Part).
const (
	MaxFrame      = 48 << 20 // bytes, header included
	MaxHelloFrame = 8 << 10
	MaxAckFrame   = 4 << 10

	MaxDocID           = 4 << 10 // bytes; KV's own limit is 250
	MaxEvents          = 1 << 14 // per batch
	MaxStatements      = 1 << 16 // per event
	MaxBatchStatements = 1 << 20
	MaxKeys            = 1_000_000 // per statement
	MaxBatchKeys       = 1 << 21
	MaxKey             = 16 << 20 // bytes; the projector's own limit is far lower
	MaxCopies          = 1 << 16  // per event: copies of one bucket at one node
	MaxLog             = 64       // entries of a failover log, the limit of timestamp.DecodeLog
	MaxName            = 1 << 10  // bytes of each text in a hello
	MaxReason          = 2 << 10  // bytes of a refusal's text
)

var (
	// ErrCorrupt is wrapped if bytes are not a frame: wrong magic or checksum, or an impossible length.
	ErrCorrupt = errors.New("corrupt KeyVersions frame")
	// ErrFormat is wrapped if a frame has a format version that this program does not support.
	ErrFormat = errors.New("unknown KeyVersions frame format")
	// ErrTooLarge is wrapped if something to be encoded exceeds a limit. The destination is unchanged then.
	ErrTooLarge = errors.New("KeyVersions limit exceeded")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sealHeader sets the header of frame, whose body is complete.
func sealHeader(frame []byte, typ, format byte, number uint64) {
	frame[0], frame[1], frame[2], frame[3] = magic0, magic1, typ, format
	binary.LittleEndian.PutUint32(frame[4:], uint32(len(frame)-HeaderSize))
	binary.LittleEndian.PutUint64(frame[8:], number)
	binary.LittleEndian.PutUint32(frame[16:], crc32.Checksum(frame[HeaderSize:], castagnoli))
	binary.LittleEndian.PutUint32(frame[20:], crc32.Checksum(frame[:20], castagnoli))
}

// openHeader checks a whole frame and returns its number and its body.
func openHeader(frame []byte, typ, format byte, limit int) (number uint64, body []byte, err error) {
	if len(frame) < HeaderSize {
		return 0, nil, fmt.Errorf("%w: %d bytes, a header has %d", ErrCorrupt, len(frame), HeaderSize)
	}
	if len(frame) > limit {
		return 0, nil, fmt.Errorf("%w: %d bytes, at most %d", ErrCorrupt, len(frame), limit)
	}
	if frame[0] != magic0 || frame[1] != magic1 {
		return 0, nil, fmt.Errorf("%w: begins with %x, want %q", ErrCorrupt, frame[:2], "TK")
	}
	if want, got := binary.LittleEndian.Uint32(frame[20:]), crc32.Checksum(frame[:20], castagnoli); want != got {
		return 0, nil, fmt.Errorf("%w: header checksum %08x, the header states %08x", ErrCorrupt, got, want)
	}
	if frame[2] != typ {
		return 0, nil, fmt.Errorf("%w: frame type %d, want %d", ErrCorrupt, frame[2], typ)
	}
	if frame[3] != format {
		return 0, nil, fmt.Errorf("%w: version %d, this program supports %d; use the same version on both sides",
			ErrFormat, frame[3], format)
	}
	body = frame[HeaderSize:]
	if n := binary.LittleEndian.Uint32(frame[4:]); uint64(n) != uint64(len(body)) {
		return 0, nil, fmt.Errorf("%w: the header states a body of %d bytes, the frame has %d", ErrCorrupt, n, len(body))
	}
	if want, got := binary.LittleEndian.Uint32(frame[16:]), crc32.Checksum(body, castagnoli); want != got {
		return 0, nil, fmt.Errorf("%w: body checksum %08x, the header states %08x", ErrCorrupt, got, want)
	}
	return binary.LittleEndian.Uint64(frame[8:]), body, nil
}

// reader decodes numbers and byte strings from a body. After the first failure bad is set, results are zero, and
// nothing is left.
type reader struct {
	b   []byte
	at  int
	bad bool
}

func (r *reader) fail() {
	r.bad, r.b, r.at = true, nil, 0
}

// left returns the number of unread bytes.
func (r *reader) left() int { return len(r.b) - r.at }

func (r *reader) byte() byte {
	if r.at >= len(r.b) {
		r.fail()
		return 0
	}
	c := r.b[r.at]
	r.at++
	return c
}

func (r *reader) uint64() uint64 {
	if r.left() < 8 {
		r.fail()
		return 0
	}
	u := binary.LittleEndian.Uint64(r.b[r.at:])
	r.at += 8
	return u
}

// uvarint reads a number; most are below 128.
func (r *reader) uvarint() uint64 {
	if i := r.at; i < len(r.b) && r.b[i] < 0x80 {
		r.at = i + 1
		return uint64(r.b[i])
	}
	return r.longUvarint()
}

func (r *reader) longUvarint() uint64 {
	u, n := binary.Uvarint(r.b[r.at:])
	if n <= 0 {
		r.fail()
		return 0
	}
	r.at += n
	return u
}

func (r *reader) varint() int64 {
	u := r.uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

// bytes reads a length and that many bytes, which alias the frame.
func (r *reader) bytes(limit uint64) []byte {
	n := r.count(limit)
	at := r.at
	r.at += n
	return r.b[at:r.at:r.at]
}

// number reads a number of at most limit.
func (r *reader) number(limit uint64) uint64 {
	n := r.uvarint()
	if n > limit {
		r.fail()
		return 0
	}
	return n
}

// count reads the number of items that take at least one byte each.
func (r *reader) count(limit uint64) int {
	n := r.uvarint()
	if n > limit || n > uint64(len(r.b)-r.at) {
		r.fail()
		return 0
	}
	return int(n)
}
