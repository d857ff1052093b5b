package expressiontest

import (
	"cmp"
	"encoding/json"
	"maps"
	"math"
	"math/big"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"tidemark/collate/collatetest"
	"tidemark/expression"
)

// function computes a function of the language from its arguments.
type function func(m *interpreter, a []any) any

// lenient are the functions that handle MISSING and NULL themselves. For all others the result is MISSING if an
// argument is, else NULL if an argument is.
var lenient = []string{"GREATEST", "LEAST", "OBJECT_ADD", "OBJECT_PUT", "OBJECT_REPLACE", "TYPE", "DECODE", "IFMISSING",
	"IFMISSINGORNULL", "IFNULL", "NVL", "NVL2",
	"IFINF", "IFNANORINF", "DATE_PART_MILLIS", "WEEKDAY_MILLIS", "ROUND", "ROUND_NEAREST", "TRUNC", "REPLACE",
	"REGEXP_REPLACE", "CONCAT2", "CONTAINS_TOKEN",
	"CONTAINS_TOKEN_LIKE", "CONTAINS_TOKEN_REGEXP", "ENCODED_SIZE", "JSON_ENCODE", "BITAND", "BITOR", "BITXOR", "BITSHIFT",
	"BITTEST", "ARRAY_BINARY_SEARCH"}

// nulls are the functions that accept NULL like any other value; MISSING still propagates.
var nulls = []string{"ARRAY_APPEND", "ARRAY_PREPEND", "ARRAY_INSERT", "ARRAY_REPEAT", "ARRAY_REPLACE", "TOKENS",
	"BASE64_ENCODE"}

// HasFunction reports whether the interpreter has a function.
func HasFunction(name string) bool { return functionNamed(name) != nil }

func functionNamed(name string) function {
	for _, table := range []map[string]function{textFunctions(), patternFunctions(), numberFunctions(), dateFunctions(),
		arrayFunctions(), moreArrayFunctions(), objectFunctions(), typeFunctions(), encodingFunctions(), bitFunctions()} {
		if f := table[name]; f != nil {
			return f
		}
	}
	return nil
}

func (m *interpreter) call(x *expression.Call) any {
	f := functionNamed(x.Name)
	if f == nil {
		panic("no function " + x.Name)
	}
	args := m.all(x.Args)
	if !slices.Contains(lenient, x.Name) {
		if slices.Contains(args, any(Missing)) {
			return Missing
		}
		if slices.Contains(args, nil) && !slices.Contains(nulls, x.Name) {
			return nil
		}
	}
	if m.err != nil {
		return Missing
	}
	return f(m, args)
}

// whole returns an argument that must be a 64-bit integer; otherwise the function is NULL.
func whole(v any) (int64, bool) {
	n, ok := v.(json.Number)
	if !ok {
		return 0, false
	}
	x, ok := new(interpreter).numeric(n)
	return x.i, ok && x.integer
}

// wholeOr returns the optional last argument, which must be an integer.
func wholeOr(rest []any, otherwise int64) (int64, bool) {
	if len(rest) == 0 {
		return otherwise, true
	}
	return whole(rest[0])
}

// place returns an integral number as a position in an array; one beyond 64 bits is clamped.
func place(v any) (int64, bool) {
	if n, ok := whole(v); ok {
		return n, true
	}
	n, ok := v.(json.Number)
	if !ok {
		return 0, false
	}
	switch x, ok := new(interpreter).numeric(n); {
	case !ok || x.f != math.Trunc(x.f):
		return 0, false
	case x.f < 0:
		return math.MinInt64, true
	default:
		return math.MaxInt64, true
	}
}

// fromStart converts a negative position, counted from the end, to one from the start.
func fromStart(place int64, places int) int64 {
	if place < 0 {
		return place + int64(places)
	}
	return place
}

// texts returns arguments that must all be strings.
func texts(a ...any) (list []string, ok bool) {
	for _, v := range a {
		s, ok := v.(string)
		if !ok {
			return nil, false
		}
		list = append(list, s)
	}
	return list, true
}

// ofTexts makes a function of strings only.
func ofTexts(f func(s []string) any) function {
	return func(_ *interpreter, a []any) any {
		s, ok := texts(a...)
		if !ok {
			return nil
		}
		return f(s)
	}
}

// mostMade bounds what a function may make out of a short argument, in bytes; a character counts as four.
const mostMade = 1 << 20

