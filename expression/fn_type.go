package expression

import (
	"bytes"
	"strconv"

	"tidemark/collate"
)

// isKind makes a function that reports whether a value is of one of these kinds.
func isKind(kinds ...collate.Kind) evaluation {
	return func(_ *Scratch, a []value) value {
		for _, k := range kinds {
			if a[0].kind == k {
				return boolean(true)
			}
		}
		return boolean(false)
	}
}

var typeFunctions = []*Function{
	{Name: "ISARRAY", Aliases: []string{"IS_ARRAY"}, Family: FamilyType, Params: "value", Min: 1, Max: 1,
		About:   "Whether it is an array.",
		Example: Example{`ISARRAY([])`, `true`}, eval: isKind(kindArray)},
	{Name: "ISATOM", Aliases: []string{"IS_ATOM"}, Family: FamilyType, Params: "value", Min: 1, Max: 1,
		About:   "Whether it is a boolean, number or string.",
		Example: Example{`ISATOM(1)`, `true`}, eval: isKind(kindFalse, kindTrue, kindNumber, kindString)},
	{Name: "ISBINARY", Aliases: []string{"IS_BINARY", "ISBIN", "IS_BIN"}, Family: FamilyType, Params: "value", Min: 1,
		Max: 1, About: "Whether it is binary: always FALSE for a JSON document.",
		Example: Example{`ISBINARY("a")`, `false`}, eval: isKind()},
	{Name: "ISBOOLEAN", Aliases: []string{"IS_BOOLEAN", "ISBOOL", "IS_BOOL"}, Family: FamilyType, Params: "value", Min: 1,
		Max: 1, About: "Whether it is TRUE or FALSE.",
		Example: Example{`ISBOOLEAN(1)`, `false`}, eval: isKind(kindFalse, kindTrue)},
	{Name: "ISNUMBER", Aliases: []string{"IS_NUMBER", "ISNUM", "IS_NUM"}, Family: FamilyType, Params: "value", Min: 1,
		Max: 1, About: "Whether it is a number.",
		Example: Example{`ISNUMBER(n)`, `true`}, eval: isKind(kindNumber)},
	{Name: "ISOBJECT", Aliases: []string{"IS_OBJECT", "ISOBJ", "IS_OBJ"}, Family: FamilyType, Params: "value", Min: 1,
		Max: 1, About: "Whether it is an object.",
		Example: Example{`ISOBJECT({})`, `true`}, eval: isKind(kindObject)},
	{Name: "ISSTRING", Aliases: []string{"IS_STRING", "ISSTR", "IS_STR"}, Family: FamilyType, Params: "value", Min: 1,
		Max: 1, About: "Whether it is a string.",
		Example: Example{`ISSTRING(gone)`, `MISSING`}, eval: isKind(kindString)},
	{Name: "TOARRAY", Aliases: []string{"TO_ARRAY"}, Family: FamilyType, Params: "value", Min: 1, Max: 1,
		About:   "An array unchanged; any other value as an array with that element.",
		Example: Example{`TOARRAY(1)`, `[1]`}, eval: func(s *Scratch, a []value) value {
			if a[0].kind == kindArray {
				return a[0]
			}
			return s.list(a[:1])
		}},
	{Name: "TOATOM", Aliases: []string{"TO_ATOM"}, Family: FamilyType, Params: "value", Min: 1, Max: 1,
		About:   "The single element or member of an array or object that has only one, repeatedly; else NULL.",
		Example: Example{`TOATOM([{"a": 5}])`, `5`}, eval: toAtom},
	{Name: "TOBOOLEAN", Aliases: []string{"TO_BOOLEAN", "TOBOOL", "TO_BOOL"}, Family: FamilyType, Params: "value", Min: 1,
		Max: 1, About: `FALSE for 0, "", [] and {}, TRUE for anything else.`,
		Example: Example{`TOBOOLEAN("a")`, `true`}, eval: func(s *Scratch, a []value) value {
			return value{kind: s.truth(a[0])}
		}},
	{Name: "TONUMBER", Aliases: []string{"TO_NUMBER", "TONUM", "TO_NUM"}, Family: FamilyType, Params: "value", Min: 1,
		Max: 1,
		About: "0 for FALSE, 1 for TRUE, the number in a string that is a decimal number (a plus sign, leading zeros, .5 " +
			"and 5. are accepted); NULL for anything else.", Example: Example{`TONUMBER("1.5")`, `1.5`}, eval: toNumber},
	{Name: "TOOBJECT", Aliases: []string{"TO_OBJECT", "TOOBJ", "TO_OBJ"}, Family: FamilyType, Params: "value", Min: 1,
		Max: 1, About: "An object unchanged, {} for any other value.",
		Example: Example{`TOOBJECT(1)`, `{}`}, eval: func(s *Scratch, a []value) value {
			if a[0].kind == kindObject {
				return a[0]
			}
			return s.build(nil)
		}},
	{Name: "TOSTRING", Aliases: []string{"TO_STRING", "TOSTR", "TO_STR"}, Family: FamilyType, Params: "value", Min: 1,
		Max: 1,
		About: "A string unchanged, a boolean or number as its text; NULL for anything else. A number is formatted by its " +
			"value, with all its digits and no exponent: 1.0 and 1 are \"1\".",
		Example: Example{`TOSTRING(1.0)`, `"1"`}, eval: toText},
	{Name: "TYPE", Aliases: []string{"TYPENAME", "TYPE_NAME"}, Family: FamilyType, Params: "value", Min: 1, Max: 1,
		About:   "The name of its type: missing, null, boolean, number, string, array or object.",
		Example: Example{`TYPE(gone)`, `"missing"`}, lenient: true, eval: func(_ *Scratch, a []value) value {
			name := a[0].kind.String()
			if a[0].kind == kindFalse || a[0].kind == kindTrue {
				name = "boolean"
			}
			return value{kindString, []byte(name)}
		}},
}

