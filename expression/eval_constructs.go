package expression

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"unicode/utf8"
)

// Constructs that are only valid as a whole key, or as the body of one, have no value: their elements are entries
// (spread).

func (*ArrayKey) compile(*compiler) evaluator   { return noValue }
func (*MissingKey) compile(*compiler) evaluator { return noValue }
func (*Flatten) compile(*compiler) evaluator    { return noValue }

func noValue(*Scratch) value { return missing }

func (x *Array) compile(c *compiler) evaluator {
	items := c.compileAll(x.Items)
	return func(s *Scratch) value {
		base := len(s.stack)
		for _, i := range items {
			s.stack = append(s.stack, i(s))
		}
		v := s.list(s.stack[base:])
		s.stack = s.stack[:base]
		return v
	}
}

func (x *Var) compile(c *compiler) evaluator {
	depth := slices.Index(c.scope, x.Name)
	for i, name := range c.scope { // the innermost
		if name == x.Name {
			depth = i
		}
	}
	return func(s *Scratch) value { return s.vars[depth] }
}

func (x *Exists) compile(c *compiler) evaluator {
	inner := x.X.compile(c)
	return func(s *Scratch) value {
		switch v := inner(s); v.kind {
		case kindArray:
			return boolean(!s.hollow(v))
		case kindMissing:
			return v
		}
		return null
	}
}

func (x *Xattr) compile(*compiler) evaluator {
	name := []byte(x.Name)
	return func(s *Scratch) value { return s.xattr(name) }
}

func (x *Meta) compile(*compiler) evaluator {
	field := x.Field
	return func(s *Scratch) value {
		switch field {
		case "cas":
			start := len(s.temp)
			s.temp = appendUint(s.temp, s.meta.CAS)
			return s.fresh(kindNumber, start)
		case "expiration":
			return s.integer(int64(s.meta.Expiration))
		}
		return s.integer(int64(s.meta.Flags))
	}
}

// xattr returns an extended attribute. In the section, each attribute has its length, name, a zero byte, its JSON and
// a zero byte. A malformed attribute is MISSING.
func (s *Scratch) xattr(name []byte) value {
	for rest := s.meta.Xattrs; len(rest) >= lengthBytes; {
		n := uint64(binary.BigEndian.Uint32(rest))
		if n > uint64(len(rest)-lengthBytes) {
			break
		}
		pair := rest[lengthBytes : lengthBytes+n]
		rest = rest[lengthBytes+n:]
		if !s.spend(1 + len(pair)/stepBytes) {
			break
		}
		text, ok := bytes.CutPrefix(pair, name)
		if !ok || len(text) < 2 || text[0] != 0 || text[len(text)-1] != 0 {
			continue
		}
		text = bytes.TrimSpace(text[1 : len(text)-1])
		check := scanner{text: text}
		if end := check.skip(0, 0); end != len(text) {
			break
		}
		return s.valueOf(text)
	}
	return missing
}

// lengthBytes is the size of the length before an extended attribute.
const lengthBytes = 4

func (x *Arith) compile(c *compiler) evaluator {
	left, right, op := x.L.compile(c), x.R.compile(c), x.Op
	return func(s *Scratch) value {
		l, r := left(s), right(s)
		switch {
		case l.kind == kindMissing || r.kind == kindMissing:
			return missing
		case l.kind != kindNumber || r.kind != kindNumber:
			return null
		}
		a, ok := s.numberOf(l)
		b, fine := s.numberOf(r)
		if !ok || !fine || !s.spend(1) {
			return missing
		}
		return s.compute(op, a, b)
	}
}

// compute is exact if both sides and the result are int64, otherwise it uses float64. Division by 0 is NULL.
func (s *Scratch) compute(op Op, a, b number) value {
	if a.isInt && b.isInt {
		if n, ok := exact(op, a.i, b.i); ok {
			return s.integer(n)
		}
	}
	// Each result is converted to float64, which prevents a fused multiply-add, so that all processors compute the same.
	switch op {
	case OpAdd:
		return s.float(float64(a.f + b.f))
	case OpSubtract:
		return s.float(float64(a.f - b.f))
	case OpMultiply:
		return s.float(float64(a.f * b.f))
	case OpDivide:
		if b.f == 0 {
			return null
		}
		return s.float(float64(a.f / b.f))
	}
	if b.f == 0 {
		return null
	}
	return s.float(math.Mod(a.f, b.f))
}

