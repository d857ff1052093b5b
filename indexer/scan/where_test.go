package scan

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"tidemark/collate"
	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/scan/aggregate"
)

// TestWhereIsRefused: errors in a condition are reported with their place.
func TestWhereIsRefused(t *testing.T) {
	for body, want := range map[string]string{
		`{"where":[{"component":2,"equal":1}]}`:                         "where[0] has component 2: a key of this index has the components 0 to 1",
		`{"where":[{"component":-1,"equal":1}]}`:                        "where[0] has component -1",
		`{"where":[{"component":1,"equal":1},{"component":1,"low":1}]}`: "two conditions on component 1",
		`{"where":[{"component":1}]}`: "where[0]: want one of equal, " +
			"in, or low with high; 0 are given",
		`{"where":[{"component":1,"equal":1,"high":1}]}`:                                 "2 are given",
		`{"where":[{"component":1,"equal":1,"inclusion":"low"}]}`:                        "inclusion requires low and high",
		`{"where":[{"component":1,"low":1,"inclusion":"all"}]}`:                          `inclusion "all"`,
		`{"where":[{"component":1,"in":[` + many(MaxIn+1) + `]}]}`:                       "1025 values in in, want at most 1024",
		`{"where":[{"component":1,"equal":"` + strings.Repeat("x", MaxKeyBytes) + `"}]}`: "longer than",
		`{"where":[{"of":1}]}`: `unknown field "of"`,
	} {
		r, err := ParseRequest([]byte(body))
		if err == nil {
			_, err = r.Compile(definition(false, true))
		}
		if CodeOf(err) != errcode.BadRequest || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: %v, want %s", body, err, want)
		}
	}
}

func many(n int) string {
	return strings.TrimSuffix(strings.Repeat("1,", n), ",")
}

// TestNarrow: a condition on the first component narrows the ranges, and one that no value meets leaves no row.
func TestNarrow(t *testing.T) {
	for _, c := range []struct {
		body           string
		ranges, wheres int
	}{
		{`{"where":[{"component":0,"in":["a","b","a"]}]}`, 2, 0},
		{`{"where":[{"component":0,"in":["a","b"]},{"component":1,"low":1}]}`, 2, 1},
		{`{"equal":["a"],"where":[{"component":0,"in":["b","c"]}]}`, 0, 0},
		{`{"equal":["a",1],"where":[{"component":0,"high":"b"}]}`, 1, 0},
		{`{"ranges":[{"high":["b"]},{"low":["c"],"high":["d"]},{"low":["f"]}],"where":[{"component":0,"low":"a","high":"c"}]}`, 2, 0},
		{`{"where":[{"component":1,"low":2,"high":1}]}`, 0, 0},
		{`{"where":[{"component":1,"in":[]}]}`, 0, 0},
	} {
		r, err := ParseRequest([]byte(c.body))
		if err != nil {
			t.Fatal(err)
		}
		s, err := r.Compile(definition(false, true))
		if err != nil || len(s.Ranges) != c.ranges || len(s.Where) != c.wheres {
			t.Errorf("%s: %d ranges, %d filters, %v; want %d, %d", c.body, len(s.Ranges), len(s.Where), err, c.ranges, c.wheres)
		}
	}
}

// counted is a slice that counts the operations on it.
type counted struct {
	memSlice
	opened, read *int
}

func (s counted) Rows(ctx context.Context, low, high []byte, reverse bool) (Cursor, error) {
	*s.opened++
	c, err := s.memSlice.Rows(ctx, low, high, reverse)
	return countedCursor{c, s.read}, err
}

type countedCursor struct {
	Cursor
	read *int
}

func (c countedCursor) Next() bool { *c.read++; return c.Cursor.Next() }

