package scan

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"tidemark/collate"
	"tidemark/index"
)

// TestShapeModel compares offset, distinct, project and limit together, with failing nodes, with the plain method on
// the sorted list of all rows; a distinct count counts the same rows.
func TestShapeModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		desc := []bool{rapid.Bool().Draw(t, "first descends"), rapid.Bool().Draw(t, "second descends")}
		f := newCluster(rapid.IntRange(1, 4).Draw(t, "partitions"), 2, 3)
		var all []Row
		for s, rows := range f.rows[5] {
			for i, r := range rows {
				a, b := rapid.IntRange(0, 3).Draw(t, "a"), rapid.IntRange(0, 2).Draw(t, "b")
				key, err := collate.AppendComposite(nil, [][]byte{fmt.Appendf(nil, "%d", a),
					fmt.Appendf(nil, "%q", strings.Repeat("x", b))}, desc)
				if err != nil {
					t.Fatal(err)
				}
				f.rows[5][s][i] = Row{key, r.DocID}
			}
			slices.SortFunc(f.rows[5][s], Row.Compare)
			all = append(all, f.rows[5][s]...)
		}
		bad, at := index.NodeID(rapid.IntRange(0, 3).Draw(t, "bad node")), rapid.IntRange(-2, 3000).Draw(t, "cut")
		f.broken = func(n index.NodeID) int { // each slice has a copy on another node
			if n == bad {
				return at
			}
			return -1
		}
		request := Request{Consistency: Any, Limit: rapid.SampledFrom([]int64{0, 1, 3, 100}).Draw(t, "limit"),
			Offset: rapid.SampledFrom([]int64{0, 1, 5, 60}).Draw(t, "offset"), Reverse: rapid.Bool().Draw(t, "reverse"),
			Project: rapid.SampledFrom([][]int{nil, {0}, {0, 1}, {1}, {1, 0}, {}}).Draw(t, "project")}
		leading := request.Project == nil || len(request.Project) > 0 && request.Project[0] == 0
		request.Distinct = leading && rapid.Bool().Draw(t, "distinct")
		def := definition(desc...)
		f.view.Definition = *def
		spec, err := request.Compile(def)
		if err != nil {
			t.Fatal(err)
		}
		want := plainly(all, request, desc)
		var out bytes.Buffer
		c := f.coordinator()
		enc := NewEncoder(&out, nil, nil, spec)
		res, err := c.Scan(context.Background(), spec, enc)
		_ = enc.write() // into memory
		if err != nil || res.Rows != int64(len(want)) {
			t.Fatalf("%d rows, want %d: %v", res.Rows, len(want), err)
		}
		var got []string
		for line := range strings.Lines(out.String()) {
			var row struct {
				Key []json.RawMessage
				ID  string
			}
			if err := json.Unmarshal([]byte(line), &row); err != nil {
				t.Fatal(err)
			}
			got = append(got, fmt.Sprintf("%s %s", row.Key, row.ID))
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%+v\n got %q\nwant %q", request, got, want)
		}
		request.Limit, request.Offset = 0, 0
		if n, err := c.Count(context.Background(), spec); err != nil || n.Rows != int64(len(plainly(all, request, desc))) {
			t.Fatalf("count %d, %v, want %d", n.Rows, err, len(plainly(all, request, desc)))
		}
	})
}

// plainly applies the request to all rows and returns them as JSON.
func plainly(all []Row, r Request, desc []bool) (lines []string) {
	all = slices.Clone(all)
	slices.SortFunc(all, Row.Compare)
	if r.Reverse {
		slices.Reverse(all)
	}
	seen := map[string]bool{}
	for _, row := range all {
		text, err := collate.DecodeComposite(nil, row.Key, desc)
		if err != nil {
			panic(err)
		}
		var parts []json.RawMessage
		if err := json.Unmarshal(text, &parts); err != nil {
			panic(err)
		}
		if r.Project != nil {
			var picked []json.RawMessage
			for _, p := range r.Project {
				picked = append(picked, parts[p])
			}
			parts = picked
		}
		key := fmt.Sprintf("%s", parts)
		if r.Distinct && seen[key] {
			continue
		}
		seen[key] = true
		lines = append(lines, fmt.Sprintf("%s %s", key, row.DocID))
	}
	lines = lines[min(int(r.Offset), len(lines)):]
	if r.Limit > 0 {
		lines = lines[:min(int(r.Limit), len(lines))]
	}
	return lines
}
