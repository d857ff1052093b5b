package expression

import (
	"slices"
	"strings"

	"tidemark/index"
)

// Rules is the version of what expressions mean. It rises whenever some expression gives another value for some document than it did
// before, and ruleChanges says which. A definition carries the rules under which its entries were made (index.Definition.Rules).
const Rules = 2

// firstRules are those of definitions that carry none.
const firstRules = 1

// RuleChange is a construct that gives other values since a version of the rules.
type RuleChange struct {
	Rules int    // the first version that has it
	Name  string // of the function or operator
	What  string // what it gives now
	in    func(x Expr) bool
}

// ruleChanges are all there ever were, oldest first.
var ruleChanges = []RuleChange{
	{2, "IN", "`NULL IN []` is FALSE; it was NULL", func(x Expr) bool { _, ok := x.(*In); return ok }},
	{2, "INITCAP", "an underscore does not divide words, nor does what is neither ASCII nor white space", calls("INITCAP")},
	{2, "SUBSTR", "`SUBSTR(\"\", 0)` is NULL; it was the empty string", calls("SUBSTR", "SUBSTR1")},
	{2, "TONUMBER", "a plus sign, zeros in front, `.5` and `5.` are taken; such a text was NULL", calls("TONUMBER")},
	{2, "DATE_…", "the parts millennium, century, decade and timezone are known; they made every document NULL", datePart},
}

// RuleChanges gives a copy of the table.
func RuleChanges() []RuleChange { return slices.Clone(ruleChanges) }

// calls makes what tells a call of one of the functions.
func calls(names ...string) func(Expr) bool {
	return func(x Expr) bool {
		call, ok := x.(*Call)
		return ok && slices.Contains(names, call.Name)
	}
}

// datePart tells a function of dates whose part is one that rules 2 have added, or is not written down.
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
	return !written || slices.Contains([]string{"millennium", "century", "decade", "timezone", "timezone_hour", "timezone_minute"}, strings.ToLower(part.Text))
}

// Changed lists the constructs in an index's definition that give other values under one of two versions of the rules than under the
// other, in the order of the table. Rules 0 stand for the first. What cannot be read has none.
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

// has tells whether an expression or one within it is such a one.
func has(x Expr, such func(Expr) bool) bool {
	return such(x) || slices.ContainsFunc(operands(x), func(o Expr) bool { return has(o, such) })
}
