package scan

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"tidemark/collate"
	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/scan/aggregate"
)

// TestGroupsAreRefused: errors in groups are reported with their place.
func TestGroupsAreRefused(t *testing.T) {
	for body, want := range map[string]string{
		`{"group_by":[2]}`:                                  "group_by[0] is 2: a key of this index has the components 0 to 1",
		`{"group_by":[-1]}`:                                 "group_by[0] is -1",
		`{"group_by":[1,1]}`:                                "group_by names component 1 twice",
		`{"group_by":[]}`:                                   "neither group_by nor aggregates is given",
		`{"aggregates":[{}]}`:                               `aggregates[0]: op "": want count, sum, avg, min, max or documents`,
		`{"aggregates":[{"op":"rows"}]}`:                    `op "rows"`,
		`{"aggregates":[{"op":"count"},{"op":"sum"}]}`:      "aggregates[1]: sum needs a component",
		`{"aggregates":[{"op":"count","distinct":true}]}`:   "count distinct needs a component",
		`{"aggregates":[{"op":"sum","component":5}]}`:       "aggregates[0].component is 5",
		`{"aggregates":[{"op":"documents","component":0}]}`: "documents accepts neither component nor distinct",
		`{"aggregates":[{"op":"count","component":0,"distinct":true},{"op":"sum","component":1,"distinct":true}]}`: "distinct values of component 1, and an earlier one over those of component 0",
		`{"aggregates":[` + strings.TrimSuffix(strings.Repeat(`{"op":"count"},`, MaxAggregates+1), ",") + `]}`: "33 " +
			"aggregates, want at most 32",
		`{"group_by":[0],"distinct":true}`:           "distinct and project apply to rows",
		`{"group_by":[0],"project":[0]}`:             "distinct and project apply to rows",
		`{"group_by":[0],"stability":"none"}`:        "omit stability none",
		`{"aggregates":[{"op":"count","of":1}]}`:     `unknown field "of"`,
		`{"aggregates":[{"op":"count","op":"max"}]}`: `field "aggregates[0].op" occurs twice`,
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

// TestDocumentsOfRows: documents are distinguished by their ids only if one may have several rows in a group.
func TestDocumentsOfRows(t *testing.T) {
	array := definition(false, false)
	array.Keys[1].Expr = "DISTINCT tags"
	for _, c := range []struct {
		def  *index.Definition
		by   []int
		each int
	}{
		{definition(false, false), []int{0}, EachNone}, {array, []int{0}, EachDocument}, {array, nil, EachDocument},
		{array, []int{1, 0}, EachNone},
	} {
		r := Request{GroupBy: c.by, Aggregates: []Aggregate{{Op: Documents}}}
		s, err := r.Compile(c.def)
		if err != nil || s.Groups.Each != c.each {
			t.Errorf("%s by %v: %+v, %v", c.def.Keys[1].Expr, c.by, s.Groups, err)
		}
	}
}

// TestOrderOfCells: how far groups follow the order of rows, so that they need no memory and a scan can continue
// behind them.
func TestOrderOfCells(t *testing.T) {
	const components = 4
	for _, c := range []struct {
		by          []int
		each, fixed int
		lead        int
		whole       bool
	}{
		{nil, EachNone, 0, 0, true},
		{[]int{0}, EachNone, 0, 1, true},
		{[]int{0, 1}, EachNone, 0, 2, true},
		{[]int{1}, EachNone, 0, 0, false},
		{[]int{0, 2}, EachNone, 0, 1, false},
		{[]int{1, 0}, EachNone, 0, 0, false},
		{[]int{0}, 1, 0, 2, true},
		{[]int{0}, 0, 0, 1, true},
		{[]int{0}, 2, 0, 1, false},
		{[]int{0}, EachDocument, 0, 1, false},
		{[]int{0, 1, 2, 3}, EachDocument, 0, 4, false},
		{[]int{1}, EachNone, 1, 2, true}, // the first component is equal in all rows
		{[]int{1, 0}, EachNone, 1, 2, true},
		{[]int{2}, EachNone, 1, 1, false},
		{[]int{2}, 3, 2, 4, true},
		{[]int{0}, EachNone, 3, 3, true},
	} {
		g := Grouping{By: c.by, Each: c.each}
		lead, whole := g.order(components, c.fixed)
		if lead != c.lead || whole != c.whole {
			t.Errorf("by %v, each %d, %d fixed: lead %d, whole %v; want %d, %v", c.by, c.each, c.fixed, lead, whole, c.lead,
				c.whole)
		}
	}
}

// TestFixedParts: components that all rows of the ranges share.
func TestFixedParts(t *testing.T) {
	for body, want := range map[string]int{
		`{}`: 0, `{"equal":[1]}`: 1, `{"equal":[1,2]}`: 2, `{"range":{"low":[1,2],"high":[1,5]}}`: 1,
		`{"range":{"low":[1],"high":[2]}}`: 0, `{"range":{"low":[1,2]}}`: 0,
		`{"ranges":[{"low":[1,2],"high":[1,2]},{"low":[1,4],"high":[1,9],"inclusion":"neither"}]}`: 1,
		`{"ranges":[{"low":[1,2],"high":[1,2]},{"low":[2,4],"high":[2,9]}]}`:                       0,
		`{"where":[{"component":0,"equal":7}]}`:                                                    1,
	} {
		for _, desc := range [][]bool{{false, false}, {true, false}, {false, true}, {true, true}} {
			r, err := ParseRequest([]byte(body))
			if err != nil {
				t.Fatal(err)
			}
			s, err := r.Compile(definition(desc...))
			if got := len(fixedParts(s.Ranges, desc)); err != nil || got != want {
				t.Errorf("%s, %v: %d, %v, want %d", body, desc, got, err, want)
			}
		}
	}
}

// grouped returns the result of a scan as JSON: keys and values.
func grouped(t *rapid.T, c *Coordinator, spec Spec) (lines []string, err error) {
	var out bytes.Buffer
	enc := NewEncoder(&out, nil, nil, spec)
	_, err = c.Scan(context.Background(), spec, enc)
	_ = enc.write() // into memory
	for line := range strings.Lines(out.String()) {
		var group struct{ Key, Values json.RawMessage }
		if err := json.Unmarshal([]byte(line), &group); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, string(group.Key)+string(group.Values))
	}
	return lines, err
}

// TestGroupsModel: groups by any components, with nodes that fail in the middle, are those of all rows at once.
func TestGroupsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		desc := []bool{rapid.Bool().Draw(t, "first descends"), rapid.Bool().Draw(t, "second descends")}
		f := newCluster(rapid.IntRange(1, 4).Draw(t, "partitions"), 2, 3)
		var all []Row
		for s, rows := range f.rows[5] {
			for i, r := range rows {
				key, err := collate.AppendComposite(nil, [][]byte{fmt.Append(nil, rapid.IntRange(0, 3).Draw(t, "a")),
					fmt.Append(nil, rapid.IntRange(0, 30).Draw(t, "b"))}, desc)
				if err != nil {
					t.Fatal(err)
				}
				f.rows[5][s][i] = Row{key, r.DocID}
			}
			slices.SortFunc(f.rows[5][s], Row.Compare)
			all = append(all, f.rows[5][s]...)
		}
		bad, at := index.NodeID(rapid.IntRange(0, 3).Draw(t, "bad node")), rapid.IntRange(-2, 500).Draw(t, "cut")
		f.broken = func(n index.NodeID) int { // each slice has a copy on another node
			if n == bad {
				return at
			}
			return -1
		}
		one := 1
		request := Request{Consistency: Any, Limit: rapid.SampledFrom([]int64{0, 1, 3, 100}).Draw(t, "limit"),
			Offset: rapid.SampledFrom([]int64{0, 1, 5}).Draw(t, "offset"), Reverse: rapid.Bool().Draw(t, "reverse"),
			GroupBy: rapid.SampledFrom([][]int{{}, {0}, {0, 1}, {1}, {1, 0}}).Draw(t, "by"),
			Aggregates: []Aggregate{{Op: "count"}, {Op: "sum", Component: &one},
				{Op: "count", Component: &one, Distinct: rapid.Bool().Draw(t, "distinct")}}}
		f.view.Definition = *definition(desc...)
		spec, err := request.Compile(&f.view.Definition)
		if err != nil {
			t.Fatal(err)
		}
		got, err := grouped(t, f.coordinator(), spec)
		if want := plainGroups(all, request, desc); err != nil || !slices.Equal(got, want) {
			t.Fatalf("%v %+v\n got %q\nwant %q", err, request, got, want)
		}
	})
}