// grid returns an index with that many values in each component, in all their combinations.
func grid(t testing.TB, desc []bool, counts ...int) (rows []Row) {
	t.Helper()
	keys := [][]byte{nil}
	for c, n := range counts {
		var longer [][]byte
		for _, k := range keys {
			for v := range n {
				key, err := collate.AppendComposite(bytes.Clone(k), [][]byte{fmt.Append(nil, v)}, desc[c:c+1])
				if err != nil {
					t.Fatal(err)
				}
				longer = append(longer, key)
			}
		}
		keys = longer
	}
	for i, k := range keys {
		rows = append(rows, Row{Key: k, DocID: fmt.Appendf(nil, "%05d", i)})
	}
	slices.SortFunc(rows, Row.Compare)
	return rows
}

// drain reads a source to its end.
func drain(t *rapid.T, s *sliceSource) (rows []string) {
	for {
		row, err := s.next()
		if errors.Is(err, io.EOF) {
			return rows
		}
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, fmt.Sprintf("%x|%s", row.Key, row.DocID))
	}
}

// TestWhereAgainstAll: an iteration with conditions returns what a check of each row does, in both directions,
// whatever the directions of the components, and reads few rows where long runs fail the conditions.
func TestWhereAgainstAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		desc := rapid.SliceOfN(rapid.Bool(), 3, 3).Draw(t, "desc")
		def := definition(desc...)
		rows := memSlice{rows: gridOf(t, desc, rapid.SampledFrom([][]int{{3, 4, 5}, {2, 3, 150}, {30, 2, 3}, {3, 100, 2}}).
			Draw(t, "counts"))}
		var r Request
		r.Reverse = rapid.Bool().Draw(t, "reverse")
		if rapid.Bool().Draw(t, "bounded") {
			r.Range = &Bounds{Low: []json.RawMessage{number(t)}, High: []json.RawMessage{number(t), number(t)}}
		}
		for n := range 3 {
			c := Condition{Component: n}
			switch rapid.IntRange(0, 4).Draw(t, "kind") {
			case 0:
				c.Equal = number(t)
			case 1:
				c.In = rapid.SliceOfN(rapid.Custom(number), 1, 4).Draw(t, "in")
			case 2:
				c.Low, c.High = number(t), number(t)
				c.Inclusion = rapid.SampledFrom([]Inclusion{Both, LowOnly, HiOnly, Neither}).Draw(t, "inclusion")
			case 3:
				c.Low = number(t)
			default:
				continue
			}
			r.Where = append(r.Where, c)
		}
		with, err := r.Compile(def)
		if err != nil {
			t.Fatal(err)
		}
		plain := r
		plain.Where = nil
		without, err := plain.Compile(def)
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for _, text := range drain(t, &sliceSource{ctx: context.Background(), slice: rows, ranges: without.Ranges,
			reverse: r.Reverse}) {
			if meets(t, text, desc, r.Where) {
				want = append(want, text)
			}
		}
		got := drain(t, &sliceSource{ctx: context.Background(), slice: rows, ranges: with.Ranges, reverse: r.Reverse,
			sieve: sieve{filters: with.Where, desc: desc, reverse: r.Reverse}})
		if !slices.Equal(got, want) {
			t.Fatalf("%+v\ngot  %v\nwant %v", r.Where, got, want)
		}
	})
}

func gridOf(t *rapid.T, desc []bool, counts []int) []Row {
	t.Helper()
	keep := rapid.IntRange(1, 3).Draw(t, "each")
	var rows []Row
	for i, r := range grid(new(testing.T), desc, counts...) {
		if i%keep == 0 {
			rows = append(rows, r)
		}
	}
	return rows
}

func number(t *rapid.T) json.RawMessage {
	return fmt.Append(nil, rapid.SampledFrom([]int{-1, 0, 1, 2, 3, 7, 50, 99, 149, 200}).Draw(t, "number"))
}

