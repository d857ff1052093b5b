// Package expressiontest is a slow and obvious interpreter of the expression language: the document as decoded by
// encoding/json, numbers as exact integers or float64, and a plain walk over the syntax tree. Tests compare the
// compiled evaluation with it, and it is the basis of the oracle of the end-to-end tests. It is for tests only. It
// uses the syntax tree of package expression, but nothing that evaluates. It implements the limits of single
// functions only; the others have their own tests.
package expressiontest

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"tidemark/collate"
	"tidemark/collate/collatetest"
	"tidemark/expression"
)

// Missing is the value MISSING.
var Missing = collatetest.Missing{}

// ErrEntry is wrapped if a document has no entry: a computation uses or produces a number beyond float64, or a
// function's result would exceed its limit.
var ErrEntry = errors.New("no entry: a number beyond float64 or too large a value")

// Doc is a document: its id, its KV metadata, and its value as returned by collatetest.Decode.
type Doc struct {
	ID    string
	Meta  expression.DocMeta
	Value any
}

// Eval returns the value of an expression: Missing, nil, bool, json.Number, string, []any or map[string]any. It
// panics for a tree that it does not support, which is an error in the test. The error wraps ErrEntry.
func Eval(x expression.Expr, d Doc) (any, error) {
	m := &interpreter{doc: d}
	v := m.eval(x)
	return v, m.err
}

type variable struct {
	name  string
	value any
}

type interpreter struct {
	doc  Doc
	vars []variable // innermost last
	err  error      // the first one; the entry is left out then, whatever the value
}

func (m *interpreter) fail(format string, args ...any) any {
	if m.err == nil {
		m.err = fmt.Errorf("%w: %s", ErrEntry, fmt.Sprintf(format, args...))
	}
	return Missing
}

func (m *interpreter) all(list []expression.Expr) (values []any) {
	for _, x := range list {
		values = append(values, m.eval(x))
	}
	return values
}

func (m *interpreter) eval(x expression.Expr) any {
	switch x := x.(type) {
	case *expression.Literal:
		return literal(x)
	case *expression.Path:
		return walk(m.doc.Value, x.Steps)
	case *expression.Nav:
		return walk(m.eval(x.X), x.Steps)
	case *expression.Var:
		return m.variable(x.Name)
	case *expression.Self:
		return m.doc.Value
	case *expression.DocID:
		return string([]rune(m.doc.ID))
	case *expression.Meta:
		return m.meta(x.Field)
	case *expression.Xattr:
		return xattr(m.doc.Meta.Xattrs, x.Name)
	case *expression.Compare:
		return compared(x.Op, m.eval(x.L), m.eval(x.R))
	case *expression.Logic:
		return m.logic(x)
	case *expression.Not:
		return not(truth(m.eval(x.X)))
	case *expression.Minus:
		return minus(m.eval(x.X))
	case *expression.Is:
		return is(x, m.eval(x.X))
	case *expression.Arith:
		return m.arith(x.Op, m.eval(x.L), m.eval(x.R))
	case *expression.Call:
		return m.call(x)
	}
	return m.construct(x)
}

func (m *interpreter) variable(name string) any {
	for _, v := range slices.Backward(m.vars) {
		if v.name == name {
			return v.value
		}
	}
	panic("no variable " + name)
}

