package oracle

import (
	"fmt"
	"slices"

	"tidemark/collate/collatetest"
)

// Range is one range of a scan. Bounds are JSON texts, nil if open. A bound with fewer components than the key stands
// for all keys with that prefix.
type Range struct {
	Low, High []string
	Inclusion string // both, low, high or neither
}

// Condition is a condition on one component of the key: equal to one of In or, without In, between Low and High.
type Condition struct {
	Component int
	In        []string
	Low, High string // JSON texts, "" when open
	Inclusion string
}

// Query is a scan (docs/scans.md).
type Query struct {
	Ranges   []Range // none: all rows
	Reverse  bool
	Distinct bool  // only the first of the rows with equal keys, or equal components of Project
	Project  []int // components of the key that rows contain; nil: all; empty: none
	Offset   int   // rows that are skipped
	Limit    int   // 0: none
	Where    []Condition
	// GroupBy requests groups instead of rows, see Groups; nil: rows.
	GroupBy    []int
	Aggregates []Aggregate
}

// Select returns the expected rows of a scan, given all rows of the index in index order.
func (def Index) Select(rows []Row, q Query) ([]Row, error) {
	var out []Row
	for i := range rows {
		row := rows[i]
		if q.Reverse {
			row = rows[len(rows)-1-i]
		}
		in, err := def.selects(q, row)
		if err != nil {
			return nil, err
		}
		if !in {
			continue
		}
		if q.Project != nil {
			row.Key = componentsOf(row, q.Project)
		}
		// rows with the same leading components are adjacent
		if n := len(out); q.Distinct && n > 0 && sameKey(out[n-1].Key, row.Key) {
			continue
		}
		out = append(out, row)
	}
	return page(q, out), nil
}

// selects reports whether a row is in one of the ranges and satisfies all conditions.
func (def Index) selects(q Query, row Row) (bool, error) {
	in := len(q.Ranges) == 0
	for _, r := range q.Ranges {
		hit, err := def.contains(row, r)
		if err != nil {
			return false, err
		}
		in = in || hit
	}
	for _, c := range q.Where {
		hit, err := c.holds(row.Key[c.Component])
		if err != nil {
			return false, err
		}
		in = in && hit
	}
	return in, nil
}

func componentsOf(r Row, components []int) []any {
	key := []any{}
	for _, c := range components {
		key = append(key, r.Key[c])
	}
	return key
}

// page returns the rows or groups between offset and limit.
func page[T any](q Query, all []T) []T {
	all = all[min(q.Offset, len(all)):]
	if q.Limit > 0 && len(all) > q.Limit {
		all = all[:q.Limit]
	}
	return all
}

// Count returns the expected count of a scan: its rows without limit and offset.
func (def Index) Count(rows []Row, q Query) (int, error) {
	q.Limit, q.Offset = 0, 0
	if q.Grouped() {
		groups, err := def.Groups(rows, q)
		return len(groups), err
	}
	all, err := def.Select(rows, q)
	return len(all), err
}

func sameKey(a, b []any) bool {
	return slices.EqualFunc(a, b, func(x, y any) bool { return collatetest.Compare(x, y) == 0 })
}

// contains reports whether a row is in a range. Bounds are in the order of values; if the index descends in the
// component in which they differ, the high bound comes first.
func (def Index) contains(row Row, r Range) (bool, error) {
	low, err := values(r.Low)
	if err != nil {
		return false, err
	}
	high, err := values(r.High)
	if err != nil {
		return false, err
	}
	withLow, withHigh := includes(r.Inclusion, "low"), includes(r.Inclusion, "high")
	at := 0
	for at < len(low) && at < len(high) && collatetest.Compare(low[at], high[at]) == 0 {
		at++
	}
	if (at < len(low) || at < len(high)) && def.Desc[at] {
		low, high, withLow, withHigh = high, low, withHigh, withLow
	}
	return (len(low) == 0 || within(def.against(row, low), withLow)) &&
		(len(high) == 0 || within(-def.against(row, high), withHigh)), nil
}

// includes reports whether an inclusion includes the bound "low" or "high".
func includes(inclusion, bound string) bool { return inclusion == "both" || inclusion == bound }

// within reports whether a position relative to a bound, above 0 on the inner side, is on the inner side or included.
func within(order int, included bool) bool { return order > 0 || order == 0 && included }

// holds reports whether a component's value satisfies the condition. Values compare in collation order, also in a
// descending index.
func (c Condition) holds(value any) (bool, error) {
	in, err := values(c.In)
	if err != nil {
		return false, err
	}
	if len(c.In) > 0 {
		return slices.ContainsFunc(in, func(v any) bool { return collatetest.Compare(value, v) == 0 }), nil
	}
	for _, b := range []struct {
		text string
		sign int
		with bool
	}{{c.Low, 1, includes(c.Inclusion, "low")}, {c.High, -1, includes(c.Inclusion, "high")}} {
		if b.text == "" {
			continue
		}
		bound, err := values([]string{b.text})
		if err != nil {
			return false, err
		}
		if !within(b.sign*collatetest.Compare(value, bound[0]), b.with) {
			return false, nil
		}
	}
	return true, nil
}

// against compares a row with a bound in index order: 0 for every key with that prefix.
func (def Index) against(row Row, bound []any) int {
	for i, b := range bound {
		c := collatetest.Compare(row.Key[i], b)
		if c != 0 && def.Desc[i] {
			c = -c
		}
		if c != 0 {
			return c
		}
	}
	return 0
}

func values(texts []string) (all []any, err error) {
	for _, text := range texts {
		v, ok := collatetest.Decode([]byte(text))
		if !ok {
			return nil, fmt.Errorf("bound %s is no JSON", text)
		}
		all = append(all, v)
	}
	return all, nil
}
