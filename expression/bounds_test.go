package expression_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // TestNoLocalZone has its zone on every machine

	"pgregory.net/rapid"

	"tidemark/expression"
	_ "tidemark/internal/testing/draws"
)

// TestBounds checks that an expression that would need much time or memory for a large document, or for a short text,
// ends with ErrWork or is cheap, and that other indexes are not affected.
func TestBounds(t *testing.T) {
	const mb = 1 << 20
	numbers := "[" + strings.Repeat("1,", 100_000) + "1]"
	lists := "[" + strings.Repeat("[],", 100_000) + "[]]"
	long := strings.Repeat("a", 2*mb)
	doc := []byte(fmt.Sprintf(`{"id":1,"long":"%s","esc":"\u0061%s","numbers":%s,"lists":%s,"spaces":[%s1],"big":[%q]}`, long, long, numbers, lists, strings.Repeat(" ", mb), long))
	between := "id"
	for range 60 {
		between = "(" + between + " BETWEEN 0 AND 2)"
	}
	for text, wrong := range map[string]bool{
		between:                                false,
		"ANY v IN lists SATISFIES v = big END": true,
		"ANY v IN lists SATISFIES EXISTS spaces AND FALSE END":       true,
		"ANY v IN numbers SATISFIES CONTAINS(long, TOSTRING(v)) END": true,
		"ANY v IN numbers SATISFIES long < long END":                 true,
		"big IN lists": true,
		`long LIKE "%" || SUBSTR(long, 0, 100000) || "b"`:                                    true,
		"LENGTH(" + strings.Repeat("long || ", 100) + "long)":                                true,
		"LENGTH(CONCAT(" + strings.Repeat("long, ", 100) + "long))":                          true,
		"[" + strings.Repeat("big, ", 100) + "big]":                                          true,
		`{"a": [big, big, big, big, big, big, big, big], "b": ARRAY big FOR v IN lists END}`: true,
		strings.Repeat("esc = 1 OR ", 100) + "esc = 1":                                       true,
		`ARRAY REPLACE(long, "a", "aé") FOR v IN lists END`:                                  true,
		`ARRAY REPEAT("x", 1000000) FOR v IN lists END`:                                      true,
		"ARRAY ARRAY_RANGE(0, 10000) FOR v IN lists END":                                     true,
		`TRIM(long, "é" || SUBSTR(long, 0, 100000))`:                                         true,
		`ARRAY_LENGTH(SPLIT(long, ""))`:                                                      true,
		`REGEXP_CONTAINS(long, "(a|b){500}(c|d){500}x")`:                                     true,
		`ARRAY_LENGTH(REGEXP_MATCHES(long, "a"))`:                                            true,
		`ARRAY_LENGTH(REGEXP_SPLIT(long, "a"))`:                                              true,
		`LENGTH(REGEXP_REPLACE(long, "a", ""))`:                                              true,
		"ARRAY_LENGTH(ARRAY_INTERSECT(numbers, lists))":                                      false,
		"ARRAY_LENGTH(ARRAY_DISTINCT(numbers))":                                              false,
		"ANY v IN numbers SATISFIES v = 2 END":                                               false,
		"ALL numbers":                                                                        false,
	} {
		p, err := expression.Compile([]expression.Source{keys("META().id", text), keys("id")})
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		var s expression.Scratch
		r := p.Evaluate(&s, []byte("id"), doc)
		if err := r.Err(0); errors.Is(err, expression.ErrWork) != wrong || !wrong && err != nil {
			t.Errorf("%.100s: %v", text, err)
		}
		if len(r.Keys(1)) != 1 {
			t.Errorf("%.100s: the other index has no entry: %v", text, r.Err(1))
		}
	}
}

// TestBudgetPerIndex checks that many indexes that each use a large part of their budget all have their entry.
func TestBudgetPerIndex(t *testing.T) {
	var sources []expression.Source
	for i := range 20 {
		sources = append(sources, where(keys(fmt.Sprintf("ARRAY_LENGTH(ARRAY_SORT(a)) + %d", i)),
			fmt.Sprintf("EVERY v IN a SATISFIES v > -%d END", i)))
	}
	p, err := expression.Compile(sources)
	if err != nil {
		t.Fatal(err)
	}
	r := p.Evaluate(new(expression.Scratch), nil, []byte(`{"a":[`+strings.Repeat("7,", 150_000)+"7]}"))
	for i := range sources {
		if len(r.Keys(i)) != 1 {
			t.Fatalf("index %d: %v", i, r.Err(i))
		}
	}
}

