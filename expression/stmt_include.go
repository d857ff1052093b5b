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
		return p.fail(at, "the rows of a primary index contain only META().id; use CREATE INDEX … INCLUDE (…) for an index "+
			"whose rows contain more")
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
		return p.fail(at, "INCLUDE takes one value per document; an array key has several, and must be a key expression")
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
		return p.fail(at, "each row contains the document's id: omit %s", text)
	case slices.ContainsFunc(s.Keys, func(k index.KeyExpr) bool {
		return k.Expr == text || k.Expr == text+includeMissing
	}):
		return p.fail(at, "%s is already part of the key, which rows contain", text)
	case len(s.Keys) == MaxKeys:
		return p.fail(at, "%s would become a component of the key, which already has %d, the maximum", text,
			MaxKeys)
	}
	s.Keys, s.included = append(s.Keys, index.KeyExpr{Expr: text}), append(s.included, text)
	return nil
}
