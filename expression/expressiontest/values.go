package expressiontest

import (
	"encoding/json"
	"math"
	"math/big"
	"slices"
	"strconv"

	"tidemark/collate/collatetest"
	"tidemark/expression"
)

func arrayFunctions() map[string]function {
	return map[string]function{
		"ARRAY_APPEND": ofArray(func(l, rest []any) any { return append(l, rest...) }),
		"ARRAY_AVG": summed(func(m *interpreter, sum number, n int64) any {
			if n == 0 {
				return nil
			}
			return m.compute(expression.OpDivide, sum, number{n, float64(n), true})
		}),
		"ARRAY_CONCAT":   ofArrays(func(lists [][]any) any { return append([]any{}, slices.Concat(lists...)...) }),
		"ARRAY_CONTAINS": ofArray(func(l, rest []any) any { return placeOf(l, rest[0]) >= 0 }),
		"ARRAY_COUNT": ofArray(func(l, _ []any) any {
			return integer(int64(len(slices.DeleteFunc(l, func(v any) bool { return v == nil }))))
		}),
		"ARRAY_DISTINCT": ofArray(func(l, _ []any) any { return different(l) }),
		"ARRAY_FLATTEN": func(_ *interpreter, a []any) any {
			l, ok := a[0].([]any)
			depth, fine := whole(a[1])
			if !ok || !fine {
				return nil
			}
			if depth < 0 {
				depth = math.MaxInt32
			}
			return flatten(l, depth)
		},
		"ARRAY_IFNULL": ofArray(func(l, _ []any) any {
			for _, v := range l {
				if v != nil {
					return v
				}
			}
			return nil
		}),
		"ARRAY_LENGTH":   ofArray(func(l, _ []any) any { return integer(int64(len(l))) }),
		"ARRAY_MAX":      ofArray(func(l, _ []any) any { return extreme(l, 1) }),
		"ARRAY_MIN":      ofArray(func(l, _ []any) any { return extreme(l, -1) }),
		"ARRAY_POSITION": ofArray(func(l, rest []any) any { return integer(int64(placeOf(l, rest[0]))) }),
		"ARRAY_PREPEND": func(_ *interpreter, a []any) any {
			l, ok := a[len(a)-1].([]any)
			if !ok {
				return nil
			}
			return append(slices.Clone(a[:len(a)-1]), l...)
		},
		"ARRAY_PUT": ofArray(func(l, rest []any) any {
			out := slices.Clone(l)
			for _, v := range rest {
				if placeOf(l, v) < 0 {
					out = append(out, v)
				}
			}
			return out
		}),
		"ARRAY_RANGE": arrayRange,
		"ARRAY_REMOVE": ofArray(func(l, rest []any) any {
			return slices.DeleteFunc(l, func(v any) bool { return placeOf(rest, v) >= 0 })
		}),
		"ARRAY_REVERSE": ofArray(func(l, _ []any) any { slices.Reverse(l); return l }),
		"ARRAY_SORT":    ofArray(func(l, _ []any) any { slices.SortStableFunc(l, collatetest.Compare); return l }),
		"ARRAY_SUM": summed(func(m *interpreter, sum number, _ int64) any {
			if sum.integer {
				return integer(sum.i)
			}
			return m.float(sum.f)
		}),
		"ARRAY_UNION": ofArrays(func(lists [][]any) any { return distinct(slices.Concat(lists...)) }),
	}
}

// different returns the values without repetitions.
func different(list []any) []any {
	out := []any{}
	for _, v := range list {
		if indexOf(out, v) < 0 {
			out = append(out, v)
		}
	}
	return out
}

func distinct(list []any) []any {
	out := different(list)
	slices.SortFunc(out, collatetest.Compare)
	return out
}

func flatten(list []any, depth int64) []any {
	out := []any{}
	for _, v := range list {
		if inner, ok := v.([]any); ok && depth > 0 {
			out = append(out, flatten(inner, depth-1)...)
		} else {
			out = append(out, v)
		}
	}
	return out
}

// summed makes a function of the sum and the count of an array's numbers.
func summed(f func(m *interpreter, sum number, count int64) any) function {
	return func(m *interpreter, a []any) any {
		list, isArray := a[0].([]any)
		sum, count, ok := m.sum(list)
		if !isArray || !ok {
			return nil
		}
		return f(m, sum, count)
	}
}

// sum adds numbers from left to right: exactly while they and the sum are 64-bit integers, from then on as float64.
func (m *interpreter) sum(list []any) (sum number, count int64, ok bool) {
	sum.integer = true
	for _, v := range list {
		text, isNumber := v.(json.Number)
		if !isNumber {
			continue
		}
		n, ok := m.numeric(text)
		if !ok {
			return sum, 0, false
		}
		count++
		exact := new(big.Int).Add(big.NewInt(sum.i), big.NewInt(n.i))
		if sum.integer = sum.integer && n.integer && exact.IsInt64(); sum.integer {
			sum.i, sum.f = exact.Int64(), float64(exact.Int64())
		} else {
			sum.i, sum.f = 0, sum.f+n.f
		}
	}
	return sum, count, true
}

// placeOf returns the position of the first element that equals a value, by the operator =; -1 if there is none.
func placeOf(list []any, v any) int {
	return slices.IndexFunc(list, func(o any) bool { return equal(o, v) == true })
}

