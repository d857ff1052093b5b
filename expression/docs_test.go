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

// examples are the lines of docs/expressions.md about constructs other than functions: an expression and its value.
var examples = []struct{ title, about, examples string }{
	{"Paths", "A name is a member, `[n]` an element (from the end if negative), `[a:b]` the elements from a up to b, " +
		"which is left out, `[*]` is ARRAY_STAR() of an array of objects, `.[x]` the member whose name x gives; `self` is the whole document. What is not there is " +
		"MISSING. Names with other characters than letters, digits and `_`, and reserved words, stand in backticks.",
		"items[0].sku\nitems[-1].qty\ntags[7]\ntags[n - 6]\ntags[1:]\ntags[0:2]\nitems[*].sku\nitems[0].[\"s\" || \"ku\"]\nself.n"},
	{"The document itself", "`META().id` is its id, `.cas`, `.expiration` (seconds since 1970, 0 for never) and " +
		"`.flags` are what KV keeps of it; `.xattrs.name` is one of its extended attributes, here _sync and owner.",
		"META().id\nMETA().flags\nMETA().xattrs._sync.rev\nMETA().xattrs.owner\nMETA().xattrs.gone"},
	{"Literals", "As in JSON, strings in either quotes; `[…]` and `{…}` may hold expressions. Members that are MISSING " +
		"are left out of an object; in an array they are NULL. The name of a member may be an expression; a path alone is " +
		"a member with its last name.",
		`[n, "x", gone]` + "\n" + `{"a": n, "b": gone}` + "\n" + `{"a": {"b": 1}}.a.b` + "\n" + `{"a" || n: 1}` + "\n" + `{n, items[0].sku}` + "\n" + `9223372036854775807 > 9223372036854775806` + "\n" + `123456789012345678901234567890`},
	{"Arithmetic", "`+ - * / %` and a minus sign. Exact where both sides and the result are integers of 64 bits, else " +
		"float64. An integer beyond 64 bits is the nearest float64 from where it is read, so its remainder is that of this one. " +
		"SQRT and what divides with a fraction make a float64, ROUND and TRUNC with digits move them as one; the others keep " +
		"integers of 64 bits. Of what is no number: NULL. By 0: NULL. A result beyond float64 is an error.",
		"n + 1\nn / 2\nn % 4\n9007199254740993 + n - n\n9223372036854775807 + n\n9223372036854775807 % 10\n" +
			"9223372036854775809 % 10\n18446744073709551615 % 10\nABS(-9007199254740993)\nCEIL(9007199254740993)\n" +
			"ROUND(9007199254740993)\nn / 0\nn + s"},
	{"Text", "`||` joins strings. LIKE has `%` for any text and `_` for one character; the backslash, or the character " +
		"after ESCAPE, takes the next one as it is.",
		`s || "!"` + "\n" + `s LIKE "a_ %"` + "\n" + `"50%" LIKE "%!%" ESCAPE "!"` + "\n" + `s NOT LIKE "x%"`},
	{"Comparison", "MISSING if one side is MISSING, else NULL if one side is NULL, also within arrays and objects. " +
		"Values of different types compare by their types: booleans, numbers, strings, arrays, objects.",
		"n = 7.0\nn > none\nn < gone\nn < s\nn BETWEEN 1 AND 7\nn BETWEEN none AND 7\nn IN [1, 7]\nn NOT IN [1, null]\n2 " +
			"WITHIN items\n[1, null] = [1, null]"},
	{"Logic", "FALSE AND anything is FALSE, TRUE OR anything is TRUE; MISSING and NULL otherwise spread. 0, the empty " +
		"string, [] and {} count as FALSE, other values as TRUE.",
		"n = 7 AND gone\nn = 7 OR gone\nNOT none\ngone IS MISSING\nnone IS NOT NULL\nnone IS VALUED"},
	{"CASE", "The first branch that holds, else NULL.",
		`CASE WHEN n > 5 THEN "many" ELSE "few" END` + "\n" + `CASE n WHEN 1 THEN "one" WHEN 7 THEN "seven" END`},
	{"Arrays", "ANY and EVERY ask for their elements, ARRAY makes a new one (elements that become MISSING are left " +
		"out), OBJECT an object, FIRST gives the first that fits, EXISTS tells whether there is one. With `i:v` there is a " +
		"variable for the place, or for the name in an object; WITHIN goes through all that is within; several variables " +
		"go side by side.",
		`ANY v IN items SATISFIES v.qty > 1 END` + "\n" + `EVERY v IN items SATISFIES v.qty > 1 END` + "\n" + `ANY AND EVERY v IN [] SATISFIES TRUE END` + "\n" +
			`ARRAY UPPER(v.sku) FOR v IN items WHEN v.qty = 2 END` + "\n" + `FIRST v.sku FOR v IN items WHEN v.qty < 2 END` + "\n" + `EXISTS tags` + "\n" +
			`OBJECT v.sku:v.qty FOR v IN items END` + "\n" + `ARRAY i FOR i:v IN tags WHEN v = "x" END` + "\n" + `ANY v WITHIN items SATISFIES v = "q" END` + "\n" +
			`ARRAY v || w.sku FOR v IN tags, w IN items END`},
}

