package expression_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"tidemark/collate"
	"tidemark/collate/collatetest"
	"tidemark/expression"
	"tidemark/expression/expressiontest"
	"tidemark/index"
)

// failer is the common interface of *testing.T and *rapid.T.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// oracleMeta is the KV metadata of every document of the tests against the oracle.
var oracleMeta = expression.DocMeta{CAS: 1<<63 + 5, Expiration: 1_700_000_000, Flags: 7,
	Xattrs: attributes("a", `{"a": [1, {"b": "\u0041"}]}`, "b", `no JSON`, "ab", ` 7 `, "", `1`)}

// checkDocument evaluates indexes on two expressions and a predicate, plain ones and array indexes, and compares with
// the slow interpreter. The texts must be valid.
func checkDocument(t failer, s *expression.Scratch, key, other, where, docID string, doc []byte) {
	t.Helper()
	sources := []expression.Source{
		{IsPrimary: true},
		{Keys: []index.KeyExpr{{Expr: key, Desc: true}, {Expr: other}}, Where: where},
		{Keys: []index.KeyExpr{{Expr: where}}},
		{Keys: []index.KeyExpr{{Expr: "META().id"}, {Expr: other}, {Expr: where, Desc: true}}},
		{Keys: []index.KeyExpr{{Expr: "DISTINCT " + other, Desc: true}, {Expr: key}}},
		{Keys: []index.KeyExpr{{Expr: "META().id"}, {Expr: "ALL " + where}, {Expr: other}}, Where: key},
		{Keys: flattenedKeys(key, other, "v.a", " INCLUDE MISSING")},
		{Keys: flattenedKeys(where, "v", key, "")},
	}
	p, err := expression.Compile(sources)
	if err != nil {
		t.Fatalf("%v", err)
	}
	checkResult(t, p.EvaluateMeta(s, []byte(docID), oracleMeta, doc), sources,
		expressiontest.Doc{ID: docID, Meta: oracleMeta}, doc)
}

// flattenedKeys returns the keys of an array flattened into two parts, and a third component.
func flattenedKeys(over, one, two, missing string) []index.KeyExpr {
	const key = "DISTINCT ARRAY FLATTEN_KEYS(%s) FOR v IN %s END%s"
	return []index.KeyExpr{{Expr: fmt.Sprintf(key, one, over, missing), Desc: true},
		{Expr: fmt.Sprintf(key, two, over, "")}, {Expr: "META().id"}}
}

// checkResult compares the keys of a document in all indexes with those of the interpreter.
func checkResult(t failer, r expression.Result, sources []expression.Source, d expressiontest.Doc, doc []byte) {
	t.Helper()
	v, ok := collatetest.Decode(doc)
	if r.NotJSON == ok {
		t.Fatalf("%q: NotJSON %v, JSON %v", doc, r.NotJSON, ok)
	}
	d.Value = v
	failures := 0
	for i, src := range sources {
		var want [][]byte
		var err error
		if src.IsPrimary {
			want = [][]byte{collate.AppendString(nil, []byte(string([]rune(d.ID))))}
		} else if ok {
			want, err = wantedKeys(d, src)
		}
		if err != nil {
			failures++
		}
		if got := r.Keys(i); !equalKeys(got, want) || (err == nil) != (r.Err(i) == nil) {
			t.Fatalf("index %d: %v WHERE %s\n%q: %s\ngot %s (%v)\nwant %s (%v)", i, src.Keys, src.Where, d.ID, doc,
				shown(got, src.Keys), r.Err(i), shown(want, src.Keys), err)
		}
	}
	if r.Errors != failures {
		t.Fatalf("%d errors, want %d", r.Errors, failures)
	}
}

func shown(keys [][]byte, exprs []index.KeyExpr) (all []string) {
	for _, k := range keys {
		var desc []bool
		for _, x := range exprs {
			desc = append(desc, x.Desc)
		}
		text, err := collate.DecodeComposite(nil, k, desc)
		missing, _ := collate.MissingComponents(k, desc)
		all = append(all, fmt.Sprintf("%s %v %v", text, missing, err))
	}
	return all
}

// wantedKeys returns the interpreter's keys.
func wantedKeys(d expressiontest.Doc, src expression.Source) ([][]byte, error) {
	entries, err := expressiontest.Entries(d, src.Keys, src.Where)
	if err != nil {
		return nil, err
	}
	var keys [][]byte
	for _, e := range entries {
		k, err := expressiontest.Encode(e, src.Keys)
		if err != nil {
			return nil, err
		}
		if len(k) > expression.DefaultKeyBytes {
			return nil, collate.ErrTooLong
		}
		keys = append(keys, k)
	}
	slices.SortFunc(keys, bytes.Compare)
	return keys, nil
}

