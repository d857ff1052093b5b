package oracle

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"pgregory.net/rapid"

	"tidemark/collate/collatetest"
	"tidemark/expression"
)

// expressions are the expressions of random indexes' keys, in addition to the examples of all functions.
var expressions = []string{"a", "b", "c", "a.x", "b[0]", "b[-1].a", "s", "n", "items[0].sku", "tags", "d", "META().id",
	"{\"x\": a, \"y\": b}", "[a, c]",
	"n + 1", "a || s", "a = b", "n BETWEEN 1 AND c", "s LIKE \"a%\"", "CASE WHEN n > 3 THEN a ELSE b END", "LOWER(s)",
	"TYPE(a)", "ARRAY_LENGTH(tags)",
	"ANY v IN tags SATISFIES v = a END", "FIRST v.sku FOR v IN items WHEN v.qty < 2 END"}

// arrays are expressions with several entries per document.
var arrays = []string{"ALL tags", "DISTINCT tags", "ALL ARRAY t FOR t IN tags WHEN t != 1 END",
	"DISTINCT ARRAY i.sku FOR i IN items END", "DISTINCT b",
	"ALL ARRAY TYPE(t) FOR t IN tags END", "DISTINCT OBJECT_NAMES(a)", "DISTINCT SPLIT(s, \" \")"}

var predicates = []string{"c IS NOT MISSING", "a != 2", "b > 0 OR a IS NULL", "NOT (a < b)",
	"TYPE(a) = \"string\" OR n IS NOT VALUED", "ANY v IN tags SATISFIES v IS NOT NULL END",
	"s NOT LIKE \"%a_\"", "META().id > \"e\"", "n IN [1, 2.5, 7, null]"}

// constants ascend in collation order. Range slices have their boundaries among them, and documents have values
// between them.
var constants = []string{"null", "false", "true", "-1e308", "-7", "0", "5e-324", "1", "2.5", "3", "9007199254740992",
	"9007199254740993", "1.7976931348623157e308",
	`""`, `"A"`, `"a\u0000"`, `"b"`, `"ü"`, `"😀"`, `[]`, `[1]`, `[1,null]`, `{}`, `{"x":1}`, `{"x":1,"y":[]}`}

// keyable returns the expressions that may be keys: those above and every example of a function that depends on the
// document.
func keyable() (all []string) {
	for _, f := range expression.Functions() {
		all = append(all, f.Example.Expr)
	}
	return slices.DeleteFunc(slices.Concat(all, expressions, expressions), func(x string) bool {
		_, err := expression.Parse("CREATE INDEX i ON b(" + x + ")")
		return err != nil
	})
}

// Scheme is a partitioning scheme of random indexes.
type Scheme int

// The schemes of random indexes.
const (
	ByID Scheme = iota
	ByHash
	ByRange
	Schemes // number of schemes
)

// Statements generates statements that create one random index each, equal except for the partitioning: name_0 by
// document id, name_1 by a hash of components, name_2 by ranges. exprs are the expressions of the keys; none: every
// construct and function over documents of Documents. ranges are the boundaries between slices, ascending.
func Statements(bucket, name string, exprs, where, ranges []string) *rapid.Generator[[Schemes]string] {
	single, several := exprs, []string(nil)
	if exprs == nil {
		single, several, where, ranges = keyable(), arrays, append([]string{"", "", ""}, predicates...), constants
	}
	return rapid.Custom(func(t *rapid.T) [Schemes]string {
		keys := rapid.SliceOfNDistinct(rapid.SampledFrom(single), 1, 4, rapid.ID).Draw(t, "keys")
		if several != nil && rapid.IntRange(0, 2).Draw(t, "array") == 0 {
			keys[rapid.IntRange(0, len(keys)-1).Draw(t, "at")] = rapid.SampledFrom(several).Draw(t, "array key")
		}
		parts := make([]string, len(keys))
		for i, k := range keys {
			parts[i] = k + rapid.SampledFrom([]string{"", " DESC"}).Draw(t, "direction")
		}
		hashed := rapid.SliceOfNDistinct(rapid.SampledFrom(keys), 1, len(keys), rapid.ID).Draw(t, "hashed")
		bounds := rapid.SliceOfNDistinct(rapid.IntRange(0, len(ranges)-1), 1, min(8, len(ranges)), rapid.ID).Draw(t, "bounds")
		slices.Sort(bounds)
		values := make([]string, len(bounds))
		for i, b := range bounds {
			values[i] = ranges[b]
		}
		if w := rapid.SampledFrom(where).Draw(t, "where"); w != "" {
			where := " WHERE " + w
			return statements(t, bucket, name, parts, hashed, keys[0], values, where)
		}
		return statements(t, bucket, name, parts, hashed, keys[0], values, "")
	})
}

