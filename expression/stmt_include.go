package expression

import (
	"slices"

	"tidemark/index"
)

// include parses INCLUDE (expr, …), if present: values that the index's rows show in addition to its key. They become
// the last components of the key, in their order, because an entry has no other room for them: a scan that is covered
// by them reads one place, and if only one of them changes in a document, its entry is replaced as after any other
// change.
func (p *parser) include(s *CreateIndex) error {
	at := p.tok
	if ok, err := p.acceptWord("INCLUDE"); err != nil || !ok {
		return err
	}
	if s.IsPrimary {
		return p.fail(at, "a primary index shows META().id and nothing else; CREATE INDEX … INCLUDE (…) names an index "+
			"whose rows show more")
	}
	if err := p.wantOp("("); err != nil {
		return err
	}
	if err := p.separated(func() error { return p.included(s) }); err != nil {
		return err
	}
	if !p.isOp(")") {
		return p.mistyped("an operator, a comma or )")
	}
	return p.advance()
}

// included parses one expression of INCLUDE.
func (p *parser) included(s *CreateIndex) error {
	at := p.tok
	if p.isWord("ALL") || p.isWord("DISTINCT") {
		return p.fail(at, "INCLUDE takes one value of each document; an array key has many, and stands in the key")
	}
	x, err := p.expression(0)
	if err != nil {
		return err
	}
	text := x.String()
	switch {
	case isConstant(x):
		return p.fail(at, "%s is the same for all documents", text)
	case text == docIDText:
		return p.fail(at, "each row shows the document's id: leave %s out", text)
	case slices.ContainsFunc(s.Keys, func(k index.KeyExpr) bool {
		return k.Expr == text || k.Expr == text+includeMissing
	}):
		return p.fail(at, "%s stands in the key already: rows show it", text)
	case len(s.Keys) == MaxKeys:
		return p.fail(at, "%s would become a component of the key, which has %d already, the most that there may be", text,
			MaxKeys)
	}
	s.Keys, s.included = append(s.Keys, index.KeyExpr{Expr: text}), append(s.included, text)
	return nil
}
