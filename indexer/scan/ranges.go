package scan

import (
	"bytes"
	"slices"
)

// mergeRanges sorts ranges and joins those that overlap or touch, so that no row is in two of them.
func mergeRanges(ranges []Range) []Range {
	slices.SortFunc(ranges, func(a, b Range) int { return bytes.Compare(a.Low, b.Low) }) // nil is the lowest
	out := ranges[:0]
	for _, r := range ranges {
		if n := len(out); n > 0 && (out[n-1].High == nil || bytes.Compare(r.Low, out[n-1].High) <= 0) {
			if last := &out[n-1]; last.High != nil && (r.High == nil || bytes.Compare(r.High, last.High) > 0) {
				last.High = r.High
			}
			continue
		}
		out = append(out, r)
	}
	return out
}

// isEmpty reports whether no key can be in the range.
func (r *Range) isEmpty() bool {
	return r.Low != nil && r.High != nil && bytes.Compare(r.Low, r.High) >= 0
}

// intersect returns the intersection of two lists of ranges. Both must be sorted and disjoint; so is the result.
func intersect(a, b []Range) (out []Range) {
	for len(a) > 0 && len(b) > 0 {
		r, endsFirst := a[0], true
		if bytes.Compare(b[0].Low, r.Low) > 0 {
			r.Low = b[0].Low
		}
		if high := b[0].High; high != nil && (r.High == nil || bytes.Compare(high, r.High) < 0) {
			r.High, endsFirst = high, false
		}
		if !r.isEmpty() {
			out = append(out, r)
		}
		if endsFirst {
			a = a[1:]
		} else {
			b = b[1:]
		}
	}
	return out
}

// behind cuts off everything up to and including a row, in the direction of the scan.
func behind(ranges []Range, row Row, reverse bool) []Range {
	at := append(append(make([]byte, 0, len(row.Key)+len(row.DocID)+1), row.Key...), row.DocID...)
	var out []Range
	for _, r := range ranges {
		if reverse {
			if r.High == nil || bytes.Compare(at, r.High) < 0 {
				r.High = at
			}
		} else if next := append(at, 0); r.Low == nil || bytes.Compare(next, r.Low) > 0 {
			r.Low = next
		}
		if r.Low == nil || r.High == nil || bytes.Compare(r.Low, r.High) < 0 {
			out = append(out, r)
		}
	}
	return out
}
