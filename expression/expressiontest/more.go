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

func ofArray(f func(list, rest []any) any) function {
	return func(_ *interpreter, a []any) any {
		list, ok := a[0].([]any)
		if !ok {
			return nil
		}
		return f(slices.Clone(list), a[1:])
	}
}

// placed makes a function of an array and places in it.
func placed(f func(list []any, i, j int) []any) function {
	return ofArray(func(list, rest []any) any {
		var at [2]int64
		for k, v := range rest {
			i, ok := whole(v)
			if i < 0 {
				i += int64(len(list))
			}
			if !ok || i < 0 || i >= int64(len(list)) {
				return nil
			}
			at[k] = i
		}
		return f(list, int(at[0]), int(at[1]))
	})
}

// counting makes a function that gives the values of arrays by how many of them have one.
func counting(wanted func(count, arrays int, v any) bool) function {
	return func(_ *interpreter, a []any) any {
		var all []any
		for _, v := range a {
			list, ok := v.([]any)
			if !ok {
				return nil
			}
			all = append(all, distinct(list)...)
		}
		out := []any{}
		for _, v := range distinct(all) {
			n := 0
			for _, w := range all {
				if collatetest.Compare(v, w) == 0 {
					n++
				}
			}
			if wanted(n, len(a), v) {
				out = append(out, v)
			}
		}
		return out
	}
}

func moreArrayFunctions() map[string]function {
	return map[string]function{
		"ARRAY_BINARY_SEARCH": func(_ *interpreter, a []any) any {
			list, ok := a[0].([]any)
			if a[0] == Missing {
				return Missing
			}
			if !ok {
				return nil
			}
			at := 0
			for end := len(list) - 1; at < end; {
				if middle := (at + end) / 2; collatetest.Compare(list[middle], a[1]) < 0 {
					at = middle + 1
				} else {
					end = middle
				}
			}
			if len(list) > 0 && collatetest.Compare(list[at], a[1]) == 0 {
				return integer(int64(at))
			}
			return integer(-1)
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
			if at < 0 {
				at += int64(len(list))
			}
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
		"ARRAY_STAR": ofArray(func(list, _ []any) any {
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
		}),
		"ARRAY_SWAP": placed(func(list []any, i, j int) []any {
			list[i], list[j] = list[j], list[i]
			return list
		}),
		"ARRAY_SYMDIFF":  counting(func(count, _ int, _ any) bool { return count == 1 }),
		"ARRAY_SYMDIFFN": counting(func(count, _ int, _ any) bool { return count%2 == 1 }),
	}
}

// containsToken makes a function that asks for one of the tokens.
func containsToken(wanted func(a []any, token any) bool, isText bool) function {
	return func(m *interpreter, a []any) any {
		switch _, ok := a[1].(string); {
		case a[0] == Missing || a[1] == Missing:
			return Missing
		case a[0] == nil || a[1] == nil || isText && !ok:
			return nil
		}
		if len(a) > 2 {
			if _, ok := a[2].(map[string]any); !ok && a[2] != Missing {
				return nil
			} else if !ok {
				return Missing
			}
		}
		all := tokens(m, append([]any{a[0]}, a[2:]...)).([]any)
		return slices.ContainsFunc(all, func(token any) bool { return wanted(a, token) })
	}
}

// encoded is a value as JSON, with numbers as TOSTRING has them.
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

func bitFunctions() map[string]function {
	// checked makes a function whose first wrong argument decides.
	checked := func(f func(x uint64, a []any) any) function {
		return func(_ *interpreter, a []any) any {
			for i, v := range a {
				_, isNumber := v.(json.Number)
				_, isArray := v.([]any)
				_, isBool := v.(bool)
				switch {
				case v == Missing:
					return Missing
				case i == 2 && !isBool, i == 1 && !isNumber && !isArray, i == 0 && !isNumber:
					return nil
				}
			}
			x, ok := whole(a[0])
			if !ok {
				return nil
			}
			return f(uint64(x), a)
		}
	}
	joined := func(f func(x, y int64) int64) function {
		return func(_ *interpreter, a []any) any {
			for _, v := range a {
				if _, ok := v.(json.Number); !ok {
					if v == Missing {
						return v
					}
					return nil
				}
			}
			var result int64
			for i, v := range a {
				x, ok := whole(v)
				switch {
				case !ok:
					return nil
				case i == 0:
					result = x
				default:
					result = f(result, x)
				}
			}
			return integer(result)
		}
	}
	positions := func(v any) (mask uint64, ok bool) {
		for _, e := range spread(v) {
			n, ok := whole(e)
			if !ok || n < 1 || n > 64 {
				return 0, false
			}
			mask |= 1 << (n - 1)
		}
		return mask, true
	}
	masked := func(f func(x, mask uint64, all bool) any) function {
		return checked(func(x uint64, a []any) any {
			mask, ok := positions(a[1])
			if !ok {
				return nil
			}
			return f(x, mask, len(a) == 3 && a[2] == true)
		})
	}
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
		"BITSHIFT": func(m *interpreter, a []any) any {
			if _, isArray := a[1].([]any); isArray && a[0] != Missing {
				return nil
			}
			return checked(func(x uint64, a []any) any {
				n, ok := whole(a[1])
				switch {
				case !ok:
					return nil
				case len(a) == 3 && a[2] == true:
					return integer(int64(bits.RotateLeft64(x, int(n%64))))
				case n <= -64 || n >= 64:
					return integer(0)
				case n < 0:
					return integer(int64(x >> -n))
				}
				return integer(int64(x << n))
			})(m, a)
		},
	}
}
