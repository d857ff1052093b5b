package expression

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"tidemark/collate"
	"tidemark/index"
	"tidemark/partition"
)

// docIDText is META().id in canonical form.
const docIDText = "META().id"

// byDocID reports whether PARTITION BY HASH(META().id) was written, which is also the default.
func byDocID(p *index.PartitionBy) bool {
	return p.Scheme == index.PartitionHash && len(p.Exprs) == 1 && p.Exprs[0] == docIDText
}

// appendPartitionBy prints PARTITION BY, if there is one.
func appendPartitionBy(b []byte, p *index.PartitionBy) []byte {
	if p.Scheme == "" {
		return b
	}
	b = append(append(b, " PARTITION BY "...), strings.ToUpper(string(p.Scheme))...)
	b = append(append(append(b, '('), strings.Join(p.Exprs, ", ")...), ')')
	if k, _ := partition.KindBy(p.Scheme); !k.Values {
		return b
	}
	for i, v := range p.Values {
		b = append(b, [...]string{" VALUES (", ", "}[min(i, 1)]...)
		b = append(b, v...)
	}
	return append(b, ')')
}

// partitionBy parses PARTITION BY, if present. An entry's slice follows from its key alone, so that a scan can derive
// the slices it needs from its bounds, and an outdated entry is looked up where it is: an expression that is
// partitioned by and not a key expression becomes the last key component.
func (p *parser) partitionBy(s *CreateIndex) error {
	if ok, err := p.acceptWord("PARTITION"); err != nil || !ok {
		return err
	}
	if err := p.wantWord("BY"); err != nil {
		return err
	}
	by, scheme := &s.PartitionBy, p.tok
	kind, err := p.scheme()
	if err != nil {
		return err
	}
	by.Scheme = kind.By
	if err := p.partitionExprs(s, kind); err != nil {
		return err
	}
	if kind.Values {
		return p.partitionValues(by)
	}
	if p.isWord("VALUES") {
		return p.fail(p.tok, "VALUES belongs to PARTITION BY RANGE; for HASH, give the number of slices by WITH "+
			"{\"num_partition\": …}")
	}
	if len(by.Exprs) > 1 && slices.Contains(by.Exprs, docIDText) && !hasKey(s, docIDText) {
		return p.addPartitionKey(scheme, s, &DocID{})
	}
	return nil
}

// hasKey reports whether an expression is one of the key's.
func hasKey(s *CreateIndex, text string) bool {
	return slices.ContainsFunc(s.Keys, func(k index.KeyExpr) bool { return k.Expr == text })
}

// scheme parses HASH or RANGE.
func (p *parser) scheme() (*partition.Kind, error) {
	kind, known := partition.KindBy(index.PartitionScheme(strings.ToLower(p.tok.value)))
	switch {
	case p.tok.kind == tokWord && kind.By != "" && known:
		return &kind, p.advance()
	case p.isWord("KEY"):
		return nil, p.fail(p.tok, "expected HASH or RANGE, found KEY; write PARTITION BY HASH(…)")
	}
	return nil, p.unexpected("HASH or RANGE")
}

// partitionExprs parses the expressions in parentheses.
func (p *parser) partitionExprs(s *CreateIndex, kind *partition.Kind) error {
	if err := p.wantOp("("); err != nil {
		return err
	}
	for {
		at := p.tok
		x, err := p.key()
		if err != nil {
			return err
		}
		if err := p.partitionExpr(at, s, kind, x); err != nil {
			return err
		}
		if more, err := p.acceptOp(","); err != nil {
			return err
		} else if !more {
			return p.wantOp(")")
		}
	}
}

// addPartitionKey makes an expression that is partitioned by the last component of the key.
func (p *parser) addPartitionKey(at token, s *CreateIndex, x Expr) error {
	text := x.String()
	bare, missing := bareKey(x)
	switch {
	case isOfArrayKey(bare):
		return p.fail(at, "PARTITION BY HASH takes an array key only as it is written in the key, unlike %s; of a "+
			"flattened array key it takes one part", text)
	case missing:
		return p.fail(at, "INCLUDE MISSING is allowed only for key expressions; partitions always include documents "+
			"without %s", bare)
	case isConstant(x):
		return p.fail(at, "%s is the same for all documents: all entries would be in one slice", text)
	case len(s.Keys) == MaxKeys:
		return p.fail(at, "%s would become a component of the key, which already has %d, the maximum", text,
			MaxKeys)
	}
	s.Keys, s.added = append(s.Keys, index.KeyExpr{Expr: text}), append(s.added, text)
	return nil
}

// partitionExpr adds one expression to partition by.
func (p *parser) partitionExpr(at token, s *CreateIndex, kind *partition.Kind, x Expr) error {
	by, text := &s.PartitionBy, x.String()
	if len(s.Keys) > 0 && s.Keys[0].Expr == text+includeMissing { // it is that key all the same
		text += includeMissing
	}
	switch {
	case slices.Contains(by.Exprs, text):
		return p.fail(at, "%s is given twice", text)
	case len(by.Exprs) == MaxKeys:
		return p.fail(at, "more than %d expressions", MaxKeys)
	case kind.Leading:
		if err := p.leadingKey(at, s, kind, text); err != nil {
			return err
		}
	case s.IsPrimary && text != docIDText:
		return p.fail(at, "the key of a primary index is %s: it can be partitioned only by that, not by %s; an index on %s "+
			"can", docIDText, text, text)
	case text != docIDText && !hasKey(s, text):
		if err := p.addPartitionKey(at, s, x); err != nil {
			return err
		}
	}
	by.Exprs = append(by.Exprs, text)
	return nil
}

