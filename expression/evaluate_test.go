package expression_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"tidemark/collate"
	"tidemark/expression"
	"tidemark/expression/expressiontest"
	"tidemark/index"
)

func equalKeys(a, b [][]byte) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}

func pathText() *rapid.Generator[string] {
	step := rapid.SampledFrom([]string{".a", ".b", ".`é`", ".c", "[0]", "[1]", "[-1]", "[-2]"})
	return rapid.Custom(func(t *rapid.T) string {
		first := rapid.SampledFrom([]string{"a", "b", "`é`", "c"}).Draw(t, "first")
		return first + strings.Join(rapid.SliceOfN(step, 0, 3).Draw(t, "steps"), "")
	})
}

func expressionText(depth int) *rapid.Generator[string] {
	leaf := rapid.OneOf(pathText(), pathText(), rapid.SampledFrom([]string{
		"NULL", "MISSING", "TRUE", "FALSE", "0", "1", "-1", "1.0", "9007199254740993", "9007199254740992.0", "1e400", `"x"`, `'é'`, `""`, "META().id",
	}))
	if depth == 0 {
		return leaf
	}
	inner := expressionText(depth - 1)
	return rapid.OneOf(leaf, rapid.Custom(func(t *rapid.T) string {
		x, y := inner.Draw(t, "x"), inner.Draw(t, "y")
		op := rapid.SampledFrom([]string{"=", "==", "!=", "<>", "<", "<=", ">", ">=", "AND", "OR", "and", "or"}).Draw(t, "op")
		return "(" + x + ") " + op + " (" + y + ")"
	}), rapid.Custom(func(t *rapid.T) string {
		x := inner.Draw(t, "x")
		form := rapid.SampledFrom([]string{
			"NOT (%s)", "-(%s)", "(%s) IS NULL", "(%s) IS NOT NULL", "(%s) IS MISSING", "(%s) IS NOT MISSING", "(%s) IS VALUED",
			"(%s) IS NOT VALUED",
		}).Draw(t, "form")
		return fmt.Sprintf(form, x)
	}))
}

func documentText(depth int) *rapid.Generator[string] {
	leaf := rapid.SampledFrom([]string{
		"null", "true", "false", "0", "-0", "1", "1.0", "-1", "1e400", "9007199254740993", "9007199254740992.0", "0.1", `""`, `"x"`, `"\u0078"`, `"é"`,
		`"\u00e9"`, `"doc"`, `"a\u0000b"`, "[]", "{}", "[ ]", "{ }",
	})
	if depth == 0 {
		return leaf
	}
	inner := documentText(depth - 1)
	space := rapid.SampledFrom([]string{"", "", " ", "\n\t"})
	array := rapid.Custom(func(t *rapid.T) string {
		sp := space.Draw(t, "space")
		return "[" + sp + strings.Join(rapid.SliceOfN(inner, 0, 3).Draw(t, "elements"), sp+","+sp) + sp + "]"
	})
	object := rapid.Custom(func(t *rapid.T) string {
		sp := space.Draw(t, "space")
		var all []string
		for range rapid.IntRange(0, 4).Draw(t, "members") {
			name := rapid.SampledFrom([]string{`"a"`, `"b"`, `"c"`, `"d"`, `"é"`, `"\u0061"`, `"\u00e9"`, `"A"`}).Draw(t, "name")
			all = append(all, name+sp+":"+sp+inner.Draw(t, "value"))
		}
		return "{" + sp + strings.Join(all, sp+","+sp) + sp + "}"
	})
	return rapid.OneOf(object, object, array, leaf)
}

// TestEvaluateModel runs random expressions on random documents against the model.
func TestEvaluateModel(t *testing.T) {
	var s expression.Scratch
	rapid.Check(t, func(t *rapid.T) {
		checkDocument(t, &s, pathText().Draw(t, "key"), expressionText(1).Draw(t, "other"),
			expressionText(3).Draw(t, "where"),
			rapid.SampledFrom([]string{"doc", "", "x", "d\x00c", "\xff"}).Draw(t, "id"), []byte(documentText(4).Draw(t, "doc")))
	})
}

