package expression_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"tidemark/collate"
	"tidemark/expression"
	"tidemark/index"
)

// checkPrinted checks that printed text parses to the same tree and is printed as the same text.
func checkPrinted(t failer, x expression.Expr) {
	t.Helper()
	again, err := expression.ParseExpression(x.String())
	if err != nil {
		t.Fatalf("%s does not read: %v", x, err)
	}
	if !reflect.DeepEqual(x, again) || again.String() != x.String() {
		t.Fatalf("%s reads as %s", x, again)
	}
}

func TestPrintedExpressions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, err := expression.ParseExpression(expressionText(4).Draw(t, "text"))
		if err != nil {
			t.Fatal(err)
		}
		checkPrinted(t, x)
	})
}

// TestPrintedNames checks that any name can be a step of a printed path.
func TestPrintedNames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"a", "where", "`", "a``b", "0", "é", "_"})).Draw(t, "name")
		if name == "" || strings.Contains(name, "\n") {
			t.Skip()
		}
		checkPrinted(t, &expression.Path{Steps: []expression.Step{{Name: name}, {Name: name}}})
	})
}

// TestNormalize checks that a definition built from parts becomes the one of the corresponding statement.
func TestNormalize(t *testing.T) {
	d := index.Definition{
		Name: "by-age", Bucket: "users", Keys: []index.KeyExpr{{Expr: " `age`", Desc: true}, {Expr: "meta().id"}}, Where: "(kind=='user')",
		Partitions: 8, Replicas: 1, Nodes: []string{"n1"}, Deferred: true,
	}
	if err := expression.Normalize(&d); err != nil {
		t.Fatal(err)
	}
	want := "CREATE INDEX `by-age` ON users(age DESC, META().id) WHERE kind = \"user\" WITH {\"defer_build\":true, \"num_replica\":1, \"num_partition\":8, \"nodes\":[\"n1\"]}"
	if d.Statement != want || d.Keys[0].Expr != "age" || d.Where != `kind = "user"` || d.Using != index.UsingOrdered || d.ExprType != index.ExprN1QL {
		t.Errorf("%+v", d)
	}
	all, err := expression.Parse(d.Statement)
	if err != nil {
		t.Fatal(err)
	}
	if again := all[0].(*expression.CreateIndex).Definition(); !reflect.DeepEqual(again, d) {
		t.Errorf("%+v\nis read as\n%+v", d, again)
	}
	primary := index.Definition{Name: expression.PrimaryName, Bucket: "b", IsPrimary: true}
	if err := expression.Normalize(&primary); err != nil || primary.Statement != "CREATE PRIMARY INDEX `#primary` ON b" {
		t.Errorf("%+v, %v", primary, err)
	}
}

// TestNormalizeAdds checks that flattened keys and expressions of PARTITION BY become separate components, also of a
// definition that is given in parts.
func TestNormalizeAdds(t *testing.T) {
	d := index.Definition{Name: "i", Bucket: "b", Keys: []index.KeyExpr{
		{Expr: "distinct array flatten_keys(v.a, v.b desc) for v in c end"}, {Expr: "x", Desc: true}},
		PartitionBy: index.PartitionBy{Scheme: index.PartitionHash, Exprs: []string{"lower(y)"}}}
	for range 2 { // a second time it is unchanged
		if err := expression.Normalize(&d); err != nil {
			t.Fatal(err)
		}
		const want = "CREATE INDEX i ON b(DISTINCT ARRAY FLATTEN_KEYS(v.a, v.b DESC) FOR v IN c END, x DESC, LOWER(y)) " +
			"PARTITION BY HASH(LOWER(y))"
		if d.Statement != want || !slices.Equal(d.Desc(), []bool{false, true, true, false}) {
			t.Fatalf("%s %v", d.Statement, d.Desc())
		}
	}
}

