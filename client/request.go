package client

import (
	"encoding/json"
	"strconv"
)

// encode gives the request as JSON. What scans most often say is written here, whatever else by encoding/json.
func (r *ScanRequest) encode() ([]byte, error) {
	values := func(all []json.RawMessage) bool {
		for _, v := range all {
			if !json.Valid(v) {
				return false
			}
		}
		return true
	}
	few := r.Range
	if few == nil {
		few = &Range{}
	}
	if len(r.Tokens) > 0 || len(r.Ranges) > 0 || len(r.ScanVectors) > 0 || r.Project != nil ||
		!word(r.Consistency) || !word(r.Stability) || !word(few.Inclusion) || r.Timestamp != "" ||
		!values(r.Equal) || !values(few.Low) || !values(few.High) {
		return json.Marshal(r)
	}
	b := fields{append(make([]byte, 0, 160), '{')}
	b.number("limit", r.Limit)
	b.word("consistency", r.Consistency)
	b.list("equal", r.Equal)
	if r.Range != nil {
		b.name("range")
		inner := fields{append(b.b, '{')}
		inner.list("low", few.Low)
		inner.list("high", few.High)
		inner.word("inclusion", few.Inclusion)
		b.b = append(inner.b, '}')
	}
	b.flag("reverse", r.Reverse)
	b.flag("want_timestamp", r.WantTimestamp)
	b.number("offset", r.Offset)
	b.flag("distinct", r.Distinct)
	b.word("stability", r.Stability)
	return append(b.b, '}'), nil
}

// word tells whether a text has only small letters and underlines.
func word(s string) bool {
	for i := range len(s) {
		if c := s[i]; c != '_' && (c < 'a' || c > 'z') {
			return false
		}
	}
	return true
}

// fields are the members of an object under construction. Those that are empty are left out.
type fields struct{ b []byte }

func (f *fields) name(name string) {
	if f.b[len(f.b)-1] != '{' {
		f.b = append(f.b, ',')
	}
	f.b = append(append(append(f.b, '"'), name...), '"', ':')
}

func (f *fields) number(name string, n int) {
	if n != 0 {
		f.name(name)
		f.b = strconv.AppendInt(f.b, int64(n), 10)
	}
}

func (f *fields) word(name, s string) {
	if s != "" {
		f.name(name)
		f.b = append(append(append(f.b, '"'), s...), '"')
	}
}

func (f *fields) flag(name string, on bool) {
	if on {
		f.name(name)
		f.b = append(f.b, "true"...)
	}
}

func (f *fields) list(name string, values []json.RawMessage) {
	if len(values) == 0 {
		return
	}
	f.name(name)
	for i, v := range values {
		sep := byte(',')
		if i == 0 {
			sep = '['
		}
		f.b = append(append(f.b, sep), v...)
	}
	f.b = append(f.b, ']')
}