// TestReversedMarks compares REVERSE of texts of letters, combining marks and invalid UTF-8 with the model.
func TestReversedMarks(t *testing.T) {
	var s expression.Scratch
	text := rapid.SliceOfN(rapid.SampledFrom([]string{"A", "⒚", "\U000115b5", "\u0301", "\ufffd", `\ud800`}), 0, 6)
	rapid.Check(t, func(t *rapid.T) {
		doc := `{"a":"` + strings.Join(text.Draw(t, "text"), "") + `"}`
		checkDocument(t, &s, "REVERSE(a)", "a", "a IS VALUED", "doc", []byte(doc))
	})
}

// TestManyPaths reads many places of one document at once, with duplicate members, against encoding/json.
func TestManyPaths(t *testing.T) {
	var sources []expression.Source
	names := []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n"}
	for _, n := range names {
		for _, text := range []string{n, n + ".a", n + ".b", n + "[0]", n + "[-1]", n + "[1].a", n + ".a.b", n + "[-1][0]",
			n + "[2]", n + "[-3]"} {
			sources = append(sources, keys(text))
		}
	}
	p, err := expression.Compile(sources)
	if err != nil {
		t.Fatal(err)
	}
	var s expression.Scratch
	rapid.Check(t, func(t *rapid.T) {
		var all []string
		for range rapid.IntRange(0, 20).Draw(t, "members") {
			all = append(all, `"`+rapid.SampledFrom(names).Draw(t, "name")+`":`+documentText(3).Draw(t, "value"))
		}
		doc := "{" + strings.Join(all, ",") + "}"
		checkResult(t, p.Evaluate(&s, []byte("doc"), []byte(doc)), sources, expressiontest.Doc{ID: "doc"}, []byte(doc))
	})
}

