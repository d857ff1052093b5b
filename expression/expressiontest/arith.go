package expressiontest

import (
	"encoding/json"
	"math"
	"math/big"
	"strconv"
	"strings"

	"tidemark/collate/collatetest"
	"tidemark/expression"
)

func minus(v any) any {
	switch v := v.(type) {
	case json.Number:
		if strings.HasPrefix(string(v), "-") {
			return v[1:]
		}
		return "-" + v
	case collatetest.Missing:
		return v
	}
	return nil
}

// number is a number for arithmetic: a 64-bit integer, or a float64.
type number struct {
	i       int64
	f       float64
	integer bool
}

// numeric converts a number: to an integer if its text is a 64-bit integer, or if its float64 is one.
func (m *interpreter) numeric(v json.Number) (n number, ok bool) {
	if i, err := strconv.ParseInt(string(v), 10, 64); err == nil {
		return number{i, float64(i), true}, true
	}
	f, _ := strconv.ParseFloat(string(v), 64)
	if math.IsInf(f, 0) {
		m.fail("%s", v)
		return n, false
	}
	if f == math.Trunc(f) && f >= -1<<63 && f < 1<<63 {
		return number{int64(f), f, true}, true
	}
	return number{f: f}, true
}

func integer(i int64) any { return json.Number(strconv.FormatInt(i, 10)) }

// float returns a number whose float64 is f again.
func (m *interpreter) float(f float64) any {
	switch {
	case math.IsNaN(f):
		return nil
	case math.IsInf(f, 0):
		return m.fail("the result")
	case f == math.Trunc(f) && f >= -1<<63 && f < 1<<63:
		return integer(int64(f))
	}
	return json.Number(strconv.FormatFloat(f, 'e', -1, 64))
}

func (m *interpreter) arith(op expression.Op, l, r any) any {
	x, xok := l.(json.Number)
	y, yok := r.(json.Number)
	if l == Missing || r == Missing {
		return Missing
	}
	if !xok || !yok {
		return nil
	}
	a, aok := m.numeric(x)
	b, bok := m.numeric(y)
	if !aok || !bok {
		return Missing
	}
	return m.compute(op, a, b)
}

// operations are the arithmetic operators: exact on integers, nil if there is no integer result, and on floats.
var operations = map[expression.Op]struct {
	exact  func(z, x, y *big.Int) *big.Int
	floats func(x, y float64) float64
}{
	expression.OpAdd:      {(*big.Int).Add, func(x, y float64) float64 { return x + y }},
	expression.OpSubtract: {(*big.Int).Sub, func(x, y float64) float64 { return x - y }},
	expression.OpMultiply: {(*big.Int).Mul, func(x, y float64) float64 { return x * y }},
	expression.OpDivide:   {quotient, func(x, y float64) float64 { return x / y }},
	expression.OpModulo:   {(*big.Int).Rem, math.Mod},
}

func quotient(z, x, y *big.Int) *big.Int {
	if _, rest := z.QuoRem(x, y, new(big.Int)); rest.Sign() != 0 {
		return nil
	}
	return z
}

func (m *interpreter) compute(op expression.Op, a, b number) any {
	if (op == expression.OpDivide || op == expression.OpModulo) && b.f == 0 {
		return nil
	}
	if a.integer && b.integer {
		z := operations[op].exact(new(big.Int), big.NewInt(a.i), big.NewInt(b.i))
		if z != nil && z.IsInt64() {
			return integer(z.Int64())
		}
	}
	return m.float(operations[op].floats(a.f, b.f))
}
