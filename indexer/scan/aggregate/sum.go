package aggregate

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"strconv"

	"tidemark/collate"
)

// sum adds numbers exactly. Integers are added in whole as long as that fits an int64; everything else is added in
// wide.
type sum struct {
	numbers int64
	whole   int64
	wide    *wide
	rounded bool // some number was not a 64-bit integer: the result is a float64
	beyond  bool // some number exceeds the range of float64: there is no result
}

// wide is a fixed-point number: limb i counts units of 2^(32i-1074), which starts at the smallest float64. A limb
// takes 2^30 additions of 32 bits before it must carry.
type wide struct {
	limbs [limbs]int64
	adds  int
}

const (
	pointAt   = 1074 // bits after the binary point
	limbBits  = 32
	limbs     = (pointAt + 1024 + 64 + limbBits) / limbBits // room for 2^63 times the largest float64, and one to spare
	manyAdds  = 1 << 30
	limbMask  = 1<<limbBits - 1
	wideBytes = limbs*8 + 8
)

// empty returns a sum of nothing that reuses the memory of s.
func (s *sum) empty() sum {
	if s.wide != nil {
		*s.wide = wide{}
	}
	return sum{wide: s.wide}
}

func (s *sum) bytes() int {
	if s.wide == nil {
		return 0
	}
	return wideBytes
}

// add adds a value if it is a number.
func (s *sum) add(component []byte) {
	v, f, form := collate.ReadNumber(component)
	switch form {
	case collate.NoNumber:
		return
	case collate.Integer:
		s.addWhole(v)
	case collate.Float:
		s.rounded = true
		s.addFloat(f)
	default:
		s.beyond = true
	}
	s.numbers++
}

func (s *sum) addWhole(v int64) {
	if t := s.whole + v; (t > s.whole) == (v > 0) {
		s.whole = t
		return
	}
	s.widen().add(magnitude(v), pointAt, v < 0)
}

func magnitude(v int64) uint64 {
	if v < 0 {
		return -uint64(v)
	}
	return uint64(v)
}

func (s *sum) widen() *wide {
	if s.wide == nil {
		s.wide = &wide{}
	}
	return s.wide
}

func (s *sum) addFloat(f float64) {
	b := math.Float64bits(f)
	exponent, mantissa := uint(b>>52&0x7FF), b&(1<<52-1)
	if exponent == 0 {
		exponent = 1
	} else {
		mantissa |= 1 << 52
	}
	s.widen().add(mantissa, exponent-1, b>>63 != 0)
}

// add adds m × 2^(at-1074), or subtracts it.
func (w *wide) add(m uint64, at uint, negative bool) {
	i, off := at/limbBits, at%limbBits
	low, high := m<<off, m>>(64-off)
	parts := [3]int64{int64(low & limbMask), int64(low >> limbBits), int64(high)}
	for n, p := range parts {
		if negative {
			p = -p
		}
		if p != 0 {
			w.limbs[int(i)+n] += p
		}
	}
	if w.adds++; w.adds == manyAdds {
		w.carry()
	}
}

// carry reduces all limbs but the last one to 32 bits.
func (w *wide) carry() {
	w.adds = 0
	for i := range limbs - 1 {
		c := w.limbs[i] >> limbBits
		w.limbs[i] -= c << limbBits
		w.limbs[i+1] += c
	}
}

// total returns the sum × 2^1074.
func (s *sum) total() *big.Int {
	w := wide{}
	if s.wide != nil {
		w = *s.wide
	}
	w.add(magnitude(s.whole), pointAt, s.whole < 0)
	w.carry()
	negative := w.limbs[limbs-1] < 0
	if negative {
		for i := range w.limbs {
			w.limbs[i] = -w.limbs[i]
		}
		w.carry()
	}
	const perWord = bits.UintSize / limbBits
	words := make([]big.Word, limbs/perWord+1)
	for i, l := range w.limbs {
		words[i/perWord] |= big.Word(l) << (i % perWord * limbBits)
	}
	x := new(big.Int).SetBits(words)
	if negative {
		x.Neg(x)
	}
	return x
}

// Flags of a state.
const (
	flagRounded = 1 << iota
	flagBeyond
	flagWide
	flagNegative // of wide
	flagsEnd
)

