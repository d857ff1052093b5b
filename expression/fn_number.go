package expression

import "math"

// number1 makes a function of one number; NULL for anything else.
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

// rounded makes a function that returns integers unchanged.
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
	{Name: "ABS", Family: FamilyNumber, Params: "number", Min: 1, Max: 1, About: "The absolute value.",
		Example: Example{`ABS(-3)`, `3`}, eval: abs},
	{Name: "CEIL", Family: FamilyNumber, Params: "number", Min: 1, Max: 1,
		About:   "The smallest integer that is not below it.",
		Example: Example{`CEIL(2.1)`, `3`}, eval: rounded(math.Ceil)},
	{Name: "FLOOR", Family: FamilyNumber, Params: "number", Min: 1, Max: 1,
		About:   "The largest integer that is not above it.",
		Example: Example{`FLOOR(-2.1)`, `-3`}, eval: rounded(math.Floor)},
	{Name: "GREATEST", Family: FamilyNumber, Params: "value, value, …", Min: 2, Max: MaxArgs,
		About:   "The last of the values in collation order; MISSING and NULL are ignored.",
		Example: Example{`GREATEST(2, null, 3)`, `3`}, lenient: true, eval: extreme(1)},
	{Name: "DEGREES", Aliases: []string{"DEG"}, Family: FamilyNumber, Params: "number", Min: 1, Max: 1,
		About:   "An angle in radians, converted to degrees.",
		Example: Example{`DEGREES(PI())`, `180`}, eval: number1(func(s *Scratch, n number) value {
			return s.float(float64(float64(n.f*180) / math.Pi))
		})},
	{Name: "E", Family: FamilyNumber, Params: "", Min: 0, Max: 0, About: "The base of natural logarithms.",
		Example: Example{`E()`, `2.718281828459045`},
		eval:    func(s *Scratch, _ []value) value { return s.float(math.E) }},
	{Name: "IDIV", Family: FamilyNumber, Params: "number, number", Min: 2, Max: 2,
		About:   "The integral quotient of two numbers, whose fractions are dropped before. NULL for a divisor of 0.",
		Example: Example{`IDIV(-7, 2)`, `-3`}, eval: idiv},
	{Name: "IMOD", Family: FamilyNumber, Params: "number, number", Min: 2, Max: 2, About: "The remainder of IDIV.",
		Example: Example{`IMOD(-7, 2)`, `-1`}, eval: imod},
	{Name: "LEAST", Family: FamilyNumber, Params: "value, value, …", Min: 2, Max: MaxArgs,
		About:   "The first of the values in collation order; MISSING and NULL are ignored.",
		Example: Example{`LEAST("a", 3)`, `3`}, lenient: true, eval: extreme(-1)},
	{Name: "PI", Family: FamilyNumber, Params: "", Min: 0, Max: 0, About: "The number π.",
		Example: Example{`PI()`, `3.141592653589793`},
		eval:    func(s *Scratch, _ []value) value { return s.float(math.Pi) }},
	{Name: "RADIANS", Aliases: []string{"RAD"}, Family: FamilyNumber, Params: "number", Min: 1, Max: 1,
		About:   "An angle in degrees, converted to radians.",
		Example: Example{`RADIANS(180)`, `3.141592653589793`}, eval: number1(func(s *Scratch, n number) value {
			return s.float(float64(float64(n.f*math.Pi) / 180))
		})},
	{Name: "ROUND", Aliases: []string{"ROUND_EVEN"}, Family: FamilyNumber, Params: "number [, digits]", Min: 1, Max: 2,
		About: "The nearest number with this number of digits after the point (default 0; before the point if negative); " +
			"of two equally near ones, the even one.",
		Example: Example{`ROUND(2.5)`, `2`}, lenient: true, eval: toDigits(roundEven)},
	{Name: "ROUND_NEAREST", Family: FamilyNumber, Params: "number [, digits]", Min: 1, Max: 2,
		About:   "Like ROUND; of two equally near ones, the one further from 0.",
		Example: Example{`ROUND_NEAREST(2.5)`, `3`}, lenient: true, eval: toDigits(roundAway)},
	{Name: "SIGN", Family: FamilyNumber, Params: "number", Min: 1, Max: 1, About: "-1, 0 or 1.",
		Example: Example{`SIGN(-0.5)`, `-1`}, eval: number1(sign)},
	{Name: "SQRT", Family: FamilyNumber, Params: "number", Min: 1, Max: 1,
		About:   "The square root; NULL for a negative number.",
		Example: Example{`SQRT(9)`, `3`}, eval: number1(func(s *Scratch, n number) value { return s.float(math.Sqrt(n.f)) })},
	{Name: "TRUNC", Family: FamilyNumber, Params: "number [, digits]", Min: 1, Max: 2, About: "Like ROUND, towards 0.",
		Example: Example{`TRUNC(-2.9)`, `-2`}, lenient: true, eval: toDigits(math.Trunc)},
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

// extreme returns the value that is first (-1) or last (1) in collation order.
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

// truncated returns a number without its fraction, if that fits into 64 bits.
func (n number) truncated() (int64, bool) {
	if n.isInt {
		return n.i, true
	}
	if f := math.Trunc(n.f); f >= -(1<<63) && f < 1<<63 {
		return int64(f), true
	}
	return 0, false
}

// integers returns two numbers without their fractions; ok is false if the divisor is 0.
func (s *Scratch) integers(a []value) (x, y int64, ok bool) {
	if a[0].kind != kindNumber || a[1].kind != kindNumber {
		return 0, 0, false
	}
	m, ok := s.parseNumber(a[0])
	n, fine := s.parseNumber(a[1])
	if !ok || !fine {
		return 0, 0, false
	}
	x, ok = m.truncated()
	y, fine = n.truncated()
	return x, y, ok && fine && y != 0
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

// maxDigits bounds the digits of ROUND and TRUNC.
const maxDigits = 300

func roundEven(x float64) float64 {
	up := math.Floor(float64(x + 0.5))
	if up == float64(x+0.5) && math.Mod(up, 2) != 0 {
		up--
	}
	return up
}

func roundAway(x float64) float64 { return math.Floor(float64(x + 0.5)) }

// toDigits makes ROUND and TRUNC from their effect on a magnitude that was shifted by the number of digits. An
// integer stays unchanged unless digits before the point are dropped.
func toDigits(whole func(float64) float64) evaluation {
	return typed(func(s *Scratch, a []value) value {
		digits := int64(0)
		if len(a) == 2 {
			var ok bool
			if digits, ok = s.whole(a[1]); !ok || digits < -maxDigits || digits > maxDigits {
				return null
			}
		}
		return number1(func(s *Scratch, n number) value {
			if n.isInt && digits >= 0 {
				return a[0]
			}
			power := math.Pow(10, float64(digits))
			moved := float64(math.Abs(n.f) * power)
			if math.IsInf(moved, 0) {
				return s.float(n.f)
			}
			return s.float(math.Copysign(float64(whole(moved)/power), n.f))
		})(s, a)
	}, kindNumber)
}
