package collate

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
)

// A number is encoded as its kind and eight bytes: the nearest float64, with its bits arranged so that they sort by
// value. Below 2^53 in magnitude that is all, because every integer there is a float64. From there on a remainder
// follows: for an integer of 64 bits its exact value minus that float64, else 0, as one byte of sign and length, then
// the magnitude. Rounding preserves order, so float64 first and remainder second is the order of the values. Beyond
// the largest float64 the eight bytes are those of an infinity, and decimal exponent and digits follow.
const (
	exactInts = 1 << 53 // from here on not every integer is a float64

	// remainderZero+n: n bytes of a positive magnitude follow; remainderZero-n: n complemented bytes of a negative one.
	remainderZero = 0x80
	// maxRemainder is the maximum size of a remainder in bytes: half the distance between the two largest int64s that
	// are float64s is 2^9.
	maxRemainder = 2

	// safeDigits is a number of digits that always fits an int64.
	safeDigits = 18
	// maxFloatDigits is the maximum number of digits of an integer that rounds to a finite float64.
	maxFloatDigits = 309
)

// sortable arranges the bits of a float64 so that they sort as unsigned integers by value. -0 must not be passed.
func sortable(f float64) uint64 {
	u := math.Float64bits(f)
	if u>>63 != 0 {
		return ^u
	}
	return u | 1<<63
}

// unsortable is the inverse of sortable.
func unsortable(u uint64) float64 {
	if u>>63 != 0 {
		return math.Float64frombits(u &^ (1 << 63))
	}
	return math.Float64frombits(^u)
}

// appendFloat appends the kind and the eight bytes.
func appendFloat(dst []byte, f float64) []byte {
	u := sortable(f)
	return append(dst, byte(Number), byte(u>>56), byte(u>>48), byte(u>>40), byte(u>>32), byte(u>>24), byte(u>>16),
		byte(u>>8), byte(u))
}

// AppendFloat64 appends a number. -0 becomes 0; NaN and the infinities, which JSON does not have, become null.
func AppendFloat64(dst []byte, f float64) []byte {
	if f == 0 {
		f = 0 // also -0
	}
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return AppendNull(dst)
	}
	dst = appendFloat(dst, f)
	if f >= exactInts || f <= -exactInts {
		dst = append(dst, remainderZero)
	}
	return dst
}

// AppendInt64 appends an integer, exactly.
func AppendInt64(dst []byte, v int64) []byte {
	f := float64(v)
	dst = appendFloat(dst, f)
	if f < exactInts && f > -exactInts {
		return dst
	}
	var r int64 // at most 512 in magnitude
	if f == 1<<63 {
		r = v - math.MaxInt64 - 1 // rounded up past the largest int64
	} else {
		r = v - int64(f)
	}
	switch {
	case r >= 0x100:
		return append(dst, remainderZero+2, byte(r>>8), byte(r))
	case r > 0:
		return append(dst, remainderZero+1, byte(r))
	case r == 0:
		return append(dst, remainderZero)
	case r > -0x100:
		return append(dst, remainderZero-1, ^byte(-r))
	}
	return append(dst, remainderZero-2, ^byte(-r>>8), ^byte(-r))
}

// AppendNumber appends a number given by its JSON text. The error wraps ErrJSON, and dst is then unchanged.
func AppendNumber(dst, text []byte) ([]byte, error) {
	end, integer := ScanNumber(text, 0)
	if end != len(text) || end == 0 {
		return dst, fmt.Errorf("%w: %q is not a number", ErrJSON, clip(text))
	}
	return appendNumber(dst, text, integer), nil
}

// appendNumber appends a valid number text; integer is set if it has neither fraction nor exponent.
func appendNumber(dst, text []byte, integer bool) []byte {
	if !integer {
		f, err := strconv.ParseFloat(string(text), 64)
		if err != nil { // only: out of range
			return appendDecimal(dst, text)
		}
		return AppendFloat64(dst, f)
	}
	digits := text
	if text[0] == '-' {
		digits = text[1:]
	}
	if len(digits) > safeDigits {
		return appendBigInteger(dst, text)
	}
	var v int64
	for _, c := range digits {
		v = v*10 + int64(c-'0')
	}
	if text[0] == '-' {
		v = -v
	}
	return AppendInt64(dst, v)
}

