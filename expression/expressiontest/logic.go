package expressiontest

import (
	"encoding/json"
	"maps"
	"slices"

	"tidemark/collate"
	"tidemark/collate/collatetest"
	"tidemark/expression"
)

// compared evaluates a comparison by N1QL's rules.
func compared(op expression.Op, l, r any) any {
	if op == expression.OpEqual || op == expression.OpNotEqual {
		return negated(op == expression.OpNotEqual, equal(l, r))
	}
	c, unknown := compare(l, r)
	if c == nil {
		return unknown
	}
	switch op {
	case expression.OpLess:
		return *c < 0
	case expression.OpLessEqual:
		return *c <= 0
	case expression.OpGreater:
		return *c > 0
	case expression.OpGreaterEqual:
		return *c >= 0
	}
	panic(op)
}

func between(v, low, high any) any {
	above, below := compared(expression.OpGreaterEqual, v, low), compared(expression.OpLessEqual, v, high)
	for _, unknown := range []any{Missing, nil} {
		if above == unknown || below == unknown {
			return unknown
		}
	}
	return and(above, below)
}

// equal returns true, false, nil or Missing: NULL within arrays and objects makes the result unknown, unless
// something else differs.
func equal(l, r any) any {
	if l == Missing || r == Missing {
		return Missing
	}
	if l == nil || r == nil {
		return nil
	}
	result := any(true)
	switch a := l.(type) {
	case []any:
		b, ok := r.([]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for i := range a {
			result = and(result, equal(a[i], b[i]))
		}
		return result
	case map[string]any:
		b, ok := r.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for name, v := range a {
			w, ok := b[name]
			if !ok {
				return false
			}
			result = and(result, equal(v, w))
		}
		return result
	}
	return collatetest.Compare(l, r) == 0
}

// compare returns the order of two values; if order is nil, unknown is the result.
func compare(l, r any) (order *int, unknown any) {
	if l == Missing || r == Missing {
		return nil, Missing
	}
	if l == nil || r == nil {
		return nil, nil
	}
	if a, ok := l.([]any); ok {
		if b, ok := r.([]any); ok {
			return compareArrays(a, b)
		}
	}
	if o, ok := l.(map[string]any); ok {
		if p, ok := r.(map[string]any); ok && len(o) == len(p) {
			return compareObjects(o, p)
		}
	}
	c := collatetest.Compare(l, r)
	return &c, nil
}

func compareArrays(a, b []any) (order *int, unknown any) {
	for i := range min(len(a), len(b)) {
		if c, unknown := compare(a[i], b[i]); c == nil || *c != 0 {
			return c, unknown
		}
	}
	c := len(a) - len(b)
	return &c, nil
}

// compareObjects compares objects of the same size: by the first name that only one of them has, or else by the first
// value that differs.
func compareObjects(o, p map[string]any) (order *int, unknown any) {
	c := 0
	for _, name := range slices.Sorted(maps.Keys(merged(o, p))) {
		v, there := o[name]
		w, thereToo := p[name]
		if there && thereToo {
			if c, unknown := compare(v, w); c == nil || *c != 0 {
				return c, unknown
			}
			continue
		}
		if c = 1; there {
			c = -1
		}
		break
	}
	return &c, nil
}

func merged(o, p map[string]any) map[string]any {
	all := maps.Clone(o)
	maps.Copy(all, p)
	return all
}

// truth returns true, false, nil or Missing.
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

func not(v any) any {
	if b, ok := v.(bool); ok {
		return !b
	}
	return v
}

func negated(n bool, v any) any {
	if n {
		return not(v)
	}
	return v
}

func and(l, r any) any {
	for _, v := range []any{false, Missing, nil} {
		if l == v || r == v {
			return v
		}
	}
	return true
}

func or(l, r any) any {
	for _, v := range []any{true, nil, Missing} {
		if l == v || r == v {
			return v
		}
	}
	return false
}

// logic evaluates operands from left to right and stops at the first one that decides; the rest is not evaluated.
func (m *interpreter) logic(x *expression.Logic) any {
	join, clear := and, false
	if x.Op == expression.OpOr {
		join, clear = or, true
	}
	v := any(!clear)
	for _, o := range x.Operands {
		if v = join(v, truth(m.eval(o))); v == clear {
			break
		}
	}
	return v
}

func is(x *expression.Is, v any) any {
	var yes bool
	switch x.What {
	case collate.Missing:
		yes = v == Missing
	case collate.Null:
		if v == Missing {
			return Missing
		}
		yes = v == nil
	default:
		yes = v != nil && v != Missing
	}
	return yes != x.Not
}

func within(v, whole any) any {
	_, all, ok := list(expression.Binding{Within: true}, whole)
	switch {
	case v == Missing || whole == Missing:
		return Missing
	case !ok:
		return nil
	}
	return in(v, append([]any{}, all...))
}

func in(v, list any) any {
	l, ok := list.([]any)
	switch {
	case v == Missing || list == Missing:
		return Missing
	case !ok:
		return nil
	}
	unknown := false
	for _, e := range l {
		switch {
		case v == nil || e == nil:
			unknown = true
		case equal(v, e) == true:
			return true
		}
	}
	if unknown {
		return nil
	}
	return false
}
