package collate

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// AppendJSON appends the JSON value in text. The error wraps ErrJSON or ErrDepth and has the position; dst is
// unchanged then.
func AppendJSON(dst, text []byte) ([]byte, error) {
	return AppendJSONLimit(dst, text, math.MaxInt)
}

// AppendJSONLimit is AppendJSON that fails with ErrTooLong as soon as it has written more than limit bytes. Members
// that a later one of the same name replaces count too.
func AppendJSONLimit(dst, text []byte, limit int) ([]byte, error) {
	e := encoder{text: text, limit: math.MaxInt}
	if limit < math.MaxInt-len(dst) {
		e.limit = len(dst) + limit
	}
	out, i := e.value(dst, skipSpace(text, 0), 0)
	if e.err == nil {
		if i = skipSpace(text, i); i < len(text) {
			out = e.fail(out, i, "data follows the value")
		}
	}
	if e.err != nil {
		return dst, e.err
	}
	return out, nil
}

// encoder encodes one text. After an error every call returns at once.
type encoder struct {
	text  []byte
	limit int // of len(dst)
	err   error
}

func (e *encoder) fail(dst []byte, i int, what string) []byte {
	if e.err == nil {
		e.err = fmt.Errorf("%w: %s at byte %d of %q", ErrJSON, what, i, clip(e.text))
	}
	return dst
}

// value appends the value that begins at text[i] and returns the index after it.
func (e *encoder) value(dst []byte, i, depth int) ([]byte, int) {
	if i >= len(e.text) {
		return e.fail(dst, i, "the text ends"), i
	}
	if len(dst) > e.limit {
		e.err = fmt.Errorf("%w: the value exceeds the limit", ErrTooLong)
		return dst, i
	}
	switch c := e.text[i]; c {
	case '"':
		return e.string(dst, i)
	case '[':
		return e.array(dst, i, depth)
	case '{':
		return e.object(dst, i, depth)
	case 'n':
		return e.literal(dst, i, "null", Null)
	case 't':
		return e.literal(dst, i, "true", True)
	case 'f':
		return e.literal(dst, i, "false", False)
	}
	end, integer := ScanNumber(e.text, i)
	if end == i {
		return e.fail(dst, i, "no value"), i
	}
	return appendNumber(dst, e.text[i:end], integer), end
}

func (e *encoder) literal(dst []byte, i int, word string, kind Kind) ([]byte, int) {
	if len(e.text)-i < len(word) || string(e.text[i:i+len(word)]) != word {
		return e.fail(dst, i, "no value"), i
	}
	return append(dst, byte(kind)), i + len(word)
}

func (e *encoder) string(dst []byte, i int) ([]byte, int) {
	end, plain := ScanString(e.text, i+1)
	if end < 0 {
		return e.fail(dst, i, "a string that is unterminated or has a control character or an invalid escape"), i
	}
	body := e.text[i+1 : end]
	dst = append(dst, byte(String))
	if plain {
		dst = append(dst, body...)
		return append(dst, strEscape, strEnd), end + 1
	}
	start := len(dst)
	dst, err := AppendUnquoted(dst, body)
	if err != nil {
		return e.fail(dst, i, "a string with an invalid escape"), i
	}
	return escapeTail(dst, start), end + 1
}

func (e *encoder) array(dst []byte, i, depth int) ([]byte, int) {
	if depth++; !e.deeper(depth, i) {
		return dst, i
	}
	dst = append(dst, byte(Array))
	i = skipSpace(e.text, i+1)
	if i < len(e.text) && e.text[i] == ']' {
		return append(dst, tagEnd), i + 1
	}
	for {
		dst, i = e.value(dst, i, depth)
		if e.err != nil {
			return dst, i
		}
		i = skipSpace(e.text, i)
		switch {
		case i < len(e.text) && e.text[i] == ',':
			i = skipSpace(e.text, i+1)
		case i < len(e.text) && e.text[i] == ']':
			return append(dst, tagEnd), i + 1
		default:
			return e.fail(dst, i, "neither a comma nor the end of an array"), i
		}
	}
}

func (e *encoder) deeper(depth, i int) bool {
	if depth > MaxDepth {
		e.err = fmt.Errorf("%w: more than %d levels at byte %d of %q", ErrDepth, MaxDepth, i, clip(e.text))
		return false
	}
	return true
}

// member has the positions in dst of the name and the value of an object's member.
type member struct{ name, value, end int }

// object appends the kind, the number of members in four bytes, the members in the order of their names, and the end.
func (e *encoder) object(dst []byte, i, depth int) ([]byte, int) { //nolint:gocyclo // a hot path, read in one piece
	if depth++; !e.deeper(depth, i) {
		return dst, i
	}
	var few [16]member
	members := few[:0]
	dst = append(dst, byte(Object), 0, 0, 0, 0)
	start := len(dst)
	i = skipSpace(e.text, i+1)
	if i < len(e.text) && e.text[i] == '}' {
		return append(dst, tagEnd), i + 1
	}
	for {
		if i >= len(e.text) || e.text[i] != '"' {
			return e.fail(dst, i, "no member name"), i
		}
		m := member{name: len(dst)}
		dst, i = e.string(dst, i)
		m.value = len(dst)
		if i = skipSpace(e.text, i); e.err == nil && (i >= len(e.text) || e.text[i] != ':') {
			e.fail(dst, i, "no colon after a member name")
		}
		if e.err != nil {
			return dst, i
		}
		dst, i = e.value(dst, skipSpace(e.text, i+1), depth)
		if e.err != nil {
			return dst, i
		}
		m.end = len(dst)
		members = append(members, m)
		i = skipSpace(e.text, i)
		switch {
		case i < len(e.text) && e.text[i] == ',':
			i = skipSpace(e.text, i+1)
		case i < len(e.text) && e.text[i] == '}':
			return finishObject(dst, start, members), i + 1
		default:
			return e.fail(dst, i, "neither a comma nor the end of an object"), i
		}
	}
}

// finishObject sorts the members from start on, drops those that a later one replaces, and writes count and end.
func finishObject(dst []byte, start int, members []member) []byte {
	name := func(m member) []byte { return dst[m.name:m.value] }
	ordered := true
	for i := 1; i < len(members) && ordered; i++ {
		ordered = bytes.Compare(name(members[i-1]), name(members[i])) < 0
	}
	count := len(members)
	if !ordered {
		slices.SortStableFunc(members, func(a, b member) int { return bytes.Compare(name(a), name(b)) })
		end := len(dst)
		count = 0
		for i, m := range members {
			if i+1 < len(members) && bytes.Equal(name(m), name(members[i+1])) {
				continue
			}
			count++
			dst = append(dst, dst[m.name:m.end]...)
		}
		dst = append(dst[:start], dst[end:]...)
	}
	binary.BigEndian.PutUint32(dst[start-4:], uint32(count))
	return append(dst, tagEnd)
}