func arrayRange(m *interpreter, a []any) any {
	n := []float64{0, 0, 1}
	for i, v := range a {
		text, ok := v.(json.Number)
		if !ok {
			return nil
		}
		x, ok := m.numeric(text)
		if !ok {
			return Missing
		}
		n[i] = x.f
	}
	from, to, step := n[0], n[1], n[2]
	if step == 0 || (to-from)*step <= 0 || from == to {
		return []any{}
	}
	if math.Abs(to-from)/math.Abs(step) > 10_000 || math.Abs(from) > 1<<53 || math.Abs(to) > 1<<53 {
		return m.fail("ARRAY_RANGE")
	}
	list := []any{}
	for at := from; step > 0 && at < to || step < 0 && at > to; at += step {
		list = append(list, m.float(at))
	}
	return list
}

// known reports whether a value is neither MISSING nor NULL.
func known(v any) bool { return v != nil && v != Missing }

// nameOf returns the name of a value's type.
func nameOf(v any) string {
	switch v.(type) {
	case collatetest.Missing:
		return "missing"
	case nil:
		return "null"
	case bool:
		return "boolean"
	case json.Number:
		return "number"
	case string:
		return "string"
	case []any:
		return "array"
	}
	return "object"
}

func typeFunctions() map[string]function {
	is := func(names ...string) function {
		return func(_ *interpreter, a []any) any { return slices.Contains(names, nameOf(a[0])) }
	}
	unless := func(otherwise any) function {
		return func(_ *interpreter, a []any) any {
			switch e := equal(a[0], a[1]); e {
			case true:
				return otherwise
			case false:
				return a[0]
			default:
				return e
			}
		}
	}
	first := func(not ...any) function {
		return func(_ *interpreter, a []any) any {
			for _, v := range a {
				if known(v) || !slices.Contains(not, v) {
					return v
				}
			}
			return nil
		}
	}
	return map[string]function{
		"ISARRAY": is("array"), "ISATOM": is("boolean", "number", "string"), "ISBOOLEAN": is("boolean"),
		"ISNUMBER": is("number"),
		"ISOBJECT": is("object"), "ISSTRING": is("string"),
		"TYPE": func(_ *interpreter, a []any) any { return nameOf(a[0]) },
		"TOARRAY": func(_ *interpreter, a []any) any {
			if _, ok := a[0].([]any); ok {
				return a[0]
			}
			return []any{a[0]}
		},
		"TOATOM":    func(_ *interpreter, a []any) any { return toAtom(a[0]) },
		"TOBOOLEAN": func(_ *interpreter, a []any) any { return truth(a[0]) },
		"TONUMBER":  toNumber,
		"TOOBJECT": func(_ *interpreter, a []any) any {
			if _, ok := a[0].(map[string]any); ok {
				return a[0]
			}
			return map[string]any{}
		},
		"TOSTRING": toText,
		"DECODE":   decode,
		"ISBINARY": is(),
		"IFINF":    firstNumber(false), "IFNANORINF": firstNumber(true),
		"NVL": func(_ *interpreter, a []any) any {
			if known(a[0]) {
				return a[0]
			}
			return a[1]
		},
		"IFMISSING": first(Missing), "IFNULL": first(nil), "IFMISSINGORNULL": first(Missing, nil),
		"MISSINGIF": unless(Missing), "NULLIF": unless(nil),
		"NVL2": func(_ *interpreter, a []any) any {
			if known(a[0]) {
				return a[1]
			}
			return a[2]
		},
	}
}

func toNumber(_ *interpreter, a []any) any {
	switch v := a[0].(type) {
	case json.Number:
		return v
	case bool:
		if v {
			return integer(1)
		}
		return integer(0)
	case string:
		return readNumber(v)
	}
	return nil
}

func firstNumber(passMissing bool) function {
	return func(_ *interpreter, a []any) any {
		for _, v := range a {
			if _, ok := v.(json.Number); ok {
				return v
			}
			if v != Missing {
				return nil
			}
			if !passMissing {
				return Missing
			}
		}
		return nil
	}
}

func toAtom(v any) any {
	switch v := v.(type) {
	case []any:
		if len(v) != 1 {
			return nil
		}
		return toAtom(v[0])
	case map[string]any:
		if len(v) != 1 {
			return nil
		}
		for _, inner := range v {
			return toAtom(inner)
		}
	}
	return v
}

// toText formats a number with all its digits and no exponent.
func toText(m *interpreter, a []any) any {
	switch v := a[0].(type) {
	case string:
		return v
	case bool:
		return strconv.FormatBool(v)
	case json.Number:
		n, ok := m.numeric(v)
		switch {
		case !ok:
			return Missing
		case n.integer:
			return strconv.FormatInt(n.i, 10)
		}
		return strconv.FormatFloat(n.f, 'f', -1, 64)
	}
	return nil
}

func decode(_ *interpreter, a []any) any {
	for i := 1; i+1 < len(a); i += 2 {
		if collatetest.Compare(a[0], a[i]) == 0 {
			return a[i+1]
		}
	}
	if len(a)%2 == 0 {
		return a[len(a)-1]
	}
	return nil
}
