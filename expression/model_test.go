package expression_test

import (
	"encoding/json"
	"fmt"
	"strings"

	"tidemark/collate"
	"tidemark/collate/collatetest"
	"tidemark/expression"
)

// The obvious model of evaluation: the document as encoding/json reads it, the syntax tree walked by hand.

var missing = collatetest.Missing{}

type model struct {
	docID string
	doc   any
}

func (m model) eval(x expression.Expr) any {
	switch x := x.(type) {
	case *expression.Literal:
		switch x.Kind {
		case collate.Missing:
			return missing
		case collate.Null:
			return nil
		case collate.False, collate.True:
			return x.Kind == collate.True
		case collate.Number:
			return json.Number(x.Text)
		}
		return x.Text
	case *expression.Path:
		return m.path(x)
	case *expression.DocID:
		return m.docID
	case *expression.Compare:
		return compared(x.Op, m.eval(x.L), m.eval(x.R))
	case *expression.Logic:
		return m.logic(x)
	case *expression.Not:
		if b, ok := truth(m.eval(x.X)).(bool); ok {
			return !b
		}
		return truth(m.eval(x.X))
	case *expression.Minus:
		switch v := m.eval(x.X).(type) {
		case json.Number:
			if strings.HasPrefix(string(v), "-") {
				return v[1:]
			}
			return "-" + v
		case collatetest.Missing:
			return v
		}
		return nil
	case *expression.Is:
		return is(x, m.eval(x.X))
	}
	panic(fmt.Sprintf("%T", x))
}

func (m model) path(x *expression.Path) any {
	v := m.doc
	for _, s := range x.Steps {
		if s.Element {
			list, ok := v.([]any)
			at := s.Index
			if at < 0 {
				at += len(list)
			}
			if !ok || at < 0 || at >= len(list) {
				return missing
			}
			v = list[at]
			continue
		}
		object, ok := v.(map[string]any)
		if !ok {
			return missing
		}
		if v, ok = object[s.Name]; !ok {
			return missing
		}
	}
	return v
}

// compared is a comparison by N1QL's rules.
func compared(op expression.Op, l, r any) any {
	switch {
	case l == missing || r == missing:
		return missing
	case l == nil || r == nil:
		return nil
	}
	c := collatetest.Compare(l, r)
	switch op {
	case expression.OpEqual:
		return c == 0
	case expression.OpNotEqual:
		return c != 0
	case expression.OpLess:
		return c < 0
	case expression.OpLessEqual:
		return c <= 0
	case expression.OpGreater:
		return c > 0
	case expression.OpGreaterEqual:
		return c >= 0
	}
	panic(op)
}

// truth gives true, false, nil or missing.
func truth(v any) any {
	switch v := v.(type) {
	case json.Number:
		return collatetest.Compare(v, json.Number("0")) != 0
	case string:
		return v != ""
	case []any:
		return len(v) > 0
	case map[string]any:
		return len(v) > 0
	}
	return v
}

// logic counts what the operands are, and looks the answer up.
func (m model) logic(x *expression.Logic) any {
	has := map[any]bool{}
	for _, o := range x.Operands {
		has[truth(m.eval(o))] = true
	}
	order := []any{false, missing, nil, true}
	if x.Op == expression.OpOr {
		order = []any{true, nil, missing, false}
	}
	for _, v := range order {
		if has[v] {
			return v
		}
	}
	panic("no operand")
}

func is(x *expression.Is, v any) any {
	var yes bool
	switch x.What {
	case collate.Missing:
		yes = v == missing
	case collate.Null:
		if v == missing {
			return missing
		}
		yes = v == nil
	default:
		yes = v != nil && v != missing
	}
	return yes != x.Not
}

// keys gives the entry that a document should have in an index of these expressions: none, or one composite.
func (m model) keys(keys []expression.Expr, desc []bool, where expression.Expr) ([][]byte, error) {
	if where != nil && truth(m.eval(where)) != true {
		return nil, nil
	}
	var parts [][]byte
	for i, k := range keys {
		v := m.eval(k)
		if v == missing {
			if i == 0 {
				return nil, nil
			}
			parts = append(parts, nil)
			continue
		}
		text, err := json.Marshal(v)
		if err != nil {
			return nil, err
		}
		parts = append(parts, text)
	}
	key, err := collate.AppendComposite(nil, parts, desc)
	if err != nil {
		return nil, err
	}
	return [][]byte{key}, nil
}