// TestNotJSON checks that only a primary index has a key for a document that is not JSON, and that no index has one for
// a deletion.
func TestNotJSON(t *testing.T) {
	p, err := expression.Compile([]expression.Source{{IsPrimary: true}, keys("a"), keys("META().id")})
	if err != nil {
		t.Fatal(err)
	}
	var s expression.Scratch
	for _, doc := range []string{
		"", " ", "{", "}", `{"a"`, `{"a":`, `{"a":1`, `{"a":1,`, `{"a":1,}`, `{"a":1}}`, `{"a":1} x`, `{"a":01}`, `{"a":.5}`, `{"a":1.}`, `{"a":tru}`, `{"a" 1}`, `{a:1}`,
		`{"b":"\x"}`, `{"b":"\u12"}`, "{\"b\":\"\n\"}", `{"b":[1,]}`, `{"b":[1 2]}`, `{"b":{"c":1,}}`, `{"b":{"c"}}`, `{"b":{,}}`, `{"b":nul}`, `{"b":+1}`, "\x00", "\xff", `{"a":1,"b":-}`,
		`{"x":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + "}", strings.Repeat(`{"a":`, 20000), "nullx", "[1", "[", `["a]`,
	} {
		if json.Valid([]byte(doc)) {
			t.Fatalf("%.100q is JSON", doc)
		}
		r := p.Evaluate(&s, []byte("id"), []byte(doc))
		if !r.NotJSON || len(r.Keys(0)) != 1 || len(r.Keys(1)) != 0 || len(r.Keys(2)) != 0 || r.Errors != 0 {
			t.Errorf("%.100q: %+v, keys %q %q %q", doc, r, r.Keys(0), r.Keys(1), r.Keys(2))
		}
	}
	for _, doc := range []string{"1", "null", `"a"`, "[]", " {} ", strings.Repeat("[", 10000) + strings.Repeat("]", 10000)} {
		r := p.Evaluate(&s, []byte("id"), []byte(doc))
		if r.NotJSON || len(r.Keys(0)) != 1 || len(r.Keys(1)) != 0 || len(r.Keys(2)) != 1 {
			t.Errorf("%.100q: %+v, keys %q %q %q", doc, r, r.Keys(0), r.Keys(1), r.Keys(2))
		}
	}
	if r := p.Deleted(&s); len(r.Keys(0))+len(r.Keys(1))+len(r.Keys(2)) != 0 {
		t.Errorf("a deletion has keys: %q", r.Keys(0))
	}
}

// TestLimits checks that a key that is too long or nested too deep only removes that entry.
func TestLimits(t *testing.T) {
	p, err := expression.CompileLimits([]expression.Source{
		keys("long"), keys("id"), keys("id", "long"), keys("deep"), where(keys("id"), "deep = deep2"), keys("list"),
		keys("esc"), keys("fits"), {IsPrimary: true},
	}, expression.Limits{KeyBytes: 1000})
	if err != nil {
		t.Fatal(err)
	}
	deep := strings.Repeat("[", 200) + strings.Repeat("]", 200)
	doc := fmt.Sprintf(`{"id":1,"long":%q,"deep":%s,"deep2":%s,"list":[%s1],"esc":"%s","fits":%q}`, strings.Repeat("x", 10000), deep, deep, strings.Repeat("1,", 5000),
		strings.Repeat(`\u0041`, 5000), strings.Repeat("x", 997))
	var s expression.Scratch
	r := p.Evaluate(&s, []byte("id"), []byte(doc))
	for i, want := range []error{collate.ErrTooLong, nil, collate.ErrTooLong, collate.ErrDepth, collate.ErrDepth,
		collate.ErrTooLong, collate.ErrTooLong, nil, nil} {
		if err := r.Err(i); !errors.Is(err, want) || (want == nil) != (len(r.Keys(i)) == 1) {
			t.Errorf("index %d: %v, %d keys, want %v", i, err, len(r.Keys(i)), want)
		}
	}
	if r.Errors != 6 {
		t.Errorf("%d errors", r.Errors)
	}
	r = p.Evaluate(&s, bytes.Repeat([]byte("k"), 1200), []byte("{}"))
	if r.Errors != 1 || !errors.Is(r.Err(8), collate.ErrTooLong) || r.Err(0) != nil {
		t.Errorf("a long document id: %+v", r)
	}
}

func TestCompileErrors(t *testing.T) {
	many := make([]expression.Source, expression.MaxSources+1)
	for _, sources := range [][]expression.Source{
		{{}}, {{IsPrimary: true, Where: "TRUE"}}, {{IsPrimary: true}, keys("a b")}, {where(keys("a"), "b =")},
		{keys(strings.Split(strings.Repeat("a,", expression.MaxKeys)+"a", ",")...)}, many,
	} {
		if _, err := expression.Compile(sources); !errors.Is(err, expression.ErrDefinition) {
			t.Errorf("%v", err)
		}
	}
	_, err := expression.Compile([]expression.Source{keys("a"), where(keys("a"), "b = SELECT")})
	var syntax *expression.SyntaxError
	if !errors.As(err, &syntax) || syntax.Column != 5 || !errors.Is(err, expression.ErrUnsupported) ||
		!strings.Contains(err.Error(), "index 1") {
		t.Errorf("%v", err)
	}
	p, err := expression.Compile(nil)
	if err != nil || p.Sources() != 0 {
		t.Fatal(err)
	}
	if r := p.Evaluate(new(expression.Scratch), nil, []byte("{}")); r.Errors != 0 || r.NotJSON {
		t.Errorf("%+v", r)
	}
}

// TestScratchServesAll checks that one Scratch can be used for a large Program, then a small one, then the large one.
func TestScratchServesAll(t *testing.T) {
	small, err := expression.Compile([]expression.Source{keys("a")})
	if err != nil {
		t.Fatal(err)
	}
	large, err := expression.Compile([]expression.Source{keys("a", "b", "c[0]"), where(keys("b"), "a = 1"),
		{IsPrimary: true}})
	if err != nil {
		t.Fatal(err)
	}
	var s expression.Scratch
	for range 3 {
		if r := large.Evaluate(&s, []byte("x"), []byte(`{"a":1,"b":2,"c":[3]}`)); len(r.Keys(0)) != 1 || len(r.Keys(1)) != 1 || len(r.Keys(2)) != 1 {
			t.Fatal(r)
		}
		if r := small.Evaluate(&s, []byte("x"), []byte(`{"b":1}`)); len(r.Keys(0)) != 0 {
			t.Fatal(r)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	p, err := expression.Compile([]expression.Source{
		{IsPrimary: true}, keys("name", "-age"), where(keys("friends[-1].name"), `bio != "x" AND account.balance > 1000.5`), keys("bio"), keys("address", "tags"),
	})
	if err != nil {
		t.Fatal(err)
	}
	var s expression.Scratch
	id, doc := []byte("id"), []byte(kibibyte)
	if n := testing.AllocsPerRun(100, func() {
		if r := p.Evaluate(&s, id, doc); r.Errors > 0 || len(r.Keys(2)) != 1 {
			t.Fatal(r)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestDamagedDocuments checks that a document with one byte changed, removed or added is JSON exactly if encoding/json
// accepts it.
func TestDamagedDocuments(t *testing.T) {
	p, err := expression.Compile([]expression.Source{keys("a"), keys("b[0].c"), keys("c[-1]"), keys("a.b.c")})
	if err != nil {
		t.Fatal(err)
	}
	var s expression.Scratch
	rapid.Check(t, func(t *rapid.T) {
		doc := []byte(documentText(4).Draw(t, "doc"))
		for range rapid.IntRange(1, 3).Draw(t, "changes") {
			at := rapid.IntRange(0, len(doc)).Draw(t, "at")
			b := rapid.SampledFrom([]byte("{}[],:\"\\0123456789.-+eEtrufalsnx \n\x00\x1f\x7f\x80\xff")).Draw(t, "byte")
			switch tail := bytes.Clone(doc[at:]); {
			case len(tail) == 0 || rapid.Bool().Draw(t, "add"):
				doc = append(append(doc[:at], b), tail...)
			case rapid.Bool().Draw(t, "lose"):
				doc = append(doc[:at], tail[1:]...)
			default:
				doc[at] = b
			}
		}
		if r := p.Evaluate(&s, nil, doc); r.NotJSON == json.Valid(doc) {
			t.Fatalf("%q: NotJSON %v", doc, r.NotJSON)
		}
	})
}

// TestStoredDefinitionsKeepTheirValues checks that a stored definition that an earlier version accepted keeps its
// values, even if a new one would be refused.
func TestStoredDefinitionsKeepTheirValues(t *testing.T) {
	for _, text := range []string{
		`DATE_PART_STR("2024-02-29", "decennium")`, `DATE_TRUNC_STR("2024-02-29", NULL)`, `DATE_ADD_STR("2024-02-29", 1, "dow")`,
		`MILLIS_TO_STR(0, 7)`, `IFNULL(DATE_DIFF_MILLIS(0, 0, "x"), NULL)`,
	} {
		if got := valueOf(t, text, exampleDoc); got != "null" {
			t.Errorf("%s = %s, it was null", text, got)
		}
		var syntax *expression.SyntaxError
		if _, err := expression.ParseKey(text); !errors.As(err, &syntax) {
			t.Errorf("a new index on %s: %v", text, err)
		}
		d := index.Definition{Name: "i", Bucket: "b", Keys: keysOf("a"), Where: text + " IS NULL"}
		if err := expression.Normalize(&d); !errors.As(err, &syntax) {
			t.Errorf("a new index where %s: %v", text, err)
		}
		if _, err := expression.Compile([]expression.Source{expression.SourceOf(&d)}); err != nil {
			t.Errorf("a stored one: %v", err)
		}
	}
}