func toAtom(s *Scratch, a []value) value {
	v := a[0]
	for v.kind == kindArray || v.kind == kindObject {
		if v.kind == kindObject {
			list, ok := s.fields(v)
			if !ok || len(list) != 1 {
				return null
			}
			v = s.valueOf(list[0].text)
			continue
		}
		w := walk(v.data)
		if !w.more() {
			return null
		}
		text := w.raw(']')
		if w.more() || !s.look(text) {
			return null
		}
		v = s.valueOf(text)
	}
	return v
}

func toNumber(s *Scratch, a []value) value {
	switch a[0].kind {
	case kindNumber:
		return a[0]
	case kindFalse:
		return s.integer(0)
	case kindTrue:
		return s.integer(1)
	case kindString:
		return s.readNumber(a[0].data)
	}
	return null
}

// readNumber parses a number from a text: in JSON's syntax, or with a plus sign, leading zeros, or no digits on one
// side of the point. The result is NULL if the text is not a number.
func (s *Scratch) readNumber(text []byte) value {
	if end, _ := collate.ScanNumber(text, 0); end == len(text) && end > 0 {
		return value{kindNumber, text}
	}
	rest, negative := bytes.CutPrefix(text, []byte{'-'})
	if !negative {
		rest = bytes.TrimPrefix(rest, []byte{'+'})
	}
	exponent := bytes.IndexAny(rest, "eE")
	if exponent < 0 {
		exponent = len(rest)
	}
	whole, fraction, _ := bytes.Cut(rest[:exponent], []byte{'.'})
	if len(whole)+len(fraction) == 0 || len(bytes.Trim(whole, "0123456789")) > 0 || !s.room(len(text)) {
		return null
	}
	start := len(s.temp)
	if negative {
		s.temp = append(s.temp, '-')
	}
	if whole = bytes.TrimLeft(whole, "0"); len(whole) == 0 {
		whole = []byte{'0'}
	}
	s.temp = append(s.temp, whole...)
	if len(fraction) > 0 {
		s.temp = append(append(s.temp, '.'), fraction...)
	}
	s.temp = append(s.temp, rest[exponent:]...)
	v := s.fresh(kindNumber, start)
	if end, _ := collate.ScanNumber(v.data, 0); end != len(v.data) {
		return null
	}
	return v
}

func toText(s *Scratch, a []value) value {
	switch a[0].kind {
	case kindString:
		return a[0]
	case kindFalse, kindTrue:
		return value{kindString, []byte(strconv.FormatBool(a[0].kind == kindTrue))}
	case kindNumber:
		n, ok := s.numberOf(a[0])
		if !ok {
			return missing
		}
		if n.isInt {
			return value{kindString, s.integer(n.i).data}
		}
		return s.str(plainNumber(n.f))
	}
	return null
}

