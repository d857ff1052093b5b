// Package expressiontest is the slow and obvious interpreter of the expression language: the document as encoding/json
// reads it, numbers as exact integers or float64, the syntax tree walked by hand. Tests compare the compiled evaluation
// with it, and the oracle of the end-to-end tests is made of it. It is for tests only. Of package expression it uses
// the syntax tree and nothing that evaluates. Of the limits it knows those of single functions only: the others have
// their own tests.
package expressiontest

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"tidemark/collate"
	"tidemark/collate/collatetest"
	"tidemark/expression"
)

// Missing is the value MISSING.
var Missing = collatetest.Missing{}

// ErrEntry is wrapped when a document has no entry: a computation meets or makes a number beyond float64, or a function
// would make more than it may.
var ErrEntry = errors.New("no entry: a number beyond float64 or too large a value")

// Doc is a document: its id, what KV keeps of it, and its value as collatetest.Decode gives it.
type Doc struct {
	ID    string
	Meta  expression.DocMeta
	Value any
}

// Eval returns the value of an expression: Missing, nil, bool, json.Number, string, []any or map[string]any. A tree
// that the interpreter does not know is a mistake of the test and panics. The error wraps ErrEntry.
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
	err  error      // the first one; the entry is lost then, whatever the value
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
		for _, v := range slices.Backward(m.vars) {
			if v.name == x.Name {
				return v.value
			}
		}
		panic("no variable " + x.Name)
	case *expression.Self:
		return m.doc.Value
	case *expression.DocID:
		return string([]rune(m.doc.ID))
	case *expression.Meta:
		return m.meta(x.Field)
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
		v, low, high := m.eval(x.X), m.eval(x.Low), m.eval(x.High)
		above, below := compared(expression.OpGreaterEqual, v, low), compared(expression.OpLessEqual, v, high)
		for _, unknown := range []any{Missing, nil} {
			if above == unknown || below == unknown {
				return unknown
			}
		}
		return negated(x.Not, and(above, below))
	case *expression.Case:
		return m.caseOf(x)
	case *expression.Array:
		list := []any{}
		for _, v := range m.all(x.Items) {
			if v == Missing {
				v = nil
			}
			list = append(list, v)
		}
		return list
	case *expression.Object:
		return m.object(x)
	case *expression.At:
		return at(m.eval(x.X), m.eval(x.Index), x.Member)
	case *expression.Slice:
		v, low, high := m.eval(x.X), m.eval(x.Low), any(true)
		if x.High != nil {
			high = m.eval(x.High)
		}
		return slice(v, low, high, x.High == nil)
	case *expression.Within:
		return negated(x.Not, within(m.eval(x.X), m.eval(x.Whole)))
	case *expression.Each:
		return m.each(x)
	case *expression.Exists:
		v := m.eval(x.X)
		if list, ok := v.([]any); ok {
			return len(list) > 0
		}
		if v == Missing {
			return v
		}
		return nil
	}
	panic(fmt.Sprintf("%T", x))
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

// compared is a comparison by N1QL's rules.
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

// equal is true, false, nil or Missing: what is unknown within arrays and objects is unknown, unless something else
// differs.
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

// compare returns the order of two values, or else what makes it unknown.
func compare(l, r any) (order *int, unknown any) {
	if l == Missing || r == Missing {
		return nil, Missing
	}
	if l == nil || r == nil {
		return nil, nil
	}
	c := 0
	a, isArray := l.([]any)
	b, isArrayToo := r.([]any)
	if isArray && isArrayToo {
		for i := range min(len(a), len(b)) {
			if c, unknown := compare(a[i], b[i]); c == nil || *c != 0 {
				return c, unknown
			}
		}
		c = len(a) - len(b)
		return &c, nil
	}
	o, isObject := l.(map[string]any)
	p, isObjectToo := r.(map[string]any)
	if isObject && isObjectToo && len(o) == len(p) {
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
			return &c, nil
		}
		c = 0
		return &c, nil
	}
	c = collatetest.Compare(l, r)
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

// logic goes from left to right and stops as soon as the answer is clear: what stands behind is not evaluated.
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