// TestExpressionsPage: docs/expressions.md agrees with the tables, and each of its values is computed.
func TestExpressionsPage(t *testing.T) {
	var b strings.Builder
	b.WriteString(`# Expressions

What stands in the keys and in WHERE of an index: N1QL, but for what the table [Other than Couchbase](#other-than-couchbase) lists. This page is made from the function table by
` + "`go test ./expression -run TestExpressionsPage -update`" + `; every value on it is computed by the test, for the document

` + "```document\n" + exampleDoc + "\n```" + `

with the id doc. A value is MISSING, NULL, FALSE, TRUE, a number, a string, an array or an object. Integers of 64 bits are exact;
other numbers are the nearest float64, in documents, in expressions and in the bounds of scans alike. An expression is a function of
the document alone: NOW_MILLIS(), RANDOM() and the like are refused, and so are functions whose last digits differ between
processors (SIN, EXP, …). Names of zones are those of the IANA time zone database in the version ` + expression.ZoneData + `, which is in the binary.

## What is indexed

A document is in an index if it is JSON, WHERE is TRUE, or counts as such, and the leading key is not MISSING, unless
` + "`INCLUDE MISSING`" + ` stands behind it. A key component ` + "`ALL x` or `DISTINCT x`" + `
makes an entry for each different element of an array; an index has at most one. An empty array counts as
MISSING, and what is no array as its own one element. Equal elements of one document are one entry, with ALL too. An element
may make several components of the key: ` + "`DISTINCT ARRAY FLATTEN_KEYS(v.a, v.b DESC) FOR v IN x END`" + `; without elements all of
them are MISSING, and where x is no array they are NULL. Each part is a key expression of its own that repeats the array;
together they have at most 256 KiB.

An expression that fails on a document (computing with a number beyond float64, a limit) leaves the document out of that
index; the projector counts it and goes on. AND, OR, CASE, ANY and EVERY stop as soon as the answer is clear; what stands
behind cannot fail. Functions evaluate all their arguments. An argument that has to be an integer and is none of 64 bits makes
the function NULL. Limits: 4096 bytes per key, 10,000 keys and 16 MiB of keys per document and index (the components beside
an array stand in each of its keys, and count in each), 192 levels of nesting; for the predicate
and for the keys of one index each, 4 million steps (an element, a call, 64 bytes that are looked at, 64 / n bytes for a
regular expression of n instructions) and 64 MiB of values on the way; 1 MiB for what REPEAT, LPAD, RPAD and SUFFIXES make,
10,000 elements for ARRAY_RANGE, a million fits of a regular expression (fewer of one with groups) for
REGEXP_MATCHES, REGEXP_SPLIT and REGEXP_REPLACE.

A date as text is 2006-01-02, 15:04:05, or both with a T or a space between; behind the seconds may stand a fraction (after a point or
a comma), and behind that a zone (Z or ±hh:mm), which is UTC if it is not given. As a number it is milliseconds since 1970. What a function gives has the form of
what it was given, and a fraction of as many digits as it needs, up to milliseconds.

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
		fmt.Fprintf(&b, "| %s(%s) | %s | `%s` | `%s` |\n", name, cell(f.Params), cell(f.About), cell(f.Example.Expr),
			cell(f.Example.Value))
		if next := expression.Functions(); f == next[len(next)-1] {
			b.WriteString("\n")
		}
	}
	operatorSection(&b)
	refusedSection(&b)
	differencesSection(&b)
	b.WriteString("MISSING and NULL arguments make most functions MISSING or NULL; so does an argument of another type " +
		"make them NULL.\n")
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

// differences are the intended differences from Couchbase's evaluator of 6.6: those that bench/n1ql allows, which
// explains the kinds.
var differences = []struct{ kind, what, why string }{
	{"order", "`TOKENS` `ARRAY_UNION` `ARRAY_INTERSECT` `ARRAY_SYMDIFF` `ARRAY_SYMDIFFN` `PAIRS`",
		"The elements stand in collation order (PAIRS: of the names); there in the order of a hash, which changes from run " +
			"to run."},
	{"range", "A number beyond float64, infinite or not a number", "The evaluation fails, and the document is left out " +
		"of the index; there it is a string such as +Infinity or NaN."},
	{"exact", "An integer beyond 2^53 in functions, division and remainders", "It stays exact where the result is an integer of 64 " +
		"bits; there it is rounded to a float64 on the way."},
	{"far", "A number beyond 64 bits where an integer or a date is wanted, and integers next to 2^63", "NULL, or as it is; " +
		"there it is what the processor makes of it, or a float64."},
	{"value", "`TOSTRING(…MULT(` `TOSTR(…MULT(` `TO_STRING(…MULT(` `TO_STR(…MULT(` `TOSTRING(… * ` `TOSTR(… * ` " +
		"`TO_STRING(… * ` `TO_STR(… * `", "A product that is -0 is the text 0; there it is -0, which is 0 everywhere else."},
	{"value", "`SQRT`", "Of a negative number NULL; there it is NaN, which no JSON has."},
	{"value", "`BASE64_DECODE` `DECODE_BASE64`", "NULL of what is no JSON; there it is binary, which a key of JSON " +
		"values cannot hold."},
	{"value", "`LIKE \"\"` `LIKE (` `\\n…LIKE`", "The empty pattern fits the empty text only, and a pattern all lines of a text, as " +
		"in later versions; in 6.6 they fit every text, and one line."},
	{"value", "`LIKE … \\\\`", "A backslash escapes a backslash, as the documents say; there two stand for two. ^ and $ " +
		"of a text of several lines are those of the text."},
	{"value", "`OBJECT_INNER_` `OBJECT_INNERPAIRS` `OBJECT_INNERVALUES`", "An array of one element is replaced by it wherever it comes from; there only if it " +
		"comes from a document as it is."},
	{"value", "`[MISSING` `[v, w]` `[i, v]` `[*]` `ARRAY_STAR(`", "MISSING in an array is NULL at once, but for the elements of a key " +
		"`DISTINCT […]` or `ALL x[*].name`; there only once the array is written."},
	{"fails", "`IDIV` `IMOD`", "NULL by a divisor between -1 and 1; there the evaluation ends in a panic."},
	{"fails", "`DATE_RANGE_` `REPEAT`", "The limit is of what is made, 10,000 dates and 1 MiB; there 32,767 parts that " +
		"lie between, or times."},
	{"value", "`(SUBSTR`", "A character that is cut in two is U+FFFD at once, byte by byte; there it stays as it is " +
		"until it is written."},
	{"value", "`CONTAINS_TOKEN…\"split\": false`", "An empty text has no token; there it has each that is asked for."},
	{"fails", "`AND` `OR`", "What stands behind a clear answer is not evaluated, and cannot fail; there it does."},
	{"fails", "`DATE_`", "NULL if a part is computed that the function does not know, and weeks can be truncated to; " +
		"there it is an error. One that is written down is refused at CREATE INDEX."},
	{"value", "`, \"\"` `.[\"\"]` `).[` `FIELD`", "A member with the empty name is one as any other; there it is the whole object, if " +
		"that is of the document."},
	{"value", "`{\"a\": 1, \"a\": 2}`", "Of members of one name in a document the last one counts; there it is the first " +
		"one or the last, by what asks."},
	{"value", "`DATE_RANGE_…10000-01-01` `DATE_RANGE_…253402300800000` `DATE_RANGE_…1e15`", "Years beyond 9999 are later " +
		"than those before; there dates are compared as texts."},
	{"value", "`DATE_ADD_…\"hour\"` `DATE_ADD_…\"minute\"` `DATE_ADD_…\"second\"` `DATE_ADD_…\"millisecond\"`",
		"NULL of more than 292 years in such parts; there the number of their nanoseconds overflows."},
	{"value", "`100000, \"millennium\"` `DATE_ADD_…, f, `", "NULL beyond 100 million years; there as far as numbers go."},
	{"fails", "`:]` `SLICE`", "MISSING where an array is too short; there the evaluation may end in a panic."},
	{"taken", "`MB_` `LPAD` `RPAD`", "Functions of later versions."},
	{"taken", "`ESCAPE` `UNKNOWN` `KNOWN` `IS_UNKNOWN` `ISUNKNOWN` `IS_NOT_UNKNOWN` `ISNOTUNKNOWN`", "Operators of later versions, and of SQL."},
	{"taken", "`v IN` `v WITHIN`", "A variable may have the name of one outside, which it hides."},
	{"refused", "`NAMEi` with NAME in backticks", "A name whose case does not matter: a document may have several such " +
		"members, and there any of them counts."},
	{"refused", "`)[`", "A place in an array that is written down is an integer up to 1,048,576, since a name in brackets " +
		"was meant as x.name; there it gives NULL, or MISSING."},
	{"refused", "`REGEXP_` `REGEX_` `TOKENS` `CONTAINS_TOKEN` `CONTAINS_TOKEN_` `CONTAINS_REGEX` `CONTAINS_REGEXP` `HAS_TOKEN`", "Patterns, and the names of options, stand in the " +
		"expression, so that a wrong one is refused at CREATE INDEX."},
}

func differencesSection(b *strings.Builder) {
	b.WriteString(`## Other than Couchbase

What gives another value, or is taken or refused other than by Couchbase Server, on purpose. There is nothing else: bench/n1ql compares with
an evaluator of 6.6 by generated expressions, reads this table and allows what stands here. Of 2,185,395 evaluations
by twenty-two seeds, over all functions and operators, array keys and drawn documents, 2,079,229 gave the same, and all others stand here. The kinds: order (of the
elements), range and fails (a failure on one side), exact, far and value (another value), taken and refused.

| kind | what | here, and there |
|---|---|---|
`)
	var refused []string
	for _, r := range expression.RefusedFunctionTable() {
		refused = append(refused, r.Names...)
	}
	fmt.Fprintf(b, "| refused | `%s` | As [above](#functions-that-are-refused). |\n", strings.Join(refused, "` `"))
	for _, d := range differences {
		fmt.Fprintf(b, "| %s | %s | %s |\n", d.kind, cell(d.what), cell(d.why))
	}
	b.WriteString("\n")
}

// operatorSection lists the operators that may be written as functions.
func operatorSection(b *strings.Builder) {
	b.WriteString(`## Operators as functions

What old statements write as a function. It reads as the operator and is printed as such.

| function | the operator | example | value |
|---|---|---|---|
`)
	for _, f := range expression.OperatorForms() {
		name := f.Name
		if len(f.Aliases) > 0 {
			name += " (" + strings.Join(f.Aliases, ", ") + ")"
		}
		x, err := expression.ParseExpression(f.Example.Expr)
		if err != nil {
			panic(err)
		}
		fmt.Fprintf(b, "| %s(%s) | `%s` | `%s` | `%s` |\n", name, cell(f.Params), cell(x.String()), cell(f.Example.Expr),
			cell(f.Example.Value))
	}
	b.WriteString("\n")
}

// refusedSection lists the functions that a key cannot contain.
func refusedSection(b *strings.Builder) {
	b.WriteString(`## Functions that are refused

The statement is refused with the reason, and with another way where there is one.

| functions | why | instead |
|---|---|---|
`)
	for _, r := range expression.RefusedFunctionTable() {
		var names []string
		for _, n := range r.Names {
			if strings.HasSuffix(n, "_") {
				n += "…"
			}
			names = append(names, "`"+n+"`")
		}
		fmt.Fprintf(b, "| %s | %s | %s |\n", strings.Join(names, " "), cell(r.Why), cell(r.Instead))
	}
	b.WriteString("\n")
}

// rulesSection describes the versions of the rules.
func rulesSection(b *strings.Builder) {
	fmt.Fprintf(b, `## Rules

What expressions give may change with a version of tidemark, where it was not what N1QL gives. Each such change has a number: these are
the rules %d. An index carries the lowest rules by which its entries were made (`+"`expression_rules`"+`); documents that were written since an
upgrade have entries by the rules of the projectors, others those of before. Where an expression of the index gives other values by
both, the index is outdated: `+"`tidemark index list` and `index describe`"+` say so, `+"`outdated`"+` does in REST, and `+"`tidemark_cluster_outdated_indexes`"+`
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

// cell escapes a text for a table.
func cell(text string) string { return strings.ReplaceAll(text, "|", "\\|") }
