package expressiontest

import (
	"maps"
	"slices"

	"tidemark/expression"
)

// list returns what a binding goes through, with the names; ok is false if it cannot.
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

func (m *interpreter) each(x *expression.Each) any {
	turns, null := -1, false
	var names, values [][]any
	for _, b := range x.Bindings {
		over := m.eval(b.Over)
		if over == Missing {
			return Missing
		}
		n, v, ok := list(b, over)
		null = null || !ok
		names, values = append(names, n), append(values, v)
		if turns < 0 || len(v) < turns {
			turns = len(v)
		}
	}
	if null {
		return nil
	}
	outer := len(m.vars)
	defer func() { m.vars = m.vars[:outer] }()
	result, object := []any{}, map[string]any{}
	for turn := range turns {
		m.vars = m.vars[:outer]
		for i, b := range x.Bindings {
			if b.Name != "" {
				m.vars = append(m.vars, variable{b.Name, names[i][turn]})
			}
			m.vars = append(m.vars, variable{b.Var, values[i][turn]})
		}
		if x.When != nil && truth(m.eval(x.When)) != true {
			continue
		}
		if x.Kind == expression.EachObject {
			name := m.eval(x.Name)
			text, ok := name.(string)
			if name == Missing {
				return Missing
			}
			if !ok {
				return nil
			}
			if v := m.eval(x.Body); v != Missing {
				object[text] = v
			}
			continue
		}
		if key, nested := x.Body.(*expression.ArrayKey); nested {
			result = append(result, m.elements(key.X)...)
			continue
		}
		if flat, ok := x.Body.(*expression.Flatten); ok { // of one part, MISSING or not
			result = append(result, m.eval(flat.Parts[0].X))
			continue
		}
		v := m.eval(x.Body)
		switch {
		case x.Kind == expression.EachFirst:
			return v
		case x.Kind == expression.EachAny && truth(v) == true:
			return true
		case (x.Kind == expression.EachEvery || x.Kind == expression.EachAnyEvery) && truth(v) != true:
			return false
		case x.Kind == expression.EachArray && v != Missing:
			result = append(result, v)
		}
	}
	switch x.Kind {
	case expression.EachAny:
		return false
	case expression.EachEvery:
		return true
	case expression.EachAnyEvery:
		return turns > 0
	case expression.EachFirst:
		return Missing
	case expression.EachObject:
		return object
	}
	return result
}

// spread returns the elements of an array, and what is none as one.
// elements are what an array key has entries for, but for an array without elements.
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

func spread(v any) []any {
	if list, ok := v.([]any); ok {
		return list
	}
	return []any{v}
}
