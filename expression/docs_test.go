package expression_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"tidemark/expression"
)

var update = flag.Bool("update", false, "write docs/expressions.md anew")

// examples are the lines of docs/expressions.md about what is no function: an expression and its value.
var examples = []struct{ title, about, examples string }{
	{"Paths", "A name is a member, `[n]` an element (from the end if negative). What is not there is MISSING. Names with other characters than letters, digits and `_`, and reserved words, stand in backticks.",
		"items[0].sku\nitems[-1].qty\ntags[7]"},
	{"The document itself", "`META().id` is its id, `.cas`, `.expiration` (seconds since 1970, 0 for never) and `.flags` are what KV keeps of it.",
		"META().id\nMETA().flags"},
	{"Literals", "As in JSON, strings in either quotes; `[…]` and `{…}` may hold expressions. Members that are MISSING are left out of an object; in an array they are NULL.",
		`[n, "x", gone]` + "\n" + `{"a": n, "b": gone}` + "\n" + `{"a": {"b": 1}}.a.b` + "\n" + `123456789012345678901234567890` + "\n" +
			`123456789012345678901234567890 < 123456789012345678901234567891`},
	{"Arithmetic", "`+ - * / %` and a minus sign. Exact where both sides and the result are integers of 64 bits, else float64. Of what is no number: NULL. By 0: NULL. A result beyond float64 is an error.",
		"n + 1\nn / 2\nn % 4\n9007199254740993 + n - n\n9223372036854775807 + n\nn / 0\nn + s"},
	{"Text", "`||` joins strings. LIKE has `%` for any text and `_` for one character; the backslash, or the character after ESCAPE, takes the next one as it is.",
		`s || "!"` + "\n" + `s LIKE "a_ %"` + "\n" + `"50%" LIKE "%!%" ESCAPE "!"` + "\n" + `s NOT LIKE "x%"`},
	{"Comparison", "MISSING if one side is MISSING, else NULL if one side is NULL. Values of different types compare by their types: booleans, numbers, strings, arrays, objects.",
		"n = 7.0\nn > none\nn < gone\nn < s\nn BETWEEN 1 AND 7\nn IN [1, 7]\nn NOT IN [1, null]"},
	{"Logic", "FALSE AND anything is FALSE, TRUE OR anything is TRUE; MISSING and NULL otherwise spread. 0, the empty string, [] and {} count as FALSE, other values as TRUE.",
		"n = 7 AND gone\nn = 7 OR gone\nNOT none\ngone IS MISSING\nnone IS NOT NULL\nnone IS VALUED"},
	{"CASE", "The first branch that holds, else NULL.",
		`CASE WHEN n > 5 THEN "many" ELSE "few" END` + "\n" + `CASE n WHEN 1 THEN "one" WHEN 7 THEN "seven" END`},
	{"Arrays", "ANY and EVERY ask for their elements, ARRAY makes a new one (elements that become MISSING are left out), FIRST gives the first that fits, EXISTS tells whether there is one.",
		`ANY v IN items SATISFIES v.qty > 1 END` + "\n" + `EVERY v IN items SATISFIES v.qty > 1 END` + "\n" + `ANY AND EVERY v IN [] SATISFIES TRUE END` + "\n" +
			`ARRAY UPPER(v.sku) FOR v IN items WHEN v.qty = 2 END` + "\n" + `FIRST v.sku FOR v IN items WHEN v.qty < 2 END` + "\n" + `EXISTS tags`},
}

