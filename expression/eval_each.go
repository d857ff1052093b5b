package expression

import (
	"slices"

	"tidemark/collate"
)

// loop is a compiled Each.
type loop struct {
	kind       EachKind
	bindings   []boundTo
	depth      int // number of variables bound outside
	name       evaluator
	body, when evaluator
	spread     spreader // of a nested or flattened array key, instead of body
	width      int      // number of values per element of such a key
}

// boundTo is a compiled Binding.
type boundTo struct {
	over          evaluator
	named, within bool
}

// compile compiles ANY, EVERY, ARRAY, FIRST and OBJECT.
func (x *Each) compile(c *compiler) evaluator {
	l := c.loop(x)
	if x.plain() && x.Kind != EachObject {
		return l.plain
	}
	return l.general
}

func (c *compiler) loop(x *Each) *loop {
	l := &loop{kind: x.Kind, depth: len(c.scope)}
	for _, b := range x.Bindings {
		l.bindings = append(l.bindings, boundTo{b.Over.compile(c), b.Name != "", b.Within})
	}
	for _, b := range x.Bindings {
		if b.Name != "" {
			c.scope = append(c.scope, b.Name)
		}
		c.scope = append(c.scope, b.Var)
	}
	switch body := x.Body.(type) {
	case *ArrayKey:
		l.spread, l.width = c.spread(body.X), width(body)
	case *Flatten:
		l.spread, l.width = c.tuple(body), len(body.Parts)
	default:
		l.body = body.compile(c)
	}
	if x.Name != nil {
		l.name = x.Name.compile(c)
	}
	if x.When != nil {
		l.when = x.When.compile(c)
	}
	c.scope = c.scope[:l.depth]
	return l
}

// plain iterates over the elements of one array in its text.
func (l *loop) plain(s *Scratch) value {
	array := l.bindings[0].over(s)
	if array.kind != kindArray {
		if array.kind == kindMissing {
			return missing
		}
		return null
	}
	base, depth, kind := len(s.stack), l.depth, l.kind
	defer func() { s.stack, s.vars = s.stack[:base], s.vars[:depth] }()
	seen := 0
	for w := walk(array.data); w.more(); seen++ {
		text := w.raw(']')
		if s.err != nil || !s.look(text) {
			return missing
		}
		s.vars = append(s.vars[:depth], s.valueOf(text))
		if l.when != nil && s.truth(l.when(s)) != kindTrue {
			continue
		}
		v := l.body(s)
		switch kind {
		case EachArray:
			if v.kind != kindMissing {
				s.stack = append(s.stack, v)
			}
		case EachFirst:
			return v
		case EachAny:
			if s.truth(v) == kindTrue {
				return boolean(true)
			}
		default:
			if s.truth(v) != kindTrue {
				return boolean(false)
			}
		}
	}
	return l.end(s, base, seen)
}

// end returns the value after the last element.
func (l *loop) end(s *Scratch, base, seen int) value {
	switch l.kind {
	case EachArray:
		return s.list(s.stack[base:])
	case EachFirst:
		return missing
	}
	return boolean(l.kind == EachEvery || l.kind == EachAnyEvery && seen > 0)
}

// turns holds the values of the variables, turn by turn.
type turns struct {
	values []value // for each turn as many as there are variables
	count  int
}

// prepare evaluates the collections of the bindings. kind is MISSING or NULL if one of them is MISSING or cannot be
// iterated over; MISSING takes precedence.
func (l *loop) prepare(s *Scratch) (all turns, kind collate.Kind) {
	lists, kind := make([][]value, len(l.bindings)), kindTrue
	width := 0
	for i, b := range l.bindings {
		over := b.over(s)
		if over.kind == kindMissing || s.err != nil {
			return all, kindMissing
		}
		lists[i], width = b.list(s, over), width+1
		if b.named {
			width++
		}
		if lists[i] == nil {
			kind = kindNull
		}
	}
	if kind == kindNull {
		return all, kind
	}
	for i, list := range lists {
		n := len(list)
		if l.bindings[i].named {
			n /= 2
		}
		if i == 0 || n < all.count {
			all.count = n
		}
	}
	if !s.spend(all.count * width) {
		return all, kindMissing
	}
	for turn := range all.count {
		for i, list := range lists {
			if l.bindings[i].named {
				all.values = append(all.values, list[2*turn], list[2*turn+1])
			} else {
				all.values = append(all.values, list[turn])
			}
		}
	}
	return all, kind
}

// list returns the values that a binding iterates over, each preceded by its name if the binding has a name variable;
// nil if it cannot iterate.
func (b *boundTo) list(s *Scratch, over value) []value {
	base := len(s.stack)
	defer func() { s.stack = s.stack[:base] }()
	switch {
	case over.kind != kindArray && over.kind != kindObject, over.kind == kindObject && !b.named && !b.within:
		return nil
	case b.named:
		s.pairs(over, b.within)
	case b.within:
		s.descend(over)
	default:
		s.push(over)
	}
	return append([]value{}, s.stack[base:]...)
}