// meets checks a row's numbers, not its bytes.
func meets(t *rapid.T, row string, desc []bool, where []Condition) bool {
	var key []byte
	if _, err := fmt.Sscanf(strings.SplitN(row, "|", 2)[0], "%x", &key); err != nil {
		t.Fatal(err)
	}
	text, err := collate.DecodeComposite(nil, key, desc)
	if err != nil {
		t.Fatal(err)
	}
	var values []float64
	if err := json.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	for _, c := range where {
		v := values[c.Component]
		ok := c.Equal == nil && c.In == nil
		for _, one := range append(slices.Clone(c.In), c.Equal) {
			ok = ok || one != nil && float(t, one) == v
		}
		withLow, withHigh := c.Inclusion != HiOnly && c.Inclusion != Neither, c.Inclusion != LowOnly && c.Inclusion != Neither
		if c.Low != nil && (v < float(t, c.Low) || v == float(t, c.Low) && !withLow) ||
			c.High != nil && (v > float(t, c.High) || v == float(t, c.High) && !withHigh) {
			ok = false
		}
		if !ok {
			return false
		}
	}
	return true
}

func float(t *rapid.T, text []byte) (f float64) {
	if err := json.Unmarshal(text, &f); err != nil {
		t.Fatal(err)
	}
	return f
}

// TestWhereSkips: rows that cannot meet a condition are not read where many of them are consecutive.
func TestWhereSkips(t *testing.T) {
	rows := grid(t, []bool{false, false, false}, 10, 3, 1000)
	for _, c := range []struct {
		body  string
		given int
		most  int // rows read
	}{
		{`{"where":[{"component":2,"equal":700}]}`, 30, 30 * (2*stepsToFar + 6)},
		{`{"where":[{"component":1,"equal":1},{"component":2,"low":990}]}`, 100, 100 + 10*(4*stepsToFar+12)},
		{`{"where":[{"component":1,"equal":7}]}`, 0, 10 * (stepsToFar + 4)},
		{`{"equal":[5],"where":[{"component":2,"high":3,"inclusion":"low"}]}`, 9, 9 + 3*(stepsToFar+4)},
	} {
		for _, reverse := range []bool{false, true} {
			r, err := ParseRequest([]byte(c.body))
			if err != nil {
				t.Fatal(err)
			}
			s, err := r.Compile(definition(false, false, false))
			if err != nil {
				t.Fatal(err)
			}
			opened, read, given := 0, 0, 0
			src := &sliceSource{ctx: t.Context(), slice: counted{memSlice{rows: rows}, &opened, &read}, ranges: s.Ranges,
				reverse: reverse, sieve: sieve{filters: s.Where, desc: s.Desc, reverse: reverse}}
			for ; ; given++ {
				if _, err = src.next(); err != nil {
					break
				}
			}
			if !errors.Is(err, io.EOF) || given != c.given || read > c.most || opened > 1+read/stepsToFar {
				t.Errorf("%s, reverse %v: %v, %d rows, %d read by %d cursors; want %d rows, %d read at most", c.body, reverse, err,
					given, read, opened, c.given, c.most)
			}
		}
	}
}

// TestWhereInACluster: nodes leave rows out before they count them against the limit, and counts respect conditions.
func TestWhereInACluster(t *testing.T) {
	f := newCluster(3, 1, 2)
	f.view.Definition = *definition(false, false)
	for n := range f.rows {
		for s := range f.rows[n] {
			f.rows[n][s] = nil
		}
		for i, r := range grid(t, []bool{false, false}, 20, 10) {
			s := i % len(f.rows[n])
			f.rows[n][s] = append(f.rows[n][s], r)
		}
	}
	c := f.coordinator()
	var requests []NodeRequest
	f.request = func(r NodeRequest) { f.mu.Lock(); requests = append(requests, r); f.mu.Unlock() }
	spec, err := c.Prepare(5, Request{Limit: 3, Offset: 1, Where: []Condition{{Component: 1, In: []json.RawMessage{
		[]byte("4"), []byte("8")}}}})
	if err != nil {
		t.Fatal(err)
	}
	sink := &collect{}
	res, err := c.Scan(t.Context(), spec, sink)
	if err != nil || res.Rows != 3 || len(sink.rows) != 3 {
		t.Fatalf("%v, %d rows: %v", err, res.Rows, sink.rows)
	}
	for _, r := range requests {
		if len(r.Where) != 1 || len(r.Desc) != 2 || r.Limit != 4 {
			t.Errorf("a node got the request %+v", r)
		}
	}
	if res, err = c.Count(t.Context(), spec); err != nil || res.Rows != 40 {
		t.Errorf("%v, %d counted", err, res.Rows)
	}
}

