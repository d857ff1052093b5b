package v1

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"
)

// Bounds of a scan are made from Go values: their encoding by encoding/json is compared with keys, component by
// component. A bound with fewer values than the key has components stands for every key that begins with them. nil is
// NULL; no value stands for MISSING, which sorts before NULL.
//
//	v1.ScanRequest{Limit: 10}.In(v1.Equal("FR"))
//	v1.ScanRequest{}.In(v1.Prefix("FR", "Par"))
//	v1.ScanRequest{}.In(v1.From(3000).Before(4000), v1.Equal(8848))

// ErrBounds is wrapped when values cannot be bounds.
var ErrBounds = errors.New("bad bounds")

// Equal returns the range of the keys that begin with these values.
func Equal(values ...any) Range { return From(values...).To(values...) }

// Prefix returns the range of the keys that begin with these values, except that the last one is a prefix of a
// string.
func Prefix(values ...any) Range {
	if len(values) == 0 {
		return Range{err: fmt.Errorf("%w: Prefix needs at least the beginning of a string", ErrBounds)}
	}
	last := len(values) - 1
	text, ok := values[last].(string)
	if !ok || !utf8.ValidString(text) {
		return Range{err: fmt.Errorf("%w: Prefix: the last value is a %T: want a string of UTF-8", ErrBounds, values[last])}
	}
	above := slices.Clone(values)
	above[last] = afterPrefix(text)
	return From(values...).Before(above...)
}

// afterPrefix returns the least value above all strings with a prefix: strings compare by their bytes, and arrays
// sort after strings.
func afterPrefix(prefix string) any {
	for len(prefix) > 0 {
		r, size := utf8.DecodeLastRuneInString(prefix)
		prefix = prefix[:len(prefix)-size]
		switch r {
		case utf8.MaxRune:
		case 0xD7FF: // surrogates are not characters
			return prefix + "\uE000"
		default:
			return prefix + string(r+1)
		}
	}
	return []any{}
}

// From returns the range from these values on, inclusive.
func From(values ...any) Range { return Range{}.bound(true, true, values) }

// After returns the range of the keys above those that begin with these values.
func After(values ...any) Range { return Range{}.bound(true, false, values) }

// UpTo returns the range from the beginning of the index to these values, inclusive.
func UpTo(values ...any) Range { return Range{}.To(values...) }

// Below returns the range from the beginning of the index to these values, exclusive.
func Below(values ...any) Range { return Range{}.Before(values...) }

// To returns the range with these values as its upper bound, inclusive.
func (r Range) To(values ...any) Range { return r.bound(false, true, values) }

// Before returns the range with these values as its upper bound, exclusive.
func (r Range) Before(values ...any) Range { return r.bound(false, false, values) }

// Values of Range.Inclusion.
const (
	inclusionBoth    = "both"
	inclusionLow     = "low"
	inclusionHigh    = "high"
	inclusionNeither = "neither"
)

// bound sets the lower or the upper bound; with reports whether the bound itself is included.
func (r Range) bound(lower, with bool, values []any) Range {
	encoded := make([]json.RawMessage, 0, len(values))
	for i, v := range values {
		b, err := json.Marshal(v)
		if err != nil && r.err == nil {
			r.err = fmt.Errorf("%w: value %d: %w", ErrBounds, i+1, err)
		}
		encoded = append(encoded, b)
	}
	withLow := r.Inclusion != inclusionHigh && r.Inclusion != inclusionNeither
	withHigh := r.Inclusion != inclusionLow && r.Inclusion != inclusionNeither
	if lower {
		r.Low, withLow = encoded, with
	} else {
		r.High, withHigh = encoded, with
	}
	r.Inclusion = inclusionOf(withLow, withHigh)
	return r
}

// inclusionOf returns the inclusion of a range that includes its lower and upper bound as given.
func inclusionOf(low, high bool) string {
	switch {
	case low && high:
		return inclusionBoth
	case low:
		return inclusionLow
	case high:
		return inclusionHigh
	}
	return inclusionNeither
}

// Component returns the condition that a component of the key, counted from 0, lies in a range of one value, as made by
// Equal, From, To and the others.
//
//	v1.ScanRequest{Where: []v1.Condition{v1.Component(1, v1.From(3000).Before(4000))}}
func Component(n int, r Range) Condition {
	c := Condition{Component: n, Inclusion: r.Inclusion, err: r.err}
	if len(r.Low) > 1 || len(r.High) > 1 || len(r.Low)+len(r.High) == 0 {
		c.err = errors.Join(c.err, fmt.Errorf("%w: component %d: want a range of one value, not of %d and %d", ErrBounds, n,
			len(r.Low), len(r.High)))
		return c
	}
	if len(r.Low) > 0 {
		c.Low = r.Low[0]
	}
	if len(r.High) > 0 {
		c.High = r.High[0]
	}
	return c
}

// ComponentIn returns the condition that a component of the key, counted from 0, is one of these values. At least one
// value is required.
func ComponentIn(n int, values ...any) Condition {
	r := From(values...)
	c := Condition{Component: n, In: r.Low, err: r.err}
	if len(values) == 0 { // an empty list must not mean no condition
		c.err = fmt.Errorf("%w: component %d: ComponentIn needs at least one value", ErrBounds, n)
	}
	return c
}

// In returns the request for the rows in any of these ranges; a row in several ranges is returned once. At least one
// range is required: leave In out for the whole index.
func (r ScanRequest) In(ranges ...Range) ScanRequest {
	r.Equal, r.Range, r.Ranges = nil, nil, slices.Clone(ranges)
	if len(ranges) == 0 { // a list that happens to be empty must not mean the whole index
		r.Ranges = []Range{{err: fmt.Errorf("%w: In needs at least one range", ErrBounds)}}
	}
	return r
}

// Encode returns the request's body. Errors wrap ErrBounds if Go values cannot be bounds.
func (r *ScanRequest) Encode() ([]byte, error) {
	errs := make([]error, 0, len(r.Ranges)+len(r.Where)+1)
	if r.Range != nil {
		errs = append(errs, r.Range.err)
	}
	for i := range r.Ranges {
		errs = append(errs, r.Ranges[i].err)
	}
	for i := range r.Where {
		errs = append(errs, r.Where[i].err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	body, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encoding the request: %w", err)
	}
	return body, nil
}
