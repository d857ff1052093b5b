package oracle

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"tidemark/expression/expressiontest"
)

// TestSelect compares with results worked out by hand: rows of (country ASC, height DESC).
func TestSelect(t *testing.T) {
	def := Index{Desc: []bool{false, true}}
	rows := []Row{
		{Key: []any{"DE", json.Number("9")}, ID: "a"}, {Key: []any{"DE", json.Number("1")}, ID: "b"},
		{Key: []any{"FR", json.Number("7")}, ID: "c"}, {Key: []any{"FR", json.Number("7.0")}, ID: "d"},
		{Key: []any{"FR", json.Number("2")}, ID: "e"}, {Key: []any{"US", expressiontest.Missing}, ID: "f"},
	}
	for _, c := range []struct {
		name    string
		ranges  []Range
		reverse bool
		limit   int
		want    string
	}{
		{"all", nil, false, 0, "a b c d e f"},
		{"reverse, limited", nil, true, 2, "f e"},
		{"prefix", []Range{{Low: []string{`"FR"`}, High: []string{`"FR"`}, Inclusion: "both"}}, false, 0, "c d e"},
		{"prefix, half open", []Range{{Low: []string{`"FR"`}, High: []string{`"FR"`}, Inclusion: "low"}}, false, 0, ""},
		{"above", []Range{{Low: []string{`"FR"`}, Inclusion: "neither"}}, false, 0, "f"},
		{"from", []Range{{Low: []string{`"FR"`}, Inclusion: "both"}}, false, 0, "c d e f"},
		{"heights within a country", []Range{{Low: []string{`"FR"`, "2"}, High: []string{`"FR"`, "7"}, Inclusion: "low"}}, false, 0, "e"},
		{"heights, the other end", []Range{{Low: []string{`"FR"`, "2"}, High: []string{`"FR"`, "7e0"}, Inclusion: "high"}}, false, 0, "c d"},
		{"up to, in index order", []Range{{High: []string{`"DE"`, "5"}, Inclusion: "both"}}, false, 0, "a"},
		{"two that overlap", []Range{{Low: []string{`"DE"`}, High: []string{`"FR"`}, Inclusion: "both"}, {Low: []string{`"FR"`}, Inclusion: "both"}}, false, 0, "a b c d e f"},
		{"upside down", []Range{{Low: []string{`"US"`}, High: []string{`"DE"`}, Inclusion: "both"}}, false, 0, ""},
	} {
		got, err := def.Select(rows, Query{Ranges: c.ranges, Reverse: c.reverse, Limit: c.limit})
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, r := range got {
			ids = append(ids, r.ID)
		}
		if s := strings.Join(ids, " "); s != c.want {
			t.Errorf("%s: %q, want %q", c.name, s, c.want)
		}
	}
}

// TestSelectShape compares with results worked out by hand: which rows are returned, and which of their components.
func TestSelectShape(t *testing.T) {
	def := Index{Desc: []bool{false, false}}
	rows := []Row{
		{Key: []any{"DE", json.Number("1")}, ID: "a"}, {Key: []any{"DE", json.Number("2")}, ID: "b"},
		{Key: []any{"FR", nil}, ID: "c"}, {Key: []any{"FR", json.Number("2")}, ID: "d"},
		{Key: []any{"FR", json.Number("2.0")}, ID: "e"},
	}
	for want, q := range map[string]Query{
		"a:DE,1 b:DE,2 c:FR,<nil> d:FR,2": {Distinct: true},
		"a:DE c:FR":                       {Distinct: true, Project: []int{0}},
		"e:FR b:DE":                       {Distinct: true, Project: []int{0}, Reverse: true},
		"d:2,FR e:2.0,FR":                 {Project: []int{1, 0}, Offset: 3},
		"b: c:":                           {Project: []int{}, Offset: 1, Limit: 2},
		"":                                {Offset: 9},
		"b:DE,2":                          {Distinct: true, Project: []int{0, 1}, Reverse: true, Offset: 2, Limit: 1},
	} {
		got, err := def.Select(rows, q)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, r := range got {
			var key []string
			for _, v := range r.Key {
				key = append(key, fmt.Sprint(v))
			}
			all = append(all, r.ID+":"+strings.Join(key, ","))
		}
		if s := strings.Join(all, " "); s != want {
			t.Errorf("%+v: %q, want %q", q, s, want)
		}
	}
	if n, err := def.Count(rows, Query{Distinct: true, Project: []int{0}, Offset: 1, Limit: 1}); err != nil || n != 2 {
		t.Errorf("count %d, %v", n, err)
	}
}

// TestGroups compares with results worked out by hand: rows of (country ASC, height DESC), with values of every type.
func TestGroups(t *testing.T) {
	def := Index{Desc: []bool{false, true}}
	rows := []Row{
		{Key: []any{nil, json.Number("5")}, ID: "n"},
		{Key: []any{"DE", json.Number("9")}, ID: "a"}, {Key: []any{"DE", json.Number("1.5")}, ID: "b"},
		{Key: []any{"FR", "x"}, ID: "c"}, {Key: []any{"FR", json.Number("7")}, ID: "c"},
		{Key: []any{"FR", json.Number("7.0")}, ID: "d"}, {Key: []any{"FR", expressiontest.Missing}, ID: "e"},
	}
	count, documents := Aggregate{Op: "count", Component: -1}, Aggregate{Op: "documents", Component: -1}
	of := func(op string, c int) Aggregate { return Aggregate{Op: op, Component: c} }
	each := func(op string) Aggregate { return Aggregate{Op: op, Component: 1, Distinct: true} }
	for _, c := range []struct {
		name, want string
		q          Query
	}{
		{"by country", "[<nil>]:[1 5 5 5] [DE]:[2 10.5 5.25 1.5] [FR]:[4 14 7 7]",
			Query{GroupBy: []int{0}, Aggregates: []Aggregate{count, of("sum", 1), of("avg", 1), of("min", 1)}}},
		{"reverse, limited", "[DE]:[9]",
			Query{GroupBy: []int{0}, Aggregates: []Aggregate{of("max", 1)}, Reverse: true, Offset: 1, Limit: 1}},
		{"of all, which are different", "[]:[7 6 6 5 22.5 5.625 x]", Query{GroupBy: []int{}, Aggregates: []Aggregate{count,
			documents, of("count", 0), {Op: "count", Component: 1, Distinct: true}, each("sum"), each("avg"), of("max", 1)}}},
		{"of none", "[]:[0 <nil> <nil>]", Query{GroupBy: []int{}, Aggregates: []Aggregate{count, of("sum", 1), of("min", 1)},
			Ranges: []Range{{Low: []string{"{}"}, Inclusion: "both"}}}},
		{"of none, by country", "", Query{GroupBy: []int{0}, Ranges: []Range{{Low: []string{"{}"}, Inclusion: "both"}}}},
		{"by height, downwards", "[x]:[1] [9]:[1] [7]:[2] [5]:[1] [1.5]:[1] [{}]:[1]",
			Query{GroupBy: []int{1}, Aggregates: []Aggregate{count}}},
	} {
		groups, err := def.Groups(rows, c.q)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, g := range groups {
			all = append(all, fmt.Sprintf("%v:%v", g.Key, g.Values))
		}
		if got := strings.Join(all, " "); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