func statements(t *rapid.T, bucket, name string, parts, hashed []string, leading string, values []string,
	where string) (all [Schemes]string) {
	replicas := rapid.IntRange(0, 1).Draw(t, "replicas")
	for i, by := range []string{"", " PARTITION BY HASH(" + strings.Join(hashed, ", ") + ")", " PARTITION BY RANGE(" +
		leading + ") VALUES (" + strings.Join(values, ", ") + ")"} {
		with := fmt.Sprintf(` WITH {"num_replica": %d`, replicas)
		if Scheme(i) != ByRange {
			with += fmt.Sprintf(`, "num_partition": %d`, rapid.IntRange(1, 7).Draw(t, "slices"))
		}
		all[i] = fmt.Sprintf("CREATE INDEX %s_%d ON %s(%s)%s%s%s}", name, i, bucket, strings.Join(parts, ", "), by, where,
			with)
	}
	return all
}

// Documents generates documents of all shapes: mostly objects with the members that random indexes use, with values
// of every type, every character and number, sometimes deeply nested or with duplicate members; also other values,
// and texts that are not JSON.
func Documents() *rapid.Generator[[]byte] {
	value := rapid.OneOf(rapid.SampledFrom(constants), rapid.SampledFrom(constants), collatetest.ValueText(2), nested())
	list := rapid.Map(rapid.SliceOfN(value, 0, 5), func(all []string) string { return "[" + strings.Join(all, ",") + "]" })
	item := rapid.Map(value, func(v string) string { return `{"sku": ` + v + `, "qty": 1}` })
	items := rapid.Map(rapid.SliceOfN(rapid.OneOf(item, value), 0, 3), func(all []string) string {
		return "[" +
			strings.Join(all, ",") + "]"
	})
	text := rapid.OneOf(collatetest.StringText(),
		rapid.SampledFrom([]string{`"aß c"`, `"2024-02-29T23:59:59.987-05:00"`, `"a,b c"`, `"7"`}))
	members := map[string]*rapid.Generator[string]{"a": value, "b": rapid.OneOf(value, list), "c": value,
		"s":     rapid.OneOf(text, text, value),
		"n":     rapid.OneOf(collatetest.NumberText(), rapid.SampledFrom([]string{"7", "0", "2.5", "1e400"}), value),
		"tags":  rapid.OneOf(list, list, list, value),
		"items": rapid.OneOf(items, items, value), "d": collatetest.ValueText(4), "none": rapid.Just("null")}
	names := []string{"a", "b", "c", "s", "n", "tags", "items", "d", "none", "a"}
	return rapid.Custom(func(t *rapid.T) []byte {
		switch rapid.IntRange(0, 30).Draw(t, "shape") {
		case 0:
			return []byte(collatetest.ValueText(3).Draw(t, "value"))
		case 1:
			return rapid.SampledFrom([][]byte{{}, []byte("{"), []byte("no JSON"), []byte(`{"a":1}{}`), {0xff, 0},
				[]byte(`{"a":01}`), []byte(" ")}).Draw(t, "no JSON")
		}
		var all []string
		for _, n := range names {
			if rapid.IntRange(0, 5).Draw(t, "there") > 0 {
				all = append(all, `"`+n+`": `+members[n].Draw(t, n))
			}
		}
		return []byte("{" + strings.Join(all, ", ") + "}")
	})
}