// TestExpressionsPage: docs/expressions.md says what the tables say, and each of its values is computed.
func TestExpressionsPage(t *testing.T) {
	var b strings.Builder
	b.WriteString(`# Expressions

What stands in the keys and in WHERE of an index: a part of N1QL. This page is made from the function table by
` + "`go test ./expression -run TestExpressionsPage -update`" + `; every value on it is computed by the test, for the document

` + "```document\n" + exampleDoc + "\n```" + `

with the id doc. A value is MISSING, NULL, FALSE, TRUE, a number, a string, an array or an object. Integers are exact,
however large, as they stand in a document and in an expression; other numbers are the nearest float64. An expression is a function of the document alone: NOW_MILLIS(), RANDOM()
and the like are refused, and so are functions whose last digits differ between processors (SIN, EXP, …).

## What is indexed

A document is in an index if it is JSON, WHERE is TRUE and the leading key is not MISSING. A key component ` + "`ALL x`, `DISTINCT x`" + `
or ` + "`path[*]`" + ` makes an entry for each different element of an array; an index has at most one. An empty array counts as
MISSING, and what is no array as its own one element. Equal elements of one document are one entry, with ALL too.

An expression that fails on a document (computing with a number beyond float64, a limit) leaves the document out of that
index; the projector counts it and goes on. AND, OR, CASE, ANY and EVERY stop as soon as the answer is clear; what stands
behind cannot fail. Functions evaluate all their arguments. An argument that has to be an integer and is none of 64 bits makes
the function NULL. Limits: 4096 bytes per key, 10,000 keys per document and index, 64 levels of nesting; for the predicate
and for the keys of one index each, 4 million steps (an element, a call, 64 bytes that are looked at, 64 / n bytes for a
regular expression of n instructions) and 64 MiB of values on the way; 1 MiB for what REPEAT, LPAD, RPAD and SUFFIXES make,
10,000 elements for ARRAY_RANGE.

A date as text is 2006-01-02, with a time of day behind a T or a space, seconds and their fraction if there are any, and a
zone (Z or ±hh:mm), which is UTC if it is not given; as a number it is milliseconds since 1970. Years have four digits.

`)
	rulesSection(&b)
	for _, c := range examples {
		fmt.Fprintf(&b, "## %s\n\n%s\n\n| expression | value |\n|---|---|\n", c.title, c.about)
		for _, x := range strings.Split(c.examples, "\n") {
			row(&b, x, valueOf(t, x, exampleDoc))
		}
		b.WriteString("\n")
	}
	family := expression.Family("")
	for _, f := range expression.Functions() {
		if f.Family != family {
			if family != "" {
				b.WriteString("\n")
			}
			family = f.Family
			fmt.Fprintf(&b, "## %s functions\n\n| function | gives | example | value |\n|---|---|---|---|\n", family)
		}
		name := f.Name
		if len(f.Aliases) > 0 {
			name += " (" + strings.Join(f.Aliases, ", ") + ")"
		}
		fmt.Fprintf(&b, "| %s(%s) | %s | `%s` | `%s` |\n", name, cell(f.Params), cell(f.About), cell(f.Example.Expr), cell(f.Example.Value))
		if next := expression.Functions(); f == next[len(next)-1] {
			b.WriteString("\n")
		}
	}
	b.WriteString("MISSING and NULL arguments make most functions MISSING or NULL; so does an argument of another type make them NULL.\n")
	const page = "../docs/expressions.md"
	if *update {
		if err := os.WriteFile(page, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != b.String() {
		t.Errorf("%s is not what the tables say; run this test with -update", page)
	}
}

// rulesSection says what versions of the rules there are.
func rulesSection(b *strings.Builder) {
	fmt.Fprintf(b, `## Rules

What expressions give may change with a version of tidemark, where it was not what N1QL gives. Each such change has a number: these are
the rules %d. An index carries the lowest rules by which its entries were made (`+"`expression_rules`"+`); documents that were written since an
upgrade have entries by the rules of the projectors, others those of before. Where an expression of the index gives other values by
both, the index is outdated: `+"`tidemark index list` and `index describe`"+` say so, `+"`outdated`"+` does in REST, and `+"`tidemark_manager_indexes_outdated`"+`
counts them. Create it anew under another name, let scans use that one, and drop the old one; or drop it and create it again.

| rules | what | since then |
|---|---|---|
`, expression.Rules)
	for _, c := range expression.RuleChanges() {
		fmt.Fprintf(b, "| %d | %s | %s |\n", c.Rules, c.Name, cell(c.What))
	}
	b.WriteString("\n")
}

func row(b *strings.Builder, x, v string) { fmt.Fprintf(b, "| `%s` | `%s` |\n", cell(x), cell(v)) }

// cell makes a text fit into a table.
func cell(text string) string { return strings.ReplaceAll(text, "|", "\\|") }
