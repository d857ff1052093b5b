package oracle

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"sort"
	"strconv"

	"pgregory.net/rapid"

	"tidemark/collate/collatetest"
)

// Aggregate is one aggregate of a scan of groups.
type Aggregate struct {
	Op        string // count, sum, avg, min, max or documents
	Component int    // below 0: none
	Distinct  bool
}

// Group is one group of a scan's expected result: the key components that its rows share, and its aggregates: nil, a
// *big.Int, a float64, or, for min and max, a value.
type Group struct {
	Key    []any
	Values []any
}

// Grouped reports whether the scan returns groups instead of rows.
func (q Query) Grouped() bool { return q.GroupBy != nil }

// Groups returns the expected groups of a scan, in key order. Limit and offset count groups.
func (def Index) Groups(rows []Row, q Query) ([]Group, error) {
	of := q
	of.Limit, of.Offset, of.Distinct, of.Project = 0, 0, false, nil
	selected, err := def.Select(rows, of)
	if err != nil {
		return nil, err
	}
	keyOf := func(r Row) []any { return componentsOf(r, q.GroupBy) }
	var members [][]Row
	for _, r := range selected {
		i := slices.IndexFunc(members, func(m []Row) bool { return sameKey(keyOf(m[0]), keyOf(r)) })
		if i < 0 {
			i, members = len(members), append(members, nil)
		}
		members[i] = append(members[i], r)
	}
	sort.Slice(members, func(a, b int) bool {
		x, y := keyOf(members[a][0]), keyOf(members[b][0])
		for i, c := range q.GroupBy {
			if n := collatetest.Compare(x[i], y[i]); n != 0 {
				return (n < 0) != (def.Desc[c] != q.Reverse)
			}
		}
		return false
	})
	if len(q.GroupBy) == 0 && members == nil {
		members = [][]Row{nil}
	}
	var groups []Group
	for _, m := range members {
		g := Group{}
		if len(m) > 0 {
			g.Key = keyOf(m[0])
		}
		for _, a := range q.Aggregates {
			g.Values = append(g.Values, a.of(m))
		}
		groups = append(groups, g)
	}
	return page(q, groups), nil
}

// of computes the aggregate over rows.
func (a Aggregate) of(rows []Row) any {
	if a.Op == "documents" {
		ids := map[string]bool{}
		for _, r := range rows {
			ids[r.ID] = true
		}
		return big.NewInt(int64(len(ids)))
	}
	if a.Component < 0 {
		return big.NewInt(int64(len(rows)))
	}
	var all []any
	for _, r := range rows {
		v := r.Key[a.Component]
		if v == nil || IsMissing(v) || a.Distinct && slices.ContainsFunc(all, func(o any) bool {
			return collatetest.Compare(o, v) == 0
		}) {
			continue
		}
		all = append(all, v)
	}
	switch {
	case a.Op == "count":
		return big.NewInt(int64(len(all)))
	case a.Op == "sum" || a.Op == "avg":
		return addUp(all, a.Op == "avg")
	case len(all) == 0:
		return nil
	case a.Op == "min":
		return slices.MinFunc(all, collatetest.Compare)
	}
	return slices.MaxFunc(all, collatetest.Compare)
}

// addUp adds numbers exactly, as fractions of any size; with mean set it divides by their number.
func addUp(values []any, mean bool) any {
	x, n, integers := new(big.Rat), int64(0), true
	for _, v := range values {
		text, ok := v.(json.Number)
		if !ok {
			continue
		}
		n++
		if i, err := strconv.ParseInt(string(text), 10, 64); err == nil {
			x.Add(x, new(big.Rat).SetInt64(i))
			continue
		}
		f, err := strconv.ParseFloat(string(text), 64)
		if errors.Is(err, strconv.ErrRange) {
			return nil
		}
		r := new(big.Rat).SetFloat64(f)
		integers = integers && r.IsInt() && r.Num().IsInt64()
		x.Add(x, r)
	}
	if n == 0 {
		return nil
	}
	if mean {
		x.Quo(x, new(big.Rat).SetInt64(n))
	}
	if integers && x.IsInt() {
		return x.Num()
	}
	f, _ := x.Float64()
	if math.IsInf(f, 0) {
		return nil
	}
	return f
}

// DiffGroups compares a scan's groups with the oracle's and describes the first difference, "" if they are equal.
func DiffGroups(want []Group, keys, values [][]json.RawMessage) string {
	if len(keys) != len(want) {
		return fmt.Sprintf("%d groups, want %d", len(keys), len(want))
	}
	for i, g := range want {
		if len(keys[i]) != len(g.Key) || len(values[i]) != len(g.Values) {
			return fmt.Sprintf("group %d: got %s %s, want %v %v", i, keys[i], values[i], g.Key, g.Values)
		}
		for k, raw := range keys[i] {
			if !sameValue(raw, g.Key[k]) {
				return fmt.Sprintf("group %d: component %d is %s, want %v", i, k, raw, g.Key[k])
			}
		}
		for k, raw := range values[i] {
			if !sameValue(raw, g.Values[k]) {
				return fmt.Sprintf("group %d (%s): value %d is %s, want %v", i, keys[i], k, raw, g.Values[k])
			}
		}
	}
	return ""
}

func sameValue(raw json.RawMessage, want any) bool {
	switch want := want.(type) {
	case *big.Int:
		return string(raw) == want.String()
	case float64:
		f, err := strconv.ParseFloat(string(raw), 64)
		return err == nil && f == want
	}
	if IsMissing(want) { // JSON has no MISSING
		want = nil
	}
	v, ok := decode(raw)
	return ok && collatetest.Compare(v, want) == 0
}

// grouping draws the grouping of a scan.
func (def Index) grouping(t *rapid.T, q *Query) {
	q.Project, q.Distinct = nil, false
	all := rapid.Permutation(numbers(len(def.Desc))).Draw(t, "group by")
	if rapid.Bool().Draw(t, "leading") {
		slices.Sort(all)
	}
	q.GroupBy = all[:rapid.IntRange(0, len(all)).Draw(t, "components")]
	each := rapid.IntRange(0, len(def.Desc)).Draw(t, "of different values")
	for range rapid.IntRange(0, 5).Draw(t, "aggregates") {
		a := Aggregate{Op: rapid.SampledFrom([]string{"count", "sum", "avg", "min", "max"}).Draw(t, "op"),
			Component: rapid.IntRange(0, len(def.Desc)-1).Draw(t, "of")}
		switch rapid.IntRange(0, 4).Draw(t, "kind") {
		case 0:
			a = Aggregate{Op: "count", Component: -1}
		case 1, 2: // all over the same components, and so are documents
			if a.Distinct = each < len(def.Desc); a.Distinct {
				a.Component = each
			} else {
				a = Aggregate{Op: "documents", Component: -1}
			}
		}
		q.Aggregates = append(q.Aggregates, a)
	}
	if len(q.GroupBy) == 0 && len(q.Aggregates) == 0 {
		q.Aggregates = []Aggregate{{Op: "count", Component: -1}}
	}
}

// groupsBody adds the grouping to a request.
func (q Query) groupsBody(body map[string]any) {
	if !q.Grouped() {
		return
	}
	body["group_by"] = q.GroupBy
	all := []map[string]any{}
	for _, a := range q.Aggregates {
		one := map[string]any{"op": a.Op}
		if a.Component >= 0 {
			one["component"] = a.Component
		}
		if a.Distinct {
			one["distinct"] = true
		}
		all = append(all, one)
	}
	body["aggregates"] = all
}