// appendBigInteger appends an integer text of any size: exactly if it has 64 bits, else as the nearest float64, like
// arithmetic would.
func appendBigInteger(dst, text []byte) []byte {
	if v, err := strconv.ParseInt(string(text), 10, 64); err == nil {
		return AppendInt64(dst, v)
	}
	f, err := strconv.ParseFloat(string(text), 64)
	if err != nil { // only: out of range
		return appendDecimal(dst, text)
	}
	return AppendFloat64(dst, f)
}

// appendDecimal appends a number beyond the largest float64: the float64 bytes of an infinity, four bytes of decimal
// exponent e, and the digits d of 0.d × 10^e as bytes 1 to 10, ended by a zero byte. All after the infinity is
// complemented if the number is negative.
func appendDecimal(dst, text []byte) []byte {
	negative := text[0] == '-'
	if negative {
		text = text[1:]
		dst = appendFloat(dst, math.Inf(-1))
	} else {
		dst = appendFloat(dst, math.Inf(1))
	}
	start := len(dst)
	mantissa, exponent := text, int64(0)
	if i := bytes.IndexAny(text, "eE"); i >= 0 {
		mantissa, exponent = text[:i], parseExponent(text[i+1:])
	}
	dst = append(dst, 0, 0, 0, 0)
	whole := len(mantissa)
	if i := bytes.IndexByte(mantissa, '.'); i >= 0 {
		whole = i
	}
	leading := true
	exponent += int64(whole)
	for i, c := range mantissa {
		switch {
		case c == '.':
		case leading && c == '0':
			exponent-- // 0.00d: the first significant digit is further right
		default:
			leading = false
			dst = append(dst, mantissa[i]-'0'+1)
		}
	}
	if exponent > MaxExponent {
		exponent = MaxExponent + 1 // 0.1 × 10^(MaxExponent+1)
		dst = append(dst[:start+4], 2)
	}
	for dst[len(dst)-1] == 1 { // trailing zeros are not significant
		dst = dst[:len(dst)-1]
	}
	dst = append(dst, 0)
	binary.BigEndian.PutUint32(dst[start:], uint32(exponent))
	if negative {
		Complement(dst[start:])
	}
	return dst
}

// parseExponent parses sign and digits, clamped to a range in which sums with a text's length cannot overflow.
func parseExponent(text []byte) int64 {
	negative := text[0] == '-'
	if text[0] == '-' || text[0] == '+' {
		text = text[1:]
	}
	var e int64
	for _, c := range text {
		if e = e*10 + int64(c-'0'); e > 1<<50 {
			e = 1 << 50
		}
	}
	if negative {
		return -e
	}
	return e
}

// decodeNumber appends the JSON text of the number whose bytes after the kind are key, and returns the rest of key.
func decodeNumber(dst, key []byte) (text, rest []byte, err error) {
	n, err := numberLen(key)
	if err != nil {
		return dst, nil, err
	}
	f := unsortable(binary.BigEndian.Uint64(key))
	key, rest = key[8:n], key[n:]
	switch {
	case math.IsInf(f, 0):
		return decodeDecimal(dst, key, f < 0), rest, nil
	case len(key) <= 1: // no remainder, or zero
		return appendFloatText(dst, f), rest, nil
	}
	r := remainder(key)
	if f == 1<<63 { // rounded up past the largest int64
		return strconv.AppendInt(dst, math.MaxInt64+(r+1), 10), rest, nil
	}
	return strconv.AppendInt(dst, int64(f)+r, 10), rest, nil
}

// NumberForm is the form of a number that ReadNumber has decoded.
type NumberForm int

// The forms of numbers.
const (
	NoNumber NumberForm = iota // a value of another kind, or bytes that are not a component
	Integer                    // an integer of 64 bits
	Float
	Beyond // beyond the largest float64 in magnitude
)

// ReadNumber returns the number of a component that is not complemented: an Integer exactly and as the nearest
// float64, a Float as f alone.
func ReadNumber(component []byte) (v int64, f float64, form NumberForm) {
	if len(component) == 0 || Kind(component[0]) != Number {
		return 0, 0, NoNumber
	}
	key := component[1:]
	if n, err := numberLen(key); err != nil || n < len(key) {
		return 0, 0, NoNumber
	}
	f = unsortable(binary.BigEndian.Uint64(key))
	switch {
	case math.IsInf(f, 0):
		return 0, f, Beyond
	case f != math.Trunc(f) || math.Abs(f) > 1<<63:
		return 0, f, Float
	}
	r := remainder(key[8:])
	switch {
	case f < 1<<63:
		return int64(f) + r, f, Integer
	case r < 0: // rounded up past the largest int64
		return math.MaxInt64 + (r + 1), f, Integer
	}
	return 0, f, Float
}

