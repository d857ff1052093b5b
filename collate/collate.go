// Package collate turns JSON values into bytes whose memcmp order is the collation order, and back.
//
// The order is: missing < null < false < true < numbers < strings < arrays < objects.
//
//   - Numbers compare by value. A text without fraction and exponent that is an integer of 64 bits stays exact; any
//     other text is the nearest float64, as in arithmetic, so that 2^53+1, float64 and int64 values compare exactly
//     with each other. -0 equals 0; below the smallest denormal is 0. What is beyond float64 (1e400, an integer of 400
//     digits) stays exact by its decimal digits; a magnitude of 10^MaxExponent or more is 10^MaxExponent.
//   - Strings compare by their UTF-8 bytes.
//   - Arrays compare element by element, the shorter first if it is a prefix of the other.
//   - Objects compare by number of members, then member by member in the order of their names: first by name, then by
//     value. Of members with the same name the last counts.
//
// Guarantees: each encoded value delimits itself (no encoding is a prefix of another), so that a composite key is the
// plain concatenation of its components; the complement of an encoding sorts in reverse (DESC); two values have the
// same bytes if and only if they are equal; decoding returns the value. The bytes are a stored format and do not
// change.
//
// The package does not allocate when it encodes plain values (other than to grow dst), never panics on input, and has
// no knowledge of documents or indexes.
package collate

import (
	"bytes"
	"errors"
	"slices"
)

const (
	// MaxDepth is how deep arrays and objects may be nested in a value, on both ways.
	MaxDepth = 128
	// MaxExponent limits decimal exponents: numbers of this magnitude or more are all the same.
	MaxExponent = 1_000_000_000
)

var (
	// ErrJSON is wrapped if a text is not one JSON value.
	ErrJSON = errors.New("not a JSON value")
	// ErrDepth is wrapped if a value is nested deeper than MaxDepth.
	ErrDepth = errors.New("nested too deep")
	// ErrKey is wrapped if bytes were not encoded by this package.
	ErrKey = errors.New("not a collated key")
	// ErrTooLong is wrapped if an encoding would exceed the caller's limit.
	ErrTooLong = errors.New("collated key too long")
)

// Kind is the type of a value, in collation order. It is also the first byte of its encoding; the values between are
// unused.
type Kind byte

// The kinds. A zero byte ends arrays and objects and therefore is not a kind.
const (
	Missing Kind = 0x08
	Null    Kind = 0x10
	False   Kind = 0x18
	True    Kind = 0x20
	Number  Kind = 0x28
	String  Kind = 0x30
	Array   Kind = 0x38
	Object  Kind = 0x40
)

// String returns the kind's name.
func (k Kind) String() string {
	switch k {
	case Missing:
		return "missing"
	case Null:
		return "null"
	case False:
		return "false"
	case True:
		return "true"
	case Number:
		return "number"
	case String:
		return "string"
	case Array:
		return "array"
	case Object:
		return "object"
	}
	return "unknown kind"
}

const (
	tagEnd byte = 0x00 // ends arrays and objects: below every kind, so that the shorter array is first

	// A zero byte within a string is escaped; the end of a string sorts before any continuation.
	strEscape byte = 0x00
	strZero   byte = 0xFF // after strEscape: a zero byte
	strEnd    byte = 0x01 // after strEscape: end of the string
)

// AppendMissing appends MISSING, which is not a JSON value but may be a component of a key.
func AppendMissing(dst []byte) []byte { return append(dst, byte(Missing)) }

// AppendNull appends null.
func AppendNull(dst []byte) []byte { return append(dst, byte(Null)) }

// AppendBool appends false or true.
func AppendBool(dst []byte, v bool) []byte {
	if v {
		return append(dst, byte(True))
	}
	return append(dst, byte(False))
}

// AppendString appends a string given by its bytes. Bytes that are not UTF-8 are ordered by their value, and each is
// decoded as U+FFFD, since JSON cannot represent them.
func AppendString(dst, s []byte) []byte {
	dst = append(dst, byte(String))
	if i := bytes.IndexByte(s, 0); i >= 0 {
		return appendEscaped(dst, s, i)
	}
	dst = append(dst, s...)
	return append(dst, strEscape, strEnd)
}

// appendEscaped appends s, whose first zero byte is at i, and the end of the string.
func appendEscaped(dst, s []byte, i int) []byte {
	for ; i >= 0; i = bytes.IndexByte(s, 0) {
		dst = append(dst, s[:i]...)
		dst = append(dst, strEscape, strZero)
		s = s[i+1:]
	}
	dst = append(dst, s...)
	return append(dst, strEscape, strEnd)
}

// escapeTail turns the raw bytes dst[from:] into an escaped and ended string, in place.
func escapeTail(dst []byte, from int) []byte {
	zeros := bytes.Count(dst[from:], []byte{0})
	if zeros > 0 {
		end := len(dst)
		dst = append(dst, make([]byte, zeros)...)
		for r, w := end-1, len(dst)-1; w > r; r-- {
			if dst[r] == 0 {
				dst[w], dst[w-1] = strZero, strEscape
				w -= 2
			} else {
				dst[w] = dst[r]
				w--
			}
		}
	}
	return append(dst, strEscape, strEnd)
}

// Complement inverts every bit in place: what sorted ascending sorts descending, and the other way round.
func Complement(b []byte) {
	for i := range b {
		b[i] = ^b[i]
	}
}

// PrefixEnd returns the smallest key that is greater than every key with this prefix, or nil if there is none.
func PrefixEnd(prefix []byte) []byte {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] != 0xFF {
			end := slices.Clone(prefix[:i+1])
			end[i]++
			return end
		}
	}
	return nil
}
