package n1ql

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"

	"tidemark/expression"
)

// documents are what expressions are evaluated on.
var documents = []json.RawMessage{
	json.RawMessage(`{"a":1,"b":"text","c":null,"d":[1,2,3],"e":{"x":1,"y":[true,"z"]},"f":2.5,"g":true,"t":"2024-01-31T10:20:30.123Z"}`),
	json.RawMessage(`{"a":-7,"b":" ","c":[null,1,"1",[2]],"d":[],"e":{},"f":-0.5,"g":false,"t":"2023-12-31"}`),
	json.RawMessage(`{"a":"7","b":"Ünïcode ſ-word (x) a@b.c","c":{"a":{"a":[1,{"b":2}]}},"d":[{"n":1},{"n":"2"},{"m":null}],"e":[[1,2],[3,[4]]],"f":0,"g":[0,"",null],"t":"23:59:59"}`),
	json.RawMessage(`{"a":123456,"b":"1.5","d":["b","a","B","a",null,1,1.0],"e":{"name":"n","val":"v"},"f":1e15,"t":"2024-02-29 23:59:59-05:00"}`),
}

// leaves are values of all kinds.
var leaves = []string{
	"a", "b", "c", "d", "e", "f", "g", "t", "gone", "e.x", "e.y[1]", "d[0]", "d[-1]", "c.a.a[1].b", "self.a", "META().id",
	"NULL", "MISSING", "TRUE", "FALSE", "0", "1", "-1", "2", "3.5", "-2.5", "0.5", "1.5", "2.5", "100", "1e3", "-0", "0.1",
	"1e-7", "12345.678",
	`""`, `"a"`, `"A b-c"`, `"banana"`, `"é"`, `"日本"`, `" x "`, `"10"`, `"-3"`, `"1e2"`, `"null"`, `"true"`, `"[1, 2]"`, `"2024-03-10T01:30:00-08:00"`, `"year"`,
	"[]", "[1]", `[3, 1, 2]`, `[1, "a", null, true, [1], {"a": 1}]`, "[1.0, 1, 2]", "{}", `{"a": 1}`, `{"a": {"b": [1, 2]}, "c": null}`,
}

