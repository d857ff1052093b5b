package expression

import (
	"bytes"
	"fmt"
	"time"
	"unicode/utf8"
	"unsafe"

	"tidemark/collate"
)

// Scratch is memory that evaluations reuse. It may serve any Program, but not concurrently. The zero value is ready.
type Scratch struct {
	scanner
	docID []byte
	keys  []byte   // all keys, one after the other
	ends  []int    // where each key ends
	heads [][]byte // the keys, once keys no longer moves
	first []int    // index of each source's first key, and the total number at the end
	fails []failure
	temp  []byte // unescaped strings, negated numbers, encodings to compare
	where []whereState
	err   error // of the expression being evaluated

	meta    DocMeta
	steps   int                       // steps left for the index being evaluated
	heap    int                       // bytes of values outside temp
	stack   []value                   // arguments of functions, items of arrays
	vars    []value                   // the bound variables, outermost first
	members []field                   // of an object
	elems   [][]byte                  // components of an array key
	zones   map[string]*time.Location // cache of time zones
}

// DocMeta is KV's metadata of a document besides its id. The zero value is sufficient for indexes without META().
type DocMeta struct {
	CAS        uint64
	Expiration uint32 // seconds since 1970; 0: never
	Flags      uint32
	Xattrs     []byte // the section of extended attributes as KV sends it; not to be modified while the Result is in use
}

// failure is a source whose entry was left out, and why.
type failure struct {
	source int
	err    error
}

// whereState caches the result of a predicate for the present document.
type whereState struct {
	done, holds bool
	err         error
}

// Result holds the keys of a document in the indexes of a Program. It is valid until the next use of the Scratch.
type Result struct {
	s *Scratch
	// NotJSON is set if the document is not JSON: only primary indexes have keys then.
	NotJSON bool
	// Errors counts the indexes in which the document has no entry because an expression failed or a key was too long.
	Errors int
}

// Keys returns the complete set of the document's keys in index i, as stored: collated composites, descending
// components complemented. If it is empty, the document has no entry there.
func (r Result) Keys(i int) [][]byte {
	return r.s.heads[r.s.first[i]:r.s.first[i+1]]
}

// Err returns why index i has no entry, if an expression failed (wrapping a sentinel of package collate); otherwise
// nil.
func (r Result) Err(i int) error {
	for _, f := range r.s.fails {
		if f.source == i {
			return f.err
		}
	}
	return nil
}

// Evaluate returns the keys of a document in all indexes. Both slices must not be modified while the Result is in
// use. A document that is not JSON (including an empty one) has a key in primary indexes only.
func (p *Program) Evaluate(s *Scratch, docID, doc []byte) Result {
	return p.EvaluateMeta(s, docID, DocMeta{}, doc)
}

// EvaluateMeta is Evaluate for indexes that may use META().
func (p *Program) EvaluateMeta(s *Scratch, docID []byte, meta DocMeta, doc []byte) Result {
	s.reset(p)
	s.docID, s.meta = docID, meta
	r := Result{s: s, NotJSON: !s.scan(doc, p.root)}
	for i := range p.sources {
		s.first = append(s.first, len(s.ends))
		src := &p.sources[i]
		if r.NotJSON && !src.primary {
			continue
		}
		start, ends := len(s.keys), len(s.ends)
		s.err = nil
		s.refill()
		if src.array >= 0 {
			p.entries(s, src)
		} else if p.entry(s, src) && s.err == nil {
			s.ends = append(s.ends, len(s.keys))
		}
		if s.err != nil {
			s.keys, s.ends = s.keys[:start], s.ends[:ends]
			s.fails = append(s.fails, failure{i, s.err})
		}
	}
	s.finish()
	r.Errors = len(s.fails)
	return r
}

// Deleted returns the Result of a deleted document: no keys in any index.
func (p *Program) Deleted(s *Scratch) Result {
	s.reset(p)
	for range p.sources {
		s.first = append(s.first, 0)
	}
	s.finish()
	return Result{s: s}
}

