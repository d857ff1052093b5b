package expression

import (
	"slices"
	"strings"

	"tidemark/index"
)

// Rules is the version of the semantics of expressions. It rises whenever some expression has another value for some
// document than before; ruleChanges lists the changes. A definition carries the rules under which its entries were
// made (index.Definition.Rules).
const Rules = 3

// firstRules is the version of definitions that carry none.
const firstRules = 1

// RuleChange is a construct whose value changed with a version of the rules.
type RuleChange struct {
	Rules int    // the first version with the change
	Name  string // of the function or operator
	What  string // the new behaviour
	in    func(x Expr) bool
}

// ruleChanges lists all changes, oldest first.
var ruleChanges = []RuleChange{
	{2, "IN", "`NULL IN []` is FALSE; it was NULL", func(x Expr) bool { _, ok := x.(*In); return ok }},
	{2, "INITCAP", "an underscore does not separate words, nor do characters that are neither ASCII nor white space",
		calls("INITCAP")},
	{2, "SUBSTR", "`SUBSTR(\"\", 0)` is NULL; it was the empty string", calls("SUBSTR", "SUBSTR1")},
	{2, "TONUMBER", "a plus sign, leading zeros, `.5` and `5.` are accepted; such a text was NULL", calls("TONUMBER")},
	{2, "DATE_…", "the parts millennium, century, decade and timezone are supported; the result was NULL", datePart},
	{3, "self", "the whole document; it was a member of this name, which must now be written in backticks", is[*Self]},
	{3, "= < … IN CASE", "NULL within arrays and objects is unknown: `[null] = [null]` is NULL; it was TRUE", comparesAny},
	{3, "BETWEEN", "NULL or MISSING if a bound is, even if the other bound decides", is[*Between]},
	{3, "EXISTS", "NULL for a value that is not an array; it was FALSE", is[*Exists]},
	{3, "+ - * / %", "exact also for 64-bit integers that are written with a fraction or an exponent, such as 1e17",
		is[*Arith]},
	{3, "DATE_… MILLIS… STR_TO_… WEEKDAY_…", "differences are by the calendar; a day beyond the end of its month runs " +
		"over into the next; fractions of seconds have as many digits as they need; " +
		"a time of day alone is a date, but not without seconds; years beyond 9999 are formatted; an example that is not a " +
		"date means the full form",
		calls("DATE_ADD_MILLIS", "DATE_ADD_STR", "DATE_DIFF_MILLIS", "DATE_DIFF_STR", "DATE_FORMAT_STR", "DATE_PART_MILLIS",
			"DATE_PART_STR", "DATE_TRUNC_MILLIS", "DATE_TRUNC_STR",
			"MILLIS_TO_STR", "STR_TO_MILLIS", "STR_TO_UTC", "WEEKDAY_MILLIS", "WEEKDAY_STR")},
	{3, "ROUND TRUNC IDIV IMOD", "a half is rounded to the even neighbour; shifting by digits uses float64; fractions " +
		"are dropped before a division", calls("ROUND", "TRUNC", "IDIV", "IMOD")},
	{3, "TOKENS", "names are tokens by default, NULL is a token, specials are added to the words, split " +
		"and trim are supported", calls("TOKENS")},
	{3, "REGEXP_LIKE REGEXP_REPLACE", "the replacement is used literally, and a negative number of times replaces no " +
		"matches; ^ and $ are added around the pattern as written",
		calls("REGEXP_LIKE", "REGEXP_REPLACE")},
	{3, "ARRAY_…", "NULL can be appended and prepended; ARRAY_DISTINCT keeps the order; a negative depth flattens all; " +
		"ranges may have fractions, and are empty with step 0; an intersection does not contain NULL",
		calls("ARRAY_APPEND", "ARRAY_PREPEND", "ARRAY_DISTINCT", "ARRAY_FLATTEN", "ARRAY_RANGE", "ARRAY_INTERSECT",
			"ARRAY_CONTAINS", "ARRAY_POSITION", "ARRAY_PUT", "ARRAY_REMOVE")},
	{3, "OBJECT_ADD OBJECT_REMOVE", "an existing member stays; a MISSING name makes the result MISSING, another invalid " +
		"name NULL", calls("OBJECT_ADD", "OBJECT_REMOVE")},
	{3, "NULLIF MISSINGIF", "NULL if NULL within both makes it unknown whether they are equal",
		calls("NULLIF", "MISSINGIF")},
	{3, "TOSTRING", "a number has all its digits and no exponent", calls("TOSTRING")},
	{3, "INITCAP REVERSE SUBSTR …TRIM REPLACE", "letters get their title case, combining marks stay after their " +
		"letters, each cut byte is U+FFFD, a vertical tab is not white space, an invalid number of times is NULL",
		calls("INITCAP", "REVERSE", "SUBSTR", "SUBSTR1", "TRIM", "LTRIM", "RTRIM", "REPLACE")},
}

// RuleChanges returns a copy of the table.
func RuleChanges() []RuleChange { return slices.Clone(ruleChanges) }

// calls returns a predicate for calls of one of the functions.
func calls(names ...string) func(Expr) bool {
	return func(x Expr) bool {
		call, ok := x.(*Call)
		return ok && slices.Contains(names, call.Name)
	}
}

// is reports whether an expression has type T.
func is[T Expr](x Expr) bool {
	_, ok := x.(T)
	return ok
}

// comparesAny reports whether an expression compares two values that may both be arrays or objects.
func comparesAny(x Expr) bool {
	switch x := x.(type) {
	case *Compare:
		return !is[*Literal](x.L) && !is[*Literal](x.R)
	case *In:
		return true
	case *Case:
		return x.Operand != nil
	}
	return false
}

// datePart reports whether an expression is a date function whose part was added by rules 2, or is not a literal.
func datePart(x Expr) bool {
	call, ok := x.(*Call)
	if !ok {
		return false
	}
	at := 2
	switch call.Name {
	case "DATE_PART_MILLIS", "DATE_PART_STR", "DATE_TRUNC_MILLIS", "DATE_TRUNC_STR":
		at = 1
	case "DATE_ADD_MILLIS", "DATE_ADD_STR", "DATE_DIFF_MILLIS", "DATE_DIFF_STR":
	default:
		return false
	}
	part, written := call.Args[at].(*Literal)
	return !written || slices.Contains([]string{"millennium", "century", "decade", "timezone", "timezone_hour",
		"timezone_minute"}, strings.ToLower(part.Text))
}

// Changed returns the constructs in an index's definition whose value differs between two versions of the rules, in
// the order of the table. 0 means the first version. Expressions that cannot be parsed are skipped.
func Changed(d *index.Definition, a, b int) (all []RuleChange) {
	low, high := max(min(a, b), firstRules), max(a, b)
	if low >= high {
		return nil
	}
	var exprs []Expr
	for _, k := range d.Keys {
		if x, err := parseWhole(k.Expr, stored((*parser).key)); err == nil {
			exprs = append(exprs, x)
		}
	}
	if d.Where != "" {
		if x, err := parseWhole(d.Where, stored((*parser).whole)); err == nil {
			exprs = append(exprs, x)
		}
	}
	for _, c := range ruleChanges {
		if low < c.Rules && c.Rules <= high && slices.ContainsFunc(exprs, func(x Expr) bool { return has(x, c.in) }) {
			all = append(all, c)
		}
	}
	return all
}

// has reports whether an expression, or one within it, satisfies such.
func has(x Expr, such func(Expr) bool) bool {
	return such(x) || slices.ContainsFunc(x.operands(), func(o Expr) bool { return has(o, such) })
}