// arguments are what fits a parameter of this name, as Function.Params has it, and odd values of its kind.
var arguments = map[string][]string{
	"text": {`"banana"`, `"aß c"`, `" \tx y\n"`, `"ǅungla fi"`, `"日本語"`, `"1.5"`, `""`, `"a,b,,c"`, `"the quick (brown) fox's e-mail: a.b@c.de!"`, "b", `"x"`, `"1h2m3s"`, `"eyJhIjoxfQ=="`, `"{\"a\": [1, 2.50]}"`},
	"part": {`"year"`, `"Quarter"`, `"month"`, `"week"`, `"day"`, `"hour"`, `"minute"`, `"second"`, `"millisecond"`, `"decade"`, `"century"`, `"millennium"`},
	"date part": {`"year"`, `"quarter"`, `"month"`, `"week"`, `"day"`, `"hour"`, `"minute"`, `"second"`, `"millisecond"`, `"decade"`, `"century"`, `"millennium"`,
		`"iso_year"`, `"iso_week"`, `"day_of_year"`, `"doy"`, `"day_of_week"`, `"dow"`, `"iso_dow"`, `"timezone"`, `"timezone_hour"`, `"timezone_minute"`},
	"trunc part": {`"year"`, `"quarter"`, `"month"`, `"day"`, `"hour"`, `"minute"`, `"second"`, `"millisecond"`, `"decade"`, `"century"`, `"millennium"`},
	"date": {`"2024-02-29T23:59:59.987-05:00"`, `"2024-01-31"`, `"0001-01-01"`, `"9999-12-31T23:59:59Z"`, `"2023-12-31 10:20:30"`, `"2021-01-03T00:00:00.5+13:45"`, `"2024-02-30"`, `"2024-1-1"`,
		`"2024-01-01T5:00:00"`, `"2024-06-01T24:00:00"`, `"10:20:30"`, `"10:20:30.5Z"`, `"23:59:59+02:00"`, `"2018-09-11T00:00:01.120Z"`, `"2018-09-10 23:59:59"`, `"2024-06-01T10:00"`, "t",
		`"2024-02-29T08:07:06.100200300Z"`, `"2024-01-31T00:00:00.000Z"`, `"1969-12-31T23:59:59.999Z"`, `"2020-12-31 00:00:00.25"`, `"2024-01-31T12:00:00Z"`},
	"example": {`"1111-11-11"`, `"1111-11-11T11:11:11.111Z"`, `"1111-11-11 11:11:11"`, `"11:11:11"`, `"1111-11-11T11:11:11Z"`, `"1111-11-11T11:11:11"`, `"11:11:11.111+00:00"`, `"2006-01-02 15:04:05.999Z"`},
	"zone":    {`"UTC"`, `"America/New_York"`, `"Asia/Kolkata"`, `"Europe/Berlin"`, `"Australia/Lord_Howe"`, `"No/Where"`, `"Pacific/Apia"`},
	"millis": {"0", "-1", "1500", "1700000000123", "951782400000", "-62135596800000", "253402300799999",
		"951782400000.9", "1e12", "-0.5", "1463284740000"},
	"array":  {"[]", `[1, [2, [3, null]], 2.0, true, "x"]`, "[null, 0, 5, 5.0]", "[0.1, 0.2, 3]", "[3, 1, 2]", `["b", "a"]`, "d", "c", "e", "[null]", "[1, 1, 1]", `[{"a": 1}, {"a": 2}]`},
	"object": {"{}", `{"a": b, "b": [1], "é": c}`, `{"x": {"y": 5}}`, "e", `{"a": 1, "b": 2}`},
	"name":   {`"a"`, `"é"`, `"x"`, `"b"`},
	"number": {"0", "-0", "2.345", "-2.5", "0.5", "1.5", "2.5", "3.5", "125", "1e-7", "123456789", "1e17", "-7", "7",
		"a", "f", "1.005", "2.675", "-0.4", "99.995"},
	"integer":    {"0", "1", "-1", "5", "255", "4294967296", "-8", "6.0", "1.5", "a"},
	"positions":  {"1", "64", "0", "65", "[1, 3]", "[]", "[1, 1]", "[0]", "32"},
	"digits":     {"0", "1", "2", "-1", "-3", "5", "1.0", "1.5"},
	"times":      {"0", "1", "3", "-1", "2.5"},
	"length":     {"0", "1", "3", "7", "-1", "2.5"},
	"from":       {"0", "1", "2", "-1", "-3", "5", "1.5", "-10"},
	"to":         {"0", "3", "-4", "9", "2.5"},
	"step":       {"1", "2", "-1", "0", "-3", "0.5"},
	"depth":      {"0", "1", "2", "100", "-1"},
	"n":          {"0", "1", "-1", "13", "-25", "1000", "1.5", "11"},
	"place":      {"0", "1", "-1", "2", "5", "1.5"},
	"shift":      {"0", "1", "-1", "63", "64", "65", "-64", "2.5"},
	"flag":       {"true", "false"},
	"new":        {`"-"`, `"${1}o"`, `""`, `"$1"`},
	"at":         {`","`, `"a"`, `""`, `" "`},
	"characters": {`"ab"`, `"éß "`, `""`, `" x"`},
	"with":       {`"ab"`, `"é"`},
	"old":        {`"an"`, `""`, `"ß"`},
	"options": {`{"case": "lower"}`, `{"case": "UPPER", "names": true}`, `{"specials": true}`, `{"specials": true, "names": false, "case": "lower"}`, `{"names": false}`, `{}`,
		`{"split": false}`, `{"split": false, "trim": false}`, `{"split": true, "trim": false}`, `{"case": "none"}`},
	"pattern":    {`"n.n"`, `"^a|b$"`, `"(a|(b))+"`, `"[^x]*"`, `"é"`, `""`, `"(?i)A"`, `"\\d+"`, `"a"`},
	"like":       {`"%a%"`, `"b_n%"`, `"quick"`, `""`, `"%"`, `"a\\_b"`},
	"token like": {`"%a%"`, `"b_n%"`, `"quick"`, `"%"`, `"a\\_b"`},
	"json":       {`"{\"a\": 1}"`, `"[1, 2, null]"`, `" 7 "`, `""`, `"x"`, `"\"s\""`, `"1.50"`, `"nul"`, `"{\"b\": 1, \"a\": [ ]}"`},
	"base64":     {`"eyJhIjoxfQ=="`, `"YWJj"`, `"/w=="`, `"x"`, `""`, `"MQ=="`},
	"duration":   {`"1h"`, `"1h2m3.5s"`, `"-3ms"`, `"5"`, `"1d"`, `""`, `"1µs"`, `"100us"`},
	"nanos":      {"0", "1", "1000", "1500000000", "-3600000000000", "1.5", "90061000000001", "60000000000"},
	"decimal":    {`"1.5"`, `"007"`, `"+5"`, `".5"`, `"5."`, `"1e3"`, `" 5"`, `"abc"`, `"-0"`, `"0x10"`, `"1_000"`, `"1e400"`, `"Infinity"`, `"NaN"`},
}

// generator makes expressions.
type generator struct {
	*rand.Rand
	functions []*expression.Function
	unordered []string // functions whose results have an order of their own there: they are always sorted
}

func pick[T any](g *generator, list []T) T { return list[g.IntN(len(list))] }

// expr makes an expression of at most so many levels.
func (g *generator) expr(depth int) string {
	if depth == 0 || g.IntN(8) == 0 {
		return pick(g, leaves)
	}
	if g.IntN(3) > 0 {
		return g.call(pick(g, g.functions), depth)
	}
	return g.construct(depth)
}

