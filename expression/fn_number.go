package expression

import (
	"bytes"
	"math"
	"strconv"
)

// number1 makes a function of one number; anything else gives NULL.
func number1(f func(s *Scratch, n number) value) evaluation {
	return func(s *Scratch, a []value) value {
		if a[0].kind != kindNumber {
			return null
		}
		n, ok := s.numberOf(a[0])
		if !ok {
			return missing
		}
		return f(s, n)
	}
}

// rounded makes a function that gives an integer as it is.
func rounded(f func(float64) float64) evaluation {
	return func(s *Scratch, a []value) value {
		return number1(func(s *Scratch, n number) value {
			if n.isInt {
				return a[0]
			}
			return s.float(f(n.f))
		})(s, a)
	}
}

var numberFunctions = []*Function{
	{Name: "ABS", Family: FamilyNumber, Params: "number", Min: 1, Max: 1, About: "Without its sign.", Example: Example{`ABS(-3)`, `3`}, eval: abs},
	{Name: "CEIL", Family: FamilyNumber, Params: "number", Min: 1, Max: 1, About: "The smallest integer that is not below it.",
		Example: Example{`CEIL(2.1)`, `3`}, eval: rounded(math.Ceil)},
	{Name: "FLOOR", Family: FamilyNumber, Params: "number", Min: 1, Max: 1, About: "The largest integer that is not above it.",
		Example: Example{`FLOOR(-2.1)`, `-3`}, eval: rounded(math.Floor)},
	{Name: "GREATEST", Family: FamilyNumber, Params: "value, …", Min: 1, Max: MaxArgs, About: "The last of the values in collation order; MISSING and NULL do not count.",
		Example: Example{`GREATEST(2, null, 3)`, `3`}, lenient: true, eval: extreme(1)},
	{Name: "IDIV", Family: FamilyNumber, Params: "a, b", Min: 2, Max: 2, About: "How often b goes into a, without the fraction. By 0: NULL.",
		Example: Example{`IDIV(-7, 2)`, `-3`}, eval: idiv},
	{Name: "IMOD", Family: FamilyNumber, Params: "a, b", Min: 2, Max: 2, About: "What IDIV leaves.", Example: Example{`IMOD(-7, 2)`, `-1`}, eval: imod},
	{Name: "LEAST", Family: FamilyNumber, Params: "value, …", Min: 1, Max: MaxArgs, About: "The first of the values in collation order; MISSING and NULL do not count.",
		Example: Example{`LEAST("a", 3)`, `3`}, lenient: true, eval: extreme(-1)},
	{Name: "ROUND", Family: FamilyNumber, Params: "number [, digits]", Min: 1, Max: 2,
		About:   "The nearest with so many digits after the point (0 if not given; before the point if negative); a half goes away from 0.",
		Example: Example{`ROUND(2.345, 2)`, `2.35`}, eval: toDigits(true)},
	{Name: "SIGN", Family: FamilyNumber, Params: "number", Min: 1, Max: 1, About: "-1, 0 or 1.", Example: Example{`SIGN(-0.5)`, `-1`}, eval: number1(sign)},
	{Name: "SQRT", Family: FamilyNumber, Params: "number", Min: 1, Max: 1, About: "The square root; of a negative number NULL.",
		Example: Example{`SQRT(9)`, `3`}, eval: number1(func(s *Scratch, n number) value { return s.float(math.Sqrt(n.f)) })},
	{Name: "TRUNC", Family: FamilyNumber, Params: "number [, digits]", Min: 1, Max: 2, About: "As ROUND, towards 0.",
		Example: Example{`TRUNC(-2.9)`, `-2`}, eval: toDigits(false)},
}

func abs(s *Scratch, a []value) value {
	if a[0].kind == kindNumber && a[0].data[0] != '-' {
		return a[0]
	}
	return s.negate(a[0])
}

func sign(s *Scratch, n number) value {
	switch {
	case n.f < 0:
		return s.integer(-1)
	case n.f > 0:
		return s.integer(1)
	}
	return s.integer(0)
}

// extreme gives the value that is first (-1) or last (1) in collation order.
func extreme(direction int) evaluation {
	return func(s *Scratch, a []value) value {
		best := null
		for _, v := range a {
			if v.kind <= kindNull {
				continue
			}
			if best.kind == kindNull || s.order(v, best)*direction > 0 {
				best = v
			}
		}
		return best
	}
}

// integers gives two integer arguments.
func (s *Scratch) integers(a []value) (x, y int64, ok bool) {
	x, ok = s.whole(a[0])
	if !ok {
		return 0, 0, false
	}
	y, ok = s.whole(a[1])
	return x, y, ok && y != 0
}

func idiv(s *Scratch, a []value) value {
	x, y, ok := s.integers(a)
	if !ok {
		return null
	}
	if x == math.MinInt64 && y == -1 {
		return s.float(-float64(x))
	}
	return s.integer(x / y)
}

func imod(s *Scratch, a []value) value {
	x, y, ok := s.integers(a)
	switch {
	case !ok:
		return null
	case y == -1:
		return s.integer(0)
	}
	return s.integer(x % y)
}

// maxDigits limits the digits of ROUND and TRUNC.
const maxDigits = 300

// toDigits cuts a number's decimal digits, those that are shown, and rounds a half away from 0 if up is set.
func toDigits(up bool) evaluation {
	return func(s *Scratch, a []value) value {
		digits := int64(0)
		if len(a) == 2 {
			var ok bool
			if digits, ok = s.whole(a[1]); !ok || digits < -maxDigits || digits > maxDigits {
				return null
			}
		}
		return number1(func(s *Scratch, n number) value {
			switch {
			case digits >= 0 && n.isInt:
				return a[0]
			case digits >= 0 && n.f == math.Trunc(n.f):
				return s.float(n.f)
			}
			if n.isInt {
				n, _ = s.numberOf(value{kindNumber, cutDecimals(strconv.AppendInt(nil, n.i, 10), int(digits), up)})
				return s.compute(OpAdd, n, number{isInt: true})
			}
			f, _ := strconv.ParseFloat(string(cutDecimals(strconv.AppendFloat(nil, n.f, 'f', -1, 64), int(digits), up)), 64)
			return s.float(f)
		})(s, a)
	}
}

// cutDecimals leaves so many digits after the point of a decimal number; negative: as many before it are 0.
func cutDecimals(text []byte, digits int, up bool) []byte {
	sign := []byte(nil)
	if text[0] == '-' {
		sign, text = text[:1], text[1:]
	}
	whole, fraction, _ := bytes.Cut(text, []byte("."))
	all := append(append([]byte{'0'}, whole...), fraction...) // a digit in front for the carry
	point := len(whole) + 1
	keep := point + digits
	if keep >= len(all) {
		return append(sign, text...)
	}
	carry := up && keep >= 1 && all[keep] >= '5'
	for i := max(keep, 0); i < len(all); i++ {
		all[i] = '0'
	}
	for i := keep - 1; carry; i-- {
		if all[i]++; all[i] <= '9' {
			break
		}
		all[i] = '0'
	}
	out := append(bytes.Clone(sign), all[:point]...)
	if keep > point {
		out = append(append(out, '.'), all[point:keep]...)
	}
	return out
}