// exact computes with integers; ok is false if the result is not an exact int64.
func exact(op Op, a, b int64) (n int64, ok bool) {
	switch op {
	case OpAdd:
		n = a + b
		return n, (n > a) == (b > 0)
	case OpSubtract:
		n = a - b
		return n, (n < a) == (b > 0)
	case OpMultiply:
		return product(a, b)
	case OpDivide:
		if b == 0 || b == -1 && a == math.MinInt64 || a%b != 0 {
			return 0, false
		}
		return a / b, true
	}
	if b == 0 || b == -1 {
		return 0, b == -1
	}
	return a % b, true
}

// product reports whether a × b is an int64, and returns it.
func product(a, b int64) (n int64, ok bool) {
	if a == 0 || b == 0 {
		return 0, true
	}
	n = a * b
	return n, n/b == a && !(a == -1 && b == math.MinInt64) && !(b == -1 && a == math.MinInt64)
}

func (x *Concat) compile(c *compiler) evaluator {
	parts := c.compileAll(x.Operands)
	return func(s *Scratch) value {
		base := len(s.stack)
		defer func() { s.stack = s.stack[:base] }()
		worst := kindTrue
		for _, p := range parts {
			v := p(s)
			if v.kind == kindMissing {
				worst = kindMissing
			} else if v.kind != kindString {
				worst = min(worst, kindNull)
			}
			s.stack = append(s.stack, v)
		}
		if worst <= kindNull || !s.spend(1) {
			return value{kind: worst}
		}
		start := len(s.temp)
		for _, v := range s.stack[base:] {
			if !s.room(len(v.data)) {
				return missing
			}
			s.temp = append(s.temp, v.data...)
		}
		return s.fresh(kindString, start)
	}
}

func (x *Like) compile(c *compiler) evaluator {
	text, pattern := x.X.compile(c), x.Pattern.compile(c)
	escape := func(*Scratch) value { return value{kindString, []byte{'\\'}} }
	if x.Escape != nil {
		escape = x.Escape.compile(c)
	}
	not := x.Not
	return func(s *Scratch) value {
		t, p, e := text(s), pattern(s), escape(s)
		switch {
		case t.kind == kindMissing || p.kind == kindMissing || e.kind == kindMissing:
			return missing
		case t.kind != kindString || p.kind != kindString || e.kind != kindString || utf8.RuneCount(e.data) != 1:
			return null
		case !s.room(len(t.data) + len(p.data)):
			return missing
		}
		fits, work := matchLike(t.data, p.data, e.data, s.steps*stepBytes)
		if !s.spend(1 + work/stepBytes) {
			return missing
		}
		return boolean(fits != not)
	}
}

// matchLike reports whether a text matches a pattern: % matches any text, _ one character, and the escape character
// makes the next character literal. It backtracks to the last % only, which is sufficient. work is the number of
// comparisons; it gives up at the limit.
func matchLike(text, pattern, escape []byte, limit int) (fits bool, work int) {
	t, p, star, mark := 0, 0, -1, 0
	for t < len(text) {
		if work++; work > limit {
			return false, work + stepBytes
		}
		if p < len(pattern) {
			switch rest := pattern[p:]; {
			case rest[0] == escape[0] && bytes.HasPrefix(rest, escape) && len(rest) > len(escape):
				literal := rest[len(escape):]
				n := runeLen(literal)
				if bytes.HasPrefix(text[t:], literal[:n]) {
					t, p = t+n, p+len(escape)+n
					continue
				}
			case rest[0] == '%':
				star, mark = p, t
				p++
				continue
			case rest[0] == '_':
				t, p = t+runeLen(text[t:]), p+1
				continue
			case rest[0] == text[t]:
				n := sameLetters(text[t:], rest, escape[0])
				t, p, work = t+n, p+n, work+n-1
				continue
			}
		}
		if star < 0 {
			return false, work
		}
		mark += runeLen(text[mark:])
		t, p = mark, star+1
	}
	return fitsNothing(pattern[p:], escape[0]), work
}

// fitsNothing reports whether a pattern, or the rest of one, matches an empty text: it consists of unescaped % only.
func fitsNothing(pattern []byte, escape byte) bool {
	for p, c := range pattern {
		if c != '%' || escape == '%' && p < len(pattern)-1 {
			return false
		}
	}
	return true
}

// sameLetters returns the length of the common prefix of a text and a pattern, at least 1, up to the pattern's next
// special character.
func sameLetters(text, pattern []byte, escape byte) int {
	n := 1
	for n < min(len(text), len(pattern)) && text[n] == pattern[n] && pattern[n] != '%' && pattern[n] != '_' &&
		pattern[n] != escape {
		n++
	}
	return n
}