// nested generates a value deep inside arrays and objects, some deeper than an index accepts.
func nested() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		depth := rapid.SampledFrom([]int{3, 8, 30, 63, 64, 65, 100}).Draw(t, "depth")
		x := rapid.SampledFrom(constants).Draw(t, "inside")
		for i := range depth {
			if i%2 == 0 {
				x = "[" + x + "]"
			} else {
				x = `{"x":` + x + "}"
			}
		}
		return x
	})
}

// Scans generates scans of an index with these rows: bounds that are keys of rows, prefixes of them, and other
// values; with all inclusions, several ranges, inverted ranges, and every combination of the other options.
func (def Index) Scans(rows []Row) *rapid.Generator[Query] {
	return rapid.Custom(func(t *rapid.T) Query {
		q := Query{Reverse: rapid.Bool().Draw(t, "reverse")}
		q.Ranges = def.ranges(t, rows)
		if rapid.Bool().Draw(t, "projected") {
			all := rapid.Permutation(numbers(len(def.Desc))).Draw(t, "project")
			q.Project = all[:rapid.IntRange(0, len(all)).Draw(t, "components")]
		}
		leading := q.Project == nil || len(q.Project) > 0
		for i, p := range q.Project {
			leading = leading && i == p
		}
		q.Distinct = leading && rapid.Bool().Draw(t, "distinct")
		if rapid.IntRange(0, 2).Draw(t, "where") == 0 {
			q.Where = def.conditions(t, rows)
		}
		if rapid.Bool().Draw(t, "some") {
			q.Limit = rapid.SampledFrom([]int{1, 2, 3, 10, 1000}).Draw(t, "limit")
		}
		if rapid.Bool().Draw(t, "later") {
			q.Offset = rapid.SampledFrom([]int{1, 2, 5, 30, 1000}).Draw(t, "offset")
		}
		if rapid.IntRange(0, 2).Draw(t, "grouped") == 0 {
			def.grouping(t, &q)
		}
		return q
	})
}

func (def Index) ranges(t *rapid.T, rows []Row) (all []Range) {
	ranges := 1
	switch rapid.IntRange(0, 5).Draw(t, "ranges") {
	case 0:
		return nil
	case 1, 2:
		ranges = rapid.IntRange(2, 6).Draw(t, "of several")
	case 3:
		at := def.bound(t, rows)
		return []Range{{Low: at, High: at, Inclusion: "both"}}
	}
	for range ranges {
		r := Range{Inclusion: inclusion.Draw(t, "inclusion")}
		if rapid.IntRange(0, 4).Draw(t, "from") > 0 {
			r.Low = def.bound(t, rows)
		}
		if rapid.IntRange(0, 4).Draw(t, "to") > 0 {
			r.High = def.bound(t, rows)
		}
		all = append(all, r)
	}
	return all
}

var inclusion = rapid.SampledFrom([]string{"both", "low", "high", "neither"})

// conditions draws conditions on some components, with values that rows have there and others.
func (def Index) conditions(t *rapid.T, rows []Row) (all []Condition) {
	for n := range def.Desc {
		if rapid.Bool().Draw(t, "conditioned") {
			continue
		}
		c := Condition{Component: n}
		switch rapid.IntRange(0, 2).Draw(t, "kind") {
		case 0:
			for range rapid.IntRange(1, 3).Draw(t, "of values") {
				c.In = append(c.In, value(t, rows, n))
			}
		case 1:
			c.Low = value(t, rows, n)
		default:
			c.High = value(t, rows, n)
			if rapid.Bool().Draw(t, "from") {
				c.Low = value(t, rows, n)
			}
		}
		if c.In == nil {
			c.Inclusion = inclusion.Draw(t, "inclusion")
		}
		all = append(all, c)
	}
	return all
}

