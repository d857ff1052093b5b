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
	{"Paths", "A name is a member, `[n]` an element (counted from the end if negative), `[a:b]` the elements from a up to b, which " +
		"is excluded, `[*]` is ARRAY_STAR() of an array of objects, `.[x]` the member whose name is the value of x; `self` is the whole document. A path to " +
		"nothing is MISSING. Write names with characters other than letters, digits and `_`, and reserved words, in backticks.",
		"items[0].sku\nitems[-1].qty\ntags[7]\ntags[n - 6]\ntags[1:]\ntags[0:2]\nitems[*].sku\nitems[0].[\"s\" || \"ku\"]\nself.n"},
	{"The document itself", "`META().id` is its id; `.cas`, `.expiration` (seconds since 1970, 0 for never) and " +
		"`.flags` are KV's metadata; `.xattrs.name` is an extended attribute, here _sync and owner.",
		"META().id\nMETA().flags\nMETA().xattrs._sync.rev\nMETA().xattrs.owner\nMETA().xattrs.gone"},
	{"Literals", "As in JSON, with strings in single or double quotes; `[…]` and `{…}` may contain expressions. A MISSING value " +
		"is omitted from an object, and is NULL in an array. The name of a member may be an expression; a path alone is " +
		"a member with the last name of the path.",
		`[n, "x", gone]` + "\n" + `{"a": n, "b": gone}` + "\n" + `{"a": {"b": 1}}.a.b` + "\n" + `{"a" || n: 1}` + "\n" + `{n, items[0].sku}` + "\n" + `9223372036854775807 > 9223372036854775806` + "\n" + `123456789012345678901234567890`},
	{"Arithmetic", "`+ - * / %` and a minus sign. The result is exact if both sides and the result are 64-bit integers, otherwise it is a " +
		"float64. An integer beyond 64 bits becomes the nearest float64 when it is read; its remainder is that of this float64. " +
		"SQRT and divisions with a fraction return a float64, ROUND and TRUNC with digits compute with float64; all others keep " +
		"64-bit integers exact. A value that is not a number, or a division by 0, makes the result NULL. A result beyond float64 is an error.",
		"n + 1\nn / 2\nn % 4\n9007199254740993 + n - n\n9223372036854775807 + n\n9223372036854775807 % 10\n" +
			"9223372036854775809 % 10\n18446744073709551615 % 10\nABS(-9007199254740993)\nCEIL(9007199254740993)\n" +
			"ROUND(9007199254740993)\nn / 0\nn + s"},
	{"Text", "`||` joins strings. In the pattern of LIKE, `%` matches any text and `_` one character; after a backslash, or the character " +
		"of ESCAPE, the next character is literal.",
		`s || "!"` + "\n" + `s LIKE "a_ %"` + "\n" + `"50%" LIKE "%!%" ESCAPE "!"` + "\n" + `s NOT LIKE "x%"`},
	{"Comparison", "MISSING if one side is MISSING, else NULL if one side is NULL, also within arrays and objects. " +
		"Values of different types are ordered by their types: booleans, numbers, strings, arrays, objects.",
		"n = 7.0\nn > none\nn < gone\nn < s\nn BETWEEN 1 AND 7\nn BETWEEN none AND 7\nn IN [1, 7]\nn NOT IN [1, null]\n2 " +
			"WITHIN items\n[1, null] = [1, null]"},
	{"Logic", "FALSE AND anything is FALSE, TRUE OR anything is TRUE; otherwise MISSING and NULL propagate. 0, the empty " +
		"string, [] and {} count as FALSE, other values as TRUE.",
		"n = 7 AND gone\nn = 7 OR gone\nNOT none\ngone IS MISSING\nnone IS NOT NULL\nnone IS VALUED"},
	{"CASE", "The value of the first branch whose condition is TRUE or whose value matches; otherwise that of ELSE, or NULL.",
		`CASE WHEN n > 5 THEN "many" ELSE "few" END` + "\n" + `CASE n WHEN 1 THEN "one" WHEN 7 THEN "seven" END`},
	{"Arrays", "ANY and EVERY test the elements, ARRAY returns a new array (without elements that become MISSING), " +
		"OBJECT an object, FIRST the first matching element; EXISTS is TRUE if there is an element. With `i:v`, i is the " +
		"position, or the name in an object; WITHIN iterates over all nested values; several variables iterate " +
		"in parallel.",
		`ANY v IN items SATISFIES v.qty > 1 END` + "\n" + `EVERY v IN items SATISFIES v.qty > 1 END` + "\n" + `ANY AND EVERY v IN [] SATISFIES TRUE END` + "\n" +
			`ARRAY UPPER(v.sku) FOR v IN items WHEN v.qty = 2 END` + "\n" + `FIRST v.sku FOR v IN items WHEN v.qty < 2 END` + "\n" + `EXISTS tags` + "\n" +
			`OBJECT v.sku:v.qty FOR v IN items END` + "\n" + `ARRAY i FOR i:v IN tags WHEN v = "x" END` + "\n" + `ANY v WITHIN items SATISFIES v = "q" END` + "\n" +
			`ARRAY v || w.sku FOR v IN tags, w IN items END`},
}