// remainder decodes what follows the eight bytes: nothing, zero, or the exact value minus the float64.
func remainder(key []byte) (r int64) {
	if len(key) <= 1 {
		return 0
	}
	flip, sign := byte(0), int64(1)
	if key[0] < remainderZero {
		flip, sign = 0xFF, -1
	}
	for _, c := range key[1:] {
		r = r<<8 | int64(c^flip)
	}
	return sign * r
}

// maxPlainInteger is the limit below which integers are written with all their digits, which are exact.
const maxPlainInteger = 1e21

// appendFloatText appends the text of a float64. Encoding the text as a number results in the same bytes.
func appendFloatText(dst []byte, f float64) []byte {
	a := math.Abs(f)
	switch {
	case f == math.Trunc(f) && a < 1<<63:
		return strconv.AppendInt(dst, int64(f), 10)
	case f == math.Trunc(f) && a < maxPlainInteger:
		return strconv.AppendFloat(dst, f, 'f', 0, 64)
	case a >= 1e-6 && a < maxPlainInteger:
		return strconv.AppendFloat(dst, f, 'f', -1, 64)
	}
	return strconv.AppendFloat(dst, f, 'e', -1, 64)
}

// decodeDecimal appends the text of what appendDecimal wrote after the infinity.
func decodeDecimal(dst, key []byte, negative bool) []byte {
	flip := byte(0)
	if negative {
		flip = 0xFF
		dst = append(dst, '-')
	}
	exponent := uint32(0)
	for _, c := range key[:4] {
		exponent = exponent<<8 | uint32(c^flip)
	}
	for i, c := range key[4 : len(key)-1] {
		if i == 1 {
			dst = append(dst, '.')
		}
		dst = append(dst, (c^flip)-1+'0')
	}
	dst = append(dst, "e+"...)
	return strconv.AppendUint(dst, uint64(exponent)-1, 10)
}

// shortNumber is the size after the kind of a number below 2^53 in magnitude.
const shortNumber = 8

// isShortNumber reports whether the bytes after the kind are such a number. flip is 0xFF for a descending one.
func isShortNumber(key []byte, flip byte) bool {
	if len(key) < shortNumber {
		return false
	}
	f := unsortable(binary.BigEndian.Uint64(key) ^ uint64(flip)*lowBits)
	return f < exactInts && f > -exactInts && !(f == 0 && math.Signbit(f))
}

// numberLen returns how many bytes after the kind belong to a number, and checks that they are canonical.
func numberLen(key []byte) (int, error) {
	if len(key) < 8 {
		return 0, fmt.Errorf("%w: a number ends after %d bytes", ErrKey, len(key))
	}
	f := unsortable(binary.BigEndian.Uint64(key))
	switch {
	case math.IsNaN(f) || f == 0 && math.Signbit(f):
		return 0, fmt.Errorf("%w: a number holds %v", ErrKey, f)
	case math.IsInf(f, 0):
		return decimalLen(key, f < 0)
	case f < exactInts && f > -exactInts:
		return 8, nil
	case len(key) < 9:
		return 0, fmt.Errorf("%w: a number has no remainder", ErrKey)
	}
	flip, size := byte(0), int(key[8])-remainderZero
	if size < 0 {
		flip, size = 0xFF, -size
	}
	if size > maxRemainder || len(key) < 9+size || size > 0 && key[9] == flip {
		return 0, fmt.Errorf("%w: a number has an invalid remainder", ErrKey)
	}
	return 9 + size, nil
}

// decimalLen is numberLen for what appendDecimal wrote.
func decimalLen(key []byte, negative bool) (int, error) {
	flip := byte(0)
	if negative {
		flip = 0xFF
	}
	for i := 12; i < len(key); i++ {
		c := key[i] ^ flip
		if c == 0 {
			first, last := key[12]^flip, key[i-1]^flip
			exponent := binary.BigEndian.Uint32(key[8:]) ^ (uint32(flip) * 0x01010101)
			if i == 12 || first == 1 || last == 1 || exponent < maxFloatDigits || exponent > MaxExponent+1 {
				break
			}
			return i + 1, nil
		}
		if c > 10 {
			break
		}
	}
	return 0, fmt.Errorf("%w: a number has invalid decimal digits", ErrKey)
}
