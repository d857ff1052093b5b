package expressiontest

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"math/bits"
	"slices"
	"strings"

	"tidemark/collate/collatetest"
)

// ofArray makes a function of an array, which it may modify, and further arguments.
func ofArray(f func(list, rest []any) any) function {
	return func(_ *interpreter, a []any) any {
		list, ok := a[0].([]any)
		if !ok {
			return nil
		}
		return f(slices.Clone(list), a[1:])
	}
}

// placed makes a function of an array and positions in it.
func placed(f func(list []any, i, j int) []any) function {
	return ofArray(func(list, rest []any) any {
		var at [2]int64
		for k, v := range rest {
			i, ok := whole(v)
			i = fromStart(i, len(list))
			if !ok || i < 0 || i >= int64(len(list)) {
				return nil
			}
			at[k] = i
		}
		return f(list, int(at[0]), int(at[1]))
	})
}

// ofArrays makes a function of arrays only.
func ofArrays(f func(lists [][]any) any) function {
	return func(_ *interpreter, a []any) any {
		var lists [][]any
		for _, v := range a {
			list, ok := v.([]any)
			if !ok {
				return nil
			}
			lists = append(lists, list)
		}
		return f(lists)
	}
}

// counting makes a function that selects values by the number of arrays that contain them.
func counting(wanted func(count, arrays int, v any) bool) function {
	return ofArrays(func(lists [][]any) any {
		var all []any
		for _, list := range lists {
			all = append(all, distinct(list)...)
		}
		return slices.DeleteFunc(distinct(all), func(v any) bool {
			n := 0
			for _, w := range all {
				if collatetest.Compare(v, w) == 0 {
					n++
				}
			}
			return !wanted(n, len(lists), v)
		})
	})
}

func moreArrayFunctions() map[string]function {
	return map[string]function{
		"ARRAY_BINARY_SEARCH": func(_ *interpreter, a []any) any {
			if a[0] == Missing {
				return Missing
			}
			list, ok := a[0].([]any)
			if !ok {
				return nil
			}
			return integer(binarySearch(list, a[1]))
		},
		"ARRAY_EXCEPT": ofArray(func(list, rest []any) any {
			other, ok := rest[0].([]any)
			if !ok {
				return nil
			}
			return slices.DeleteFunc(list, func(v any) bool { return indexOf(other, v) >= 0 })
		}),
		"ARRAY_INSERT": ofArray(func(list, rest []any) any {
			at, ok := whole(rest[0])
			at = fromStart(at, len(list))
			if !ok || at < 0 || at > int64(len(list)) {
				return nil
			}
			return slices.Insert(list, int(at), rest[1:]...)
		}),
		"ARRAY_INTERSECT": counting(func(count, arrays int, v any) bool { return count == arrays && v != nil }),
		"ARRAY_MOVE": placed(func(list []any, i, j int) []any {
			v := list[i]
			return slices.Insert(slices.Delete(list, i, i+1), j, v)
		}),
		"ARRAY_REPEAT": func(m *interpreter, a []any) any {
			n, ok := whole(a[1])
			if !ok || n < 0 {
				return nil
			}
			if n > 10_000 {
				return m.fail("ARRAY_REPEAT")
			}
			return slices.Repeat([]any{a[0]}, int(n))
		},
		"ARRAY_REPLACE": ofArray(func(list, rest []any) any {
			if rest[0] == nil {
				return nil
			}
			for i, v := range list {
				if equal(rest[0], v) == true {
					list[i] = rest[1]
				}
			}
			return list
		}),
		"ARRAY_STAR": ofArray(func(list, _ []any) any { return columns(list) }),
		"ARRAY_SWAP": placed(func(list []any, i, j int) []any {
			list[i], list[j] = list[j], list[i]
			return list
		}),
		"ARRAY_SYMDIFF":  counting(func(count, _ int, _ any) bool { return count == 1 }),
		"ARRAY_SYMDIFFN": counting(func(count, _ int, _ any) bool { return count%2 == 1 }),
	}
}

func binarySearch(list []any, v any) int64 {
	at := 0
	for end := len(list) - 1; at < end; {
		if middle := (at + end) / 2; collatetest.Compare(list[middle], v) < 0 {
			at = middle + 1
		} else {
			end = middle
		}
	}
	if len(list) > 0 && collatetest.Compare(list[at], v) == 0 {
		return int64(at)
	}
	return -1
}

// columns converts an array of objects into an object of arrays.
func columns(list []any) map[string]any {
	out := map[string]any{}
	for i, v := range list {
		o, _ := v.(map[string]any)
		for name, v := range o {
			if out[name] == nil {
				out[name] = make([]any, len(list))
			}
			out[name].([]any)[i] = v
		}
	}
	return out
}

// containsToken makes a function that looks for a token.
func containsToken(wanted func(a []any, token any) bool, isText bool) function {
	return func(m *interpreter, a []any) any {
		switch _, ok := a[1].(string); {
		case a[0] == Missing || a[1] == Missing:
			return Missing
		case a[0] == nil || a[1] == nil || isText && !ok:
			return nil
		}
		if slices.Contains(a, any(Missing)) { // only the options are left
			return Missing
		}
		all, ok := tokens(m, append([]any{a[0]}, a[2:]...)).([]any)
		if !ok {
			return nil
		}
		return slices.ContainsFunc(all, func(token any) bool { return wanted(a, token) })
	}
}