// reset drops the state of the previous document.
func (s *Scratch) reset(p *Program) {
	if len(s.text) > keptBytes {
		s.text = nil
		s.dropValues()
	}
	clear(s.heads) // they point into keys
	s.keys, s.ends, s.heads, s.name = kept(s.keys), kept(s.ends), kept(s.heads), kept(s.name)
	s.first, s.fails = s.first[:0], s.fails[:0]
	s.slots = resized(s.slots, p.slots)
	s.where = resized(s.where, len(p.wheres))
	clear(s.where)
	s.refill()
}

// keptBytes bounds the memory of each kind that a Scratch keeps from one document to the next, and from one index to
// the next.
const keptBytes = 4 << 20

// kept empties a list, or drops it if it has grown beyond keptBytes.
func kept[T any](list []T) []T {
	var one T
	if cap(list) > keptBytes/int(unsafe.Sizeof(one)) {
		return nil
	}
	return list[:0]
}

// refill gives the next index a full budget: its cost does not depend on the other indexes. Values made for the
// previous one are dropped.
func (s *Scratch) refill() {
	if cap(s.temp) > keptBytes || s.heap > keptBytes {
		s.dropValues()
	}
	s.steps, s.heap = maxSteps, 0
	s.temp, s.stack, s.vars = s.temp[:0], kept(s.stack), s.vars[:0]
	s.members, s.elems = kept(s.members), kept(s.elems)
}

// dropValues drops the computed values, and everything that may point to one or into the document, including entries
// beyond the end of a list.
func (s *Scratch) dropValues() {
	s.temp, s.stack, s.vars, s.members, s.elems = nil, nil, nil, nil, nil
}

func resized[T any](list []T, n int) []T {
	if cap(list) < n {
		return make([]T, n)
	}
	return list[:n]
}

// finish builds the list of keys; from here on the bytes of keys do not move.
func (s *Scratch) finish() {
	s.first = append(s.first, len(s.ends))
	start := 0
	for _, end := range s.ends {
		s.heads = append(s.heads, s.keys[start:end:end])
		start = end
	}
}

// idText returns a document's id as a value. Strings are Unicode, but KV accepts any bytes as an id: each byte that
// is not UTF-8 becomes U+FFFD, as in the JSON that shows the id, so that a displayed id can be searched for.
// Documents whose ids differ only in such bytes have equal keys, and rows of their own.
func idText(docID []byte) []byte {
	if utf8.Valid(docID) {
		return docID
	}
	return []byte(string([]rune(string(docID))))
}

// entry appends the key of the document in one index, and reports whether it has one. s.err is set on failure.
func (p *Program) entry(s *Scratch, src *source) bool {
	limit := len(s.keys) + p.limits.KeyBytes
	if src.primary {
		s.keys = collate.AppendString(s.keys, idText(s.docID))
		s.checkLimit(limit)
		return true
	}
	if src.where >= 0 && (!p.predicate(s, src.where) || s.err != nil) {
		return false
	}
	for i := range src.components {
		start := len(s.keys)
		kind := s.component(&src.components[i], limit)
		if s.err != nil || i == 0 && kind == collate.Missing && !src.missing {
			s.keys = s.keys[:start]
			return false
		}
	}
	return true
}

// component appends one component of a key, and returns its kind. limit bounds len(s.keys).
func (s *Scratch) component(c *component, limit int) collate.Kind {
	start := len(s.keys)
	var kind collate.Kind
	if c.slot >= 0 {
		kind = s.appendSlot(&s.slots[c.slot], limit)
	} else {
		v := c.eval(s)
		kind = v.kind
		s.appendValue(v, limit)
	}
	if c.desc {
		collate.Complement(s.keys[start:])
	}
	s.checkLimit(limit)
	return kind
}

// predicate reports whether a WHERE holds; a predicate that several indexes share is evaluated once.
func (p *Program) predicate(s *Scratch, i int) bool {
	w := &s.where[i]
	if !w.done {
		w.holds = s.truth(p.wheres[i](s)) == collate.True
		w.done, w.err = true, s.err
		s.refill()
	}
	s.err = w.err
	return w.holds
}

func (s *Scratch) checkLimit(limit int) {
	if len(s.keys) > limit {
		s.fail(errTooLong())
	}
}

func errTooLong() error {
	return fmt.Errorf("%w: longer than the limit of a key", collate.ErrTooLong)
}

// fail records the first error of the entry.
func (s *Scratch) fail(err error) {
	if s.err == nil {
		s.err = err
	}
}

