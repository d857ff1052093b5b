package expression

import (
	"bytes"
	"slices"
)

// For operators, NULL within arrays and objects is unknown, like NULL itself: [null] = [null] is NULL, and so is [1]
// < [null]. Where every pair of values needs an order (keys, sorting, sets), NULL equals NULL.

var nullText = []byte("null")

// holdsNull reports whether a value may contain NULL; the text null may also be part of a string.
func holdsNull(v value) bool { return v.kind >= kindArray && bytes.Contains(v.data, nullText) }

// equal compares by the rules of the operator =: TRUE, FALSE, NULL or MISSING.
func (s *Scratch) equal(l, r value) value {
	switch {
	case l.kind == kindMissing || r.kind == kindMissing:
		return missing
	case l.kind == kindNull || r.kind == kindNull:
		return null
	case l.kind == r.kind && (holdsNull(l) || holdsNull(r)) && s.room(len(l.data)+len(r.data)):
		if l.kind == kindArray {
			return s.equalArrays(l, r)
		}
		return s.equalObjects(l, r)
	}
	return boolean(s.order(l, r) == 0)
}

func (s *Scratch) equalArrays(l, r value) value {
	base := len(s.stack)
	defer func() { s.stack = s.stack[:base] }()
	s.push(l)
	middle := len(s.stack)
	s.push(r)
	if len(s.stack)-middle != middle-base {
		return boolean(false)
	}
	result := boolean(true)
	for i := range middle - base {
		switch e := s.equal(s.stack[base+i], s.stack[middle+i]); e.kind {
		case kindFalse:
			return e
		case kindNull:
			result = e
		}
	}
	return result
}

func (s *Scratch) equalObjects(l, r value) value {
	list, _ := s.fields(l)
	a := slices.Clone(list)
	b, _ := s.fields(r)
	if !slices.EqualFunc(a, b, func(x, y field) bool { return bytes.Equal(x.name, y.name) }) {
		return boolean(false)
	}
	b = slices.Clone(b)
	result := boolean(true)
	for i := range a {
		switch e := s.equal(s.valueOf(a[i].text), s.valueOf(b[i].text)); e.kind {
		case kindFalse:
			return e
		case kindNull:
			result = e
		}
	}
	return result
}

// compared compares two values that are neither MISSING nor NULL by the rules of the operator <; known is false if
// the result depends on a NULL within them.
func (s *Scratch) compared(l, r value) (c int, known bool) {
	if l.kind != r.kind || !holdsNull(l) && !holdsNull(r) || !s.room(len(l.data)+len(r.data)) {
		return s.order(l, r), true
	}
	if l.kind == kindObject {
		return s.comparedObjects(l, r)
	}
	base := len(s.stack)
	defer func() { s.stack = s.stack[:base] }()
	s.push(l)
	middle := len(s.stack)
	s.push(r)
	n, m := middle-base, len(s.stack)-middle
	for i := range min(n, m) {
		if c, known := s.comparedInner(s.stack[base+i], s.stack[middle+i]); c != 0 || !known {
			return c, known
		}
	}
	return n - m, true
}

func (s *Scratch) comparedInner(l, r value) (c int, known bool) {
	if l.kind == kindNull || r.kind == kindNull {
		return 0, false
	}
	return s.compared(l, r)
}

func (s *Scratch) comparedObjects(l, r value) (c int, known bool) {
	list, _ := s.fields(l)
	a := slices.Clone(list)
	list, _ = s.fields(r)
	b := slices.Clone(list)
	if len(a) != len(b) {
		return len(a) - len(b), true
	}
	for i := range a {
		if c := bytes.Compare(a[i].name, b[i].name); c != 0 {
			return c, true
		}
		if c, known := s.comparedInner(s.valueOf(a[i].text), s.valueOf(b[i].text)); c != 0 || !known {
			return c, known
		}
	}
	return 0, true
}