// encoded returns a value as JSON, with numbers formatted as by TOSTRING.
func encoded(m *interpreter, v any) string {
	quote := func(s string) string {
		var b strings.Builder
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(s); err != nil {
			panic(err)
		}
		return strings.TrimSuffix(b.String(), "\n")
	}
	switch v := v.(type) {
	case json.Number:
		text, _ := toText(m, []any{v}).(string)
		return text
	case []any:
		var all []string
		for _, e := range v {
			all = append(all, encoded(m, e))
		}
		return "[" + strings.Join(all, ",") + "]"
	case map[string]any:
		var all []string
		for _, name := range slices.Sorted(maps.Keys(v)) {
			all = append(all, quote(name)+":"+encoded(m, v[name]))
		}
		return "{" + strings.Join(all, ",") + "}"
	case string:
		return quote(v)
	case bool:
		text, _ := toText(m, []any{v}).(string)
		return text
	}
	return "null"
}

func encodingFunctions() map[string]function {
	decoded := func(text string) any {
		v, ok := collatetest.Decode([]byte(text))
		if !ok {
			return nil
		}
		return v
	}
	return map[string]function{
		"BASE64_DECODE": ofTexts(func(s []string) any {
			plain, err := base64.StdEncoding.DecodeString(s[0])
			if err != nil {
				return nil
			}
			return decoded(string(plain))
		}),
		"BASE64_ENCODE": func(m *interpreter, a []any) any {
			return base64.StdEncoding.EncodeToString([]byte(encoded(m,
				a[0])))
		},
		"ENCODED_SIZE": func(m *interpreter, a []any) any { return integer(int64(len(encoded(m, a[0])))) },
		"JSON_DECODE":  ofTexts(func(s []string) any { return decoded(s[0]) }),
		"JSON_ENCODE":  func(m *interpreter, a []any) any { return encoded(m, a[0]) },
		"PAIRS": func(_ *interpreter, a []any) any {
			switch a[0].(type) {
			case []any, map[string]any:
				return pairsOf(a[0])
			}
			return nil
		},
		"POLY_LENGTH": func(_ *interpreter, a []any) any {
			switch v := a[0].(type) {
			case string:
				return integer(int64(len(v)))
			case []any:
				return integer(int64(len(v)))
			case map[string]any:
				return integer(int64(len(v)))
			}
			return nil
		},
	}
}

func pairsOf(v any) []any {
	list := []any{}
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			list = append(list, pairsOf(e)...)
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			list = append(list, []any{name, v[name]})
			inner, _ := v[name].([]any)
			for _, e := range inner {
				list = append(list, []any{name, e})
			}
			list = append(list, pairsOf(v[name])...)
		}
	}
	return list
}

// bitTypes are the allowed types of the arguments of ofBits, by position.
var bitTypes = [][]string{{"number"}, {"number", "array"}, {"boolean"}}

// ofBits makes a function of an integer and further arguments; the first wrong argument determines the result.
func ofBits(f func(x uint64, rest []any) any) function {
	return func(_ *interpreter, a []any) any {
		for i, v := range a {
			if v == Missing {
				return Missing
			}
			if !slices.Contains(bitTypes[i], nameOf(v)) {
				return nil
			}
		}
		x, ok := whole(a[0])
		if !ok {
			return nil
		}
		return f(uint64(x), a[1:])
	}
}

// joined makes a function that combines integers from left to right; the first argument that is not a number
// determines the result.
func joined(f func(x, y int64) int64) function {
	return func(_ *interpreter, a []any) any {
		for _, v := range a {
			if v == Missing {
				return Missing
			}
			if _, ok := v.(json.Number); !ok {
				return nil
			}
		}
		result, ok := whole(a[0])
		for _, v := range a[1:] {
			x, fine := whole(v)
			result, ok = f(result, x), ok && fine
		}
		if !ok {
			return nil
		}
		return integer(result)
	}
}

// positions returns a mask with the bits of one number, or of an array of numbers, counted from 1.
func positions(v any) (mask uint64, ok bool) {
	for _, e := range spread(v) {
		n, ok := whole(e)
		if !ok || n < 1 || n > 64 {
			return 0, false
		}
		mask |= 1 << (n - 1)
	}
	return mask, true
}

// masked makes a function of an integer and bit positions.
func masked(f func(x, mask uint64, all bool) any) function {
	return ofBits(func(x uint64, rest []any) any {
		mask, ok := positions(rest[0])
		if !ok {
			return nil
		}
		return f(x, mask, slices.Contains(rest[1:], any(true)))
	})
}

func bitShift(m *interpreter, a []any) any {
	if _, isArray := a[1].([]any); isArray && a[0] != Missing {
		return nil
	}
	return ofBits(func(x uint64, rest []any) any {
		n, ok := whole(rest[0])
		switch {
		case !ok:
			return nil
		case slices.Contains(rest[1:], any(true)):
			return integer(int64(bits.RotateLeft64(x, int(n%64))))
		case n <= -64 || n >= 64:
			return integer(0)
		case n < 0:
			return integer(int64(x >> -n))
		}
		return integer(int64(x << n))
	})(m, a)
}

func bitFunctions() map[string]function {
	return map[string]function{
		"BITAND": joined(func(x, y int64) int64 { return x & y }), "BITOR": joined(func(x, y int64) int64 { return x | y }),
		"BITXOR": joined(func(x, y int64) int64 { return x ^ y }),
		"BITNOT": func(_ *interpreter, a []any) any {
			x, ok := whole(a[0])
			if !ok {
				return nil
			}
			return integer(-x - 1)
		},
		"BITSET":   masked(func(x, mask uint64, _ bool) any { return integer(int64(x | mask)) }),
		"BITCLEAR": masked(func(x, mask uint64, _ bool) any { return integer(int64(x &^ mask)) }),
		"BITTEST": masked(func(x, mask uint64, all bool) any {
			if all {
				return x&mask == mask
			}
			return x&mask > 0
		}),
		"BITSHIFT": bitShift,
	}
}
