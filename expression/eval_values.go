package expression

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"

	"tidemark/collate"
)

// Short names of the kinds.
const (
	kindMissing = collate.Missing
	kindNull    = collate.Null
	kindFalse   = collate.False
	kindTrue    = collate.True
	kindNumber  = collate.Number
	kindString  = collate.String
	kindArray   = collate.Array
	kindObject  = collate.Object
)

var (
	missing = value{kind: kindMissing}
	null    = value{kind: kindNull}
)

// ErrWork is wrapped if an expression exceeds the budget of one document: steps, bytes, or elements.
var ErrWork = errors.New("the expression costs too much on this document")

// ErrRange is wrapped if a number exceeds the range of a float64.
var ErrRange = errors.New("number out of range")

const (
	// maxSteps bounds the cost of the predicate, and of the keys of one index, for one document: function calls,
	// elements, and every stepBytes bytes processed.
	maxSteps = 4 << 20
	// maxTemp bounds the bytes of intermediate values, per index and document.
	maxTemp = 64 << 20
	// stepBytes is the number of bytes that cost one step.
	stepBytes = 64
	// maxValue bounds a value that a function can make out of a short argument (REPEAT, LPAD, ARRAY_RANGE).
	maxValue = 1 << 20
)

// spend subtracts steps from the budget; if it returns false, the evaluation ends.
func (s *Scratch) spend(n int) bool {
	if s.steps -= n; s.steps < 0 || len(s.temp)+s.heap > maxTemp {
		s.fail(fmt.Errorf("%w: more than %d steps or %d bytes", ErrWork, maxSteps, maxTemp))
		return false
	}
	return true
}

// room spends the steps for processing or making n bytes, and reports whether a value of that size still fits.
func (s *Scratch) room(n int) bool {
	if len(s.temp)+s.heap+n > maxTemp {
		s.steps = 0
		n = stepBytes
	}
	return s.spend(n / stepBytes)
}

// owned returns a string whose memory is outside temp, and accounts for it.
func (s *Scratch) owned(b []byte) value {
	s.heap += len(b)
	return value{kindString, b}
}

func boolean(b bool) value {
	if b {
		return value{kind: kindTrue}
	}
	return value{kind: kindFalse}
}

// fresh returns a value made of the bytes appended to temp since start.
func (s *Scratch) fresh(kind collate.Kind, start int) value {
	return value{kind, s.temp[start:len(s.temp):len(s.temp)]}
}

func (s *Scratch) str(b []byte) value {
	start := len(s.temp)
	s.temp = append(s.temp, b...)
	return s.fresh(kindString, start)
}

func (s *Scratch) integer(n int64) value {
	start := len(s.temp)
	s.temp = strconv.AppendInt(s.temp, n, 10)
	return s.fresh(kindNumber, start)
}

// float returns a number: NULL for NaN, and an error for infinity.
func (s *Scratch) float(f float64) value {
	switch {
	case math.IsNaN(f):
		return null
	case math.IsInf(f, 0):
		s.fail(fmt.Errorf("%w: the result is beyond 1.8e308", ErrRange))
		return missing
	case f == math.Trunc(f) && f >= -1<<63 && f < 1<<63:
		return s.integer(int64(f))
	}
	start := len(s.temp)
	format, precision := byte('f'), -1
	if abs := math.Abs(f); abs < 1e-6 || abs >= 1e21 {
		format = 'e'
	} else if f == math.Trunc(f) {
		precision = 0 // without point and exponent, so all digits are kept
	}
	s.temp = strconv.AppendFloat(s.temp, f, format, precision, 64)
	return s.fresh(kindNumber, start)
}

// number is a number for arithmetic: an int64 if it is integral and fits, otherwise the nearest float64.
type number struct {
	i     int64
	f     float64
	isInt bool
}

// numberOf parses a number's text. It fails if the number is beyond float64.
func (s *Scratch) numberOf(v value) (n number, ok bool) {
	if n, ok = s.parseNumber(v); !ok {
		s.fail(fmt.Errorf("%w: %.40s", ErrRange, v.data))
	}
	return n, ok
}

// parseNumber parses a number's text, and reports whether it is within float64.
func (s *Scratch) parseNumber(v value) (n number, ok bool) {
	s.spend(len(v.data) / stepBytes)
	if !bytes.ContainsAny(v.data, ".eE") {
		if i, err := strconv.ParseInt(string(v.data), 10, 64); err == nil {
			return number{i: i, f: float64(i), isInt: true}, true
		}
	}
	f, err := strconv.ParseFloat(string(v.data), 64)
	if err != nil && math.IsInf(f, 0) {
		return n, false
	}
	n = number{f: f}
	if f == math.Trunc(f) && f >= -1<<63 && f < 1<<63 {
		n.i, n.isInt = int64(f), true
	}
	return n, true
}

// whole returns an argument that must be an integer. If ok is false, the function returns NULL.
func (s *Scratch) whole(v value) (n int64, ok bool) {
	if v.kind != kindNumber {
		return 0, false
	}
	x, ok := s.parseNumber(v)
	return x.i, ok && x.isInt
}

