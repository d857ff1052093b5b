package router

import (
	"fmt"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/partition"
)

// Whatever the topologies, a document goes to exactly the endpoints that hold an allocated copy of its slice, with one
// statement for each such index, in the order of the program.
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
			top := partition.Topology{Index: index.ID(10 - i), Layout: partition.Layout{Scheme: partition.HashDocID,
				Partitions: rapid.Uint16Range(1, 4).Draw(t, "partitions")}}
			for range rapid.IntRange(0, 8).Draw(t, "copies") {
				next++
				top.Copies = append(top.Copies, partition.Copy{ID: next,
					Slice: index.SliceID(rapid.Uint16Range(0, top.Layout.Partitions-1).Draw(t, "slice")),
					Node:  index.NodeID(rapid.ByteRange(0, 5).Draw(t, "node")),
					State: rapid.SampledFrom([]partition.CopyState{partition.Placed, partition.Allocated, partition.Leaving}).Draw(t, "state")})
			}
			cfg.Topologies = append(cfg.Topologies, top)
		}
		v, err := NewView(cfg)
		if err != nil {
			t.Fatal(err)
		}
		var s scratch
		for range 5 { // the same working memory again and again
			id := rapid.SliceOfN(rapid.Byte(), 0, 12).Draw(t, "docid")
			keys := make([][][]byte, len(cfg.Topologies))
			want := make(map[index.NodeID][]keyversion.Statement)
			for i, top := range cfg.Topologies {
				keys[i] = [][]byte{fmt.Append(nil, i)}
				slice := top.Layout.SliceOf(id)
				seen := make(map[index.NodeID]bool)
				for _, c := range top.Copies {
					if c.Slice == slice && c.State == partition.Allocated && cfg.Endpoints[c.Node] != "" && !seen[c.Node] {
						seen[c.Node] = true
						want[c.Node] = append(want[c.Node], keyversion.Statement{Index: top.Index, Slice: slice, Keys: keys[i]})
					}
				}
			}
			s.route(v, id, keys)
			got := make(map[index.NodeID][]keyversion.Statement)
			for _, e := range s.touched {
				if got[v.endpoints[e].node] != nil {
					t.Fatalf("endpoint %d twice", e)
				}
				got[v.endpoints[e].node] = append([]keyversion.Statement(nil), s.statements[e]...)
			}
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("document %q goes to %v, want %v", id, got, want)
			}
		}
	})
}
