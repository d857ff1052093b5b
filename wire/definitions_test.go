package wire

import (
	"errors"
	"reflect"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"tidemark/index"
	"tidemark/partition"
)

func TestDefinitionsChangeOfAnotherList(t *testing.T) {
	fence := Fence{ClusterID: "c", Epoch: 2}
	c := &DefinitionsChange{Fence: fence, Base: 7, Revision: 9}
	for name, base := range map[string]*Definitions{
		"none": nil, "never sent": {Fence: fence}, "older": {Fence: fence, Revision: 6}, "newer": {Fence: fence, Revision: 8},
		"of another epoch":   {Fence: Fence{ClusterID: "c", Epoch: 1}, Revision: 7},
		"of another cluster": {Fence: Fence{ClusterID: "d", Epoch: 2}, Revision: 7},
	} {
		if d, err := c.Apply(base); !errors.Is(err, ErrBase) || d != nil {
			t.Errorf("%s: %+v, %v", name, d, err)
		}
	}
	if d, err := c.Apply(&Definitions{Fence: fence, Revision: 7}); err != nil || d.Revision != 9 {
		t.Errorf("the right one: %+v, %v", d, err)
	}
}

// TestDefinitionsChangeGivesTheList applies mixtures of removed, new and changed items; the base must not be
// modified.
func TestDefinitionsChangeGivesTheList(t *testing.T) {
	list := func(t *rapid.T, name string) *Definitions {
		d := &Definitions{Revision: 1}
		for _, id := range rapid.SliceOfDistinct(rapid.Uint64Range(1, 12), rapid.ID[uint64]).Draw(t, name) {
			version := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "version")
			d.Indexes = append(d.Indexes, index.Definition{ID: index.ID(id), Name: version})
			d.Topologies = append(d.Topologies, partition.Topology{Index: index.ID(id)})
			d.Indexers = append(d.Indexers, Endpoint{Node: index.NodeID(id), Name: version})
		}
		slices.SortFunc(d.Indexes, func(a, b index.Definition) int { return int(a.ID) - int(b.ID) })
		slices.SortFunc(d.Topologies, func(a, b partition.Topology) int { return int(a.Index) - int(b.Index) })
		slices.SortFunc(d.Indexers, func(a, b Endpoint) int { return int(a.Node) - int(b.Node) })
		return d
	}
	rapid.Check(t, func(t *rapid.T) {
		was, is := list(t, "was"), list(t, "is")
		is.Revision = 2
		if rapid.Bool().Draw(t, "rest") {
			is.Buckets = []Bucket{{Name: "b"}}
		}
		c := &DefinitionsChange{Base: 1, Revision: 2}
		named := func(d *Definitions) map[index.ID]string {
			m := map[index.ID]string{}
			for _, x := range d.Indexes {
				m[x.ID] = x.Name
			}
			return m
		}
		before, after := named(was), named(is)
		for i, x := range is.Indexes {
			if before[x.ID] != x.Name {
				c.Indexes, c.Topologies, c.Indexers = append(c.Indexes, x), append(c.Topologies, is.Topologies[i]),
					append(c.Indexers, is.Indexers[i])
			}
		}
		for id := range before {
			if after[id] == "" {
				c.GoneIndexes, c.GoneIndexers = append(c.GoneIndexes, id), append(c.GoneIndexers, index.NodeID(id))
			}
		}
		if is.Buckets != nil {
			c.Rest = &DefinitionsRest{Buckets: is.Buckets}
		}
		copied := *was
		copied.Indexes = slices.Clone(was.Indexes)
		d, err := c.Apply(was)
		if err != nil {
			t.Fatal(err)
		}
		same := slices.EqualFunc(d.Indexes, is.Indexes, func(a, b index.Definition) bool {
			return reflect.DeepEqual(a,
				b)
		}) &&
			slices.EqualFunc(d.Topologies, is.Topologies, func(a, b partition.Topology) bool { return a.Index == b.Index }) &&
			slices.Equal(d.Indexers, is.Indexers) && slices.Equal(d.Buckets, is.Buckets) && d.Revision == 2
		if !same {
			t.Fatalf("%+v and %+v give %+v, want %+v", was, c, d, is)
		}
		if !reflect.DeepEqual(*was, copied) {
			t.Fatal("the base was changed")
		}
	})
}

// BenchmarkDefinitionsChange measures the cost of one more index for a receiver with a list.
func BenchmarkDefinitionsChange(b *testing.B) {
	for _, n := range []int{1, 1000, 16384} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			d := &Definitions{Revision: 1}
			for i := range n {
				d.Indexes = append(d.Indexes, index.Definition{ID: index.ID(i)})
				d.Topologies = append(d.Topologies, partition.Topology{Index: index.ID(i)})
			}
			c := &DefinitionsChange{Base: 1, Revision: 2, Indexes: []index.Definition{{ID: index.ID(n)}},
				Topologies: []partition.Topology{{Index: index.ID(n)}}}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.Apply(d); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