func textFunctions() map[string]function {
	return map[string]function{
		"CONCAT":    ofTexts(func(s []string) any { return strings.Join(s, "") }),
		"CONTAINS":  ofTexts(func(s []string) any { return strings.Contains(s[0], s[1]) }),
		"INITCAP":   ofTexts(initcap),
		"LENGTH":    ofTexts(func(s []string) any { return integer(int64(len(s[0]))) }),
		"LOWER":     ofTexts(func(s []string) any { return strings.ToLower(s[0]) }),
		"LPAD":      pad(func(text, fill string) string { return fill + text }),
		"RPAD":      pad(func(text, fill string) string { return text + fill }),
		"LTRIM":     ofTexts(func(s []string) any { return strings.TrimLeft(s[0], cutset(s)) }),
		"RTRIM":     ofTexts(func(s []string) any { return strings.TrimRight(s[0], cutset(s)) }),
		"TRIM":      ofTexts(func(s []string) any { return strings.Trim(s[0], cutset(s)) }),
		"MB_LENGTH": ofTexts(func(s []string) any { return integer(int64(len([]rune(s[0])))) }),
		"POSITION":  ofTexts(func(s []string) any { return integer(int64(strings.Index(s[0], s[1]))) }),
		"POSITION1": ofTexts(func(s []string) any { return integer(int64(strings.Index(s[0], s[1]) + 1)) }),
		"REPEAT":    repeat,
		"REPLACE": counted(func(s []string, times int64, _ bool) any {
			return strings.Replace(s[0], s[1], s[2], int(max(-1, min(times, math.MaxInt32))))
		}),
		"REVERSE": ofTexts(func(s []string) any {
			all := regexp.MustCompile(`\x{FFFD}|\PM\pM*|\pM+`).FindAllString(s[0], -1)
			slices.Reverse(all)
			return strings.ReplaceAll(strings.Join(all, ""), "\ufffd", "")
		}),
		"CONCAT2":        concatWith,
		"MB_POSITION":    ofTexts(func(s []string) any { return integer(charactersBefore(s[0], s[1])) }),
		"MB_POSITION1":   ofTexts(func(s []string) any { return integer(charactersBefore(s[0], s[1]) + 1) }),
		"MB_SUBSTR":      characterSubstr(0),
		"MB_SUBSTR1":     characterSubstr(1),
		"CONTAINS_TOKEN": containsToken(func(a []any, token any) bool { return equal(a[1], token) == true }, false),
		"CONTAINS_TOKEN_LIKE": containsToken(func(a []any, token any) bool {
			return like(token, a[1], `\`) == true
		}, true),
		"CONTAINS_TOKEN_REGEXP": containsToken(func(a []any, token any) bool {
			text, ok := token.(string)
			return ok && regexp.MustCompile("^"+a[1].(string)+"$").MatchString(text)
		}, true),
		"SPLIT": ofTexts(func(s []string) any {
			if len(s) == 1 {
				return anyList(strings.Fields(s[0]))
			}
			return anyList(strings.Split(s[0], s[1]))
		}),
		"SUBSTR":   substr(0),
		"SUBSTR1":  substr(1),
		"SUFFIXES": suffixes,
		"TOKENS":   tokens,
		"UPPER":    ofTexts(func(s []string) any { return strings.ToUpper(s[0]) }),
	}
}

func repeat(m *interpreter, a []any) any {
	s, ok := texts(a[0])
	n, fine := whole(a[1])
	switch {
	case !ok || !fine || n < 0:
		return nil
	case s[0] == "":
		return ""
	case n > int64(mostMade/len(s[0])):
		return m.fail("REPEAT")
	}
	return strings.Repeat(s[0], int(n))
}

func concatWith(_ *interpreter, a []any) any {
	list := []any{a[0]}
	for _, v := range a[1:] {
		list = append(list, spread(v)...)
	}
	if slices.Contains(list, any(Missing)) {
		return Missing
	}
	s, ok := texts(list...)
	if !ok {
		return nil
	}
	return strings.Join(s[1:], s[0])
}

func suffixes(m *interpreter, a []any) any {
	text, ok := a[0].(string)
	if !ok {
		return nil
	}
	if len([]rune(text))*len(text)/2 > mostMade {
		return m.fail("SUFFIXES")
	}
	list := []any{}
	for i := range text {
		list = append(list, text[i:])
	}
	return list
}

func anyList[T any](list []T) any {
	out := []any{}
	for _, v := range list {
		out = append(out, v)
	}
	return out
}

func initcap(s []string) any {
	var b strings.Builder
	inWord := false
	for _, r := range s[0] {
		if inWord {
			b.WriteRune(unicode.ToLower(r))
		} else {
			b.WriteRune(unicode.ToTitle(unicode.ToLower(r)))
		}
		inWord = !unicode.IsSpace(r)
		if r <= unicode.MaxASCII {
			inWord = strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_", r)
		}
	}
	return b.String()
}

func cutset(s []string) string {
	if len(s) == 2 {
		return s[1]
	}
	return " \t\n\f\r"
}

func pad(join func(text, fill string) string) function {
	return func(m *interpreter, a []any) any {
		s, ok := texts(a[0])
		n, fine := whole(a[1])
		with := " "
		if len(a) == 3 {
			with, _ = a[2].(string)
		}
		if !ok || !fine || n < 0 || with == "" {
			return nil
		}
		if n > mostMade/4 {
			return m.fail("LPAD or RPAD")
		}
		text, characters := []rune(s[0]), []rune(with)
		if int64(len(text)) > n {
			return string(text[:n])
		}
		var fill []rune
		for len(text)+len(fill) < int(n) {
			fill = append(fill, characters[len(fill)%len(characters)])
		}
		return join(s[0], string(fill))
	}
}

func substr(first int64) function {
	return func(_ *interpreter, a []any) any {
		text, ok := a[0].(string)
		from, to, fine := span(a[1:], first, len(text))
		if !ok || !fine {
			return nil
		}
		return string([]rune(text[from:to]))
	}
}

// span evaluates the arguments of a SUBSTR after the text: begin and end of the part in a text of so many positions,
// the first of which has the number first.
func span(rest []any, first int64, places int) (from, to int64, ok bool) {
	from, ok = whole(rest[0])
	length, fine := wholeOr(rest[1:], math.MaxInt32)
	if !ok || !fine || length < 0 {
		return 0, 0, false
	}
	if from > 0 {
		from -= first
	} else {
		from = fromStart(from, places)
	}
	if from < 0 || from >= int64(places) {
		return 0, 0, false
	}
	return from, from + min(length, int64(places)-from), true
}

func patternFunctions() map[string]function {
	position := func(first int64) function {
		return ofTexts(func(s []string) any {
			if at := regexp.MustCompile(s[1]).FindStringIndex(s[0]); at != nil {
				return integer(int64(at[0]) + first)
			}
			return integer(-1)
		})
	}
	return map[string]function{
		"REGEXP_CONTAINS":  ofTexts(func(s []string) any { return regexp.MustCompile(s[1]).MatchString(s[0]) }),
		"REGEXP_LIKE":      ofTexts(func(s []string) any { return regexp.MustCompile("^" + s[1] + "$").MatchString(s[0]) }),
		"REGEXP_POSITION":  position(0),
		"REGEXP_POSITION1": position(1),
		"REGEXP_MATCHES": ofTexts(func(s []string) any {
			return anyList(regexp.MustCompile(s[1]).FindAllString(s[0], -1))
		}),
		"REGEXP_SPLIT": ofTexts(func(s []string) any {
			var all []string
			at := 0
			for _, fit := range regexp.MustCompile(s[1]).FindAllStringIndex(s[0], -1) {
				all = append(all, s[0][at:fit[0]])
				at = fit[1]
			}
			if len(all) > 0 && at < len(s[0]) {
				all = append(all, s[0][at:])
			}
			return anyList(all)
		}),
		"REGEXP_REPLACE": counted(func(s []string, times int64, given bool) any {
			r := regexp.MustCompile(s[1])
			return r.ReplaceAllStringFunc(s[0], func(fit string) string {
				if times--; given && times < 0 {
					return fit
				}
				return s[2]
			})
		}),
	}
}

// counted makes a function of three texts and an optional number.
func counted(f func(s []string, times int64, given bool) any) function {
	return func(_ *interpreter, a []any) any {
		if slices.Contains(a[:3], any(Missing)) {
			return Missing
		}
		s, ok := texts(a[:3]...)
		times, fine := wholeOr(a[3:], -1)
		if !ok || !fine {
			return nil
		}
		return f(s, times, len(a) == 4)
	}
}

func charactersBefore(text, part string) int64 {
	before, _, found := strings.Cut(text, part)
	if !found {
		return -1
	}
	return int64(len([]rune(before)))
}

func characterSubstr(first int64) function {
	return func(_ *interpreter, a []any) any {
		s, ok := a[0].(string)
		text := []rune(s)
		from, to, fine := span(a[1:], first, len(text))
		if !ok || !fine {
			return nil
		}
		return string(text[from:to])
	}
}

// ofNumber makes a function of one number.
func ofNumber(f func(m *interpreter, v json.Number, n number) any) function {
	return func(m *interpreter, a []any) any {
		v, ok := a[0].(json.Number)
		if !ok {
			return nil
		}
		n, ok := m.numeric(v)
		if !ok {
			return Missing
		}
		return f(m, v, n)
	}
}

// rounded makes a function that rounds to integers.
func rounded(f func(float64) float64) function {
	return ofNumber(func(m *interpreter, v json.Number, n number) any {
		if n.integer {
			return v
		}
		return m.float(f(n.f))
	})
}

// divided makes a function that divides two numbers without their fractions.
func divided(f func(z, x, y *big.Int) *big.Int) function {
	return func(m *interpreter, a []any) any {
		x, ok := cut(a[0])
		y, fine := cut(a[1])
		if !ok || !fine || y == 0 {
			return nil
		}
		z := f(new(big.Int), big.NewInt(x), big.NewInt(y))
		if !z.IsInt64() {
			v, _ := new(big.Float).SetInt(z).Float64()
			return m.float(v)
		}
		return integer(z.Int64())
	}
}

func numberFunctions() map[string]function {
	return map[string]function{
		"ABS": func(_ *interpreter, a []any) any {
			v, ok := a[0].(json.Number)
			if !ok {
				return nil
			}
			return json.Number(strings.TrimPrefix(string(v), "-"))
		},
		"CEIL":     rounded(math.Ceil),
		"FLOOR":    rounded(math.Floor),
		"GREATEST": func(_ *interpreter, a []any) any { return extreme(a, 1) },
		"LEAST":    func(_ *interpreter, a []any) any { return extreme(a, -1) },
		"IDIV":     divided((*big.Int).Quo),
		"IMOD":     divided((*big.Int).Rem),
		"DEGREES":  ofNumber(func(m *interpreter, _ json.Number, n number) any { return m.float(n.f * 180 / math.Pi) }),
		"RADIANS":  ofNumber(func(m *interpreter, _ json.Number, n number) any { return m.float(n.f * math.Pi / 180) }),
		"E":        func(m *interpreter, _ []any) any { return m.float(math.E) },
		"PI":       func(m *interpreter, _ []any) any { return m.float(math.Pi) },
		"ROUND": toDigits(func(x float64) float64 {
			if up := math.Floor(x + 0.5); up != x+0.5 || math.Mod(up, 2) == 0 {
				return up
			}
			return math.Floor(x+0.5) - 1
		}),
		"ROUND_NEAREST": toDigits(func(x float64) float64 { return math.Floor(x + 0.5) }),
		"TRUNC":         toDigits(math.Floor),
		"SIGN": ofNumber(func(_ *interpreter, _ json.Number, n number) any {
			return integer(int64(cmp.Compare(n.f, 0)))
		}),
		"SQRT": ofNumber(func(m *interpreter, _ json.Number, n number) any { return m.float(math.Sqrt(n.f)) }),
	}
}

func extreme(list []any, direction int) any {
	var best any
	for _, v := range list {
		if known(v) && (best == nil || collatetest.Compare(v, best)*direction > 0) {
			best = v
		}
	}
	return best
}

// cut returns a number without its fraction, if that fits into 64 bits.
func cut(v any) (int64, bool) {
	n, ok := v.(json.Number)
	if !ok {
		return 0, false
	}
	x, ok := new(interpreter).numeric(n)
	if x.integer || !ok {
		return x.i, ok
	}
	return int64(x.f), math.Trunc(x.f) >= -1<<63 && x.f < 1<<63
}

// toDigits makes a function that shifts the magnitude of a number by so many digits, rounds it and shifts it back.
func toDigits(whole1 func(float64) float64) function {
	return func(m *interpreter, a []any) any {
		if _, ok := a[0].(json.Number); !ok && a[0] != Missing {
			return nil
		}
		if slices.Contains(a, any(Missing)) {
			return Missing
		}
		digits, ok := wholeOr(a[1:], 0)
		if !ok || digits < -300 || digits > 300 {
			return nil
		}
		return ofNumber(func(m *interpreter, v json.Number, n number) any {
			power := math.Pow(10, float64(digits))
			switch magnitude := math.Abs(n.f); {
			case n.integer && digits >= 0:
				return v
			case math.IsInf(magnitude*power, 0):
				return m.float(n.f)
			default:
				return m.float(math.Copysign(whole1(magnitude*power)/power, n.f))
			}
		})(m, a)
	}
}

// ofObject makes a function of an object and further arguments.
func ofObject(f func(o map[string]any, rest []any) any) function {
	return func(_ *interpreter, a []any) any {
		o, ok := a[0].(map[string]any)
		if !ok {
			return nil
		}
		return f(o, a[1:])
	}
}

// ofMember makes a function that changes one member of an object; the value may be MISSING.
func ofMember(change func(o map[string]any, name string, v any)) function {
	return func(_ *interpreter, a []any) any {
		if a[0] == Missing || a[1] == Missing {
			return Missing
		}
		o, ok := a[0].(map[string]any)
		name, fine := a[1].(string)
		if !ok || !fine {
			return nil
		}
		o = maps.Clone(o)
		change(o, name, a[2])
		return o
	}
}

func objectFunctions() map[string]function {
	return map[string]function{
		"OBJECT_CONCAT": func(_ *interpreter, a []any) any {
			all := map[string]any{}
			for _, v := range a {
				o, ok := v.(map[string]any)
				if !ok {
					return nil
				}
				maps.Copy(all, o)
			}
			return all
		},
		"OBJECT_LENGTH": ofObject(func(o map[string]any, _ []any) any { return integer(int64(len(o))) }),
		"OBJECT_NAMES":  ofObject(func(o map[string]any, _ []any) any { return anyList(slices.Sorted(maps.Keys(o))) }),
		"OBJECT_PAIRS":  ofObject(func(o map[string]any, _ []any) any { return pairObjects(o) }),
		"OBJECT_VALUES": ofObject(func(o map[string]any, _ []any) any { return sortedValues(o) }),
		"OBJECT_ADD": ofMember(func(o map[string]any, name string, v any) {
			if _, there := o[name]; !there && v != Missing {
				o[name] = v
			}
		}),
		"OBJECT_PUT": ofMember(func(o map[string]any, name string, v any) {
			if o[name] = v; v == Missing {
				delete(o, name)
			}
		}),
		"OBJECT_INNER_PAIRS":  ofObject(func(o map[string]any, _ []any) any { return pairObjects(innerValues(o)) }),
		"OBJECT_INNER_VALUES": ofObject(func(o map[string]any, _ []any) any { return sortedValues(innerValues(o)) }),
		"OBJECT_RENAME": ofObject(func(o map[string]any, rest []any) any {
			names, ok := texts(rest...)
			if !ok {
				return nil
			}
			v, there := o[names[0]]
			if !there {
				return o
			}
			o = maps.Clone(o)
			delete(o, names[0])
			o[names[1]] = v
			return o
		}),
		"OBJECT_REPLACE": objectReplace,
		"OBJECT_UNWRAP": ofObject(func(o map[string]any, _ []any) any {
			if len(o) != 1 {
				return nil
			}
			return sortedValues(o)[0]
		}),
		"OBJECT_REMOVE": ofObject(func(o map[string]any, rest []any) any {
			names, ok := texts(rest...)
			if !ok {
				return nil
			}
			o = maps.Clone(o)
			for _, name := range names {
				delete(o, name)
			}
			return o
		}),
	}
}

func objectReplace(_ *interpreter, a []any) any {
	if a[0] == Missing || a[1] == Missing {
		return Missing
	}
	o, ok := a[0].(map[string]any)
	if !ok || a[1] == nil {
		return nil
	}
	out := map[string]any{}
	for name, v := range o {
		if equal(a[1], v) == true {
			v = a[2]
		}
		if v != Missing {
			out[name] = v
		}
	}
	return out
}

func innerValues(o map[string]any) map[string]any {
	out := maps.Clone(o)
	for name, v := range o {
		if list, ok := v.([]any); ok && len(list) == 1 && len(o) > 1 {
			out[name] = list[0]
		}
	}
	return out
}

func pairObjects(o map[string]any) any {
	list := []any{}
	for _, n := range slices.Sorted(maps.Keys(o)) {
		list = append(list, map[string]any{"name": n, "val": o[n]})
	}
	return list
}

func sortedValues(o map[string]any) []any {
	list := []any{}
	for _, n := range slices.Sorted(maps.Keys(o)) {
		list = append(list, o[n])
	}
	return list
}

// readNumber returns the number in a text in decimal notation, in JSON's syntax; nil if it is not one.
func readNumber(text string) any {
	part := regexp.MustCompile(`\A([+-]?)0*([0-9]*)(\.([0-9]*))?([eE][+-]?[0-9]+)?\z`).FindStringSubmatch(text)
	if part == nil || !regexp.MustCompile(`\A[+-]?\.?[0-9]`).MatchString(text) {
		return nil
	}
	made := strings.TrimPrefix(part[1], "+") + cmp.Or(part[2], "0")
	if part[4] != "" {
		made += "." + part[4]
	}
	return json.Number(made + part[5])
}