// pairs pushes the positions or names in an array or object and the values on the stack, alternately; with within, it
// includes nested values.
func (s *Scratch) pairs(v value, within bool) {
	var names, texts = []value(nil), [][]byte(nil)
	if v.kind == kindObject {
		list, _ := s.fields(v)
		for _, f := range slices.Clone(list) {
			names, texts = append(names, value{kindString, f.name}), append(texts, f.text)
		}
	} else {
		for w := walk(v.data); w.more(); {
			text := w.raw(']')
			if !s.look(text) {
				return
			}
			names, texts = append(names, s.integer(int64(len(names)))), append(texts, text)
		}
	}
	for i, name := range names {
		inner := s.valueOf(texts[i])
		s.stack = append(s.stack, name, inner)
		if within && (inner.kind == kindArray || inner.kind == kindObject) {
			s.pairs(inner, true)
		}
	}
}

// general iterates over several arrays, over objects, and over nested values.
func (l *loop) general(s *Scratch) value {
	all, kind := l.prepare(s)
	if kind <= kindNull {
		return value{kind: kind}
	}
	base := len(s.stack)
	defer func() { s.stack, s.vars = s.stack[:base], s.vars[:l.depth] }()
	if l.kind == EachObject {
		return l.object(s, all)
	}
	for turn := range all.count {
		if !l.take(s, all, turn) {
			continue
		}
		v := l.body(s)
		switch {
		case s.err != nil:
			return missing
		case l.kind == EachArray:
			if v.kind != kindMissing {
				s.stack = append(s.stack, v)
			}
		case l.kind == EachFirst:
			return v
		case (s.truth(v) == kindTrue) == (l.kind == EachAny):
			return boolean(l.kind == EachAny)
		}
	}
	return l.end(s, base, all.count)
}

// take binds the variables of a turn and reports whether its WHEN holds.
func (l *loop) take(s *Scratch, all turns, turn int) bool {
	width := len(all.values) / all.count
	s.vars = append(s.vars[:l.depth], all.values[turn*width:(turn+1)*width]...)
	return l.when == nil || s.truth(l.when(s)) == kindTrue
}

// object evaluates OBJECT name: value FOR …. A name that is not a string determines the whole result.
func (l *loop) object(s *Scratch, all turns) value {
	var list []field
	for turn := range all.count {
		if !l.take(s, all, turn) {
			continue
		}
		name := l.name(s)
		if name.kind != kindString {
			return value{kind: min(name.kind, kindNull)}
		}
		v := l.body(s)
		if s.err != nil {
			return missing
		}
		if v.kind != kindMissing {
			list = append(list, field{name.data, s.textOf(v)})
		}
	}
	return s.build(sortFields(list))
}

// spreader pushes the elements of an array key on the stack, those of nested ones in sequence. It returns MISSING or
// NULL if it found that instead of an array.
type spreader func(s *Scratch) collate.Kind

// spread returns the spreader of an array key. MISSING elements of […] and x[*].name are kept.
func (c *compiler) spread(x Expr) spreader {
	switch x := x.(type) {
	case *Each:
		if isOfArrayKey(x.Body) {
			return c.loop(x).spreadAll
		}
	case *Array:
		return c.items(x)
	case *Nav:
		if name, ok := column(x); ok {
			return c.column(x.X.(*Call).Args[0], name)
		}
	}
	inner := x.compile(c)
	return func(s *Scratch) collate.Kind {
		v := inner(s)
		if v.kind != kindArray {
			s.stack = append(s.stack, v)
			return min(v.kind, kindTrue)
		}
		s.push(v)
		return kindTrue
	}
}

func (c *compiler) items(x *Array) spreader {
	parts := c.compileAll(x.Items)
	return func(s *Scratch) collate.Kind {
		for _, part := range parts {
			v := part(s)
			s.stack = append(s.stack, v)
		}
		return kindTrue
	}
}

// column returns the name in x[*].name.
func column(x *Nav) (name string, ok bool) {
	call, star := x.X.(*Call)
	return x.Steps[0].Name, star && call.Name == "ARRAY_STAR" && len(x.Steps) == 1 && !x.Steps[0].Element
}

// column returns the spreader of x[*].name: the named member of each element of an array.
func (c *compiler) column(x Expr, name string) spreader {
	array := x.compile(c)
	return func(s *Scratch) collate.Kind {
		v := array(s)
		if v.kind != kindArray {
			s.stack = append(s.stack, missing)
			return kindMissing
		}
		base, _ := s.push(v)
		for i, element := range s.stack[base:] {
			s.stack[base+i] = missing
			if element.kind == kindObject {
				s.stack[base+i] = s.member(element, name)
			}
		}
		return kindTrue
	}
}

func (l *loop) spreadAll(s *Scratch) collate.Kind {
	all, kind := l.prepare(s)
	if kind <= kindNull {
		for range l.width {
			s.stack = append(s.stack, value{kind: kind})
		}
		return kind
	}
	for turn := range all.count {
		if l.take(s, all, turn) && s.err == nil {
			l.spread(s)
		}
	}
	s.vars = s.vars[:l.depth]
	return kindTrue
}