// TestRequestsOfOtherNodesAreChecked: requests of other nodes are checked, so that none of their values is out of
// range.
func TestRequestsOfOtherNodesAreChecked(t *testing.T) {
	filters := func(f ...Filter) func(*NodeRequest) { return func(r *NodeRequest) { r.Where = f } }
	of := func(g Grouping) func(*NodeRequest) { return func(r *NodeRequest) { r.Groups = &g } }
	for name, change := range map[string]func(*NodeRequest){
		"a filter beyond the key":     filters(Filter{Component: 2}),
		"a filter before it":          filters(Filter{Component: -1}),
		"filters out of order":        filters(Filter{Component: 1}, Filter{Component: 0}),
		"a filter twice":              filters(Filter{}, Filter{}),
		"too many ranges of a filter": filters(Filter{Ranges: make([]Range, MaxIn+1)}),
		"rows of no component":        of(Grouping{Each: EachNone, Of: []Partial{{Op: aggregate.Rows, Component: 2}}}),
		"a sum of no component":       of(Grouping{Each: EachNone, Of: []Partial{{Op: aggregate.Sum, Component: 2}}}),
		"rows before the key":         of(Grouping{Each: EachNone, Of: []Partial{{Op: aggregate.Rows, Component: -1}}}),
		"no op":                       of(Grouping{Each: EachNone, Of: []Partial{{Op: "rowz"}}}),
		"groups by no component":      of(Grouping{By: []int{2}, Each: EachNone}),
		"values of no component":      of(Grouping{Each: 2}),
		"too many by":                 of(Grouping{By: []int{0, 1, 0}, Each: EachNone}),
		"too many aggregates": of(Grouping{Each: EachNone,
			Of: slices.Repeat([]Partial{{Op: aggregate.Rows}}, MaxAggregates+1)}),
		"no copies":           func(r *NodeRequest) { r.Copies = nil },
		"too many copies":     func(r *NodeRequest) { r.Copies = make([]index.CopyID, MaxCopies+1) },
		"too many ranges":     func(r *NodeRequest) { r.Ranges = make([]Range, MaxRanges+1) },
		"too distinct":        func(r *NodeRequest) { r.Distinct = 3 },
		"less than one row":   func(r *NodeRequest) { r.Limit = -1 },
		"a wait for ever":     func(r *NodeRequest) { r.WaitMS = math.MaxInt64 },
		"a wait of before":    func(r *NodeRequest) { r.WaitMS = -1 },
		"kept for ever":       func(r *NodeRequest) { r.KeepMS = math.MaxInt64 },
		"lasts for ever":      func(r *NodeRequest) { r.LastsMS = math.MaxInt64 },
		"too much is over":    func(r *NodeRequest) { r.Over = make([]Pages, maxOver+1) },
		"a user without end":  func(r *NodeRequest) { r.Pages = &Pages{For: strings.Repeat("u", maxUser+1)} },
		"groups and distinct": func(r *NodeRequest) { r.Groups, r.Distinct = &Grouping{Each: EachNone}, 1 },
	} {
		r := NodeRequest{Copies: []index.CopyID{1}, Desc: []bool{false, false}, LastsMS: 1}
		if err := r.check(); err != nil {
			t.Fatal(err)
		}
		change(&r)
		if err := r.check(); err == nil || CodeOf(err) != errcode.BadRequest {
			t.Errorf("%s: %v", name, err)
		}
	}
}