// appendTo appends flags (1 byte), the count (uvarint) and whole (varint). For wide it also appends the number of
// trailing zero bytes (uvarint), the number of the other bytes (uvarint), and these, big-endian.
func (s *sum) appendTo(dst []byte) []byte {
	var flags byte
	if s.rounded {
		flags |= flagRounded
	}
	if s.beyond {
		flags |= flagBeyond
	}
	var digits []byte
	if s.wide != nil {
		x := (&sum{wide: s.wide}).total()
		if x.Sign() < 0 {
			flags |= flagNegative
		}
		flags |= flagWide
		digits = x.Bytes()
	}
	dst = append(dst, flags)
	dst = binary.AppendUvarint(dst, uint64(s.numbers))
	dst = binary.AppendVarint(dst, s.whole)
	if s.wide == nil {
		return dst
	}
	zeros := 0
	for n := len(digits); n > 0 && digits[n-1] == 0; n-- {
		zeros++
	}
	digits = digits[:len(digits)-zeros]
	dst = binary.AppendUvarint(dst, uint64(zeros))
	return append(binary.AppendUvarint(dst, uint64(len(digits))), digits...)
}

// join adds a sum that appendTo wrote.
func (s *sum) join(b []byte) (rest []byte, err error) {
	cut := fmt.Errorf("%w: a sum is truncated", ErrState)
	if len(b) == 0 || b[0] >= flagsEnd {
		return nil, cut
	}
	flags, b := b[0], b[1:]
	numbers, n := binary.Uvarint(b)
	if n <= 0 || numbers > mostRows {
		return nil, cut
	}
	whole, m := binary.Varint(b[n:])
	if m <= 0 {
		return nil, cut
	}
	b = b[n+m:]
	s.numbers += int64(numbers)
	s.rounded = s.rounded || flags&flagRounded != 0
	s.beyond = s.beyond || flags&flagBeyond != 0
	s.addWhole(whole)
	if flags&flagWide == 0 {
		return b, nil
	}
	return s.joinWide(b, flags&flagNegative != 0)
}

// joinWide adds the bytes of wide.
func (s *sum) joinWide(b []byte, negative bool) (rest []byte, err error) {
	cut := fmt.Errorf("%w: the digits of a sum are truncated", ErrState)
	zeros, n := binary.Uvarint(b)
	if n <= 0 {
		return nil, cut
	}
	size, m := binary.Uvarint(b[n:])
	if m <= 0 || zeros > mostDigits || size > mostDigits-zeros || size > uint64(len(b)-n-m) {
		return nil, cut
	}
	digits, rest := b[n+m:n+m+int(size)], b[n+m+int(size):]
	w, at := s.widen(), uint(zeros)*8
	for len(digits) > 0 {
		k := max(0, len(digits)-4)
		v := uint64(0)
		for _, d := range digits[k:] {
			v = v<<8 | uint64(d)
		}
		w.add(v, at, negative)
		digits, at = digits[:k], at+limbBits
	}
	return rest, nil
}

// mostDigits bounds the bytes of an encoded wide number: shifted into place, it leaves two limbs above.
const mostDigits = (limbs - 2) * limbBits / 8

// appendTotal appends the sum as JSON: for integers with all digits, otherwise as the nearest float64.
func (s *sum) appendTotal(dst []byte) []byte {
	switch {
	case s.numbers == 0, s.beyond:
		return append(dst, null...)
	case s.wide == nil:
		return strconv.AppendInt(dst, s.whole, 10)
	case !s.rounded:
		return s.wholeTotal().Append(dst, 10)
	}
	return appendFloat(dst, s.total(), pointAt)
}

// wholeTotal returns the sum if all numbers are integers.
func (s *sum) wholeTotal() *big.Int {
	x := s.total()
	return x.Quo(x, new(big.Int).Lsh(big.NewInt(1), pointAt))
}

// appendMean appends the mean as JSON: for integers with an integer mean as that integer, otherwise as the nearest
// float64.
func (s *sum) appendMean(dst []byte) []byte {
	if s.numbers == 0 || s.beyond {
		return append(dst, null...)
	}
	n := big.NewInt(s.numbers)
	if !s.rounded {
		if q, r := new(big.Int).QuoRem(s.wholeTotal(), n, new(big.Int)); r.Sign() == 0 {
			return q.Append(dst, 10)
		}
	}
	// With that many extra bits, the remainder can only break a tie. The lowest bit then represents the remainder.
	const more = 64
	x := s.total()
	q, r := new(big.Int).QuoRem(x.Lsh(x, more), n, new(big.Int))
	if r.Sign() != 0 && q.Bit(0) == 0 {
		q.Add(q, big.NewInt(int64(r.Sign())))
	}
	return appendFloat(dst, q, pointAt+more)
}

// appendFloat appends the float64 nearest to x × 2^-down, or null if there is none.
func appendFloat(dst []byte, x *big.Int, down int) []byte {
	v := new(big.Float).SetInt(x)
	f, _ := v.SetMantExp(v, -down).Float64()
	text, err := collate.Decode(dst, collate.AppendFloat64(nil, f)) // null for an infinity
	if err != nil {
		return append(dst, null...)
	}
	return text
}