// at returns the value of a slot.
func (s *Scratch) at(slot int) value {
	f := &s.slots[slot]
	switch {
	case f.kind == 0:
		return value{kind: collate.Missing}
	case f.kind != collate.String:
		return value{f.kind, s.text[f.start:f.end]}
	case f.plain:
		return value{f.kind, s.text[f.start+1 : f.end-1]}
	}
	return value{f.kind, s.unquote(s.text[f.start+1 : f.end-1])}
}

// unquote decodes the body of a string, which the scanner has validated.
func (s *Scratch) unquote(body []byte) []byte {
	start := len(s.temp)
	if !s.room(len(body)) {
		return nil
	}
	s.temp, _ = collate.AppendUnquoted(s.temp, body)
	return s.temp[start:len(s.temp):len(s.temp)]
}

// escapeFactor is the largest number of bytes in a document that encode one byte of a string.
const escapeFactor = len(`\u0041`)

// appendSlot appends the value of a slot to the key without making a value of it, and returns its kind.
func (s *Scratch) appendSlot(f *slot, limit int) collate.Kind {
	if f.kind == collate.String && !f.plain {
		if f.end-f.start > escapeFactor*(limit-len(s.keys)+1) {
			s.fail(errTooLong())
			return f.kind
		}
		s.appendValue(value{f.kind, s.unquote(s.text[f.start+1 : f.end-1])}, limit)
		return f.kind
	}
	switch f.kind {
	case 0:
		s.keys = collate.AppendMissing(s.keys)
		return collate.Missing
	case collate.String:
		s.appendValue(value{f.kind, s.text[f.start+1 : f.end-1]}, limit)
	default:
		s.appendValue(value{f.kind, s.text[f.start:f.end]}, limit)
	}
	return f.kind
}

// appendValue appends a value to the key. limit bounds len(s.keys).
func (s *Scratch) appendValue(v value, limit int) {
	var err error
	switch v.kind {
	case collate.Missing:
		s.keys = collate.AppendMissing(s.keys)
	case collate.Null:
		s.keys = collate.AppendNull(s.keys)
	case collate.False, collate.True:
		s.keys = collate.AppendBool(s.keys, v.kind == collate.True)
	case collate.String:
		if len(v.data) > limit-len(s.keys) {
			s.fail(errTooLong())
			return
		}
		s.keys = collate.AppendString(s.keys, v.data)
	case collate.Number:
		s.keys, err = collate.AppendNumber(s.keys, v.data)
	default:
		s.keys, err = collate.AppendJSONLimit(s.keys, v.data, max(0, limit-len(s.keys)))
	}
	if err != nil {
		s.fail(err)
	}
}

// order compares two values that are neither MISSING nor NULL.
func (s *Scratch) order(l, r value) int {
	switch {
	case l.kind < r.kind:
		return -1
	case l.kind > r.kind:
		return 1
	case l.kind < collate.Number:
		return 0
	case l.kind == collate.String:
		s.spend(min(len(l.data), len(r.data)) / 1024)
		return bytes.Compare(l.data, r.data)
	case l.kind == collate.Number && bytes.Equal(l.data, r.data):
		return 0
	case !s.room(2 * (len(l.data) + len(r.data))):
		return 0
	}
	start := len(s.temp)
	s.temp = s.encode(s.temp, l)
	middle := len(s.temp)
	s.temp = s.encode(s.temp, r)
	c := bytes.Compare(s.temp[start:middle], s.temp[middle:])
	s.temp = s.temp[:start]
	return c
}

// encode appends the collated form of a number, array or object.
func (s *Scratch) encode(dst []byte, v value) []byte {
	dst, err := collate.AppendJSON(dst, v.data)
	if err != nil {
		s.fail(fmt.Errorf("comparison: %w", err))
	}
	return dst
}

// negate computes unary minus.
func (s *Scratch) negate(v value) value {
	switch {
	case v.kind == collate.Missing:
		return v
	case v.kind != collate.Number:
		return value{kind: collate.Null}
	case v.data[0] == '-':
		return value{v.kind, v.data[1:]}
	}
	if !s.room(len(v.data)) {
		return missing
	}
	start := len(s.temp)
	s.temp = append(append(s.temp, '-'), v.data...)
	return s.fresh(v.kind, start)
}