// plainGroups applies the request to all rows: count, sum, and count of the second component.
func plainGroups(all []Row, r Request, desc []bool) (lines []string) {
	type group struct {
		key     []int
		n, sum  int
		numbers []int
	}
	var groups []*group
	for _, row := range all {
		text, err := collate.DecodeComposite(nil, row.Key, desc)
		var parts []int
		if err = errors.Join(err, json.Unmarshal(text, &parts)); err != nil {
			panic(err)
		}
		var key []int
		for _, c := range r.GroupBy {
			key = append(key, parts[c])
		}
		i := slices.IndexFunc(groups, func(g *group) bool { return slices.Equal(g.key, key) })
		if i < 0 {
			i, groups = len(groups), append(groups, &group{key: key})
		}
		g := groups[i]
		g.n, g.sum = g.n+1, g.sum+parts[1]
		if !r.Aggregates[2].Distinct || !slices.Contains(g.numbers, parts[1]) {
			g.numbers = append(g.numbers, parts[1])
		}
	}
	slices.SortFunc(groups, func(a, b *group) int {
		for i, c := range r.GroupBy {
			if d := a.key[i] - b.key[i]; d != 0 {
				if desc[c] != r.Reverse {
					return -d
				}
				return d
			}
		}
		return 0
	})
	for _, g := range groups {
		key, _ := json.Marshal(append([]int{}, g.key...))
		lines = append(lines, fmt.Sprintf("%s[%d,%d,%d]", key, g.n, g.sum, len(g.numbers)))
	}
	lines = lines[min(int(r.Offset), len(lines)):]
	if r.Limit > 0 {
		lines = lines[:min(int(r.Limit), len(lines))]
	}
	return lines
}