// call makes a call with arguments that mostly fit.
func (g *generator) call(f *expression.Function, depth int) string {
	params := strings.FieldsFunc(f.Params, func(r rune) bool { return strings.ContainsRune(`,[]"…`, r) })
	var names []string
	for _, p := range params {
		if p = strings.TrimSpace(p); p != "" {
			names = append(names, p)
		}
	}
	n := f.Min
	if f.Max > f.Min {
		n += g.IntN(min(f.Max-f.Min, 2) + 1)
	}
	var args []string
	for i := range n {
		args = append(args, g.argument(f, names[min(i, len(names)-1)], depth))
	}
	if f.Name == "ARRAY_PREPEND" { // the array is the last one
		slices.Reverse(args)
	}
	name := f.Name
	if len(f.Aliases) > 0 && g.IntN(4) == 0 {
		name = pick(g, f.Aliases)
	}
	call := name + "(" + strings.Join(args, ", ") + ")"
	if slices.Contains(g.unordered, f.Name) {
		return "ARRAY_SORT(" + call + ")"
	}
	return call
}

func (g *generator) argument(f *expression.Function, param string, depth int) string {
	if param == "part" && strings.HasPrefix(f.Name, "DATE_PART") {
		param = "date part"
	}
	if param == "part" && strings.HasPrefix(f.Name, "DATE_TRUNC") {
		param = "trunc part"
	}
	if param == "array" && strings.Contains(f.Params, "place, place") || f.Name == "ARRAY_EXCEPT" {
		return pick(g, []string{"c", "d", "e"}) // constants are changed in place there
	}
	if param == "like" {
		param = "token like"
	}
	fit := arguments[param]
	switch param {
	case "pattern", "digits", "times", "n", "nanos", "token like", "options", "part", "date part", "trunc part", "example": // others may be refused, here or there
		return pick(g, fit)
	}
	if len(fit) > 0 && g.IntN(6) > 0 {
		return pick(g, fit)
	}
	return g.expr(depth - 1)
}

// construct makes an operator with operands.
func (g *generator) construct(depth int) string {
	x := func() string { return "(" + g.expr(depth-1) + ")" }
	array := func() string { return pick(g, append([]string{x()}, arguments["array"]...)) }
	switch g.IntN(17) {
	case 0:
		return x() + pick(g, []string{" = ", " == ", " != ", " <> ", " < ", " <= ", " > ", " >= "}) + x()
	case 1:
		return x() + pick(g, []string{" AND ", " OR "}) + x()
	case 2:
		return "NOT " + x()
	case 3:
		return x() + pick(g, []string{" IS NULL", " IS NOT NULL", " IS MISSING", " IS NOT MISSING", " IS VALUED",
			" IS NOT VALUED", " IS KNOWN"})
	case 4:
		return pick(g, arguments["number"]) + pick(g, []string{" + ", " - ", " * ", " / ", " % "}) + x()
	case 5:
		return "-" + x()
	case 6:
		return x() + " || " + x()
	case 7:
		return x() + pick(g, []string{" LIKE ", " NOT LIKE "}) + pick(g, arguments["like"])
	case 8:
		return x() + pick(g, []string{" IN ", " NOT IN ", " WITHIN ", " NOT WITHIN "}) + array()
	case 9:
		return x() + pick(g, []string{" BETWEEN ", " NOT BETWEEN "}) + x() + " AND " + x()
	case 10:
		return "CASE WHEN " + x() + " THEN " + x() + " ELSE " + x() + " END"
	case 11:
		return "CASE " + x() + " WHEN " + x() + " THEN " + x() + " WHEN " + x() + " THEN " + x() + " END"
	case 12:
		return "EXISTS " + x()
	case 13:
		return array() + pick(g, []string{"[0:2]", "[1:]", "[-2:]", "[0:-1]", "[5:9]", "[1]", "[-1]", ".a", "[2:1]"})
	case 14:
		return "[IFMISSING(" + x() + ", NULL), IFMISSING(NULL, " + x() + ")]"
	case 15:
		return `{"p": ` + x() + `, "q": ` + x() + "}"
	}
	body := pick(g, []string{"v = 1", "v > 1", "v IS NULL", "ISSTRING(v)", "v.n", "v"})
	over := pick(g, []string{"v IN " + array(), "v WITHIN " + array(), "i:v IN " + array(), "v IN " + array() + ", w IN " +
		array()})
	when := pick(g, []string{"", " WHEN " + body})
	return pick(g, []string{
		"ANY " + over + " SATISFIES " + body + " END", "EVERY " + over + " SATISFIES " + body + " END", "ANY AND EVERY " +
			over + " SATISFIES " + body + " END",
		"SOME " + over + " SATISFIES " + body + " END", "ARRAY v FOR " + over + when + " END", "FIRST v FOR " + over + when +
			" END",
		"OBJECT TOSTRING(v):v FOR " + over + when + " END",
	})
}
