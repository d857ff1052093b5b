package expression_test

import (
	"strings"
	"testing"

	"tidemark/expression"
	"tidemark/index"
)

func TestChanged(t *testing.T) {
	for _, c := range []struct {
		keys, where string
		a, b        int
		want        string
	}{
		{"x", "", 1, 2, ""},
		{`SUBSTR(x, 1)`, "", 1, 2, "SUBSTR"},
		{`SUBSTR(x, 1)`, "", 2, 1, "SUBSTR"},
		{`SUBSTR(x, 1)`, "", 0, 2, "SUBSTR"},
		{`SUBSTR(x, 1)`, "", 0, 1, ""},
		{`SUBSTR(x, 1)`, "", 2, 2, ""},
		{"x", `CASE WHEN TO_NUM(y) > 1 THEN ANY v IN w SATISFIES v IN [1] END ELSE NOT (title(z) = "A") END`, 1, 2, "IN INITCAP TONUMBER"},
		{"DISTINCT ARRAY UPPER(SUBSTR1(v, 0)) FOR v IN w END", "", 1, 2, "SUBSTR"},
		{`DATE_PART_STR(x, "year")`, "", 1, 2, ""},
		{`DATE_PART_STR(x, "Century")`, "", 1, 2, "DATE_…"},
		{`DATE_ADD_MILLIS(x, 1, y)`, "", 1, 2, "DATE_…"},
		{`DATE_PART_STR(x, "never")`, "", 1, 2, ""}, // stored by a version that accepted it
		{`FROM_THE_FUTURE(x)`, "", 1, 2, ""},
		{`OBJECT_ADD(x, "a", 1)`, "", 1, 2, ""}, // was stored as OBJECT_PUT, which is unchanged
		{"self", "", 2, 3, "self"},
		{"x", "self.y = 1", 2, 3, "self"},
		{"x", "`self` = 1", 2, 3, ""},
		{"x", "y = z AND z BETWEEN 1 AND 2 AND EXISTS w AND v > 1", 2, 3, "= < … IN CASE BETWEEN EXISTS"},
		{"ROUND(x)", "", 2, 3, "ROUND TRUNC IDIV IMOD"},
		{"TOKENS(x)", "MILLIS_TO_STR(y) > \"2024\"", 2, 3, "DATE_… MILLIS… STR_TO_… WEEKDAY_… TOKENS"},
	} {
		d := &index.Definition{Keys: []index.KeyExpr{{Expr: c.keys}}, Where: c.where}
		var names []string
		for _, x := range expression.Changed(d, c.a, c.b) {
			names = append(names, x.Name)
		}
		if got := strings.Join(names, " "); got != c.want {
			t.Errorf("%s WHERE %s from %d to %d: %q, want %q", c.keys, c.where, c.a, c.b, got, c.want)
		}
	}
	last := 0
	for _, c := range expression.RuleChanges() {
		if c.Rules < last || c.Rules > expression.Rules || c.Name == "" || c.What == "" {
			t.Errorf("change %q of rules %d", c.Name, c.Rules)
		}
		last = c.Rules
	}
	if last != expression.Rules {
		t.Errorf("the table ends with rules %d, the present ones are %d", last, expression.Rules)
	}
}