// expensive reports whether an expression may exceed limits that the interpreter does not implement: it makes a large
// value from the large result of another function.
func expensive(x expression.Expr) bool {
	makers := 0
	expression.Walk(x, func(x expression.Expr) {
		if c, ok := x.(*expression.Call); ok && slices.Contains([]string{"REPEAT", "LPAD", "RPAD", "ARRAY_REPEAT",
			"ARRAY_STAR", "PAIRS", "DATE_RANGE_STR", "DATE_RANGE_MILLIS", "CONCAT2", "JSON_ENCODE", "BASE64_ENCODE",
			"ARRAY_RANGE", "SUFFIXES", "REPLACE", "REGEXP_REPLACE", "ARRAY_CONCAT", "CONCAT"}, c.Name) {
			makers++
		}
	})
	return makers > 1 || len(x.String()) > 1000
}

// sampled are arguments that are valid for a parameter of this name (as in Function.Params).
var sampled = map[string][]string{
	"text": {`"banana"`, `"aß c"`, `" \tx y\n"`, `"İIıſK"`, `"ǅungla fi"`, `"日本語"`, `"1.5"`, `""`, "a", "b", "META().id",
		"META().xattrs.a.a[1].b"},
	"part": {`"year"`, `"Quarter"`, `"month"`, `"week"`, `"day"`, `"hour"`, `"minute"`, `"second"`, `"millisecond"`, `"decade"`, `"century"`, `"millennium"`,
		// As literals, some functions would refuse these.
		`LOWER("na")`, `LOWER("iso_year")`, `LOWER("iso_week")`, `LOWER("day_of_year")`, `LOWER("dow")`, `LOWER("iso_dow")`, `LOWER("timezone")`, `LOWER("timezone_hour")`, `LOWER("timezone_minute")`, `LOWER("era")`, "b"},
	"date":    {`"2024-02-29T23:59:59.987-05:00"`, `"2024-01-31"`, `"0000-01-01"`, `"9999-12-31T23:59:59Z"`, `"2023-12-31 10:20"`, `"2021-01-03T00:00:00.5+13:45"`, `"2024-02-30"`, `"2024-1-1"`, `"2024-01-01T5:00:00"`, `"2024-01-01T05:00:00,5Z"`, `"2024-06-01T24:00"`, `"2024-06-01T10:00+24:00"`, `"10:20:30.25"`, `"5:00:00Z"`, `"2024-06-01 10:00:00.123456789+25:00"`, `"2024-06-01 10:00:00.1234567-05:00"`, "c"},
	"example": {`"1111-11-11"`, `"1111-11-11T11:11:11.111Z"`, `"1111-11-11 11:11:11"`, `LOWER("x")`, "c"},
	"millis": {"0", "-1", "1700000000123", "-62167219200000", "253402300799999", "253402300800000", "951782400000.9",
		"-0.5", "1e400", "1e15", "b"},
	"array": {"[]", "[1, [2, [3, null]], 2.0, true, \"x\"]", "[null, 0, 9007199254740993, 9007199254740992.0]",
		"[1e308, 1e308]", "[0.1, 0.2, 3]", "a", "c", "d"},
	"object": {"{}", `{"a": b, "b": [1], "é": c}`, `{"x": {"y": 5}}`, "a", "d"},
	"name":   {`"a"`, `"é"`, `""`, "b"},
	"number": {"0", "-0", "2.345", "-2.5", "0.5", "1e-7", "123456789012345678", "1.152921504606846976e18",
		"9223372036854775807", "-9223372036854775808", "1e308", "1.7976931348623157e308", "12345678901234567890", "1e400",
		"a", "b"},
	"digits":     {"0", "1", "2", "-1", "-3", "-18", "-19", "-308", "300", "301", "1.0", "b"},
	"times":      {"0", "1", "3", "-1", "2.5", "1e400"},
	"length":     {"0", "1", "3", "7", "-1", "2.5"},
	"from":       {"0", "1", "2", "-1", "-3", "5", "1.5", "1e400"},
	"to":         {"0", "3", "-4", "9"},
	"step":       {"1", "2", "-1", "0", "-3"},
	"depth":      {"0", "1", "2", "100", "-1"},
	"n":          {"0", "1", "-1", "13", "-25", "1000000", "1099511627777", "1e300"},
	"new":        {`"-"`, `"${1}o"`, `""`},
	"at":         {`","`, `"a"`, `""`, `" "`},
	"characters": {`"ab"`, `"éß "`, `""`, `" x"`},
	"with":       {`"ab"`, `"é"`, `""`},
	"old":        {`"an"`, `""`, `"ß"`},
	"options":    {`{"case": "lower"}`, `{"case": "upper", "names": true}`, `{"specials": true}`, `{"specials": true, "names": true, "case": "lower"}`, `{"names": false}`, `{"split": false}`, `{"split": false, "trim": false, "case": "UPPER"}`, `{}`},
	"zone":       {`"UTC"`, `"Asia/Kolkata"`, `"America/New_York"`, `"No/Where"`, "b"},
	"place":      {"0", "1", "-1", "2", "-3", "1.5"},
	"integer":    {"0", "1", "-1", "255", "9223372036854775807", "-9223372036854775808", "6.0", "1.5", "a", "null"},
	"positions":  {"1", "64", "65", "[1, 3]", "[]", "[0]", `"1"`, "c"},
	"shift":      {"0", "1", "-1", "63", "64", "-65", "9223372036854775807", "-9223372036854775808", "[]"},
	"flag":       {"true", "false", "1", "gone"},
	"json":       {`"[1, 2.50, null]"`, `" 7 "`, `"{\"b\": 1, \"a\": {}}"`, `"x"`, `""`, `"1e400"`},
	"base64":     {`"eyJhIjoxfQ=="`, `"YWJj"`, `"/w=="`, `"x"`},
	"duration":   {`"1h2m3.5s"`, `"-3ms"`, `"5"`, `""`},
	"nanos":      {"0", "1500000000", "-1", "1.5", "9223372036854775807", "1e300"},
	"like":       {`"%a%"`, `"_"`, `"a\\%"`},
	"pattern":    {`"n.n"`, `"^a|b$"`, `"(a|(b))+"`, `"[^x]*"`, `"é"`, `""`, `"(?i)A"`, `"\\d+"`},
}