// TestNormalizeErrors checks that no part of a definition can change the meaning of another part.
func TestNormalizeErrors(t *testing.T) {
	good := index.Definition{Name: "i", Bucket: "b", Keys: []index.KeyExpr{{Expr: "a"}}}
	for name, spoil := range map[string]func(*index.Definition){
		"no name":       func(d *index.Definition) { d.Name = "" },
		"bad name":      func(d *index.Definition) { d.Name = "a/b" },
		"long name":     func(d *index.Definition) { d.Name = strings.Repeat("x", 101) },
		"bad bucket":    func(d *index.Definition) { d.Bucket = "b(a); DROP INDEX i ON b" },
		"no keys":       func(d *index.Definition) { d.Keys = nil },
		"two keys":      func(d *index.Definition) { d.Keys[0].Expr = "a, b" },
		"a direction":   func(d *index.Definition) { d.Keys[0].Expr = "a DESC" },
		"a clause":      func(d *index.Definition) { d.Keys[0].Expr = "a) WHERE (b" },
		"a comment":     func(d *index.Definition) { d.Keys[0].Expr = "a /*" },
		"a constant":    func(d *index.Definition) { d.Keys[0].Expr = "1" },
		"with in where": func(d *index.Definition) { d.Where = `a = 1 WITH {"num_replica":9}` },
		"empty where":   func(d *index.Definition) { d.Where = " " },
		"primary":       func(d *index.Definition) { d.IsPrimary = true },
		"replicas":      func(d *index.Definition) { d.Replicas = 200 },
		"partitions":    func(d *index.Definition) { d.Partitions = 60000 },
		"node":          func(d *index.Definition) { d.Nodes = []string{""} },
	} {
		d := good
		d.Keys = append([]index.KeyExpr(nil), good.Keys...)
		spoil(&d)
		err := expression.Normalize(&d)
		var syntax *expression.SyntaxError
		if err == nil || !errors.Is(err, expression.ErrDefinition) && !errors.As(err, &syntax) {
			t.Errorf("%s: %v, %+v", name, err, d)
		}
	}
}

// TestTextLimits checks that every limit has its error, and that none is slow to detect.
func TestTextLimits(t *testing.T) {
	long := strings.Repeat("a", expression.MaxStatementBytes)
	for name, text := range map[string]string{
		"text":       strings.Repeat(" ", expression.MaxTextBytes+1),
		"statement":  "CREATE INDEX i ON b(" + long + ")",
		"statements": strings.Repeat("DROP INDEX i ON b;", expression.MaxStatements+1),
		"keys":       "CREATE INDEX i ON b(" + strings.Repeat("a,", expression.MaxKeys) + "a)",
		"flattened":  flattened(expression.MaxStatementBytes/400, 400),
		"many parts": strings.Replace(flattened(expression.MaxKeys, 0), "b(", "b(a, ", 1),
		"name":       "DROP INDEX " + strings.Repeat("x", expression.MaxNameBytes+1) + " ON b",
		"builds":     "BUILD INDEX ON b(" + strings.Repeat("i,", 300) + "i)",
		"parens":     "CREATE INDEX i ON b(" + strings.Repeat("(", 100000) + "a",
		"nots":       "CREATE INDEX i ON b(" + strings.Repeat("NOT ", 100000) + "a",
		"signs":      "CREATE INDEX i ON b(" + strings.Repeat("- ", 100000) + "a",
		"steps":      "CREATE INDEX i ON b(a" + strings.Repeat(".a", expression.MaxPathSteps) + ")",
		"elements":   "CREATE INDEX i ON b(a" + strings.Repeat("[0]", expression.MaxPathSteps) + ")",
	} {
		if _, err := expression.Parse(text); !errors.Is(err, expression.ErrSyntax) || len(err.Error()) > 1000 {
			t.Errorf("%s: %.300v", name, err)
		}
	}
	for _, text := range []string{flattened(expression.MaxKeys, 0), flattened(expression.MaxStatementBytes/500, 400)} {
		if _, err := expression.Parse(text); err != nil {
			t.Errorf("as much as fits: %.300v", err)
		}
	}
	if _, err := expression.ParseExpression(long + "a"); !errors.Is(err, expression.ErrSyntax) {
		t.Errorf("expression: %.300v", err)
	}
	wide := "a" + strings.Repeat(" OR a", 12000)
	x, err := expression.ParseExpression(wide)
	if err != nil || x.String() != wide {
		t.Fatalf("%.300v", err)
	}
	if _, err := expression.Compile([]expression.Source{where(keys("a"), wide)}); err != nil {
		t.Fatal(err)
	}
}

