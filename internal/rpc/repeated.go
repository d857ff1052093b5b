package rpc

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Repeated describes the first field that an object of body, at any depth, has twice, and where; it returns "" if there
// is none. A decoder would use the last one without an error. Names that differ only in case are the same field of a
// struct, because encoding/json matches them without regard to case, but are two keys of a map. Values that are stored
// undecoded (json.RawMessage, any) are not checked: they are parts of documents, which may have a field twice. body
// must be valid JSON that is decoded into v; if v is nil, all objects are checked, with regard to case.
func Repeated(body []byte, v any) string {
	var at path
	for i := 0; i < len(body); i++ {
		switch c := body[i]; c {
		case '{', '[':
			at = at.down(c == '[')
		case '}', ']':
			at = at[:len(at)-1]
		case ',':
			top := &at[len(at)-1]
			top.naming = !top.array
			top.item++
		case '"':
			from := i
			for i++; body[i] != '"'; i++ {
				if body[i] == '\\' {
					i++
				}
			}
			if len(at) == 0 || !at[len(at)-1].naming {
				continue
			}
			same, cased := at[len(at)-1].named(body[from : i+1])
			if cased && v != nil {
				same, cased = at.counts(same, reflect.TypeOf(v))
			} else {
				cased = same
			}
			if cased {
				how := ""
				if !same {
					how = " in another case"
				}
				line, column := place(body, int64(from))
				return fmt.Sprintf("field %q occurs twice, again at line %d column %d%s: send it once", at, line, column,
					how)
			}
		}
	}
	return ""
}

// path is the position of a value in a JSON text.
type path []level

// level is an object or an array on a path.
type level struct {
	array  bool
	naming bool // the next string is a field's name
	item   int  // of an array
	name   []byte
	names  [][]byte
	many   map[string]bool // of the names, beyond a few
	folded map[string]bool // of the same names, without case

	typed bool         // t is known
	t     reflect.Type // into which the value is decoded; nil: it is stored undecoded
}

// down adds a level. It reuses the lists of names of earlier levels.
func (p path) down(array bool) path {
	var names [][]byte
	if n := len(p); n < cap(p) {
		names = p[:n+1][n].names[:0]
	}
	return append(p, level{array: array, naming: !array, names: names})
}

// few is the number of names up to which a list is as fast as a map.
const few = 16

// named records the name of an object's next field, in quotes. It reports whether an earlier name is the same, and
// whether an earlier name differs at most in case.
func (l *level) named(quoted []byte) (same, cased bool) {
	l.naming, l.name = false, quoted[1:len(quoted)-1]
	if bytes.IndexByte(l.name, '\\') >= 0 || !utf8.Valid(l.name) {
		var text string
		_ = json.Unmarshal(quoted, &text) // it is a valid string; bytes that are not UTF-8 become U+FFFD
		l.name = []byte(text)
	}
	if l.many != nil {
		fold := folded(l.name)
		same, cased = l.many[string(l.name)], l.folded[fold]
		l.many[string(l.name)], l.folded[fold] = true, true
		return same, cased
	}
	for _, name := range l.names {
		if bytes.EqualFold(name, l.name) {
			same, cased = same || bytes.Equal(name, l.name), true
		}
	}
	if l.names = append(l.names, l.name); len(l.names) > few {
		l.many, l.folded = map[string]bool{}, map[string]bool{}
		for _, name := range l.names {
			l.many[string(name)], l.folded[folded(name)] = true, true
		}
	}
	return same, cased
}

// folded returns the same text for names that bytes.EqualFold considers equal.
func folded(name []byte) string {
	return string(bytes.Map(func(r rune) rune {
		least := r
		for other := unicode.SimpleFold(r); other != r; other = unicode.SimpleFold(other) {
			least = min(least, other)
		}
		return least
	}, name))
}

// counts reports whether two fields with the same name (same), or with names that differ only in case, are the same
// field of the object at p; t is the type into which the whole body is decoded.
func (p path) counts(same bool, t reflect.Type) (exactly, atAll bool) {
	switch t = p.decodedInto(t); {
	case t == nil:
		return false, false
	case t.Kind() == reflect.Struct:
		return same, true
	}
	return same, same
}

// decodedInto returns the type into which the value at p is decoded; nil if it is stored undecoded. The types of all
// levels are looked up once.
func (p path) decodedInto(root reflect.Type) reflect.Type {
	if l := &p[len(p)-1]; !l.typed {
		if l.typed = true; len(p) == 1 {
			l.t = plain(root)
		} else if above := p[:len(p)-1]; above.decodedInto(root) != nil {
			l.t = plain(above[len(above)-1].within())
		}
	}
	return p[len(p)-1].t
}

// plain returns the type that t points to; nil if values of it are stored undecoded or decode themselves.
func plain(t reflect.Type) reflect.Type {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil || t.Kind() == reflect.Interface || reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return nil
	}
	return t
}

// within returns the type of the value at the present field or element of l; nil if any value is permitted.
func (l *level) within() reflect.Type {
	switch t := l.t; {
	case l.array && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array), !l.array && t.Kind() == reflect.Map:
		return t.Elem()
	case !l.array && t.Kind() == reflect.Struct:
		for _, f := range reflect.VisibleFields(t) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if (name != "" || !f.Anonymous) && bytes.EqualFold(l.name, []byte(cmp.Or(name, f.Name))) {
				return f.Type
			}
		}
	}
	return nil
}

// String returns the path in the form in which users write it.
func (p path) String() string {
	var s strings.Builder
	for _, l := range p {
		switch {
		case l.array:
			s.WriteString("[" + strconv.Itoa(l.item) + "]")
		case s.Len() > 0:
			s.WriteString("." + string(l.name))
		default:
			s.Write(l.name)
		}
	}
	return s.String()
}