// cellsOf makes the cells of rows by their second component, with that many bytes for a table, and reads them.
func cellsOf(t testing.TB, rows []Row, req NodeRequest, bytes int64) (keys []string, c *cells, err error) {
	t.Helper()
	ranges := req.Ranges
	one := newCells(sliceSource{ctx: context.Background(), slice: memSlice{rows: rows}, ranges: ranges,
		reverse: req.Reverse}, &req, 1)
	c = &one
	c.table.allowed, c.table.most = bytes, bytes
	for {
		row, err := c.next()
		if errors.Is(err, io.EOF) {
			return keys, c, nil
		}
		if err != nil {
			return keys, c, err
		}
		a := aggregate.Acc{Op: aggregate.Rows}
		if _, err := a.Join(row.DocID); err != nil {
			t.Fatal(err)
		}
		n, _ := a.AppendResult(nil)
		keys = append(keys, fmt.Sprintf("%x:%s", row.Key, n))
	}
}

// TestTablesOfAnySize: cells that are not in the order of rows are the same, however many fit at once.
func TestTablesOfAnySize(t *testing.T) {
	desc := []bool{false, true, false}
	rows := grid(t, desc, 3, 40, 2)
	for _, by := range [][]int{{1}, {0, 2}, {2, 1}} {
		for _, reverse := range []bool{false, true} {
			req := NodeRequest{Ranges: []Range{{}}, Desc: desc, Reverse: reverse,
				Groups: &Grouping{By: by, Each: EachNone, Of: []Partial{{Op: aggregate.Rows}}}}
			want, _, err := cellsOf(t, rows, req, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			sorted := slices.Clone(want)
			if slices.Sort(sorted); reverse {
				slices.Reverse(sorted)
			}
			if !slices.Equal(want, sorted) || len(slices.Compact(sorted)) != len(want) {
				t.Errorf("by %v, reverse %v: %q", by, reverse, want)
			}
			for _, size := range []int64{1000, 3000, 10_000} { // some cells at a time
				got, _, err := cellsOf(t, rows, req, size)
				if by[0] == 2 && size == 1000 { // 80 of them take more passes than allowed
					if CodeOf(err) != errcode.LimitExceeded || !strings.Contains(err.Error(), "more groups than 32 passes") ||
						!slices.Equal(got, want[:len(got)]) {
						t.Errorf("by %v, %d bytes: %v behind %d", by, size, err, len(got))
					}
				} else if err != nil || !slices.Equal(got, want) {
					t.Errorf("by %v, reverse %v, %d bytes: %v\n got %q\nwant %q", by, reverse, size, err, got, want)
				}
			}
		}
	}
}

// TestGroupMemoryIsReleased: the memory of all scans together is bounded, a scan that gets no more returns BUSY, and
// its memory becomes available to others.
func TestGroupMemoryIsReleased(t *testing.T) {
	desc := []bool{false, false}
	rows := grid(t, desc, 1, 3000)
	req := NodeRequest{Ranges: []Range{{}}, Desc: desc,
		Groups: &Grouping{By: []int{1}, Each: EachNone, Of: []Partial{{Op: aggregate.Rows}}}}
	read := func(most int64) (n int, c *cells, err error) {
		one := newCells(sliceSource{ctx: context.Background(), slice: memSlice{rows: rows}, ranges: req.Ranges}, &req, 1)
		c = &one
		if one.table.most = most; most == tableFree {
			one.table.allowed = 2000
		}
		for {
			if _, err = c.next(); err != nil {
				return n, c, err
			}
			n++
		}
	}
	n, c, err := read(tableMost)
	if !errors.Is(err, io.EOF) || n != 3000 || c.table.taken < tableStep || c.table.taken != tables.used.Load() {
		t.Errorf("%d cells, %d bytes taken of %d: %v", n, c.table.taken, tables.used.Load(), err)
	}
	if err := c.close(); err != nil || tables.used.Load() != 0 {
		t.Errorf("%d bytes are kept, %v", tables.used.Load(), err)
	}
	if !tables.take(MaxTables) {
		t.Fatal("there is no room")
	}
	defer tables.give(MaxTables)
	n, c, err = read(tableMost) // in as many passes as the free part needs
	if c.close(); !errors.Is(err, io.EOF) || n != 3000 || c.table.taken != 0 || !c.table.refused {
		t.Errorf("%d cells, %d bytes taken: %v", n, c.table.taken, err)
	}
	rows = grid(t, desc, 1, 10_000)
	if n, c, err = read(tableMost); CodeOf(err) != errcode.Busy || n == 0 {
		t.Errorf("%d cells: %v", n, err)
	}
	c.close()
}

// TestGroupsReadOnlyNeededRows: groups in the order of rows cost only the rows of the wanted groups, also behind
// others.
func TestGroupsReadOnlyNeededRows(t *testing.T) {
	desc := []bool{false, false}
	rows := grid(t, desc, 100, 50)
	for _, reverse := range []bool{false, true} {
		var opened, read int
		req := NodeRequest{Ranges: []Range{{}}, Desc: desc, Reverse: reverse, After: &Row{Key: collate.AppendInt64(nil, 60)},
			Groups: &Grouping{By: []int{0}, Each: EachNone}}
		ranges, err := req.Groups.behind(req.Ranges, req.After.Key, desc, reverse)
		if err != nil {
			t.Fatal(err)
		}
		c := newCells(sliceSource{ctx: context.Background(), slice: counted{memSlice{rows: rows}, &opened, &read},
			ranges: ranges, reverse: reverse}, &req, 1)
		for i := range 2 {
			row, err := c.next()
			next := int64(61 + i)
			if reverse {
				next = int64(59 - i)
			}
			if want := collate.AppendInt64(nil, next); err != nil || !bytes.Equal(row.Key, want) {
				t.Errorf("cell %d behind: %x, %v; want %x", i, row.Key, err, want)
			}
		}
		if read > 2*50+1 {
			t.Errorf("%d rows were read for two groups of 50", read)
		}
	}
}

// BenchmarkGroups groups 100,000 rows of one slice, in memory, by a component with 100 values.
func BenchmarkGroups(b *testing.B) {
	desc := []bool{false, false}
	rows := grid(b, desc, 100, 1000)
	for name, by := range map[string][]int{"by=first": {0}, "by=second": {1}} {
		b.Run(name, func(b *testing.B) {
			req := NodeRequest{Ranges: []Range{{}}, Desc: desc, Groups: &Grouping{By: by, Each: EachNone,
				Of: []Partial{{Op: aggregate.Rows}, {Op: aggregate.Sum, Component: 1}}}}
			for b.Loop() {
				c := newCells(sliceSource{ctx: b.Context(), slice: memSlice{rows: rows}, ranges: req.Ranges}, &req, 1)
				for {
					if _, err := c.next(); errors.Is(err, io.EOF) {
						break
					} else if err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
