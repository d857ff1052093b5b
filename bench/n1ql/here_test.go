package n1ql

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"tidemark/collate"
	"tidemark/expression"
	"tidemark/index"
	"tidemark/kv/mcbp"
)

// here evaluates with package expression: the expression is the part of a key after META().id. Keys may be longer
// than in an index.
func here(s *expression.Scratch, r request) (out reply) {
	source, err := sourceOf(r)
	if err != nil {
		return reply{Parse: err.Error()}
	}
	p, err := expression.CompileLimits([]expression.Source{source}, expression.Limits{KeyBytes: 1 << 20})
	if err != nil {
		return reply{Parse: err.Error()}
	}
	meta := expression.DocMeta{CAS: 1, Flags: 3, Xattrs: section(r.Xattrs)}
	result := p.EvaluateMeta(s, []byte("doc"), meta, r.Doc)
	if err := result.Err(0); err != nil {
		return reply{Error: err.Error()}
	}
	for _, key := range result.Keys(0) {
		element, err := decoded(key, r.Desc)
		if err != nil {
			return reply{Error: err.Error()}
		}
		if !isArrayKey(r.Expr) {
			return element
		}
		out.Elements = append(out.Elements, element)
	}
	return out
}

// sourceOf returns the source of an index on META().id and the requested expression. Flattened keys are parsed from a
// statement, which makes a component of each part.
func sourceOf(r request) (expression.Source, error) {
	if r.Here == "" {
		return expression.Source{Keys: []index.KeyExpr{{Expr: "META().id"}, {Expr: r.Expr}}}, nil
	}
	all, err := expression.Parse("CREATE INDEX i ON b(META().id, " + r.Here + ")")
	if err != nil {
		return expression.Source{}, err
	}
	d := all[0].(*expression.CreateIndex).Definition()
	return expression.SourceOf(&d), nil
}

// isArrayKey reports whether an expression has an entry for each element of an array.
func isArrayKey(expr string) bool {
	return strings.HasPrefix(expr, "DISTINCT ") || strings.HasPrefix(expr, "ALL ")
}

// section returns the section of extended attributes for an object of them.
func section(attributes json.RawMessage) (out []byte) {
	var members map[string]json.RawMessage
	if attributes == nil || json.Unmarshal(attributes, &members) != nil {
		return nil
	}
	for name, value := range members {
		out = mcbp.AppendXattr(out, name, value)
	}
	return out
}

// decoded returns the part of a key after the id: a value or, if desc has directions, an array of the parts.
func decoded(key []byte, desc []bool) (reply, error) {
	single := len(desc) == 0
	if single {
		desc = []bool{false}
	}
	desc = slices.Concat([]bool{false}, desc)
	missing, err := collate.MissingComponents(key, desc)
	if err != nil {
		return reply{}, err
	}
	text, err := collate.DecodeComposite(nil, key, desc)
	if err != nil {
		return reply{}, err
	}
	var parts []json.RawMessage
	if err := json.Unmarshal(text, &parts); err != nil {
		return reply{}, err
	}
	for _, i := range missing {
		parts[i] = json.RawMessage(absent)
	}
	if !single {
		all, err := json.Marshal(parts[1:])
		return reply{Value: all}, err
	}
	if len(missing) > 0 {
		return reply{Missing: true}, nil
	}
	return reply{Value: parts[1]}, nil
}

// flat adapts the other evaluator's elements of flattened keys to the number of parts: if there is no array to
// iterate over, all parts are MISSING; if the value is not an array, all parts are NULL.
func flat(elements []reply, parts int) (out []reply) {
	for _, e := range elements {
		part := ""
		switch {
		case e.Missing:
			part = absent
		case string(e.Value) == "null":
			part = "null"
		}
		if part != "" {
			all := strings.TrimSuffix(strings.Repeat(part+",", parts), ",")
			e = reply{Value: json.RawMessage(fmt.Sprintf("[%s]", all))}
		}
		out = append(out, e)
	}
	return out
}