// callText returns a call of any function, mostly with arguments of the right types.
func callText(inner *rapid.Generator[string]) *rapid.Generator[string] {
	all := expression.Functions()
	return rapid.Custom(func(t *rapid.T) string {
		f := rapid.SampledFrom(all).Draw(t, "function")
		params := strings.FieldsFunc(f.Params, func(r rune) bool { return strings.ContainsRune(` ,[]"…`, r) })
		var args []string
		for i := range rapid.IntRange(f.Min, min(f.Max, f.Min+2)).Draw(t, "arguments") {
			name := ""
			if len(params) > 0 {
				name = params[min(i, len(params)-1)]
			}
			fit := sampled[name]
			if name != "pattern" && name != "options" && (len(fit) == 0 || rapid.IntRange(0, 4).Draw(t, "any") == 0) {
				arg := inner.Draw(t, "argument")
				if name == "part" || name == "example" { // a literal may be refused
					arg = "IFMISSINGORNULL(" + arg + ", c)"
				}
				args = append(args, arg)
			} else {
				args = append(args, rapid.SampledFrom(fit).Draw(t, "argument"))
			}
		}
		if f.Name == "ARRAY_PREPEND" { // the array is the last one
			slices.Reverse(args)
		}
		return f.Name + "(" + strings.Join(args, ", ") + ")"
	})
}