// flattened returns a CREATE INDEX on an array flattened into so many parts, each of which repeats so many bytes.
func flattened(parts, repeated int) string {
	return "CREATE INDEX i ON b(DISTINCT ARRAY FLATTEN_KEYS(" + strings.Repeat("v.a, ", parts-1) + "v.a) FOR v IN a" +
		strings.Repeat("b", repeated) + " END)"
}

// FuzzParse checks that no text causes a panic, that an error's position is within the text, and that accepted text is
// printed canonically.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"CREATE INDEX `i` ON b(a.b[0] DESC, -c) PARTITION BY HASH(META().id) WHERE a = 'x' AND NOT b IS MISSING WITH {\"nodes\":[\"n\"],\"num_replica\":\"1\"};DROP INDEX i ON b",
		"CREATE INDEX i ON b(DISTINCT ARRAY (ALL ARRAY FLATTEN_KEYS(v.a INCLUDE MISSING DESC, w) FOR w IN v.l END) FOR v IN c END) PARTITION BY HASH(d, ADD(e, 1))",
		"CREATE INDEX i ON b(META().xattrs.a[0].b, IS_NULL(SLICE(a, 1, 2))) WITH {\"arrSize\":1}", "CREATE PRIMARY INDEX IF NOT EXISTS ON b", "BUILD INDEX ON b(x, y)", "DROP INDEX IF EXISTS i ON b -- c", "CREATE INDEX i ON b(a /* \n */ = \"\\u00e9\")",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		all, err := expression.Parse(text)
		if err != nil {
			checkError(t, text, err)
			return
		}
		for _, s := range all {
			again, err := expression.Parse(s.String())
			if len(s.String()) > expression.MaxStatementBytes {
				continue // escapes and backticks may need more room
			}
			if err != nil || len(again) != 1 || !sameStatement(again[0], s) {
				t.Fatalf("%s is read as %v (%v)", s, again, err)
			}
		}
	})
}

// sameStatement reports whether two statements are equal, except for what notices report about their spelling.
func sameStatement(a, b expression.Statement) bool {
	x, ok := a.(*expression.CreateIndex)
	y, both := b.(*expression.CreateIndex)
	if !ok || !both {
		return reflect.DeepEqual(a, b)
	}
	return x.String() == y.String() && reflect.DeepEqual(x.Definition(), y.Definition())
}

func checkError(t *testing.T, text string, err error) {
	t.Helper()
	var syntax *expression.SyntaxError
	if !errors.As(err, &syntax) || syntax.Message == "" {
		t.Fatalf("%q: %v", text, err)
	}
	lines := strings.Split(text, "\n")
	if syntax.Line < 1 || syntax.Line > len(lines) || syntax.Column < 1 ||
		syntax.Column > len([]rune(lines[syntax.Line-1]))+1 {
		t.Fatalf("%q: line %d, column %d", text, syntax.Line, syntax.Column)
	}
	if shown := strings.Split(err.Error(), "\n"); len(shown) != 3 || !strings.HasSuffix(shown[2], "^") {
		t.Fatalf("%q: %s", text, err)
	}
}

