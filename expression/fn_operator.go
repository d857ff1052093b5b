package expression

import (
	"slices"

	"tidemark/collate"
)

// OperatorForm is an operator that may be written as a function, as in older statements. It is parsed as the
// operator, and printed as such.
type OperatorForm struct {
	Name     string
	Aliases  []string
	Params   string
	Min, Max int
	Example  Example
	build    func(args []Expr) Expr
}

// isForm builds x IS [NOT] what.
func isForm(what collate.Kind, not bool) func([]Expr) Expr {
	return func(a []Expr) Expr { return &Is{X: a[0], What: what, Not: not} }
}

// chainForm builds x op y op ….
func chainForm(op Op) func([]Expr) Expr {
	return func(a []Expr) Expr {
		x := a[0]
		for _, y := range a[1:] {
			x = &Arith{Op: op, L: x, R: y}
		}
		return x
	}
}

func compareForm(op Op) func([]Expr) Expr {
	return func(a []Expr) Expr { return &Compare{Op: op, L: a[0], R: a[1]} }
}

// operatorForms contains all operators that may be written as functions.
var operatorForms = []*OperatorForm{
	{Name: "ADD", Params: "number, number, …", Min: 2, Max: MaxArgs, Example: Example{"ADD(n, 1, 2)", "10"},
		build: chainForm(OpAdd)},
	{Name: "SUB", Params: "number, number", Min: 2, Max: 2, Example: Example{"SUB(n, 2)", "5"},
		build: chainForm(OpSubtract)},
	{Name: "MULT", Params: "number, number, …", Min: 2, Max: MaxArgs, Example: Example{"MULT(n, 2, 3)", "42"},
		build: chainForm(OpMultiply)},
	{Name: "DIV", Params: "number, number", Min: 2, Max: 2, Example: Example{"DIV(n, 2)", "3.5"},
		build: chainForm(OpDivide)},
	{Name: "MOD", Params: "number, number", Min: 2, Max: 2, Example: Example{"MOD(n, 4)", "3"},
		build: chainForm(OpModulo)},
	{Name: "NEG", Params: "number", Min: 1, Max: 1, Example: Example{"NEG(n)", "-7"},
		build: func(a []Expr) Expr { return negate(a[0]) }},
	{Name: "EQ", Params: "value, value", Min: 2, Max: 2, Example: Example{"EQ(n, 7)", "true"},
		build: compareForm(OpEqual)},
	{Name: "LT", Params: "value, value", Min: 2, Max: 2, Example: Example{"LT(n, 7)", "false"},
		build: compareForm(OpLess)},
	{Name: "LE", Params: "value, value", Min: 2, Max: 2, Example: Example{"LE(n, 7)", "true"},
		build: compareForm(OpLessEqual)},
	{Name: "IS_NULL", Aliases: []string{"ISNULL"}, Params: "value", Min: 1, Max: 1,
		Example: Example{"IS_NULL(none)", "true"}, build: isForm(kindNull, false)},
	{Name: "IS_NOT_NULL", Aliases: []string{"ISNOTNULL"}, Params: "value", Min: 1, Max: 1,
		Example: Example{"IS_NOT_NULL(none)", "false"}, build: isForm(kindNull, true)},
	{Name: "IS_MISSING", Aliases: []string{"ISMISSING"}, Params: "value", Min: 1, Max: 1,
		Example: Example{"IS_MISSING(gone)", "true"}, build: isForm(kindMissing, false)},
	{Name: "IS_NOT_MISSING", Aliases: []string{"ISNOTMISSING"}, Params: "value", Min: 1, Max: 1,
		Example: Example{"IS_NOT_MISSING(gone)", "false"}, build: isForm(kindMissing, true)},
	{Name: "IS_VALUED", Aliases: []string{"ISVALUED", "IS_KNOWN", "ISKNOWN", "IS_NOT_UNKNOWN", "ISNOTUNKNOWN"},
		Params: "value", Min: 1, Max: 1, Example: Example{"IS_VALUED(none)", "false"}, build: isForm(kindTrue, false)},
	{Name: "IS_NOT_VALUED", Aliases: []string{"ISNOTVALUED", "IS_NOT_KNOWN", "ISNOTKNOWN", "IS_UNKNOWN", "ISUNKNOWN"},
		Params: "value", Min: 1, Max: 1, Example: Example{"IS_NOT_VALUED(none)", "true"}, build: isForm(kindTrue, true)},
	{Name: "FIELD", Params: "object, name", Min: 2, Max: 2, Example: Example{`FIELD(items[0], "sku")`, `"p"`},
		build: func(a []Expr) Expr { return &At{X: a[0], Index: a[1], Member: true} }},
	{Name: "SLICE", Params: "array, from [, to]", Min: 2, Max: 3, Example: Example{"SLICE(tags, 1)", `["y","x"]`},
		build: func(a []Expr) Expr {
			x := &Slice{X: a[0], Low: a[1]}
			if len(a) == 3 {
				x.High = a[2]
			}
			return x
		}},
}

// OperatorForms returns a copy of the table.
func OperatorForms() []*OperatorForm { return slices.Clone(operatorForms) }

func operatorFormNamed(name string) *OperatorForm {
	i := slices.IndexFunc(operatorForms, func(f *OperatorForm) bool {
		return f.Name == name || slices.Contains(f.Aliases, name)
	})
	if i < 0 {
		return nil
	}
	return operatorForms[i]
}

// operatorCall parses the arguments of an operator written as a function.
func (p *parser) operatorCall(tok token, form *OperatorForm) (Expr, error) {
	x, err := p.deeper(func() (Expr, error) {
		if err := p.advance(); err != nil {
			return nil, err
		}
		args, err := p.list(")")
		if err != nil {
			return nil, err
		}
		shape := Function{Name: form.Name, Params: form.Params, Min: form.Min, Max: form.Max}
		if wrong := shape.check(args); wrong != "" {
			return nil, p.fail(tok, "%s", wrong)
		}
		return form.build(args), nil
	})
	if err != nil {
		return nil, err
	}
	return p.into(x)
}
