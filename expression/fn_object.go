package expression

import (
	"bytes"
	"slices"
)

// membersOf makes a function of an object's members, sorted by name; NULL if the first argument is not an object.
func membersOf(f func(s *Scratch, list []field, rest []value) value) evaluation {
	return func(s *Scratch, a []value) value {
		if a[0].kind != kindObject {
			return null
		}
		list, ok := s.fields(a[0])
		if !ok {
			return missing
		}
		return f(s, list, a[1:])
	}
}

// build returns an object of members.
func (s *Scratch) build(list []field) value {
	start := len(s.temp)
	s.temp = append(s.temp, '{')
	for _, f := range list {
		if !s.room(len(f.name) + len(f.text)) {
			return missing
		}
		s.temp = append(appendMember(s.temp, start, f.name), f.text...)
	}
	s.temp = append(s.temp, '}')
	return s.fresh(kindObject, start)
}

// collect returns an array of f's results for the members.
func (s *Scratch) collect(list []field, f func(field) value) value {
	base := len(s.stack)
	for _, m := range list {
		s.stack = append(s.stack, f(m))
	}
	v := s.list(s.stack[base:])
	s.stack = s.stack[:base]
	return v
}

var objectFunctions = []*Function{
	{Name: "OBJECT_ADD", Family: FamilyObject, Params: "object, name, value", Min: 3, Max: 3,
		About:   "The object with this member added, unless it has one of this name. Unchanged for a MISSING value.",
		Example: Example{`OBJECT_ADD({"a": 1}, "b", 2)`, `{"a":1,"b":2}`}, lenient: true, eval: objectAdd},
	{Name: "OBJECT_CONCAT", Family: FamilyObject, Params: "object, object, …", Min: 2, Max: MaxArgs,
		About:   "An object with the members of all objects; of several with one name the last counts.",
		Example: Example{`OBJECT_CONCAT({"a": 1, "b": 1}, {"b": 2})`, `{"a":1,"b":2}`}, eval: objectConcat},
	{Name: "OBJECT_INNER_PAIRS", Aliases: []string{"OBJECT_INNERPAIRS"}, Family: FamilyObject, Params: "object", Min: 1,
		Max: 1, About: "Like OBJECT_PAIRS, with each array of one element replaced by the element, unless it is the only " +
			"member.",
		Example: Example{`OBJECT_INNER_PAIRS({"a": [1], "b": 2})`, `[{"name":"a","val":1},{"name":"b","val":2}]`},
		eval: membersOf(func(s *Scratch, l []field, _ []value) value {
			return s.pairObjects(s.inner(l))
		})},
	{Name: "OBJECT_INNER_VALUES", Aliases: []string{"OBJECT_INNERVALUES"}, Family: FamilyObject, Params: "object", Min: 1,
		Max: 1, About: "Like OBJECT_VALUES, with each array of one element replaced by the element, unless it is the only " +
			"member.",
		Example: Example{`OBJECT_INNER_VALUES({"a": [1], "b": 2})`, `[1,2]`},
		eval: membersOf(func(s *Scratch, l []field, _ []value) value {
			return s.collect(s.inner(l), func(f field) value { return s.valueOf(f.text) })
		})},
	{Name: "OBJECT_LENGTH", Family: FamilyObject, Params: "object", Min: 1, Max: 1, About: "The number of members.",
		Example: Example{`OBJECT_LENGTH({"a": 1})`, `1`}, eval: membersOf(func(s *Scratch, l []field, _ []value) value {
			return s.integer(int64(len(l)))
		})},
	{Name: "OBJECT_NAMES", Family: FamilyObject, Params: "object", Min: 1, Max: 1,
		About:   "The names of its members, in order.",
		Example: Example{`OBJECT_NAMES({"b": 1, "a": 2})`, `["a","b"]`},
		eval: membersOf(func(s *Scratch, l []field, _ []value) value {
			return s.collect(l, func(f field) value { return value{kindString, f.name} })
		})},
	{Name: "OBJECT_PAIRS", Aliases: []string{"OBJECT_OUTER_PAIRS", "OBJECT_OUTERPAIRS"}, Family: FamilyObject,
		Params: "object", Min: 1, Max: 1, About: "An object with name and val for each member, in the order of the names.",
		Example: Example{`OBJECT_PAIRS({"a": 1})`, `[{"name":"a","val":1}]`},
		eval: membersOf(func(s *Scratch, l []field, _ []value) value {
			return s.pairObjects(l)
		})},
	{Name: "OBJECT_PUT", Family: FamilyObject, Params: "object, name, value", Min: 3, Max: 3,
		About:   "The object with this member set; for a MISSING value, without it.",
		Example: Example{`OBJECT_PUT({"a": 1}, "b", 2)`, `{"a":1,"b":2}`}, lenient: true, eval: objectPut},
	{Name: "OBJECT_REMOVE", Family: FamilyObject, Params: "object, name, …", Min: 2, Max: MaxArgs,
		About:   "The object without the members of these names.",
		Example: Example{`OBJECT_REMOVE({"a": 1, "b": 2}, "b")`, `{"a":1}`},
		eval: membersOf(func(s *Scratch, l []field, rest []value) value {
			if slices.ContainsFunc(rest, func(v value) bool { return v.kind != kindString }) {
				return null
			}
			return s.build(slices.DeleteFunc(l, func(f field) bool {
				return slices.ContainsFunc(rest, func(v value) bool { return bytes.Equal(v.data, f.name) })
			}))
		})},
	{Name: "OBJECT_RENAME", Family: FamilyObject, Params: "object, name, name", Min: 3, Max: 3,
		About:   "The object with the member of the first name renamed to the second.",
		Example: Example{`OBJECT_RENAME({"a": 1}, "a", "b")`, `{"b":1}`},
		eval: membersOf(func(s *Scratch, l []field, rest []value) value {
			if rest[0].kind != kindString || rest[1].kind != kindString {
				return null
			}
			i := slices.IndexFunc(l, func(f field) bool { return bytes.Equal(f.name, rest[0].data) })
			if i < 0 {
				return s.build(l)
			}
			moved := field{rest[1].data, l[i].text}
			l = slices.DeleteFunc(slices.Delete(l, i, i+1), func(f field) bool { return bytes.Equal(f.name, moved.name) })
			return s.build(sortFields(append(l, moved)))
		})},
	{Name: "OBJECT_REPLACE", Family: FamilyObject, Params: "object, value, value", Min: 3, Max: 3,
		About: "The object with each value that equals the first replaced by the second; if that is MISSING, the member " +
			"is omitted.",
		Example: Example{`OBJECT_REPLACE({"a": 1, "b": 2}, 1, 3)`, `{"a":3,"b":2}`}, lenient: true, eval: objectReplace},
	{Name: "OBJECT_UNWRAP", Family: FamilyObject, Params: "object", Min: 1, Max: 1,
		About:   "The value of the only member; NULL if there are more or none.",
		Example: Example{`OBJECT_UNWRAP({"a": 1})`, `1`}, eval: membersOf(func(s *Scratch, l []field, _ []value) value {
			if len(l) != 1 {
				return null
			}
			return s.valueOf(l[0].text)
		})},
	{Name: "OBJECT_VALUES", Aliases: []string{"OBJECT_OUTER_VALUES", "OBJECT_OUTERVALUES"}, Family: FamilyObject,
		Params: "object", Min: 1, Max: 1, About: "The values of its members, in the order of their names.",
		Example: Example{`OBJECT_VALUES({"b": 1, "a": 2})`, `[2,1]`},
		eval: membersOf(func(s *Scratch, l []field, _ []value) value {
			return s.collect(l, func(f field) value { return s.valueOf(f.text) })
		})},
}

