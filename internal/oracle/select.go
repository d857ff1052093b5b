package oracle

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Range is one range of a scan: bounds as JSON texts, nil when open. A bound with fewer components than the key stands
// for all keys that begin with it.
type Range struct {
	Low, High []string
	Inclusion string // both, low, high or neither
}

// Select gives the rows that a scan with these ranges must give: all rows in one of them, in index order or in reverse,
// at most limit when that is not 0. No range means all rows.
func (def Index) Select(rows []Row, ranges []Range, reverse bool, limit int) ([]Row, error) {
	var out []Row
	for _, row := range rows {
		in := len(ranges) == 0
		for _, r := range ranges {
			hit, err := def.contains(row, r)
			if err != nil {
				return nil, err
			}
			in = in || hit
		}
		if in {
			out = append(out, row)
		}
	}
	if reverse {
		for i, j := 0, len(out)-1; i < j; i, j = i+1, j-1 {
			out[i], out[j] = out[j], out[i]
		}
	}
	if limit > 0 && len(out) > limit {
		out = out[:limit]
	}
	return out, nil
}

// contains looks at one row. Bounds are given in the order of values; an index that runs downwards in the component in
// which they part meets the high one first.
func (def Index) contains(row Row, r Range) (bool, error) {
	low, err := values(r.Low)
	if err != nil {
		return false, err
	}
	high, err := values(r.High)
	if err != nil {
		return false, err
	}
	withLow, withHigh := r.Inclusion == "both" || r.Inclusion == "low", r.Inclusion == "both" || r.Inclusion == "high"
	at := 0
	for at < len(low) && at < len(high) && compare(low[at], high[at]) == 0 {
		at++
	}
	if (at < len(low) || at < len(high)) && def.Desc[at] {
		low, high, withLow, withHigh = high, low, withHigh, withLow
	}
	if c := def.against(row, low); c < 0 || c == 0 && len(low) > 0 && !withLow {
		return false, nil
	}
	if c := def.against(row, high); len(high) > 0 && (c > 0 || c == 0 && !withHigh) {
		return false, nil
	}
	return true, nil
}

// against tells where a row stands to a bound in index order: 0 for every key that begins with it.
func (def Index) against(row Row, bound []any) int {
	for i, b := range bound {
		c := compare(row.Key[i], b)
		if c != 0 && def.Desc[i] {
			c = -c
		}
		if c != 0 {
			return c
		}
	}
	return 0
}

func values(texts []string) ([]any, error) {
	var all []any
	for _, text := range texts {
		dec := json.NewDecoder(strings.NewReader(text))
		dec.UseNumber()
		var v any
		if err := dec.Decode(&v); err != nil {
			return nil, fmt.Errorf("bound %s: %w", text, err)
		}
		all = append(all, v)
	}
	return all, nil
}
