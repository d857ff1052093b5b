package expression

import (
	"tidemark/collate"
	"tidemark/index"
)

// FlattenPart is one part of a Flatten.
type FlattenPart struct {
	X       Expr
	Desc    bool
	Missing bool // INCLUDE MISSING
}

// Flatten is FLATTEN_KEYS(x [ASC|DESC] [INCLUDE MISSING], …), the body of the ARRAY … FOR of an array key: each part
// is a component of the key. In a definition, each part is a key expression of its own, whose Flatten has only that
// part, with neither direction nor INCLUDE MISSING; the parts of one array are adjacent.
type Flatten struct{ Parts []FlattenPart }

func (*Flatten) precedence() int { return precPrimary }

func (x *Flatten) operands() []Expr {
	var list []Expr
	for _, part := range x.Parts {
		list = append(list, part.X)
	}
	return list
}

// String returns the canonical text.
func (x *Flatten) String() string { return string(x.appendTo(nil)) }

func (x *Flatten) appendTo(dst []byte) []byte {
	dst = append(dst, flattenKeys...)
	for i, part := range x.Parts {
		if i > 0 {
			dst = append(dst, ", "...)
		}
		dst = part.X.appendTo(dst)
		if part.Missing {
			dst = append(dst, includeMissing...)
		}
		if part.Desc {
			dst = append(dst, " DESC"...)
		}
	}
	return append(dst, ')')
}

// flattenKeys is the beginning of a Flatten's text.
const flattenKeys = "FLATTEN_KEYS("

// flattened returns the Flatten of an array key, or nil if it has none.
func flattened(x Expr) *Flatten {
	x, _ = bareKey(x)
	for {
		key, ok := x.(*ArrayKey)
		if !ok {
			return nil
		}
		each, ok := key.X.(*Each)
		if !ok {
			return nil
		}
		if flat, ok := each.Body.(*Flatten); ok {
			return flat
		}
		x = each.Body
	}
}

// withParts returns an array key with other parts in its Flatten.
func withParts(x Expr, parts []FlattenPart) Expr {
	switch x := x.(type) {
	case *MissingKey:
		return withParts(x.X, parts)
	case *ArrayKey:
		return &ArrayKey{Distinct: x.Distinct, X: withParts(x.X, parts)}
	case *Each:
		each := *x
		each.Body = withParts(x.Body, parts)
		return &each
	}
	return &Flatten{Parts: parts}
}

// frame returns the text of a flattened key without its parts, which is the same for all parts of one array.
func frame(x Expr) string { return withParts(x, nil).String() }

// flattenedKeys returns the key expressions of a flattened key, one for each part. ok is false if their total length,
// as each one repeats the array, exceeds the limit of a statement.
func flattenedKeys(x Expr) (keys []index.KeyExpr, ok bool) {
	size := 0
	for _, part := range flattened(x).Parts {
		text := withParts(x, []FlattenPart{{X: part.X}}).String()
		if part.Missing {
			text += includeMissing
		}
		if size += len(text); size > MaxStatementBytes {
			return nil, false
		}
		keys = append(keys, index.KeyExpr{Expr: text, Desc: part.Desc})
	}
	return keys, true
}

// joined is a key in its written form: one component, or the components that one array is flattened into.
type joined struct {
	x    Expr // nil if it cannot be parsed
	text string
	desc []bool
}

