package expression

import (
	"bytes"
	"encoding/base64"
	"slices"
	"strconv"
	"unicode/utf8"
)

var encodingFunctions = []*Function{
	{Name: "BASE64_DECODE", Aliases: []string{"DECODE_BASE64"}, Family: FamilyEncoding, Params: "base64", Min: 1, Max: 1,
		About:   "The value whose JSON is encoded in base64; NULL if it is not JSON.",
		Example: Example{`BASE64_DECODE("eyJhIjoxfQ==")`, `{"a":1}`}, eval: text1(func(s *Scratch, t []byte) value {
			plain, err := base64.StdEncoding.DecodeString(string(t))
			if err != nil || !utf8.Valid(plain) {
				return null
			}
			return jsonDecode(s, plain)
		})},
	{Name: "BASE64_ENCODE", Aliases: []string{"BASE64", "ENCODE_BASE64"}, Family: FamilyEncoding, Params: "value", Min: 1,
		Max: 1, nulls: true, About: "The value as JSON, encoded in base64.",
		Example: Example{`BASE64_ENCODE("a")`, `"ImEi"`}, eval: func(s *Scratch, a []value) value {
			text := s.encoded(a[0])
			if !s.room(2 * len(text)) {
				return missing
			}
			start := len(s.temp)
			s.temp = base64.StdEncoding.AppendEncode(s.temp, text)
			return s.fresh(kindString, start)
		}},
	{Name: "ENCODED_SIZE", Family: FamilyEncoding, Params: "value", Min: 1, Max: 1, lenient: true,
		About:   "The number of bytes of the value as JSON.",
		Example: Example{`ENCODED_SIZE([1, 2])`, `5`}, eval: func(s *Scratch, a []value) value {
			return s.integer(int64(len(s.encoded(a[0]))))
		}},
	{Name: "JSON_DECODE", Aliases: []string{"DECODE_JSON"}, Family: FamilyEncoding, Params: "json", Min: 1, Max: 1,
		About:   "The value of a JSON text; NULL if it is not JSON.",
		Example: Example{`JSON_DECODE("[1]")`, `[1]`}, eval: text1(jsonDecode)},
	{Name: "JSON_ENCODE", Aliases: []string{"ENCODE_JSON"}, Family: FamilyEncoding, Params: "value", Min: 1, Max: 1,
		lenient: true, About: "The value as JSON, with the members of objects in the order of their names; MISSING as null.",
		Example: Example{`JSON_ENCODE({"b": 1.0, "a": "x"})`, `"{\"a\":\"x\",\"b\":1}"`},
		eval: func(s *Scratch, a []value) value {
			return value{kindString, s.encoded(a[0])}
		}},
	{Name: "PAIRS", Family: FamilyEncoding, Params: "value", Min: 1, Max: 1,
		About: "An array of [name, value] for each member of an object at any depth, and for each element of a member that " +
			"is an array. DISTINCT PAIRS(self) is the key of an adaptive index.",
		Example: Example{`PAIRS({"a": [1]})`, `[["a",[1]],["a",1]]`}, eval: func(s *Scratch, a []value) value {
			if a[0].kind != kindArray && a[0].kind != kindObject {
				return null
			}
			base := len(s.stack)
			defer func() { s.stack = s.stack[:base] }()
			if !s.memberPairs(a[0]) {
				return missing
			}
			return s.list(s.stack[base:])
		}},
	{Name: "POLY_LENGTH", Family: FamilyEncoding, Params: "value", Min: 1, Max: 1,
		About:   "The length of a string in bytes, or the number of elements or members.",
		Example: Example{`POLY_LENGTH([1, 2])`, `2`}, eval: polyLength},
}

// encoded returns a value as JSON without blanks, with sorted names and canonical numbers.
func (s *Scratch) encoded(v value) []byte {
	text := s.encodeJSON(nil, v)
	s.heap += len(text)
	return text
}

func (s *Scratch) encodeJSON(dst []byte, v value) []byte {
	switch {
	case s.err != nil || !s.room(len(v.data)):
		return dst
	case v.kind == kindNumber:
		return append(dst, toText(s, []value{v}).data...)
	case v.kind == kindArray:
		dst = append(dst, '[')
		for w := walk(v.data); w.more(); {
			text := w.raw(']')
			if !s.look(text) {
				return dst
			}
			dst = append(s.encodeJSON(dst, s.valueOf(text)), ',')
		}
		return closed(dst, ']')
	case v.kind == kindObject:
		list, _ := s.fields(v)
		dst = append(dst, '{')
		for _, f := range slices.Clone(list) { // nested calls of fields reuse the list
			dst = append(appendText(dst, value{kindString, f.name}), ':')
			dst = append(s.encodeJSON(dst, s.valueOf(f.text)), ',')
		}
		return closed(dst, '}')
	}
	return appendText(dst, v)
}

// closed ends an array or object, replacing the comma after its last value.
func closed(dst []byte, end byte) []byte {
	if dst[len(dst)-1] == ',' {
		dst = dst[:len(dst)-1]
	}
	return append(dst, end)
}

func jsonDecode(s *Scratch, t []byte) value {
	t = bytes.TrimSpace(t)
	if len(t) == 0 || !s.room(len(t)) {
		return null
	}
	check := scanner{text: t}
	if end := check.skip(0, 0); end != len(t) {
		return null
	}
	return s.valueOf(bytes.Clone(t))
}

// memberPairs pushes the pairs of everything in an array or object on the stack.
func (s *Scratch) memberPairs(v value) bool {
	switch v.kind {
	case kindArray:
		for w := walk(v.data); w.more(); {
			text := w.raw(']')
			if !s.look(text) || !s.memberPairs(s.valueOf(text)) {
				return false
			}
		}
	case kindObject:
		list, ok := s.fields(v)
		if !ok {
			return false
		}
		for _, f := range slices.Clone(list) { // nested calls of fields reuse the list
			inner := s.valueOf(f.text)
			s.pair(f.name, inner)
			if inner.kind == kindArray {
				for w := walk(inner.data); w.more(); {
					text := w.raw(']')
					if !s.look(text) {
						return false
					}
					s.pair(f.name, s.valueOf(text))
				}
			}
			if !s.memberPairs(inner) {
				return false
			}
		}
	}
	return s.err == nil
}

func (s *Scratch) pair(name []byte, v value) {
	s.stack = append(s.stack, s.list([]value{{kindString, name}, v}))
}

func polyLength(s *Scratch, a []value) value {
	switch a[0].kind {
	case kindString:
		return s.integer(int64(len(a[0].data)))
	case kindArray:
		return elements(func(s *Scratch, l, _ []value) value { return s.integer(int64(len(l))) })(s, a)
	case kindObject:
		return membersOf(func(s *Scratch, l []field, _ []value) value { return s.integer(int64(len(l))) })(s, a)
	}
	return null
}

// plainNumber formats a float64 with all its digits and no exponent.
func plainNumber(f float64) []byte { return strconv.AppendFloat(nil, f, 'f', -1, 64) }