// FuzzEvaluate checks that any expression on any document agrees with the model, and that a document is JSON exactly if
// encoding/json accepts it.
func FuzzEvaluate(f *testing.F) {
	for _, c := range [][2]string{
		{"a.b[-1]", `{"a":{"b":[1,2]},"a":{"b":[3]}}`}, {"a = -b AND c IS NOT MISSING", `{"a":-0,"b":0.0,"c":null}`}, {"a < b OR NOT c", `{"\u0061":"\ud83d\ude00","b":"x","c":[]}`},
		{`FIELD(a, "b")[SUB(1, 1)] + NEG(ADD(a.c, 2, b))`, `{"a":{"b":[1],"c":2},"b":3}`}, {`IS_NULL(SLICE(a, 0, 1)[0]) AND META().xattrs.a.a[1].b = "A"`, `{"a":[null]}`},
		{"META().id > a", `{"a":"\u0000"}`}, {`ARRAY UPPER(v.a) || "x" FOR v IN b WHEN v.a LIKE "_%" END`, `{"b":[{"a":"q"},{"a":7},1]}`},
		{`CASE WHEN a IN [1, b] THEN ROUND(a / 3, 2) ELSE {"k": ARRAY_SORT(c), "d": DATE_TRUNC_STR(d, "week")} END`, `{"a":2,"c":[3,"x",null],"d":"2024-02-29T01:02:03.5+01:00"}`},
		{`ANY v IN OBJECT_PAIRS(a) SATISFIES v.val BETWEEN -1 AND 9007199254740993 END`, `{"a":{"x":1,"x":2,"\u0078":3}}`}, {"a", `{"a":[1e400,9007199254740993,{"x":1,"x":2}]}`}, {"a[0][0]", "[[1]]"},
	} {
		f.Add(c[0], []byte(c[1]))
	}
	f.Fuzz(func(t *testing.T, text string, doc []byte) {
		x, err := expression.ParseExpression(text)
		if err != nil {
			checkError(t, text, err)
			return
		}
		checkPrinted(t, x)
		if len(doc) > 2000 || strings.Count(string(doc), "[")+strings.Count(string(doc), "{") > 100 {
			return // the limits have their own tests
		}
		var s expression.Scratch
		checkTwice(t, &s, x.String(), doc)
		if !expensive(x) {
			checkDocument(t, &s, x.String(), "b", x.String(), "doc", doc)
		}
		if r, err := expression.Compile([]expression.Source{keys(x.String())}); err != nil ||
			r.Evaluate(&s, nil, doc).NotJSON == json.Valid(doc) {
			t.Fatalf("%v", err)
		}
	})
}

// checkTwice checks that an evaluation has the same result in a used Scratch and in a new one, and that the result is a
// valid key.
func checkTwice(t *testing.T, used *expression.Scratch, text string, doc []byte) {
	t.Helper()
	p, err := expression.Compile([]expression.Source{keys("META().id", text), keys("META().id", "b", text)})
	if err != nil {
		t.Fatal(err)
	}
	a := p.Evaluate(used, []byte("doc"), doc)
	var first [][]byte
	for _, k := range a.Keys(0) {
		first = append(first, bytes.Clone(k))
		if _, err := collate.DecodeComposite(nil, k, []bool{false, false}); err != nil {
			t.Fatalf("%s gives %x: %v", text, k, err)
		}
	}
	_ = p.Evaluate(used, []byte("other"), []byte(`{"a":[1,"x",{"b":2}],"b":"c"}`))
	b := p.Evaluate(used, []byte("doc"), doc)
	if !equalKeys(first, b.Keys(0)) || (b.Err(0) == nil) != (len(first) > 0 || b.NotJSON) {
		t.Fatalf("%s: %x, then %x, %v", text, first, b.Keys(0), b.Err(0))
	}
}

// TestValuesOfDocumentsAreConstants checks that the most deeply nested value that a document can have is allowed in
// VALUES, because a split may cut a range there, and in a predicate.
func TestValuesOfDocumentsAreConstants(t *testing.T) {
	for _, around := range [][2]string{{"[", "]"}, {`{"a":`, "}"}, {`[1,{"a":`, "}]"}} {
		times := collate.MaxDepth / len(around[1])
		value := strings.Repeat(around[0], times) + "1" + strings.Repeat(around[1], times)
		if _, err := collate.AppendJSON(nil, []byte(value)); err != nil {
			t.Fatalf("no value of a document: %v", err)
		}
		for _, text := range []string{
			"CREATE INDEX i ON b(x) PARTITION BY RANGE(x) VALUES (" + value + ")",
			"CREATE INDEX i ON b(x) WHERE x = " + value + " OR NOT (y < [" + value + "])",
		} {
			all, err := expression.Parse(text)
			if err != nil {
				t.Errorf("%.60s…: %v", text, err)
				continue
			}
			d := all[0].(*expression.CreateIndex).Definition()
			if err := expression.Normalize(&d); err != nil {
				t.Errorf("%.60s…: %v", text, err)
			}
		}
	}
}