func runeLen(b []byte) int {
	_, n := utf8.DecodeRune(b)
	return n
}

func (x *In) compile(c *compiler) evaluator {
	item, list, not := x.X.compile(c), x.List.compile(c), x.Not
	return func(s *Scratch) value {
		v, l := item(s), list(s)
		switch {
		case v.kind == kindMissing || l.kind == kindMissing:
			return missing
		case l.kind != kindArray:
			return null
		case v.kind == kindNull && !s.hollow(l):
			return null
		}
		unknown := false
		for w := walk(l.data); w.more(); {
			text := w.raw(']')
			if !s.look(text) {
				return missing
			}
			e := s.valueOf(text)
			if e.kind == kindNull {
				unknown = true
			} else if s.equal(v, e).kind == kindTrue {
				return boolean(!not)
			}
		}
		if unknown {
			return null
		}
		return boolean(not)
	}
}

// compile: BETWEEN is NULL or MISSING if any of the three operands is, even if the other bound decides.
func (x *Between) compile(c *compiler) evaluator {
	item, low, high, not := x.X.compile(c), x.Low.compile(c), x.High.compile(c), x.Not
	return func(s *Scratch) value {
		v, l, h := item(s), low(s), high(s)
		if worst := min(v.kind, l.kind, h.kind); worst <= kindNull {
			return value{kind: worst}
		}
		above, known := s.compared(v, l)
		below, fine := s.compared(v, h)
		if !known || !fine {
			return null
		}
		return boolean((above >= 0 && below <= 0) != not)
	}
}

func (x *Case) compile(c *compiler) evaluator {
	otherwise := func(*Scratch) value { return null }
	if x.Else != nil {
		otherwise = x.Else.compile(c)
	}
	var operand evaluator
	if x.Operand != nil {
		operand = x.Operand.compile(c)
	}
	conditions, results := make([]evaluator, len(x.Whens)), make([]evaluator, len(x.Whens))
	for i, w := range x.Whens {
		conditions[i], results[i] = w.If.compile(c), w.Then.compile(c)
	}
	return func(s *Scratch) value {
		var v value
		if operand != nil {
			v = operand(s)
		}
		for i, condition := range conditions {
			k := condition(s)
			if operand != nil {
				k = s.equal(v, k)
			}
			if s.err != nil {
				return missing
			}
			if s.truth(k) == kindTrue {
				return results[i](s)
			}
		}
		return otherwise(s)
	}
}

func (x *Object) compile(c *compiler) evaluator {
	names, values := make([]evaluator, len(x.Members)), make([]evaluator, len(x.Members))
	computed := false
	for i, m := range x.Members {
		if m.Computed != nil {
			names[i], computed = m.Computed.compile(c), true
		}
		values[i] = m.Value.compile(c)
	}
	if computed {
		return computedObject(x.Members, names, values)
	}
	members := x.Members
	return func(s *Scratch) value {
		base := len(s.stack)
		for _, v := range values {
			s.stack = append(s.stack, v(s))
		}
		start := len(s.temp)
		s.temp = append(s.temp, '{')
		for i, v := range s.stack[base:] {
			if v.kind == kindMissing {
				continue
			}
			s.temp = appendMember(s.temp, start, []byte(members[i].Name))
			if !s.room(len(v.data)) {
				break
			}
			s.temp = appendText(s.temp, v)
		}
		s.temp = append(s.temp, '}')
		s.stack = s.stack[:base]
		return s.fresh(kindObject, start)
	}
}

// computedObject builds an object with computed names: of several members with one name the last counts, a member
// whose name is MISSING or NULL is left out, and any other name that is not a string makes the object NULL.
func computedObject(members []Member, names, values []evaluator) evaluator {
	return func(s *Scratch) value {
		var list []field
		for i, m := range members {
			name := value{kindString, []byte(m.Name)}
			if names[i] != nil {
				name = names[i](s)
			}
			v := values[i](s)
			switch {
			case s.err != nil:
				return missing
			case name.kind <= kindNull:
				continue
			case name.kind != kindString:
				return null
			case v.kind != kindMissing:
				list = append(list, field{name.data, s.textOf(v)})
			}
		}
		return s.build(sortFields(list))
	}
}