// join combines the adjacent parts of flattened arrays.
func join(keys []index.KeyExpr, read func(text string) (Expr, error)) (all []joined, err error) {
	last := "" // the frame of the previous key
	for _, k := range keys {
		x, err := read(k.Expr)
		if err != nil {
			return all, err
		}
		flat, array := flattened(x), ""
		if flat != nil {
			array = frame(x)
		}
		part, missing := FlattenPart{Desc: k.Desc}, false
		if flat != nil && len(flat.Parts) == 1 {
			_, missing = bareKey(x)
			part.X, part.Missing = flat.Parts[0].X, missing || flat.Parts[0].Missing
			part.Desc = part.Desc || flat.Parts[0].Desc
		}
		switch {
		case flat == nil || len(flat.Parts) != 1:
			all = append(all, joined{x: x, text: k.Expr, desc: []bool{k.Desc}})
		case array == last:
			whole := &all[len(all)-1]
			whole.x = withParts(whole.x, append(flattened(whole.x).Parts, part))
			whole.desc = append(whole.desc, part.Desc)
		default:
			all = append(all, joined{x: withParts(x, []FlattenPart{part}), desc: []bool{part.Desc}})
		}
		if last = array; flat != nil && len(flat.Parts) != 1 {
			last = ""
		}
	}
	return all, nil
}

// appendKeys prints keys in their written form.
func appendKeys(b []byte, keys []index.KeyExpr) []byte {
	all, err := join(keys, ParseKey)
	if err != nil { // not by this version: keep them as they are
		all = nil
		for _, k := range keys {
			all = append(all, joined{text: k.Expr, desc: []bool{k.Desc}})
		}
	}
	for i, k := range all {
		b = append(b, [...]string{"(", ", "}[min(i, 1)]...)
		if k.text == "" {
			b = k.x.appendTo(b)
			continue
		}
		b = append(b, k.text...)
		if k.desc[0] {
			b = append(b, " DESC"...)
		}
	}
	return append(b, ')')
}

// flatten parses FLATTEN_KEYS(…).
func (p *parser) flatten() (Expr, error) {
	x, err := p.deeper(func() (Expr, error) {
		if err := p.advance(); err != nil {
			return nil, err
		}
		if err := p.wantOp("("); err != nil {
			return nil, err
		}
		flat := &Flatten{}
		err := p.separated(func() error {
			if len(flat.Parts) == MaxKeys {
				return p.fail(p.tok, "a key has at most %d components", MaxKeys)
			}
			part, err := p.flattenPart(len(flat.Parts) == 0)
			flat.Parts = append(flat.Parts, part)
			return err
		})
		if err != nil {
			return nil, err
		}
		if !p.isOp(")") {
			return nil, p.mistyped("an operator, ASC, DESC, a comma or )", "ASC", "DESC")
		}
		return flat, p.advance()
	})
	return x, err
}

// flattenPart parses an expression and its direction and INCLUDE MISSING, in either order.
func (p *parser) flattenPart(first bool) (part FlattenPart, err error) {
	at := p.tok
	if part.X, err = p.expression(0); err != nil {
		return part, err
	}
	missing := func() error {
		ok, err := p.acceptWord("INCLUDE")
		if err != nil || !ok {
			return err
		}
		if part.Missing || !first {
			return p.fail(at, "INCLUDE MISSING is allowed once, for the first part; MISSING in other parts is always indexed")
		}
		part.Missing = true
		return p.wantWord("MISSING")
	}
	if err := missing(); err != nil {
		return part, err
	}
	if part.Desc, err = p.direction(); err != nil {
		return part, err
	}
	return part, missing()
}

// flattenedPlace explains where FLATTEN_KEYS is allowed.
const flattenedPlace = "FLATTEN_KEYS() is the body of the innermost array of an array key: DISTINCT ARRAY " +
	"FLATTEN_KEYS(v.a, v.b DESC) FOR v IN path END"

// width returns the number of components of a key.
func width(x Expr) int {
	if flat := flattened(x); flat != nil {
		return len(flat.Parts)
	}
	return 1
}

// tuple returns the spreader that pushes the parts of a Flatten.
func (c *compiler) tuple(x *Flatten) spreader {
	parts := make([]evaluator, len(x.Parts))
	for i, part := range x.Parts {
		parts[i] = part.X.compile(c)
	}
	return func(s *Scratch) collate.Kind {
		for _, part := range parts {
			v := part(s)
			s.stack = append(s.stack, v)
		}
		return kindTrue
	}
}