// constructText returns an expression of any kind. vars are the variables in scope.
func constructText(depth int, vars ...string) *rapid.Generator[string] {
	leaves := []*rapid.Generator[string]{pathText(), expressionText(0), rapid.SampledFrom([]string{"META().cas", "META().flags", "META().expiration", `"a_%"`, "0.1", "9223372036854775807", "-1e308", "[]", "{}"})}
	for _, v := range vars {
		leaves = append(leaves, rapid.SampledFrom([]string{v, v + ".a", v + "[0]", v + "[-1].b"}))
	}
	leaf := rapid.OneOf(leaves...)
	if depth == 0 {
		return leaf
	}
	inner := constructText(depth-1, vars...)
	form := func(forms ...string) *rapid.Generator[string] {
		return rapid.Custom(func(t *rapid.T) string {
			f := rapid.SampledFrom(forms).Draw(t, "form")
			for strings.Contains(f, "?") {
				f = strings.Replace(f, "?", strings.ReplaceAll(inner.Draw(t, "x"), "?", ""), 1)
			}
			return f
		})
	}
	name := []string{"v", "w", "a"}[len(vars)%3]
	body := constructText(depth-1, append(slices.Clone(vars), name)...)
	place := []string{"i", "j", "b"}[len(vars)%3]
	each := rapid.Custom(func(t *rapid.T) string {
		over := rapid.OneOf(inner, pathText(), rapid.SampledFrom(sampled["array"])).Draw(t, "over")
		x, when := body.Draw(t, "body"), ""
		bound := rapid.SampledFrom([]string{name + " IN ", name + " IN ", name + " WITHIN ", place + ":" + name + " IN ",
			place + ":" + name + " WITHIN "}).Draw(t, "bound") + over
		if rapid.IntRange(0, 3).Draw(t, "two") == 0 {
			bound += ", u IN " + inner.Draw(t, "over")
		}
		switch kind := rapid.SampledFrom([]string{"ANY", "EVERY", "ANY AND EVERY", "ARRAY", "FIRST", "OBJECT"}).Draw(t,
			"kind"); kind {
		case "ARRAY", "FIRST", "OBJECT":
			if rapid.Bool().Draw(t, "filtered") {
				when = " WHEN " + body.Draw(t, "when")
			}
			if kind == "OBJECT" {
				kind += " TOSTRING(" + name + "):"
			}
			return fmt.Sprintf("%s (%s) FOR %s%s END", kind, x, bound, when)
		default:
			return fmt.Sprintf("%s %s SATISFIES %s END", kind, bound, x)
		}
	})
	return rapid.OneOf(leaf, callText(inner), callText(inner), callText(inner), each,
		form("(?) = (?)", "(?) < (?)", "(?) >= (?)", "(?) AND (?)", "(?) OR (?)", "NOT (?)", "-(?)", "(?) IS NULL",
			"(?) IS VALUED", "(?) IS MISSING"),
		form("(?) + (?)", "(?) - (?)", "(?) * (?)", "(?) / (?)", "(?) % (?)", "(?) || (?)", "(?) || (?) || (?)", `(?) || "x"`),
		form("(?) LIKE (?)", `(?) NOT LIKE "%a_%"`, `(?) LIKE (?) ESCAPE "!"`, "(?) IN (?)", "(?) NOT IN [?, ?, 1]", "(?) BETWEEN (?) AND (?)", "(?) NOT BETWEEN (?) AND (?)"),
		form("CASE WHEN ? THEN ? ELSE ? END", "CASE ? WHEN ? THEN ? WHEN ? THEN ? END", "[?, ?, ?]", `{"a": ?, "é": ?}`, `{"a": ?}.a`, "(?)[0].a", "(?).b[-1]", "[?, ?][-1]", "EXISTS (?)"),
		form("(?) WITHIN (?)", "(?) NOT WITHIN [?, ?]", "(?)[?:?]", "(?)[1:]", "(?)[-2:-1]", "(?)[NVL(?, 1)]", "(?).[?]", "{?: ?}", `{"a": ?, ?: ?}`, "self", "self.a[NVL(?, 0)]", "[?, ?] = [?, ?]", "[?] < [?, ?]"))
}

// valueText returns a document of any shape: that of documentText, and a member d with values that only functions
// inspect.
func valueText() *rapid.Generator[string] {
	member := rapid.SampledFrom([]string{
		`"2024-02-29T08:07:06Z"`, `"2023-11-05 01:30:00.250-07:00"`, `"year"`, `"banana"`, `"\ud83d\ude00x\ud800"`, "\"\xff\xc3x\"", `["x","y","x",null,1,1.0,[1],[1.0]]`, `[3,1e2,-0.0,2.5e-324,1e-400]`,
		`{"x":1,"x":{"y":[2]},"\u0078":3}`, `123456789012345678901234567890`, `1E+2`, `[[[[[[[[1]]]]]]]]`, `[{"a":1,"b":"B"},{"a":"q"},7]`, `1700000000123`, `0.1e1`, `-7`,
	})
	return rapid.Custom(func(t *rapid.T) string {
		if rapid.IntRange(0, 9).Draw(t, "plain") == 0 {
			return documentText(4).Draw(t, "doc")
		}
		var all []string
		for _, name := range []string{`"a"`, `"b"`, `"c"`, `"\u0064"`, `"é"`} {
			if rapid.IntRange(0, 5).Draw(t, "there") > 0 {
				all = append(all, name+": "+rapid.OneOf(member, documentText(2)).Draw(t, "value"))
			}
		}
		return "{" + strings.Join(all, ", ") + "}"
	})
}

