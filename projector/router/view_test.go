package router

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"tidemark/collate"
	"tidemark/index"
	"tidemark/internal/testing/families"
	"tidemark/keyversion"
	"tidemark/partition"
)

// drawLayout draws a layout of any scheme, for an index on (a, b DESC) with strings.
func drawLayout(t *rapid.T) partition.Layout {
	d := index.Definition{Keys: []index.KeyExpr{{Expr: "a", Desc: rapid.Bool().Draw(t, "desc")}, {Expr: "b", Desc: true}},
		Partitions: rapid.Uint16Range(1, 4).Draw(t, "partitions")}
	switch rapid.IntRange(0, 3).Draw(t, "scheme") {
	case 1:
		d.PartitionBy = index.PartitionBy{Scheme: index.PartitionHash,
			Exprs: rapid.SampledFrom([][]string{{"a"}, {"b"}, {"b", "a"}}).Draw(t, "by")}
	case 3:
		d.PartitionBy = index.PartitionBy{Scheme: families.By, Exprs: []string{"META().id"}}
	case 2:
		d.PartitionBy = index.PartitionBy{Scheme: index.PartitionRange, Exprs: []string{"a"}}
		for _, v := range []string{`"b"`, `"d"`, `"f"`}[:d.Partitions-1] {
			d.PartitionBy.Values = append(d.PartitionBy.Values, json.RawMessage(v))
		}
	}
	l, err := partition.LayoutOf(&d)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// drawKey draws a key of such an index.
func drawKey(t *rapid.T, l *partition.Layout) []byte {
	part := rapid.SampledFrom([][]byte{[]byte(`"a"`), []byte(`"b"`), []byte(`"c"`), []byte(`"d"`), []byte(`"e"`), nil})
	desc := []bool{false, true}
	if len(l.Desc) > 0 {
		desc[0] = l.Desc[0]
	}
	key, err := collate.AppendComposite(nil, [][]byte{part.Draw(t, "a"), part.Draw(t, "b")}, desc)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// statedKeys returns the meaning of an endpoint's statements: the keys of each slice that they cover.
func statedKeys(statements []keyversion.Statement, hosted map[index.ID][]index.SliceID) map[string][]string {
	out := make(map[string][]string)
	for _, st := range statements {
		for _, slice := range hosted[st.Index] {
			place := fmt.Sprint(st.Index, "/", slice)
			if _, known := out[place]; known || st.Slice != slice && st.Slice != index.AllSlices {
				continue
			}
			out[place] = []string{}
			for _, k := range st.Keys {
				out[place] = append(out[place], string(k))
			}
			slices.Sort(out[place])
		}
	}
	return out
}

// Whatever the topologies, a document goes to exactly the endpoints that hold an allocated copy of a slice in which
// it may have an entry: under hash(docid) the slice of its id, by key any. They get all of its keys there, each in at
// most one statement.
func TestRouteEqualsTheTopologies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := ViewConfig{Endpoints: make(map[index.NodeID]string)}
		for n := range index.NodeID(6) {
			if rapid.IntRange(0, 4).Draw(t, "address") > 0 {
				cfg.Endpoints[n] = fmt.Sprint("node", n)
			}
		}
		next := index.CopyID(0)
		for i := range rapid.IntRange(0, 5).Draw(t, "indexes") {
			top := partition.Topology{Index: index.ID(10 - i), Layout: drawLayout(t)}
			for range rapid.IntRange(0, 8).Draw(t, "copies") {
				next++
				top.Copies = append(top.Copies, partition.Copy{ID: next,
					Slice: index.SliceID(rapid.Uint16Range(0, top.Layout.Partitions-1).Draw(t, "slice")),
					Node:  index.NodeID(rapid.ByteRange(0, 5).Draw(t, "node")),
					State: rapid.SampledFrom([]partition.CopyState{partition.Placed, partition.Allocated, partition.Leaving}).Draw(t,
						"state")})
			}
			cfg.Topologies = append(cfg.Topologies, top)
		}
		v, err := NewView(cfg)
		if err != nil {
			t.Fatal(err)
		}
		var s scratch
		for range 5 { // with the same working memory
			id := rapid.SliceOfN(rapid.Byte(), 0, 12).Draw(t, "docid")
			var keys [][][]byte // nil: a deletion
			if rapid.IntRange(0, 4).Draw(t, "deleted") > 0 {
				keys = make([][][]byte, len(cfg.Topologies))
			}
			want := make(map[index.NodeID]map[string][]string)
			hosted := make(map[index.NodeID]map[index.ID][]index.SliceID)
			for i, top := range cfg.Topologies {
				var set [][]byte
				for range rapid.IntRange(0, 3).Draw(t, "keys") {
					set = append(set, drawKey(t, &top.Layout))
				}
				if keys != nil {
					keys[i] = set
				} else {
					set = nil
				}
				for _, c := range top.Copies {
					if c.State != partition.Allocated || cfg.Endpoints[c.Node] == "" {
						continue
					}
					if hosted[c.Node] == nil {
						hosted[c.Node] = make(map[index.ID][]index.SliceID)
					}
					if !slices.Contains(hosted[c.Node][top.Index], c.Slice) {
						hosted[c.Node][top.Index] = append(hosted[c.Node][top.Index], c.Slice)
					}
					if !families.Provider(&top.Layout).ByKey() &&
						families.Provider(&top.Layout).Slice(partition.KeyVersion{DocID: id}) != c.Slice {
						continue
					}
					here := []string{}
					for _, k := range set {
						if families.Provider(&top.Layout).Slice(partition.KeyVersion{DocID: id, Key: k}) == c.Slice {
							here = append(here, string(k))
						}
					}
					slices.Sort(here)
					if want[c.Node] == nil {
						want[c.Node] = make(map[string][]string)
					}
					want[c.Node][fmt.Sprint(top.Index, "/", c.Slice)] = here
				}
			}
			s.route(v, id, keys)
			if concerns := v.Concerns(0, id); concerns != (len(s.touched) > 0) {
				t.Fatalf("it concerns an endpoint: %v, but goes to %v", concerns, s.touched)
			}
			got := make(map[index.NodeID]map[string][]string)
			for _, e := range s.touched {
				node := v.endpoints[e].node
				if got[node] != nil {
					t.Fatalf("endpoint %d twice", e)
				}
				byID := hosted[node]
				event := keyversion.Event{Statements: s.statements[e], Rest: s.rest(e)}
				statements := event.Explicit(nil)
				for i, top := range cfg.Topologies {
					if !families.Provider(&top.Layout).ByKey() { // other slices are not stated
						byID[top.Index] = slices.DeleteFunc(byID[top.Index],
							func(sl index.SliceID) bool {
								return sl != families.Provider(&top.Layout).Slice(partition.KeyVersion{DocID: id})
							})
					} else if n := count(s.statements[e], top.Index); n > len(byID[top.Index]) {
						t.Fatalf("%d statements about %d slices of index %d at node %d", n, len(byID[top.Index]), i, node)
					}
				}
				got[node] = statedKeys(statements, byID)
			}
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("document %q goes to %v, want %v", id, got, want)
			}
		}
	})
}

func count(statements []keyversion.Statement, id index.ID) (n int) {
	for _, st := range statements {
		if st.Index == id {
			n++
		}
	}
	return n
}