// value returns a value that a row has in a component, if JSON can express it, or another one.
func value(t *rapid.T, rows []Row, component int) string {
	if len(rows) > 0 && rapid.IntRange(0, 3).Draw(t, "other") > 0 {
		v := rapid.SampledFrom(rows).Draw(t, "row").Key[component]
		if b, err := json.Marshal(v); err == nil && !IsMissing(v) {
			return string(b)
		}
	}
	return rapid.OneOf(rapid.SampledFrom(constants), collatetest.ValueText(2)).Draw(t, "value")
}

func numbers(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
}

// bound returns leading components of a row's key, as many as JSON can express, sometimes with another last one.
func (def Index) bound(t *rapid.T, rows []Row) []string {
	var texts []string
	if len(rows) > 0 {
		key := rapid.SampledFrom(rows).Draw(t, "row").Key
		for _, v := range key[:rapid.IntRange(1, len(key)).Draw(t, "components")] {
			b, err := json.Marshal(v)
			if err != nil || IsMissing(v) {
				break
			}
			texts = append(texts, string(b))
		}
	}
	other := rapid.OneOf(rapid.SampledFrom(constants), collatetest.ValueText(2))
	switch {
	case len(texts) == 0:
		texts = []string{other.Draw(t, "value")}
	case rapid.IntRange(0, 3).Draw(t, "other") == 0:
		texts[len(texts)-1] = other.Draw(t, "value")
	}
	return texts
}

// Body returns the request of the scan (docs/scans.md).
func (q Query) Body() ([]byte, error) {
	body := map[string]any{}
	for name, v := range map[string]int{"limit": q.Limit, "offset": q.Offset} {
		if v != 0 {
			body[name] = v
		}
	}
	for name, v := range map[string]bool{"reverse": q.Reverse, "distinct": q.Distinct} {
		if v {
			body[name] = v
		}
	}
	if q.Project != nil {
		body["project"] = q.Project
	}
	var where []map[string]any
	for _, c := range q.Where {
		where = append(where, c.body())
	}
	if where != nil {
		body["where"] = where
	}
	q.rangesBody(body)
	q.groupsBody(body)
	return json.Marshal(body)
}

// rangesBody adds the ranges to a request.
func (q Query) rangesBody(body map[string]any) {
	type bounds struct {
		Low       []json.RawMessage `json:"low,omitempty"`
		High      []json.RawMessage `json:"high,omitempty"`
		Inclusion string            `json:"inclusion,omitempty"`
	}
	var ranges []bounds
	for _, r := range q.Ranges {
		ranges = append(ranges, bounds{raw(r.Low), raw(r.High), r.Inclusion})
	}
	switch r := q.Ranges; {
	case len(r) > 1:
		body["ranges"] = ranges
	case len(r) == 1 && r[0].Inclusion == "both" && len(r[0].Low) > 0 && slices.Equal(r[0].Low, r[0].High):
		body["equal"] = ranges[0].Low
	case len(r) == 1:
		body["range"] = ranges[0]
	}
}

// body returns the condition as it is in a request.
func (c Condition) body() map[string]any {
	body := map[string]any{"component": c.Component}
	for name, text := range map[string]string{"low": c.Low, "high": c.High} {
		if text != "" {
			body[name] = json.RawMessage(text)
		}
	}
	if c.Inclusion != "" {
		body["inclusion"] = c.Inclusion
	}
	switch {
	case len(c.In) == 1:
		body["equal"] = json.RawMessage(c.In[0])
	case len(c.In) > 1:
		body["in"] = raw(c.In)
	}
	return body
}

func raw(texts []string) (all []json.RawMessage) {
	for _, s := range texts {
		all = append(all, json.RawMessage(s))
	}
	return all
}