// TestEvaluateOracle runs random expressions, of all constructs and all functions, on random documents against the
// slow interpreter: keys of plain and of array indexes.
func TestEvaluateOracle(t *testing.T) {
	var s expression.Scratch
	rapid.Check(t, func(t *rapid.T) {
		where := constructText(rapid.IntRange(1, 3).Draw(t, "depth")).Draw(t, "where")
		x, err := expression.ParseExpression(where)
		if err != nil {
			t.Fatalf("%s: %v", where, err)
		}
		checkPrinted(t, x)
		if expensive(x) {
			t.Skip()
		}
		checkDocument(t, &s, pathText().Draw(t, "key"), keyText(t, "other"), keyText2(where),
			rapid.SampledFrom([]string{"doc", "2024-01-01", "\xff"}).Draw(t, "id"), []byte(valueText().Draw(t, "doc")))
	})
}

// TestPositionsBeyondIntegers checks that a position beyond 64 bits is outside every array, wherever it is used.
func TestPositionsBeyondIntegers(t *testing.T) {
	var s expression.Scratch
	for _, place := range []string{"META().cas", "-META().cas", "1e300", "-1e300", "0.5"} {
		for _, doc := range []string{`{"a":{}}`, `{"a":[1,2]}`, `{"a":7}`, `{"b":[1]}`, `{"a":null}`} {
			checkDocument(t, &s, "a", "self.a[NVL("+place+", 0)]", "a[NVL("+place+", 0):]", "doc", []byte(doc))
			checkDocument(t, &s, "a", "a[0:NVL("+place+", 0)]", "a[-NVL("+place+", 0):1]", "doc", []byte(doc))
		}
	}
}

// TestNumbersBeyondFloats checks the result of functions and operators for a number beyond float64 as each of their
// arguments, and where it is an error.
func TestNumbersBeyondFloats(t *testing.T) {
	var texts []string
	for _, f := range expression.Functions() {
		for n := max(f.Min, 1); n <= min(max(f.Max, f.Min), 3); n++ {
			for place := range n {
				for _, other := range []string{"a", "2", `"2024-02-29"`, `"day"`, "[1]"} {
					args := slices.Repeat([]string{other}, n)
					args[place] = "a"
					texts = append(texts, f.Name+"("+strings.Join(args, ", ")+")")
				}
			}
		}
	}
	for _, form := range []string{"-X", "X + 1", "1 - X", "X * 0", "X / 2", "2 / X", "X % 2", "2 % X", "X || ''", "X = 1",
		"X < 1", "X IN [X]", "X BETWEEN 1 AND 2", "[1][X]", "[1][X:]", "[1][:X]", "CASE WHEN X THEN 1 END",
		"X AND TRUE", "NOT X"} {
		texts = append(texts, strings.ReplaceAll(form, "X", "a"))
	}
	var s expression.Scratch
	var checked, failed int
	for _, text := range texts {
		if _, err := expression.ParseExpression(text); err != nil {
			continue // a constant that is invalid, or one that is required
		}
		sources := []expression.Source{keys(text)}
		p, err := expression.Compile(sources)
		if err != nil {
			t.Fatal(err)
		}
		checked++
		for _, doc := range []string{`{"a":1e400}`, `{"a":-1e400}`, `{"a":1` + strings.Repeat("0", 400) + `}`} {
			r := p.Evaluate(&s, []byte("doc"), []byte(doc))
			checkResult(t, r, sources, expressiontest.Doc{ID: "doc"}, []byte(doc))
			failed += r.Errors
		}
	}
	if checked < 300 || failed < 100 {
		t.Errorf("%d expressions are checked, and fail on %d documents", checked, failed)
	}
}

// keyText returns an expression that may be a key: not a constant.
func keyText(t *rapid.T, label string) string { return keyText2(constructText(1).Draw(t, label)) }

func keyText2(text string) string {
	if _, err := expression.Compile([]expression.Source{keys(text)}); err == nil {
		return text
	}
	return "IFMISSING(" + text + ", b)"
}

// TestOracleHasAllFunctions checks that the interpreter has every function and agrees with every example.
func TestOracleHasAllFunctions(t *testing.T) {
	v, _ := collatetest.Decode([]byte(exampleDoc))
	for _, f := range expression.Functions() {
		if !expressiontest.HasFunction(f.Name) {
			t.Errorf("the interpreter does not have %s", f.Name)
			continue
		}
		x, err := expression.ParseExpression(f.Example.Expr)
		if err != nil {
			t.Fatal(err)
		}
		got, err := expressiontest.Eval(x, expressiontest.Doc{ID: "doc", Value: v})
		want := any(expressiontest.Missing)
		if f.Example.Value != "MISSING" {
			want, _ = collatetest.Decode([]byte(f.Example.Value))
		}
		if err != nil || collatetest.Compare(got, want) != 0 {
			t.Errorf("%s = %v (%v), want %v", f.Example.Expr, got, err, want)
		}
	}
}