// pairObjects returns an array of objects with name and val for each member.
func (s *Scratch) pairObjects(l []field) value {
	return s.collect(l, func(f field) value {
		start := len(s.temp)
		if !s.room(len(f.name) + len(f.text)) {
			return missing
		}
		s.temp = appendText(append(s.temp, `{"name":`...), value{kindString, f.name})
		s.temp = append(append(append(s.temp, `,"val":`...), f.text...), '}')
		return s.fresh(kindObject, start)
	})
}

// inner replaces arrays of one element by that element.
func (s *Scratch) inner(l []field) []field {
	if len(l) < 2 {
		return l
	}
	for i, f := range l {
		if f.text[0] != '[' {
			continue
		}
		if w := walk(f.text); w.more() {
			if only := w.raw(']'); !w.more() && s.look(only) {
				l[i].text = only
			}
		}
	}
	return l
}

func objectReplace(s *Scratch, a []value) value {
	switch {
	case a[0].kind == kindMissing || a[1].kind == kindMissing:
		return missing
	case a[0].kind != kindObject || a[1].kind == kindNull:
		return null
	}
	list, ok := s.fields(a[0])
	if !ok {
		return missing
	}
	list = slices.Clone(list)
	text := s.textOf(a[2])
	kept := list[:0]
	for _, f := range list {
		if s.equal(a[1], s.valueOf(f.text)).kind == kindTrue {
			if a[2].kind == kindMissing {
				continue
			}
			f.text = text
		}
		kept = append(kept, f)
	}
	return s.build(kept)
}

func objectConcat(s *Scratch, a []value) value {
	var all []field
	for _, v := range a {
		if v.kind != kindObject {
			return null
		}
		list, ok := s.fields(v)
		if !ok {
			return missing
		}
		all = append(all, list...)
	}
	return s.build(sortFields(all))
}

func objectAdd(s *Scratch, a []value) value {
	switch {
	case a[0].kind == kindMissing || a[1].kind == kindMissing:
		return missing
	case a[0].kind != kindObject || a[1].kind != kindString:
		return null
	}
	list, ok := s.fields(a[0])
	if !ok {
		return missing
	}
	if a[2].kind == kindMissing || slices.ContainsFunc(list, func(f field) bool {
		return bytes.Equal(f.name,
			a[1].data)
	}) {
		return a[0]
	}
	return objectPut(s, a)
}

func objectPut(s *Scratch, a []value) value {
	switch {
	case a[0].kind == kindMissing || a[1].kind == kindMissing:
		return missing
	case a[0].kind != kindObject || a[1].kind != kindString:
		return null
	}
	list, ok := s.fields(a[0])
	if !ok {
		return missing
	}
	list = slices.DeleteFunc(slices.Clone(list), func(f field) bool { return bytes.Equal(f.name, a[1].data) })
	if a[2].kind != kindMissing && s.room(len(a[2].data)) {
		start := len(s.temp)
		s.temp = appendText(s.temp, a[2])
		list = append(list, field{a[1].data, s.temp[start:len(s.temp):len(s.temp)]})
	}
	return s.build(sortFields(list))
}