// TestNoLocalZone checks that dates do not depend on the local time zone of the process.
func TestNoLocalZone(t *testing.T) {
	zone, err := time.LoadLocation("America/New_York")
	if err != nil {
		t.Fatal(err)
	}
	const text, want = `DATE_ADD_STR("2024-01-31T00:00:00-05:00", 6, "month")`, `"2024-07-31T00:00:00-05:00"`
	before := time.Local
	defer func() { time.Local = before }()
	for _, local := range []*time.Location{time.UTC, zone} {
		time.Local = local
		if got := valueOf(t, text, "{}"); got != want {
			t.Errorf("in %s: %s, want %s", local, got, want)
		}
	}
}

// TestPrintedConstructs checks that the canonical text of all kinds of expressions parses to the same tree.
func TestPrintedConstructs(t *testing.T) {
	for _, text := range []string{
		`(META().id).x`, `("abc")[0]`, `(-1).a`, `(NULL).a`, `(ANY v IN a SATISFIES v END).b`, `(ARRAY v FOR v IN a END)[0].b`, `(a + b).c[-1]`, `((a.b).c)[0]`, `(EXISTS a).b`,
		`FIRST (-v) FOR v IN a END`, `FIRST (NOT v) FOR v IN a END`, `FIRST ([v, 1]) FOR v IN a END`, `FIRST (v OR w) AND v FOR v IN a END`, `FIRST (first) FOR v IN first END`,
		`FIRST first.x FOR v IN a END`, `first - 1`, `first[0]`, `FIRST {"a": v} FOR v IN a END`, "ANY `where` IN a SATISFIES `where`.`é x` END", `-(-a)`, `a - -1`, `NOT a IN b`, `(NOT a) IN b`,
	} {
		x, err := expression.ParseExpression(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		checkPrinted(t, x)
	}
	rapid.Check(t, func(t *rapid.T) {
		x, err := expression.ParseExpression(constructText(4).Draw(t, "text"))
		if err != nil {
			t.Fatal(err)
		}
		checkPrinted(t, x)
	})
	deep := "a"
	for range 40 { // each level has parentheses and gets a second pair in the canonical text
		deep = "(" + deep + " < b = c)"
	}
	if x, err := expression.ParseExpression(deep); err == nil {
		checkPrinted(t, x)
	} else if !errors.Is(err, expression.ErrSyntax) {
		t.Error(err)
	}
	if _, err := expression.ParseExpression("(a" + strings.Repeat(".a", 63) + ").b.c"); !errors.Is(err,
		expression.ErrSyntax) {
		t.Errorf("a path of 66 steps: %v", err)
	}
}

// TestTotalBytes checks that a document has no entry in an array index if its keys together exceed the limit, however
// short each is, and that other indexes are not affected.
func TestTotalBytes(t *testing.T) {
	const entries, text = 50, 100
	sources := []expression.Source{keys("ALL a", "b"), keys("b", "DISTINCT a"), keys("ALL a"), keys("b")}
	var a []string
	for i := range entries {
		a = append(a, fmt.Sprintf(`"%02d"`, i))
	}
	doc := []byte(fmt.Sprintf(`{"a":[%s],"b":%q}`, strings.Join(a, ","), strings.Repeat("x", text)))
	var all int // the keys of the first index
	for limit, fits := range []bool{true, true, false} {
		limits := expression.Limits{}
		if limit > 0 {
			limits.TotalBytes = all + 1 - limit
		}
		p, err := expression.CompileLimits(sources, limits)
		if err != nil {
			t.Fatal(err)
		}
		r := p.Evaluate(new(expression.Scratch), nil, doc)
		all = 0
		for _, k := range r.Keys(0) {
			all += len(k)
		}
		for i := range sources {
			want := entries
			switch {
			case i < 2 && !fits:
				want = 0
			case i == 3:
				want = 1
			}
			if err := r.Err(i); len(r.Keys(i)) != want || errors.Is(err, expression.ErrWork) != (want == 0) {
				t.Errorf("at most %d bytes, index %d: %d keys, %v; want %d", limits.TotalBytes, i, len(r.Keys(i)), err, want)
			}
		}
	}
}