// appendText appends a value as JSON; MISSING becomes null.
func appendText(dst []byte, v value) []byte {
	switch v.kind {
	case kindMissing, kindNull:
		return append(dst, "null"...)
	case kindFalse:
		return append(dst, "false"...)
	case kindTrue:
		return append(dst, "true"...)
	case kindString:
		return collate.AppendQuoted(dst, v.data)
	}
	return append(dst, v.data...)
}

// list returns an array of values.
func (s *Scratch) list(values []value) value {
	start := len(s.temp)
	s.temp = append(s.temp, '[')
	for i, v := range values {
		if i > 0 {
			s.temp = append(s.temp, ',')
		}
		if !s.room(len(v.data)) {
			return missing
		}
		s.temp = appendText(s.temp, v)
	}
	s.temp = append(s.temp, ']')
	return s.fresh(kindArray, start)
}

// walker iterates over the text of an array or object that the scanner has validated or a function has made.
type walker struct {
	scanner
	at int // position of the next value, or the end
}

// walk returns a walker at the first value of an array or object.
func walk(text []byte) walker {
	w := walker{scanner: scanner{text: text}}
	w.at = w.space(1)
	if w.at < len(text) && (text[w.at] == ']' || text[w.at] == '}') {
		w.at = len(text)
	}
	return w
}

func (w *walker) more() bool { return w.at >= 0 && w.at < len(w.text) }

// raw returns the text of the value at w.at and advances to the next one.
func (w *walker) raw(end byte) []byte {
	start := w.at
	stop := w.skip(start, 0)
	if stop < 0 { // the text is valid, but nested in other values it may be deeper than a document can be
		w.at = len(w.text)
		return nil
	}
	next, done := w.after(stop, end)
	if done {
		next = len(w.text)
	}
	w.at = next
	return w.text[start:stop]
}

// memberName returns the body of a member's name, between its quotes, and advances to the value.
func (w *walker) memberName() (body []byte, plain bool) {
	end, plain := collate.ScanString(w.text, w.at+1)
	if end < 0 {
		w.at = len(w.text)
		return nil, true
	}
	body = w.text[w.at+1 : end]
	w.at = w.colon(end + 1)
	return body, plain
}

// look spends the steps of an element or member; a nil text is one that is nested too deep.
func (s *Scratch) look(text []byte) bool {
	if text == nil {
		s.fail(fmt.Errorf("%w: a value is nested deeper than %d levels", ErrWork, maxDocumentDepth))
		return false
	}
	return s.spend(1 + len(text)/stepBytes)
}

// valueOf returns the value of a JSON text.
func (s *Scratch) valueOf(text []byte) value {
	if len(text) == 0 {
		return missing
	}
	switch text[0] {
	case '{':
		return value{kindObject, text}
	case '[':
		return value{kindArray, text}
	case 't':
		return value{kind: kindTrue}
	case 'f':
		return value{kind: kindFalse}
	case 'n':
		return null
	case '"':
		body := text[1 : len(text)-1]
		if _, plain := collate.ScanString(text, 1); plain {
			return value{kindString, body}
		}
		return value{kindString, s.unquote(body)}
	}
	return value{kindNumber, text}
}

// push pushes the elements of an array on the stack, and returns the stack's previous length, to which the caller
// resets it. ok is false if there are too many.
func (s *Scratch) push(array value) (base int, ok bool) {
	base = len(s.stack)
	for w := walk(array.data); w.more(); {
		text := w.raw(']')
		if !s.look(text) {
			return base, false
		}
		s.stack = append(s.stack, s.valueOf(text))
	}
	return base, true
}

// field is a member of an object, as text.
type field struct {
	name []byte // decoded
	text []byte // its value
}

// fields returns the members of an object sorted by name; of several with one name the last counts.
func (s *Scratch) fields(object value) ([]field, bool) {
	list := s.members[:0]
	for w := walk(object.data); w.more(); {
		name, plain := w.memberName()
		if !plain {
			name = s.unquote(name)
		}
		text := w.raw('}')
		if !s.look(text) {
			return nil, false
		}
		list = append(list, field{name, text})
	}
	list = sortFields(list)
	s.members = list
	return list, true
}

// navigate follows the steps of a path into a value.
func (s *Scratch) navigate(v value, steps []Step) value {
	for i := range steps {
		step := &steps[i]
		switch {
		case step.Element && v.kind == kindArray:
			v = s.element(v, step.Index)
		case !step.Element && v.kind == kindObject:
			v = s.member(v, step.Name)
		default:
			return missing
		}
		if v.kind <= kindMissing || s.err != nil {
			return missing
		}
	}
	return v
}

func (s *Scratch) element(array value, at int) value {
	if at < 0 {
		n := 0
		for w := walk(array.data); w.more(); n++ {
			if !s.look(w.raw(']')) {
				return missing
			}
		}
		if at += n; at < 0 {
			return missing
		}
	}
	for w := walk(array.data); w.more(); at-- {
		text := w.raw(']')
		if !s.look(text) {
			return missing
		}
		if at == 0 {
			return s.valueOf(text)
		}
	}
	return missing
}

func (s *Scratch) member(object value, name string) value {
	var found []byte
	for w := walk(object.data); w.more(); {
		body, plain := w.memberName()
		if !plain {
			body = s.unquote(body)
		}
		text := w.raw('}')
		if !s.look(text) {
			return missing
		}
		if string(body) == name {
			found = text
		}
	}
	return s.valueOf(found)
}
