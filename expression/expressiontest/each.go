package expressiontest

import (
	"maps"
	"slices"

	"tidemark/expression"
)

// list returns what a binding iterates over, with the names; ok is false if it cannot iterate.
func list(b expression.Binding, over any) (names, values []any, ok bool) {
	array, isArray := over.([]any)
	object, isObject := over.(map[string]any)
	if !isArray && (!isObject || b.Name == "" && !b.Within) {
		return nil, nil, false
	}
	add := func(name, v any) {
		names, values = append(names, name), append(values, v)
		if b.Within {
			moreNames, more, _ := list(b, v)
			if _, isObject := v.(map[string]any); isObject || more != nil {
				names, values = append(names, moreNames...), append(values, more...)
			}
		}
	}
	for i, v := range array {
		add(integer(int64(i)), v)
	}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		add(name, object[name])
	}
	return names, values, true
}

// turns returns the variables of a loop, turn by turn. If ok is false, the loop has the value unknown instead.
func (m *interpreter) turns(x *expression.Each) (turns [][]variable, unknown any, ok bool) {
	ok = true
	for i, b := range x.Bindings {
		over := m.eval(b.Over)
		if over == Missing {
			return nil, Missing, false
		}
		names, values, fine := list(b, over)
		if i == 0 {
			turns = make([][]variable, len(values))
		}
		ok, turns = ok && fine, turns[:min(len(turns), len(values))]
		for turn := range turns {
			if b.Name != "" {
				turns[turn] = append(turns[turn], variable{b.Name, names[turn]})
			}
			turns[turn] = append(turns[turn], variable{b.Var, values[turn]})
		}
	}
	return turns, nil, ok
}

func (m *interpreter) each(x *expression.Each) any {
	turns, unknown, ok := m.turns(x)
	if !ok {
		return unknown
	}
	outer := len(m.vars)
	defer func() { m.vars = m.vars[:outer] }()
	taken := func(yield func() bool) { // the turns that satisfy WHEN
		for _, vars := range turns {
			m.vars = append(m.vars[:outer], vars...)
			if (x.When == nil || truth(m.eval(x.When)) == true) && !yield() {
				return
			}
		}
	}
	switch x.Kind {
	case expression.EachAny:
		return m.anyTurn(x.Body, taken, true)
	case expression.EachEvery:
		return !m.anyTurn(x.Body, taken, false)
	case expression.EachAnyEvery:
		return len(turns) > 0 && !m.anyTurn(x.Body, taken, false)
	case expression.EachFirst:
		first := any(Missing)
		taken(func() bool { first = m.eval(x.Body); return false })
		return first
	case expression.EachObject:
		return m.objectOfTurns(x, taken)
	}
	result := []any{}
	for range taken {
		result = append(result, m.items(x.Body)...)
	}
	return result
}

// anyTurn reports whether in some turn a condition holds, or does not hold if holds is false.
func (m *interpreter) anyTurn(condition expression.Expr, turns func(func() bool), holds bool) bool {
	for range turns {
		if (truth(m.eval(condition)) == true) == holds {
			return true
		}
	}
	return false
}

func (m *interpreter) objectOfTurns(x *expression.Each, turns func(func() bool)) any {
	object := map[string]any{}
	for range turns {
		name := m.eval(x.Name)
		text, ok := name.(string)
		switch {
		case name == Missing:
			return Missing
		case !ok:
			return nil
		}
		if v := m.eval(x.Body); v != Missing {
			object[text] = v
		}
	}
	return object
}

// items returns what one turn adds to an array.
func (m *interpreter) items(body expression.Expr) []any {
	switch body := body.(type) {
	case *expression.ArrayKey:
		return m.elements(body.X)
	case *expression.Flatten: // of one part
		return []any{m.eval(body.Parts[0].X)}
	}
	if v := m.eval(body); v != Missing {
		return []any{v}
	}
	return nil
}

// elements returns the values that an array key has entries for, except for an array without elements.
func (m *interpreter) elements(x expression.Expr) []any {
	switch x := x.(type) {
	case *expression.Array:
		return m.all(x.Items)
	case *expression.Nav:
		star, ok := x.X.(*expression.Call)
		if !ok || star.Name != "ARRAY_STAR" || len(x.Steps) != 1 || x.Steps[0].Element {
			break
		}
		list, ok := m.eval(star.Args[0]).([]any)
		if !ok {
			return []any{Missing}
		}
		var column []any
		for _, v := range list {
			column = append(column, walk(v, x.Steps))
		}
		return column
	}
	return spread(m.eval(x))
}

// spread returns the elements of an array; any other value is its own only element.
func spread(v any) []any {
	if list, ok := v.([]any); ok {
		return list
	}
	return []any{v}
}
