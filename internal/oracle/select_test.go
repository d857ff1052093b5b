package oracle

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestSelect is worked out by hand: rows of (country ASC, height DESC).
func TestSelect(t *testing.T) {
	def := Index{Desc: []bool{false, true}}
	rows := []Row{
		{Key: []any{"DE", json.Number("9")}, ID: "a"}, {Key: []any{"DE", json.Number("1")}, ID: "b"},
		{Key: []any{"FR", json.Number("7")}, ID: "c"}, {Key: []any{"FR", json.Number("7.0")}, ID: "d"},
		{Key: []any{"FR", json.Number("2")}, ID: "e"}, {Key: []any{"US", missing{}}, ID: "f"},
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
		got, err := def.Select(rows, c.ranges, c.reverse, c.limit)
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