func (m *interpreter) construct(x expression.Expr) any {
	switch x := x.(type) {
	case *expression.Concat:
		return concat(m.all(x.Operands))
	case *expression.Like:
		escape := any(`\`)
		text, pattern := m.eval(x.X), m.eval(x.Pattern)
		if x.Escape != nil {
			escape = m.eval(x.Escape)
		}
		return negated(x.Not, like(text, pattern, escape))
	case *expression.In:
		return negated(x.Not, in(m.eval(x.X), m.eval(x.List)))
	case *expression.Between:
		return negated(x.Not, between(m.eval(x.X), m.eval(x.Low), m.eval(x.High)))
	case *expression.Case:
		return m.caseOf(x)
	case *expression.Array:
		return array(m.all(x.Items))
	case *expression.Object:
		return m.object(x)
	case *expression.At:
		return at(m.eval(x.X), m.eval(x.Index), x.Member)
	case *expression.Slice:
		v, low := m.eval(x.X), m.eval(x.Low)
		list, _ := v.([]any)
		high := integer(int64(len(list)))
		if x.High != nil {
			high = m.eval(x.High)
		}
		return slice(v, low, high)
	case *expression.Within:
		return negated(x.Not, within(m.eval(x.X), m.eval(x.Whole)))
	case *expression.Each:
		return m.each(x)
	case *expression.Exists:
		return exists(m.eval(x.X))
	}
	panic(fmt.Sprintf("%T", x))
}

func array(values []any) any {
	list := append([]any{}, values...)
	for i, v := range list {
		if v == Missing {
			list[i] = nil
		}
	}
	return list
}

func exists(v any) any {
	list, ok := v.([]any)
	switch {
	case v == Missing:
		return Missing
	case !ok:
		return nil
	}
	return len(list) > 0
}

func literal(x *expression.Literal) any {
	switch x.Kind {
	case collate.Missing:
		return Missing
	case collate.Null:
		return nil
	case collate.False, collate.True:
		return x.Kind == collate.True
	case collate.Number:
		return json.Number(x.Text)
	}
	return x.Text
}

func walk(v any, steps []expression.Step) any {
	for _, s := range steps {
		if s.Element {
			list, ok := v.([]any)
			at := s.Index
			if at < 0 {
				at += len(list)
			}
			if !ok || at < 0 || at >= len(list) {
				return Missing
			}
			v = list[at]
			continue
		}
		object, ok := v.(map[string]any)
		if !ok {
			return Missing
		}
		if v, ok = object[s.Name]; !ok {
			return Missing
		}
	}
	return v
}

// xattr returns an extended attribute; Missing if there is no valid one.
func xattr(section []byte, name string) any {
	for len(section) >= 4 {
		n := int(binary.BigEndian.Uint32(section))
		if n > len(section)-4 {
			return Missing
		}
		parts := strings.SplitN(string(section[4:4+n]), "\x00", 2)
		if section = section[4+n:]; len(parts) < 2 || parts[0] != name || !strings.HasSuffix(parts[1], "\x00") {
			continue
		}
		if v, ok := collatetest.Decode([]byte(strings.TrimSuffix(parts[1], "\x00"))); ok {
			return v
		}
		return Missing
	}
	return Missing
}

func (m *interpreter) meta(field string) any {
	switch field {
	case "cas":
		return json.Number(strconv.FormatUint(m.doc.Meta.CAS, 10))
	case "expiration":
		return integer(int64(m.doc.Meta.Expiration))
	case "flags":
		return integer(int64(m.doc.Meta.Flags))
	}
	panic(field)
}

func (m *interpreter) caseOf(x *expression.Case) any {
	var operand any
	if x.Operand != nil {
		operand = m.eval(x.Operand)
	}
	for _, w := range x.Whens {
		v := m.eval(w.If)
		if x.Operand != nil {
			v = compared(expression.OpEqual, operand, v)
		}
		if truth(v) == true {
			return m.eval(w.Then)
		}
	}
	if x.Else == nil {
		return nil
	}
	return m.eval(x.Else)
}

func (m *interpreter) object(x *expression.Object) any {
	object := map[string]any{}
	for _, member := range x.Members {
		name := any(member.Name)
		if member.Computed != nil {
			name = m.eval(member.Computed)
		}
		v := m.eval(member.Value)
		if name == nil || name == Missing {
			continue
		}
		text, ok := name.(string)
		if !ok {
			return nil
		}
		if v != Missing {
			object[text] = v
		}
	}
	return object
}

func at(v, index any, member bool) any {
	if index == Missing {
		return Missing
	}
	_, isText := index.(string)
	n, isPlace := place(index)
	switch {
	case v == Missing:
		return v
	case member && isText:
		return walk(v, []expression.Step{{Name: index.(string)}})
	case !member && isPlace:
		return walk(v, []expression.Step{{Index: int(max(-1<<30, min(n, 1<<30))), Element: true}})
	}
	return nil
}

func slice(v, low, high any) any {
	if v == Missing || low == Missing || high == Missing {
		return Missing
	}
	list, isArray := v.([]any)
	from, ok := place(low)
	to, fine := place(high)
	if !isArray || !ok || !fine {
		return nil
	}
	from, to = fromStart(from, len(list)), fromStart(to, len(list))
	if from < 0 || to < from || to > int64(len(list)) {
		return Missing
	}
	return list[from:to]
}
