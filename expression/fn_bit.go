package expression

import (
	"math/bits"
	"slices"

	"tidemark/collate"
)

var bitFunctions = []*Function{
	{Name: "BITAND", Family: FamilyBit, Params: "integer, integer, …", Min: 2, Max: MaxArgs, lenient: true,
		About:   "The bits that are 1 in all integers.",
		Example: Example{`BITAND(6, 3)`, `2`}, eval: bitwise(func(x, y int64) int64 { return x & y })},
	{Name: "BITCLEAR", Family: FamilyBit, Params: "integer, positions", Min: 2, Max: 2,
		About: "The integer with the bits at a position, or at an array of positions, set to 0. Positions are 1 (the " +
			"lowest) to 64.",
		Example: Example{`BITCLEAR(7, [1, 3])`, `2`}, eval: bitsAt(func(s *Scratch, x, at uint64, _ bool) value {
			return s.integer(int64(x &^ at))
		})},
	{Name: "BITNOT", Family: FamilyBit, Params: "integer", Min: 1, Max: 1, About: "All 64 bits inverted.",
		Example: Example{`BITNOT(0)`, `-1`}, eval: func(s *Scratch, a []value) value {
			x, ok := s.whole(a[0])
			if !ok {
				return null
			}
			return s.integer(^x)
		}},
	{Name: "BITOR", Family: FamilyBit, Params: "integer, integer, …", Min: 2, Max: MaxArgs, lenient: true,
		About:   "The bits that are 1 in any of the integers.",
		Example: Example{`BITOR(4, 1)`, `5`}, eval: bitwise(func(x, y int64) int64 { return x | y })},
	{Name: "BITSET", Family: FamilyBit, Params: "integer, positions", Min: 2, Max: 2,
		About:   "The integer with the bits at a position, or at an array of positions, set to 1.",
		Example: Example{`BITSET(0, [1, 3])`, `5`}, eval: bitsAt(func(s *Scratch, x, at uint64, _ bool) value {
			return s.integer(int64(x | at))
		})},
	{Name: "BITSHIFT", Family: FamilyBit, Params: "integer, shift [, flag]", Min: 2, Max: 3, lenient: true,
		About:   "The integer shifted to the left, or to the right if negative, by this number of bits; with TRUE, rotated.",
		Example: Example{`BITSHIFT(1, 3)`, `8`}, eval: bitShift},
	{Name: "BITTEST", Aliases: []string{"ISBITSET"}, Family: FamilyBit, Params: "integer, positions [, flag]", Min: 2,
		Max: 3, lenient: true, About: "Whether a bit at one of these positions is 1; with TRUE, whether all are.",
		Example: Example{`BITTEST(6, [1, 2])`, `true`}, eval: bitsAt(func(_ *Scratch, x, at uint64, all bool) value {
			return boolean(x&at != 0 && !all || all && x&at == at)
		})},
	{Name: "BITXOR", Family: FamilyBit, Params: "integer, integer, …", Min: 2, Max: MaxArgs, lenient: true,
		About:   "The bits that are 1 in an odd number of the integers.",
		Example: Example{`BITXOR(6, 3)`, `5`}, eval: bitwise(func(x, y int64) int64 { return x ^ y })},
}

// firstWrong returns MISSING or NULL for the first argument that is MISSING or of a wrong kind: the first must be a
// number, the second a number or of one of these kinds, a third a boolean. It returns 0 if none is wrong.
func firstWrong(a []value, second ...collate.Kind) collate.Kind {
	for i, v := range a {
		fine := v.kind == kindNumber
		switch i {
		case 1:
			fine = fine || slices.Contains(second, v.kind)
		case 2:
			fine = v.kind == kindTrue || v.kind == kindFalse
		}
		if !fine {
			return min(v.kind, kindNull)
		}
	}
	return 0
}

func bitwise(f func(x, y int64) int64) evaluation {
	return func(s *Scratch, a []value) value {
		result := int64(0)
		for _, v := range a {
			if v.kind != kindNumber {
				return value{kind: min(v.kind, kindNull)}
			}
		}
		for i, v := range a {
			x, ok := s.whole(v)
			if !ok {
				return null
			}
			if i == 0 {
				result = x
			} else {
				result = f(result, x)
			}
		}
		return s.integer(result)
	}
}

// bitsAt makes a function of an integer and bit positions.
func bitsAt(f func(s *Scratch, x, at uint64, all bool) value) evaluation {
	return func(s *Scratch, a []value) value {
		if wrong := firstWrong(a, kindNumber, kindArray); wrong != 0 {
			return value{kind: wrong}
		}
		x, ok := s.whole(a[0])
		if !ok {
			return null
		}
		base := len(s.stack)
		defer func() { s.stack = s.stack[:base] }()
		if a[1].kind == kindArray {
			if _, ok := s.push(a[1]); !ok {
				return missing
			}
		} else {
			s.stack = append(s.stack, a[1])
		}
		at := uint64(0)
		for _, v := range s.stack[base:] {
			position, ok := s.whole(v)
			if !ok || position < 1 || position > 64 {
				return null
			}
			at |= 1 << (position - 1)
		}
		return f(s, uint64(x), at, len(a) == 3 && a[2].kind == kindTrue)
	}
}

func bitShift(s *Scratch, a []value) value {
	if wrong := firstWrong(a, kindNumber); wrong != 0 {
		return value{kind: wrong}
	}
	x, ok := s.whole(a[0])
	n, fine := s.whole(a[1])
	if !ok || !fine {
		return null
	}
	if len(a) == 3 && a[2].kind == kindTrue {
		return s.integer(int64(bits.RotateLeft64(uint64(x), int(n%64))))
	}
	if n = max(-64, min(n, 64)); n < 0 {
		return s.integer(int64(uint64(x) >> -n))
	}
	return s.integer(int64(uint64(x) << n))
}