func minus(v any) any {
	switch v := v.(type) {
	case json.Number:
		if strings.HasPrefix(string(v), "-") {
			return v[1:]
		}
		return "-" + v
	case collatetest.Missing:
		return v
	}
	return nil
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
			result = append(result, spread(m.eval(key.X))...)
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
func spread(v any) []any {
	if list, ok := v.([]any); ok {
		return list
	}
	return []any{v}
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
	n, isPlace := whole(index)
	switch {
	case v == nil, v == Missing:
		return v
	case member && isText:
		return walk(v, []expression.Step{{Name: index.(string)}})
	case !member && isPlace:
		return walk(v, []expression.Step{{Index: int(max(-1<<30, min(n, 1<<30))), Element: true}})
	}
	return nil
}

func slice(v, low, high any, toEnd bool) any {
	if v == Missing || low == Missing || high == Missing {
		return Missing
	}
	list, isArray := v.([]any)
	from, ok := whole(low)
	to, fine := whole(high)
	if !isArray || !ok || !fine && !toEnd {
		return nil
	}
	n := int64(len(list))
	if toEnd {
		to = n
	}
	if from < 0 {
		from += n
	}
	if to < 0 {
		to += n
	}
	switch {
	case from < 0 || to < from || to > n, from == n && !toEnd:
		return Missing
	}
	return list[from:to]
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

func concat(values []any) any {
	text, result := "", any("")
	for _, v := range values {
		s, ok := v.(string)
		if v == Missing || result == Missing {
			result = Missing
		} else if !ok {
			result = nil
		}
		text += s
	}
	if result == "" {
		return text
	}
	return result
}

// like fits a pattern by a table: at each place of the text, which parts of the pattern may have been used up.
func like(text, pattern, escape any) any {
	t, tok := text.(string)
	p, pok := pattern.(string)
	e, eok := escape.(string)
	if text == Missing || pattern == Missing || escape == Missing {
		return Missing
	}
	if !tok || !pok || !eok || len([]rune(e)) != 1 {
		return nil
	}
	const one, any = -1, -2 // beside characters
	var parts []rune
	for runes := []rune(p); len(runes) > 0; runes = runes[1:] {
		switch {
		case runes[0] == []rune(e)[0] && len(runes) > 1:
			runes = runes[1:]
			parts = append(parts, runes[0])
		case runes[0] == '%':
			parts = append(parts, any)
		case runes[0] == '_':
			parts = append(parts, one)
		default:
			parts = append(parts, runes[0])
		}
	}
	fits := make([]bool, len(parts)+1)
	fits[0] = true
	spread := func(row []bool) {
		for i, part := range parts {
			row[i+1] = row[i+1] || row[i] && part == any
		}
	}
	spread(fits)
	for _, c := range t {
		next := make([]bool, len(parts)+1)
		for i, part := range parts {
			if fits[i] && (part == c || part == one) {
				next[i+1] = true
			}
			if fits[i+1] && part == any {
				next[i+1] = true
			}
		}
		spread(next)
		fits = next
	}
	return fits[len(parts)]
}

// number is what a number computes as: an integer of 64 bits, or a float64.
type number struct {
	i       int64
	f       float64
	integer bool
}

// numeric reads a number: an integer if its text is one of 64 bits, or if its float64 is one.
func (m *interpreter) numeric(v json.Number) (n number, ok bool) {
	if i, err := strconv.ParseInt(string(v), 10, 64); err == nil {
		return number{i, float64(i), true}, true
	}
	f, _ := strconv.ParseFloat(string(v), 64)
	if math.IsInf(f, 0) {
		m.fail("%s", v)
		return n, false
	}
	if f == math.Trunc(f) && f >= -1<<63 && f < 1<<63 {
		return number{int64(f), f, true}, true
	}
	return number{f: f}, true
}

func integer(i int64) any { return json.Number(strconv.FormatInt(i, 10)) }

// float returns a number that computes as f again.
func (m *interpreter) float(f float64) any {
	switch {
	case math.IsNaN(f):
		return nil
	case math.IsInf(f, 0):
		return m.fail("the result")
	case f == math.Trunc(f) && f >= -1<<63 && f < 1<<63:
		return integer(int64(f))
	}
	return json.Number(strconv.FormatFloat(f, 'e', -1, 64))
}

func (m *interpreter) arith(op expression.Op, l, r any) any {
	x, xok := l.(json.Number)
	y, yok := r.(json.Number)
	if l == Missing || r == Missing {
		return Missing
	}
	if !xok || !yok {
		return nil
	}
	a, aok := m.numeric(x)
	b, bok := m.numeric(y)
	if !aok || !bok {
		return Missing
	}
	return m.compute(op, a, b)
}

func (m *interpreter) compute(op expression.Op, a, b number) any {
	if (op == expression.OpDivide || op == expression.OpModulo) && b.f == 0 {
		return nil
	}
	if a.integer && b.integer {
		x, y, z, rest := big.NewInt(a.i), big.NewInt(b.i), new(big.Int), new(big.Int)
		switch op {
		case expression.OpAdd:
			z.Add(x, y)
		case expression.OpSubtract:
			z.Sub(x, y)
		case expression.OpMultiply:
			z.Mul(x, y)
		case expression.OpDivide:
			z.QuoRem(x, y, rest)
		case expression.OpModulo:
			z.Rem(x, y)
		}
		if z.IsInt64() && rest.Sign() == 0 {
			return integer(z.Int64())
		}
	}
	switch op {
	case expression.OpAdd:
		return m.float(a.f + b.f)
	case expression.OpSubtract:
		return m.float(a.f - b.f)
	case expression.OpMultiply:
		return m.float(a.f * b.f)
	case expression.OpDivide:
		return m.float(a.f / b.f)
	}
	return m.float(math.Mod(a.f, b.f))
}