// TestExpressionsPage checks that docs/expressions.md agrees with the tables, and computes each value on it.
func TestExpressionsPage(t *testing.T) {
	var b strings.Builder
	b.WriteString(`# Expressions

The language of the keys and of WHERE of an index: N1QL, except for the differences in the table [Other than Couchbase](#other-than-couchbase). This page is generated from the tables of functions by
` + "`go test ./expression -run TestExpressionsPage -update`" + `; the test computes every value on it, for the document

` + "```document\n" + exampleDoc + "\n```" + `

with the id doc. A value is MISSING, NULL, FALSE, TRUE, a number, a string, an array or an object. 64-bit integers are exact;
other numbers are the nearest float64, in documents, in expressions and in the bounds of scans alike. The value of an expression depends only on
the document: NOW_MILLIS(), RANDOM() and the like are refused, and so are functions whose last digits differ between
processors (SIN, EXP, …). The names of zones are those of the IANA time zone database, version ` + expression.ZoneData + `, which is contained in the binary.

## What is indexed

A document is in an index if it is JSON, WHERE is TRUE or counts as TRUE, and the leading key is not MISSING, unless
` + "`INCLUDE MISSING`" + ` follows it. A key component ` + "`ALL x` or `DISTINCT x`" + `
makes an entry for each distinct element of an array; an index has at most one such component. An empty array counts as
MISSING, and a value that is not an array as its own only element. Equal elements of one document make one entry, also with ALL. An element
can make several components of the key: ` + "`DISTINCT ARRAY FLATTEN_KEYS(v.a, v.b DESC) FOR v IN x END`" + `; if x has no elements they are all
MISSING, and if x is not an array they are NULL. Each part is a key expression of its own that repeats the array;
together they have at most 256 KiB.

If an expression fails on a document (a number beyond float64, a limit), the document has no entry in that
index; the projector counts it and continues. AND, OR, CASE, ANY and EVERY stop as soon as the result is determined; operands
after that cannot fail. Functions evaluate all their arguments. A function is NULL if an argument that must be an integer is not a 64-bit integer.
Limits: 4096 bytes per key, 10,000 keys and 16 MiB of keys per document and index (the components beside
an array are part of each of its keys, and count in each), 192 levels of nesting; for the predicate
and for the keys of one index each, 4 million steps (an element, a call, 64 bytes that are processed, 64 / n bytes for a
regular expression of n instructions) and 64 MiB of intermediate values; 1 MiB for the results of REPEAT, LPAD, RPAD and SUFFIXES,
10,000 elements for ARRAY_RANGE, a million matches of a regular expression (fewer if it has groups) for
REGEXP_MATCHES, REGEXP_SPLIT and REGEXP_REPLACE.

A date as text is 2006-01-02, 15:04:05, or both separated by a T or a space. The seconds may be followed by a fraction (after a point or
a comma) and a zone (Z or ±hh:mm); the default is UTC. A date as a number is milliseconds since 1970. The result of a function has the form of
its argument, and a fraction with as many digits as it needs, up to milliseconds.

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
			fmt.Fprintf(&b, "## %s functions\n\n| function | result | example | value |\n|---|---|---|---|\n", family)
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
	b.WriteString("Most functions are MISSING or NULL if an argument is, and NULL if an argument has another type than " +
		"expected.\n")
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
		t.Errorf("%s differs from the tables; run this test with -update", page)
	}
}

// differences are the intended differences from Couchbase's evaluator of 6.6: those that bench/n1ql allows, which
// explains the kinds.
var differences = []struct{ kind, what, why string }{
	{"order", "`TOKENS` `ARRAY_UNION` `ARRAY_INTERSECT` `ARRAY_SYMDIFF` `ARRAY_SYMDIFFN` `PAIRS`",
		"The elements are in collation order (PAIRS: of the names); there they are in the order of a hash, which changes from run " +
			"to run."},
	{"range", "A number beyond float64, infinite or not a number", "The evaluation fails, and the document has no entry in " +
		"the index; there it is a string such as +Infinity or NaN."},
	{"exact", "An integer beyond 2^53 in functions, division and remainders", "The result is exact if it is a 64-bit integer; " +
		"there intermediate values are rounded to float64."},
	{"far", "A number beyond 64 bits where an integer or a date is wanted, and integers next to 2^63", "NULL, or unchanged; " +
		"there the result depends on the processor, or is a float64."},
	{"value", "`TOSTRING(…MULT(` `TOSTR(…MULT(` `TO_STRING(…MULT(` `TO_STR(…MULT(` `TOSTRING(… * ` `TOSTR(… * ` " +
		"`TO_STRING(… * ` `TO_STR(… * `", "A product that is -0 becomes the text 0; there it becomes -0, although -0 is 0 everywhere else."},
	{"value", "`SQRT`", "NULL for a negative number; there it is NaN, which does not exist in JSON."},
	{"value", "`BASE64_DECODE` `DECODE_BASE64`", "NULL for data that are not JSON; there the result is binary, which a key of JSON " +
		"values cannot contain."},
	{"value", "`LIKE \"\"` `LIKE (` `\\n…LIKE`", "The empty pattern matches only the empty text, and a pattern is matched with all lines of a text, as " +
		"in later versions; in 6.6 the empty pattern matches every text, and a pattern is matched with one line."},
	{"value", "`LIKE … \\\\`", "A backslash escapes a backslash, as Couchbase's documentation states; there two mean two. ^ and $ " +
		"match the beginning and the end of the whole text, also if it has several lines."},
	{"value", "`OBJECT_INNER_` `OBJECT_INNERPAIRS` `OBJECT_INNERVALUES`", "An array of one element is replaced by the element in any case; there only if it " +
		"is unchanged from a document."},
	{"value", "`[MISSING` `[v, w]` `[i, v]` `[*]` `ARRAY_STAR(`", "MISSING in an array becomes NULL immediately, except for the elements of a key " +
		"`DISTINCT […]` or `ALL x[*].name`; there only when the array is serialized."},
	{"fails", "`IDIV` `IMOD`", "NULL for a divisor between -1 and 1; there the evaluation ends in a panic."},
	{"fails", "`DATE_RANGE_` `REPEAT`", "The limit applies to the result, 10,000 dates and 1 MiB; there it is 32,767 parts " +
		"between the dates, or repetitions."},
	{"value", "`(SUBSTR`", "Each byte of a character that is cut becomes U+FFFD immediately; there it stays as it is " +
		"until it is serialized."},
	{"value", "`CONTAINS_TOKEN…\"split\": false`", "An empty text has no token; there it contains every token."},
	{"fails", "`AND` `OR`", "Operands after the deciding one are not evaluated, and cannot fail; there they are."},
	{"fails", "`DATE_`", "NULL if a computed part is not supported by the function, and dates can be truncated to weeks; " +
		"there it is an error. A literal part that is not supported is refused at CREATE INDEX."},
	{"value", "`, \"\"` `.[\"\"]` `).[` `FIELD`", "A member with the empty name is like any other member; there the result is the whole object, if " +
		"it is part of the document."},
	{"value", "`{\"a\": 1, \"a\": 2}`", "Of several members with one name in a document the last one counts; there it is the first " +
		"or the last one, depending on the operation."},
	{"value", "`DATE_RANGE_…10000-01-01` `DATE_RANGE_…253402300800000` `DATE_RANGE_…1e15`", "Years beyond 9999 are after " +
		"earlier years; there dates are compared as texts."},
	{"value", "`DATE_ADD_…\"hour\"` `DATE_ADD_…\"minute\"` `DATE_ADD_…\"second\"` `DATE_ADD_…\"millisecond\"`",
		"NULL for more than 292 years in such parts; there the number of nanoseconds overflows."},
	{"value", "`100000, \"millennium\"` `DATE_ADD_…, f, `", "NULL beyond 100 million years; there the range of numbers is the limit."},
	{"fails", "`:]` `SLICE`", "MISSING if an array is too short; there the evaluation may end in a panic."},
	{"taken", "`MB_` `LPAD` `RPAD`", "Functions of later versions."},
	{"taken", "`ESCAPE` `UNKNOWN` `KNOWN` `IS_UNKNOWN` `ISUNKNOWN` `IS_NOT_UNKNOWN` `ISNOTUNKNOWN`", "Operators of later versions, and of SQL."},
	{"taken", "`v IN` `v WITHIN`", "A variable may have the name of an outer variable, which it hides."},
	{"refused", "`NAMEi` with NAME in backticks", "A case-insensitive name: a document may have several such " +
		"members, and there any of them is used."},
	{"refused", "`)[`", "A literal position in an array must be an integer up to 1,048,576, because a name in brackets " +
		"was probably meant as x.name; there the result is NULL or MISSING."},
	{"refused", "`REGEXP_` `REGEX_` `TOKENS` `CONTAINS_TOKEN` `CONTAINS_TOKEN_` `CONTAINS_REGEX` `CONTAINS_REGEXP` `HAS_TOKEN`", "Patterns and the names of options must be " +
		"literals, so that invalid ones are refused at CREATE INDEX."},
}

func differencesSection(b *strings.Builder) {
	b.WriteString(`## Other than Couchbase

Intended differences from Couchbase Server: other values, and expressions that only one of both accepts. There are no others: bench/n1ql compares generated
expressions with an evaluator of 6.6, reads this table and permits only the differences in it. Of 2,185,395 evaluations
by twenty-two seeds, over all functions and operators, array keys and drawn documents, 2,079,229 gave the same result, and all others are listed here. The kinds: order (of the
elements), range and fails (a failure on one side), exact, far and value (another value), taken (accepted only here) and refused (accepted only there).

| kind | what | here, and there (Couchbase) |
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

Operators that older statements write as functions. They are parsed as the operator, and printed as such.

| function | operator | example | value |
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

A statement that contains one of these functions is refused with the reason, and with an alternative if there is one.

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

The values of expressions may change with a version of tidemark, if they differed from those of N1QL. Each such change has a number: this version has
the rules %d. An index records the lowest rules by which its entries were made (`+"`expression_rules`"+`); after an upgrade, documents that were written since
have entries by the rules of the projectors, others by the earlier rules. If an expression of the index has other values under the two rules,
the index is outdated: `+"`tidemark index list` and `index describe`"+` show it, the field `+"`outdated`"+` in REST, too, and `+"`tidemark_cluster_outdated_indexes`"+`
counts such indexes. Create the index again under another name, let scans use that one, and drop the old index; or drop it and create it again.

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