// textOf returns a value as JSON.
func (s *Scratch) textOf(v value) []byte {
	if v.kind > kindString || v.kind == kindNumber {
		return v.data
	}
	if !s.room(len(v.data)) {
		return nil
	}
	start := len(s.temp)
	s.temp = appendText(s.temp, v)
	return s.temp[start:len(s.temp):len(s.temp)]
}

// compile compiles X[Index] and X.[Index].
func (x *At) compile(c *compiler) evaluator {
	inner, index, member := x.X.compile(c), x.Index.compile(c), x.Member
	return func(s *Scratch) value {
		v, i := inner(s), index(s)
		switch {
		case i.kind == kindMissing:
			return missing
		case member && i.kind == kindString && v.kind == kindObject:
			return s.member(v, string(i.data))
		case member && i.kind == kindString:
			return missing
		case !member && i.kind == kindNumber:
			n, ok := s.subscript(i)
			if !ok {
				break
			}
			if v.kind == kindArray {
				return s.element(v, int(max(-MaxElement-1, min(n, MaxElement+1))))
			}
			return missing
		}
		if v.kind == kindMissing {
			return missing
		}
		return null
	}
}

// subscript returns an integral number; one beyond 64 bits is clamped.
func (s *Scratch) subscript(v value) (n int64, ok bool) {
	if v.kind != kindNumber {
		return 0, false
	}
	switch x, ok := s.parseNumber(v); {
	case !ok || x.isInt:
		return x.i, ok
	case x.f >= 1<<63:
		return math.MaxInt64, true
	case x.f < -1<<63:
		return math.MinInt64, true
	default:
		return int64(x.f), x.f == math.Trunc(x.f)
	}
}

// compile compiles X[Low:High].
func (x *Slice) compile(c *compiler) evaluator {
	inner, low := x.X.compile(c), x.Low.compile(c)
	high := func(*Scratch) value { return value{kind: kindTrue} } // to the end
	if x.High != nil {
		high = x.High.compile(c)
	}
	toEnd := x.High == nil
	return func(s *Scratch) value {
		v, l, h := inner(s), low(s), high(s)
		if v.kind == kindMissing || l.kind == kindMissing || h.kind == kindMissing {
			return missing
		}
		from, ok := s.subscript(l)
		to, fine := s.subscript(h)
		if !ok || !fine && !toEnd || v.kind != kindArray {
			return null
		}
		base, pushed := s.push(v)
		defer func() { s.stack = s.stack[:base] }()
		if !pushed {
			return missing
		}
		elements := s.stack[base:]
		if toEnd {
			to = int64(len(elements))
		}
		if from, to, ok = within(from, to, int64(len(elements))); !ok {
			return missing
		}
		return s.list(elements[from:to])
	}
}

// within resolves the bounds of a slice of n elements, where a negative one counts from the end, and reports whether
// they are valid.
func within(from, to, n int64) (low, high int64, ok bool) {
	if from < 0 {
		from += n
	}
	if to < 0 {
		to += n
	}
	return from, to, 0 <= from && from <= to && to <= n
}

func (x *Within) compile(c *compiler) evaluator {
	item, whole, not := x.X.compile(c), x.Whole.compile(c), x.Not
	return func(s *Scratch) value {
		v, w := item(s), whole(s)
		switch {
		case v.kind == kindMissing || w.kind == kindMissing:
			return missing
		case w.kind != kindArray && w.kind != kindObject:
			return null
		}
		base := len(s.stack)
		defer func() { s.stack = s.stack[:base] }()
		if !s.descend(w) {
			return missing
		}
		result := kindFalse
		for _, d := range s.stack[base:] {
			switch {
			case v.kind <= kindNull || d.kind <= kindNull:
				result = kindNull
			case s.equal(v, d).kind == kindTrue:
				return boolean(!not)
			}
		}
		if result == kindNull {
			return null
		}
		return boolean(not)
	}
}

// descend pushes everything in an array or object on the stack: each value, followed by what it contains.
func (s *Scratch) descend(v value) bool {
	switch v.kind {
	case kindArray:
		for w := walk(v.data); w.more(); {
			text := w.raw(']')
			if !s.look(text) || !s.descendInto(text) {
				return false
			}
		}
	case kindObject:
		list, ok := s.fields(v)
		if !ok {
			return false
		}
		for _, f := range slices.Clone(list) { // nested calls of fields reuse the list
			if !s.descendInto(f.text) {
				return false
			}
		}
	}
	return s.err == nil
}

func (s *Scratch) descendInto(text []byte) bool {
	v := s.valueOf(text)
	s.stack = append(s.stack, v)
	return s.descend(v)
}
