package expressiontest

import (
	"encoding/json"
	"fmt"
	"slices"

	"tidemark/collate"
	"tidemark/collate/collatetest"
	"tidemark/expression"
	"tidemark/index"
)

// Entries returns the keys of a document in an index with these expressions, each as the values of its components:
// none, one, or in an array index one for each different element.
func Entries(d Doc, keys []index.KeyExpr, where string) ([][]any, error) {
	if where != "" {
		x, err := expression.ParseExpression(where)
		if err != nil {
			return nil, err
		}
		if v, err := Eval(x, d); err != nil || truth(v) != true {
			return nil, err
		}
	}
	entries := [][]any{nil}
	for i := 0; i < len(keys); {
		parts, withMissing, err := component(d, keys[i:])
		if err != nil {
			return nil, err
		}
		if i == 0 && !withMissing {
			parts = slices.DeleteFunc(parts, func(p []any) bool { return p[0] == Missing })
			if len(parts) == 0 {
				return nil, nil
			}
		}
		var longer [][]any
		for _, e := range entries {
			for _, p := range parts {
				longer = append(longer, append(e[:len(e):len(e)], p...))
			}
		}
		entries, i = longer, i+len(parts[0])
	}
	return entries, nil
}

// component returns the document's values for the first of the keys, or for the first several if they are the parts
// of one flattened array: the distinct values, each with as many parts.
func component(d Doc, keys []index.KeyExpr) (parts [][]any, withMissing bool, err error) {
	var columns [][]any
	for i, k := range keys {
		x, err := expression.ParseKey(k.Expr)
		if err != nil {
			return nil, false, err
		}
		key, missing := x.(*expression.MissingKey)
		if missing {
			x, withMissing = key.X, true
		}
		flat := flattened(x)
		if i > 0 && !flat {
			break
		}
		column, err := column(d, x)
		if err != nil {
			return nil, false, err
		}
		if columns = append(columns, column); !flat {
			break
		}
	}
	for row := range columns[0] {
		var part []any
		for _, c := range columns {
			part = append(part, c[row])
		}
		if !slices.ContainsFunc(parts, func(p []any) bool { return equalParts(p, part) }) {
			parts = append(parts, part)
		}
	}
	return parts, withMissing, nil
}

// column returns the value of a key or, for an array key, one for each element; MISSING if it has none.
func column(d Doc, x expression.Expr) (values []any, err error) {
	m := &interpreter{doc: d}
	if array, ok := x.(*expression.ArrayKey); ok {
		values = m.elements(array.X)
	} else {
		values = []any{m.eval(x)}
	}
	if len(values) == 0 {
		values = []any{Missing}
	}
	return values, m.err
}

// flattened reports whether a key is an array key with a part of a flattened array.
func flattened(x expression.Expr) bool {
	key, ok := x.(*expression.ArrayKey)
	if !ok {
		return false
	}
	each, ok := key.X.(*expression.Each)
	if !ok {
		return false
	}
	_, flat := each.Body.(*expression.Flatten)
	return flat || flattened(each.Body)
}

func equalParts(a, b []any) bool {
	return slices.EqualFunc(a, b, func(x, y any) bool { return collatetest.Compare(x, y) == 0 })
}

func indexOf(list []any, v any) int {
	for i, o := range list {
		if collatetest.Compare(o, v) == 0 {
			return i
		}
	}
	return -1
}

// Encode returns a key as stored.
func Encode(entry []any, keys []index.KeyExpr) ([]byte, error) {
	var parts [][]byte
	var desc []bool
	for i, v := range entry {
		desc = append(desc, keys[i].Desc)
		if v == Missing {
			parts = append(parts, nil)
			continue
		}
		text, err := json.Marshal(v)
		if err != nil {
			return nil, fmt.Errorf("component %d: %w", i, err)
		}
		parts = append(parts, text)
	}
	return collate.AppendComposite(nil, parts, desc)
}