// leadingKey checks that the index is partitioned by its leading key, and by nothing else.
func (p *parser) leadingKey(at token, s *CreateIndex, kind *partition.Kind, text string) error {
	scheme := strings.ToUpper(string(kind.By))
	switch {
	case len(s.PartitionBy.Exprs) > 0:
		return p.fail(at, "PARTITION BY %s takes one expression, the leading key", scheme)
	case s.IsPrimary && text != docIDText:
		return p.fail(at, "the key of a primary index is %s: it can be partitioned only by that, not by %s", docIDText, text)
	case !s.IsPrimary && text != s.Keys[0].Expr:
		return p.fail(at, "PARTITION BY %s takes the leading key expression, %s, not %s: slices follow the order of the "+
			"index", scheme, s.Keys[0].Expr, text)
	}
	return nil
}

// partitionValues parses VALUES and the constants that separate the slices.
func (p *parser) partitionValues(by *index.PartitionBy) error {
	if err := p.wantWord("VALUES"); err != nil {
		return err
	}
	if err := p.wantOp("("); err != nil {
		return err
	}
	var last []byte
	for {
		at := p.tok
		x, err := p.expression(0)
		if err != nil {
			return err
		}
		if len(by.Values) == maxPartitions-1 {
			return p.fail(at, "more than %d values: an index has at most %d slices", maxPartitions-1, maxPartitions)
		}
		key, text, err := constant(x)
		if err != nil {
			return p.fail(at, "VALUES must be constants: %v", err)
		}
		if bytes.Compare(last, key) >= 0 {
			return p.fail(at, "the values must ascend in collation order: %s is not above %s", text,
				by.Values[len(by.Values)-1])
		}
		by.Values, last = append(by.Values, text), key
		if more, err := p.acceptOp(","); err != nil {
			return err
		} else if !more {
			return p.wantOp(")")
		}
	}
}

// constant returns the collated form of a constant expression, and its canonical text.
func constant(x Expr) (key []byte, text json.RawMessage, err error) {
	if !isConstant(x) {
		return nil, nil, fmt.Errorf("%s depends on the document", x)
	}
	program, err := CompileLimits([]Source{{Keys: []index.KeyExpr{{Expr: x.String()}}}},
		Limits{KeyBytes: partition.MaxBound - 1})
	if err != nil {
		return nil, nil, err
	}
	var s Scratch
	r := program.Evaluate(&s, nil, []byte("{}"))
	if err := r.Err(0); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", x, err)
	}
	if len(r.Keys(0)) != 1 {
		return nil, nil, fmt.Errorf("%s is MISSING, which a leading key cannot be", x)
	}
	key = r.Keys(0)[0]
	text, err = collate.Decode(nil, key)
	return key, text, err
}

// checkPartitionBy checks that each part is valid on its own, like checkParts, and replaces expressions by their
// canonical text.
func checkPartitionBy(s *CreateIndex) error {
	by := &s.PartitionBy
	if by.IsZero() {
		return nil
	}
	if err := checkScheme(by); err != nil {
		return err
	}
	exprs := make([]string, len(by.Exprs))
	for i, e := range by.Exprs {
		x, err := ParseKey(e)
		if err != nil {
			return fmt.Errorf("%w: partition expression %d: %w", ErrDefinition, i+1, err)
		}
		exprs[i] = x.String()
	}
	values := make([]json.RawMessage, len(by.Values))
	for i, v := range by.Values {
		x, err := ParseExpression(string(v))
		if err != nil {
			return fmt.Errorf("%w: partition value %d: %w", ErrDefinition, i+1, err)
		}
		if _, values[i], err = constant(x); err != nil {
			return fmt.Errorf("%w: partition value %d: %w", ErrDefinition, i+1, err)
		}
	}
	s.PartitionBy = index.PartitionBy{Scheme: by.Scheme, Exprs: exprs}
	if len(values) > 0 {
		s.PartitionBy.Values = values
	}
	return nil
}

func checkScheme(by *index.PartitionBy) error {
	kind, known := partition.KindBy(by.Scheme)
	switch {
	case by.Scheme == "" || !known:
		return fmt.Errorf("%w: partition_by: scheme %q, want %q or %q", ErrDefinition, by.Scheme, index.PartitionHash,
			index.PartitionRange)
	case len(by.Exprs) == 0:
		return fmt.Errorf("%w: partition_by: expressions are missing", ErrDefinition)
	case !kind.Values && len(by.Values) > 0:
		return fmt.Errorf("%w: partition_by: values belong to the scheme %q", ErrDefinition, index.PartitionRange)
	case kind.Values && len(by.Values) == 0:
		return fmt.Errorf("%w: partition_by: the scheme %q needs values", ErrDefinition, by.Scheme)
	}
	return nil
}
