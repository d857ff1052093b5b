package rpc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Repeated says which field an object of body, at any depth, has twice, and where; "" if there is none. Decoders let
// the last one count and tell nobody. body is valid JSON.
func Repeated(body []byte) string {
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
			if at[len(at)-1].named(body[from : i+1]) {
				line, column := place(body, int64(from))
				return fmt.Sprintf("field %q is there twice, again at line %d column %d: give it once", at, line, column)
			}
		}
	}
	return ""
}

// path leads to a place in a JSON value.
type path []level

// level is an object or an array that a path leads through.
type level struct {
	array  bool
	naming bool // a field's name follows
	item   int  // of an array
	name   []byte
	names  [][]byte
	many   map[string]bool // of the names, beyond a few
}

// down adds a level; it uses the lists of names of earlier ones again.
func (p path) down(array bool) path {
	var names [][]byte
	if n := len(p); n < cap(p) {
		names = p[:n+1][n].names[:0]
	}
	return append(p, level{array: array, naming: !array, names: names})
}

// few is up to how many names a list is as quick as a map.
const few = 16

// named takes the name of an object's next field, in quotes, and reports whether another one has it.
func (l *level) named(quoted []byte) (again bool) {
	l.naming, l.name = false, quoted[1:len(quoted)-1]
	if bytes.IndexByte(l.name, '\\') >= 0 {
		var text string
		_ = json.Unmarshal(quoted, &text) // it is valid
		l.name = []byte(text)
	}
	if l.many != nil {
		again = l.many[string(l.name)]
		l.many[string(l.name)] = true
		return again
	}
	for _, name := range l.names {
		again = again || bytes.Equal(name, l.name)
	}
	if l.names = append(l.names, l.name); len(l.names) > few {
		l.many = map[string]bool{}
		for _, name := range l.names {
			l.many[string(name)] = true
		}
	}
	return again
}

// String returns the path as users write it.
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