var conditionalFunctions = []*Function{
	{Name: "DECODE", Family: FamilyConditional, Params: "value, if, then, … [, else]", Min: 3, Max: MaxArgs,
		About:   "The then after the first if that equals the value, otherwise the last argument, or NULL if there is none.",
		Example: Example{`DECODE(2, 1, "one", 2, "two")`, `"two"`}, lenient: true, eval: decode},
	{Name: "IFMISSING", Aliases: []string{"IF_MISSING"}, Family: FamilyConditional, Params: "value, …", Min: 2,
		Max: MaxArgs, About: "The first value that is not MISSING; NULL if there is none.",
		Example: Example{`IFMISSING(gone, null, 1)`, `null`}, lenient: true, eval: firstOf(func(v value) bool {
			return v.kind != kindMissing
		})},
	{Name: "IFMISSINGORNULL", Aliases: []string{"IF_MISSING_OR_NULL", "COALESCE"}, Family: FamilyConditional,
		Params: "value, …", Min: 2, Max: MaxArgs, About: "The first value that is neither MISSING nor NULL; NULL if there " +
			"is none.",
		Example: Example{`IFMISSINGORNULL(gone, null, 1)`, `1`}, lenient: true, eval: firstOf(func(v value) bool {
			return v.kind > kindNull
		})},
	{Name: "IFNULL", Aliases: []string{"IF_NULL"}, Family: FamilyConditional, Params: "value, …", Min: 2, Max: MaxArgs,
		About:   "The first value that is not NULL; NULL if there is none.",
		Example: Example{`IFNULL(null, 1)`, `1`}, lenient: true, eval: firstOf(func(v value) bool {
			return v.kind != kindNull
		})},
	{Name: "MISSINGIF", Aliases: []string{"MISSING_IF"}, Family: FamilyConditional, Params: "value, value", Min: 2, Max: 2,
		About:   "MISSING if both are equal, else a.",
		Example: Example{`MISSINGIF("", "")`, `MISSING`}, eval: valueUnless(missing)},
	{Name: "NULLIF", Aliases: []string{"NULL_IF"}, Family: FamilyConditional, Params: "value, value", Min: 2, Max: 2,
		About:   "NULL if both are equal, else a.",
		Example: Example{`NULLIF(n, 7)`, `null`}, eval: valueUnless(null)},
	{Name: "IFINF", Aliases: []string{"IF_INF"}, Family: FamilyConditional, Params: "number, …", Min: 2, Max: MaxArgs,
		About:   "The first number; all numbers are finite.",
		Example: Example{`IFINF(n, 1)`, `7`}, lenient: true, eval: firstNumber(false)},
	{Name: "IFNANORINF", Aliases: []string{"IFNAN", "IF_NAN", "IF_NAN_OR_INF"}, Family: FamilyConditional,
		Params: "number, …", Min: 2, Max: MaxArgs, About: "The first value that is not MISSING, if it is a number; all " +
			"numbers are finite.",
		Example: Example{`IFNANORINF(gone, 1)`, `1`}, lenient: true, eval: firstNumber(true)},
	{Name: "NVL", Family: FamilyConditional, Params: "value, value", Min: 2, Max: 2,
		About:   "The first argument if it is neither MISSING nor NULL, else the second.",
		Example: Example{`NVL(none, 1)`, `1`}, lenient: true, eval: func(_ *Scratch, a []value) value {
			if a[0].kind > kindNull {
				return a[0]
			}
			return a[1]
		}},
	{Name: "NVL2", Family: FamilyConditional, Params: "value, then, else", Min: 3, Max: 3,
		About:   "then if the value is neither MISSING nor NULL, else else.",
		Example: Example{`NVL2(gone, 1, 2)`, `2`}, lenient: true, eval: func(_ *Scratch, a []value) value {
			if a[0].kind > kindNull {
				return a[1]
			}
			return a[2]
		}},
}

// firstNumber makes a function that returns the first number, and NULL if another value precedes it; with
// passMissing, MISSING is skipped.
func firstNumber(passMissing bool) evaluation {
	return func(_ *Scratch, a []value) value {
		for _, v := range a {
			switch {
			case v.kind == kindNumber:
				return v
			case v.kind != kindMissing:
				return null
			case !passMissing:
				return missing
			}
		}
		return null
	}
}

func firstOf(fits func(value) bool) evaluation {
	return func(_ *Scratch, a []value) value {
		for _, v := range a {
			if fits(v) {
				return v
			}
		}
		return null
	}
}

func valueUnless(otherwise value) evaluation {
	return func(s *Scratch, a []value) value {
		switch equal := s.equal(a[0], a[1]); equal.kind {
		case kindTrue:
			return otherwise
		case kindFalse:
			return a[0]
		default:
			return equal
		}
	}
}

func decode(s *Scratch, a []value) value {
	for i := 1; i+1 < len(a); i += 2 {
		if s.collated(a[0], a[i]) == 0 {
			return a[i+1]
		}
	}
	if len(a)%2 == 0 {
		return a[len(a)-1]
	}
	return null
}
