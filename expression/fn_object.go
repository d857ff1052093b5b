package expression

import (
	"bytes"
	"slices"
)

// membersOf makes a function of an object's members, in the order of their names; what is no object gives NULL.
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

// build makes an object of members.
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

// collect makes an array of what f gives for each member.
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
		About:   "With this member; NULL if there is one of that name. With a name that is MISSING or NULL, or a MISSING value, as it is.",
		Example: Example{`OBJECT_ADD({"a": 1}, "b", 2)`, `{"a":1,"b":2}`}, lenient: true, eval: objectAdd},
	{Name: "OBJECT_CONCAT", Family: FamilyObject, Params: "object, object, …", Min: 2, Max: MaxArgs, About: "The members of all; of several with one name the last counts.",
		Example: Example{`OBJECT_CONCAT({"a": 1, "b": 1}, {"b": 2})`, `{"a":1,"b":2}`}, eval: objectConcat},
	{Name: "OBJECT_LENGTH", Family: FamilyObject, Params: "object", Min: 1, Max: 1, About: "How many members it has.",
		Example: Example{`OBJECT_LENGTH({"a": 1})`, `1`}, eval: membersOf(func(s *Scratch, l []field, _ []value) value { return s.integer(int64(len(l))) })},
	{Name: "OBJECT_NAMES", Family: FamilyObject, Params: "object", Min: 1, Max: 1, About: "The names of its members, in order.",
		Example: Example{`OBJECT_NAMES({"b": 1, "a": 2})`, `["a","b"]`}, eval: membersOf(func(s *Scratch, l []field, _ []value) value {
			return s.collect(l, func(f field) value { return value{kindString, f.name} })
		})},
	{Name: "OBJECT_PAIRS", Family: FamilyObject, Params: "object", Min: 1, Max: 1, About: "An object with name and val for each member, in the order of the names.",
		Example: Example{`OBJECT_PAIRS({"a": 1})`, `[{"name":"a","val":1}]`}, eval: membersOf(func(s *Scratch, l []field, _ []value) value {
			return s.collect(l, func(f field) value {
				start := len(s.temp)
				if !s.room(len(f.name) + len(f.text)) {
					return missing
				}
				s.temp = appendText(append(s.temp, `{"name":`...), value{kindString, f.name})
				s.temp = append(append(append(s.temp, `,"val":`...), f.text...), '}')
				return s.fresh(kindObject, start)
			})
		})},
	{Name: "OBJECT_PUT", Family: FamilyObject, Params: "object, name, value", Min: 3, Max: 3, About: "With this member; with a MISSING value without it.",
		Example: Example{`OBJECT_PUT({"a": 1}, "b", 2)`, `{"a":1,"b":2}`}, lenient: true, eval: objectPut},
	{Name: "OBJECT_REMOVE", Family: FamilyObject, Params: "object, name, …", Min: 2, Max: MaxArgs, About: "Without the members of these names.",
		Example: Example{`OBJECT_REMOVE({"a": 1, "b": 2}, "b")`, `{"a":1}`}, eval: membersOf(func(s *Scratch, l []field, rest []value) value {
			return s.build(slices.DeleteFunc(l, func(f field) bool {
				return slices.ContainsFunc(rest, func(v value) bool { return v.kind == kindString && bytes.Equal(v.data, f.name) })
			}))
		})},
	{Name: "OBJECT_VALUES", Family: FamilyObject, Params: "object", Min: 1, Max: 1, About: "The values of its members, in the order of their names.",
		Example: Example{`OBJECT_VALUES({"b": 1, "a": 2})`, `[2,1]`}, eval: membersOf(func(s *Scratch, l []field, _ []value) value {
			return s.collect(l, func(f field) value { return s.valueOf(f.text) })
		})},
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
	case a[0].kind == kindMissing:
		return missing
	case a[0].kind != kindObject || a[1].kind > kindNull && a[1].kind != kindString:
		return null
	case a[1].kind <= kindNull || a[2].kind == kindMissing:
		return a[0]
	}
	list, ok := s.fields(a[0])
	if !ok {
		return missing
	}
	if slices.ContainsFunc(list, func(f field) bool { return bytes.Equal(f.name, a[1].data) }) {
		return null
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
