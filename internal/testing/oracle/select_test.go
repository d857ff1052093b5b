package oracle

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"tidemark/expression/expressiontest"
)

// TestSelect is worked out by hand: rows of (country ASC, height DESC).
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

// TestSelectShape is worked out by hand, too: what is left of rows, and which of them.
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
