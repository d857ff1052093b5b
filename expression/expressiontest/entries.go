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

// Entries returns the keys that a document has in an index of these expressions, each as the values of its components:
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
	for i, k := range keys {
		x, err := expression.ParseKey(k.Expr)
		if err != nil {
			return nil, err
		}
		key, withMissing := x.(*expression.MissingKey)
		if withMissing {
			x = key.X
		}
		array, isArray := x.(*expression.ArrayKey)
		if isArray {
			x = array.X
		}
		v, err := Eval(x, d)
		if err != nil {
			return nil, err
		}
		values := []any{v}
		if isArray {
			values = different(v)
		}
		if i == 0 && !withMissing {
			values = slices.DeleteFunc(slices.Clone(values), func(v any) bool { return v == Missing })
			if len(values) == 0 {
				return nil, nil
			}
		}
		var longer [][]any
		for _, e := range entries {
			for _, v := range values {
				longer = append(longer, append(e[:len(e):len(e)], v))
			}
		}
		entries = longer
	}
	return entries, nil
}

// different returns the elements of an array that are not equal, each once. An empty array has the element MISSING, and
// what is no array is its own one element.
func different(v any) (list []any) {
	all, ok := v.([]any)
	if !ok {
		return []any{v}
	}
	if len(all) == 0 {
		return []any{Missing}
	}
	for _, e := range all {
		if indexOf(list, e) < 0 {
			list = append(list, e)
		}
	}
	return list
}

func indexOf(list []any, v any) int {
	for i, o := range list {
		if collatetest.Compare(o, v) == 0 {
			return i
		}
	}
	return -1
}

// Encode returns a key as it is stored.
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
