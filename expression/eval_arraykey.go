package expression

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"

	"tidemark/collate"
)

// entries appends the document's keys in an array index: one for each different element. An array without elements
// counts as the one element MISSING, and a value that is not an array as its own only element.
func (p *Program) entries(s *Scratch, src *source) {
	if src.where >= 0 && (!p.predicate(s, src.where) || s.err != nil) {
		return
	}
	if src.array == 0 && !s.arrayElements(&src.components[0], p.limits, !src.missing) {
		return
	}
	prefix, suffix, ok := p.around(s, src)
	if !ok || src.array > 0 && !s.arrayElements(&src.components[src.array], p.limits, false) {
		return
	}
	total := 0
	for _, e := range s.elems {
		size := len(prefix) + len(e) + len(suffix)
		if total += size; size > p.limits.KeyBytes {
			s.fail(errTooLong())
			return
		}
		if total > p.limits.TotalBytes {
			s.fail(fmt.Errorf("%w: more than %d bytes of keys", ErrWork, p.limits.TotalBytes))
			return
		}
		s.keys = append(append(append(s.keys, prefix...), e...), suffix...)
		s.ends = append(s.ends, len(s.keys))
	}
}

// around returns the parts of each key of an array index before and after the element. ok is false if the leading
// component is MISSING, or if s.err is set.
func (p *Program) around(s *Scratch, src *source) (prefix, suffix []byte, ok bool) {
	begin := len(s.keys)
	defer func() { s.keys = s.keys[:begin] }()
	limit, middle := begin+p.limits.KeyBytes, begin
	for i := range src.components {
		if i == src.array {
			middle = len(s.keys)
			continue
		}
		kind := s.component(&src.components[i], limit)
		if s.err != nil || i == 0 && kind == collate.Missing && !src.missing {
			return nil, nil, false
		}
	}
	both := bytes.Clone(s.keys[begin:])
	return both[:middle-begin], both[middle-begin:], s.err == nil
}

// arrayElements puts the different elements into s.elems, as encoded in keys. It returns false if there are none, or
// if s.err is set.
func (s *Scratch) arrayElements(c *component, limits Limits, leading bool) bool {
	s.elems = s.elems[:0]
	base := len(s.stack)
	defer func() { s.stack = s.stack[:base] }()
	if !s.pushElements(c) || s.err != nil {
		return false
	}
	keys, width := len(s.keys), 1+len(c.more)
	for element := base; element < len(s.stack); element += width {
		if leading && s.stack[element].kind == kindMissing {
			continue
		}
		start := len(s.keys)
		for i, v := range s.stack[element : element+width] {
			part := len(s.keys)
			s.spend(1 + len(v.data)/stepBytes)
			s.appendValue(v, start+limits.KeyBytes)
			if s.err != nil {
				return false
			}
			if i == 0 && c.desc || i > 0 && c.more[i-1] {
				collate.Complement(s.keys[part:])
			}
		}
		at := len(s.temp)
		s.temp = append(s.temp, s.keys[start:]...)
		s.keys = s.keys[:keys]
		s.elems = append(s.elems, s.temp[at:len(s.temp):len(s.temp)])
	}
	slices.SortFunc(s.elems, bytes.Compare)
	s.elems = slices.CompactFunc(s.elems, bytes.Equal)
	if len(s.elems) > limits.Keys {
		s.fail(fmt.Errorf("%w: %d keys, at most %d", ErrWork, len(s.elems), limits.Keys))
		return false
	}
	return len(s.elems) > 0
}

// pushElements pushes the elements of an array key on the stack: MISSING if there are none, and a value that is not
// an array as its own only element.
func (s *Scratch) pushElements(c *component) bool {
	if c.spread != nil {
		base := len(s.stack)
		c.spread(s)
		for range 1 + len(c.more) {
			if len(s.stack)-base <= len(c.more) {
				s.stack = append(s.stack, missing)
			}
		}
		return true
	}
	var array value
	if c.slot >= 0 {
		array = s.at(c.slot)
	} else {
		array = c.eval(s)
	}
	switch {
	case s.err != nil:
		return false
	case array.kind != kindArray:
		s.stack = append(s.stack, array)
	case s.hollow(array):
		s.stack = append(s.stack, missing)
	default:
		_, ok := s.push(array)
		return ok
	}
	return true
}

func appendUint(dst []byte, n uint64) []byte { return strconv.AppendUint(dst, n, 10) }

// appendMember appends a name and a colon, after a comma unless the object that begins at start is empty.
func appendMember(dst []byte, start int, name []byte) []byte {
	if dst[len(dst)-1] != '{' || len(dst)-1 != start {
		dst = append(dst, ',')
	}
	return append(collate.AppendQuoted(dst, name), ':')
}

// sortFields sorts members by name; of several with one name the last stays.
func sortFields(list []field) []field {
	slices.SortStableFunc(list, func(a, b field) int { return bytes.Compare(a.name, b.name) })
	kept := list[:0]
	for i, f := range list {
		if i+1 < len(list) && bytes.Equal(list[i+1].name, f.name) {
			continue
		}
		kept = append(kept, f)
	}
	return kept
}
