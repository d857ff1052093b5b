package scan

import (
	"bytes"
	"encoding/json"
	"strconv"

	"tidemark/collate"
)

// quickRequest reads a request of the form in which clients most often write them: no white space, each field once, of the fields
// limit, offset, consistency, stability, equal, range, reverse, distinct and want_timestamp; values that are strings without escapes,
// whole numbers, true, false or null. false for any other body, which encoding/json has to look at. Values are parts of the body.
func quickRequest(body []byte) (r Request, ok bool) {
	q := quick{rest: body}
	r.Consistency = Any
	seen := 0
	once := func(bit int) bool {
		again := seen&bit != 0
		seen |= bit
		return !again
	}
	ok = q.object(func(name string) bool {
		switch name {
		case "limit":
			return once(1) && q.number(&r.Limit)
		case "offset":
			return once(2) && q.number(&r.Offset)
		case "consistency":
			return once(4) && q.text((*string)(&r.Consistency))
		case "stability":
			return once(8) && q.text((*string)(&r.Stability))
		case "equal":
			return once(16) && q.values(&r.Equal)
		case "range":
			r.Range = &Bounds{}
			return once(32) && q.bounds(r.Range)
		case "reverse":
			return once(64) && q.flag(&r.Reverse)
		case "distinct":
			return once(128) && q.flag(&r.Distinct)
		case "want_timestamp":
			return once(256) && q.flag(&r.WantTimestamp)
		}
		return false
	})
	return r, ok && len(q.rest) == 0
}

// quick reads JSON from the front.
type quick struct{ rest []byte }

// take takes a byte that has to come.
func (q *quick) take(c byte) bool {
	if len(q.rest) == 0 || q.rest[0] != c {
		return false
	}
	q.rest = q.rest[1:]
	return true
}

// plain gives the body of a string without escapes.
func (q *quick) plain() (body []byte, ok bool) {
	if len(q.rest) == 0 || q.rest[0] != '"' {
		return nil, false
	}
	end, ok := collate.ScanString(q.rest, 1)
	if !ok || end < 0 {
		return nil, false
	}
	body, q.rest = q.rest[1:end], q.rest[end+1:]
	return body, true
}

// object reads the members of an object; member reads a value.
func (q *quick) object(member func(name string) bool) bool {
	if !q.take('{') {
		return false
	}
	if q.take('}') {
		return true
	}
	for {
		name, ok := q.plain()
		if !ok || !q.take(':') || !member(string(name)) {
			return false
		}
		if q.take('}') {
			return true
		}
		if !q.take(',') {
			return false
		}
	}
}

func (q *quick) bounds(b *Bounds) bool {
	low, high, inclusion := false, false, false
	return q.object(func(name string) bool {
		switch {
		case name == "low" && !low:
			low = true
			return q.values(&b.Low)
		case name == "high" && !high:
			high = true
			return q.values(&b.High)
		case name == "inclusion" && !inclusion:
			inclusion = true
			return q.text((*string)(&b.Inclusion))
		}
		return false
	})
}

func (q *quick) text(into *string) bool {
	body, ok := q.plain()
	*into = string(body)
	return ok
}

func (q *quick) flag(into *bool) bool {
	*into = q.word("true")
	return *into || q.word("false")
}

// word takes a word that has to come.
func (q *quick) word(w string) (ok bool) {
	if ok = bytes.HasPrefix(q.rest, []byte(w)); ok {
		q.rest = q.rest[len(w):]
	}
	return ok
}

// quickDigits is the most digits of a whole number that are read here.
const quickDigits = 15

// digits gives the length of the whole number that comes, 0 for none. What follows is not looked at.
func (q *quick) digits() int {
	n := 0
	if n < len(q.rest) && q.rest[n] == '-' {
		n++
	}
	first := n
	for n < len(q.rest) && '0' <= q.rest[n] && q.rest[n] <= '9' {
		n++
	}
	if n == first || n-first > quickDigits || n-first > 1 && q.rest[first] == '0' {
		return 0
	}
	return n
}

func (q *quick) number(into *int64) bool {
	n := q.digits()
	v, err := strconv.ParseInt(string(q.rest[:n]), 10, 64)
	*into, q.rest = v, q.rest[n:]
	return err == nil
}

// values reads an array.
func (q *quick) values(into *[]json.RawMessage) bool {
	if !q.take('[') {
		return false
	}
	all := make([]json.RawMessage, 0, 2)
	for !q.take(']') {
		if len(all) > 0 && !q.take(',') {
			return false
		}
		whole := q.rest
		if _, ok := q.plain(); !ok && !q.word("true") && !q.word("false") && !q.word("null") {
			n := q.digits()
			if n == 0 {
				return false
			}
			q.rest = q.rest[n:] // a fraction or an exponent is no comma
		}
		n := len(whole) - len(q.rest)
		all = append(all, json.RawMessage(whole[:n:n]))
	}
	*into = all
	return true
}
