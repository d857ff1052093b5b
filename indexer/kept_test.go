package indexer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/wire"
)

var keptFence = wire.Fence{ClusterID: "c", Epoch: 1, Term: 1}

// manyCopies returns a list with that many copies, at most four per index.
func manyCopies(copies int) *wire.Definitions {
	d := &wire.Definitions{Fence: keptFence, Revision: 1, Buckets: []wire.Bucket{{Name: "b", UUID: "u", VBuckets: 1024}}}
	for id := index.ID(1); copies > 0; id++ {
		where := fmt.Sprintf("field%d = %q", id, "value")
		t := partition.Topology{Index: id, Layout: partition.Layout{Partitions: 4}}
		for n := range min(copies, 4) {
			t.Copies = append(t.Copies, partition.Copy{ID: index.CopyID(4*int(id) + n), Slice: index.SliceID(n),
				Node: index.NodeID(n), State: partition.Allocated})
		}
		copies -= len(t.Copies)
		d.Topologies = append(d.Topologies, t)
		d.Indexes = append(d.Indexes, index.Definition{ID: id, Name: "index" + id.String(), Bucket: "b", BucketUUID: "u",
			State: index.Maintenance, Where: where, Keys: []index.KeyExpr{{Expr: "a"}}, Partitions: 4,
			Statement: "CREATE INDEX index" + id.String() + " ON b(a) WHERE " + where})
	}
	return d
}

// oneMore returns a change that adds or removes one index.
func oneMore(base uint64, id index.ID) *wire.DefinitionsChange {
	c := &wire.DefinitionsChange{Fence: keptFence, Base: base, Revision: base + 1}
	if base%2 == 0 {
		c.GoneIndexes = []index.ID{id}
		return c
	}
	one := manyCopies(4)
	one.Indexes[0].ID, one.Topologies[0].Index = id, id
	c.Indexes, c.Topologies = one.Indexes, one.Topologies
	return c
}

func sizeOf(t testing.TB, dir string) int64 {
	t.Helper()
	info, err := os.Stat(filepath.Join(dir, definitionsFile))
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// TestKeptListWritesOnlyChanges checks that the size of what is written for a change depends on the change, not on the
// number of copies.
func TestKeptListWritesOnlyChanges(t *testing.T) {
	var costs []int64
	for _, copies := range []int{4, 4000} {
		dir, d := t.TempDir(), manyCopies(copies)
		k := newKeptList(dir)
		if err := k.store(d, nil); err != nil {
			t.Fatal(err)
		}
		was := sizeOf(t, dir)
		c := oneMore(1, 1<<20)
		d, err := c.Apply(d)
		if err == nil {
			err = k.store(d, c)
		}
		if err != nil {
			t.Fatal(err)
		}
		costs = append(costs, sizeOf(t, dir)-was)
	}
	if costs[0] != costs[1] || costs[0] <= 0 {
		t.Errorf("one index costs %d bytes beside 4 copies, %d beside 4,000", costs[0], costs[1])
	}
}

// TestReadListEqualsItsChanges checks that a list that is read from its changes equals the one that they have made.
func TestReadListEqualsItsChanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := manyCopies(rapid.IntRange(0, 9).Draw(t, "copies"))
		var read readList
		if err := read.whole(asJSON(t, d)); err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(0, 5).Draw(t, "changes") {
			c := anyChange(t, d)
			next, err := c.Apply(d)
			if err == nil {
				err = read.change(asJSON(t, c))
			}
			if err != nil {
				t.Fatal(err)
			}
			d = next
		}
		if got, want := asJSON(t, read.list()), asJSON(t, d); !bytes.Equal(lists(got), lists(want)) {
			t.Fatalf("read %s\nwant %s", got, want)
		}
	})
}

// anyChange returns a random change of a list.
func anyChange(t *rapid.T, d *wire.Definitions) *wire.DefinitionsChange {
	c := &wire.DefinitionsChange{Fence: d.Fence, Base: d.Revision, Revision: d.Revision + 1}
	c.Fence.Counter++
	for _, x := range manyCopies(40).Indexes {
		switch has := slices.ContainsFunc(d.Indexes, func(o index.Definition) bool { return o.ID == x.ID }); {
		case rapid.IntRange(0, 3).Draw(t, "changes") > 0:
		case has && rapid.Bool().Draw(t, "goes"):
			c.GoneIndexes = append(c.GoneIndexes, x.ID)
		default:
			x.Name = rapid.SampledFrom([]string{"a", "b"}).Draw(t, "name")
			c.Indexes, c.Topologies = append(c.Indexes, x), append(c.Topologies, partition.Topology{Index: x.ID})
		}
	}
	if rapid.Bool().Draw(t, "indexers") {
		c.Indexers = []wire.Endpoint{{Node: index.NodeID(rapid.IntRange(1, 3).Draw(t, "node")), Admin: "new"}}
		c.GoneIndexers = []index.NodeID{4}
	}
	if rapid.Bool().Draw(t, "rest") {
		c.Rest = &wire.DefinitionsRest{Buckets: []wire.Bucket{{Name: "other", RollbackID: c.Revision}}}
	}
	return c
}

func asJSON(t require, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// require is a test or a check of rapid.
type require interface {
	Helper()
	Fatal(args ...any)
}

// lists replaces null by an empty list, so that texts with either are equal.
func lists(b []byte) []byte { return bytes.ReplaceAll(b, []byte(":null"), []byte(":[]")) }

// TestKeptListIsTheNewest checks that the stored list is the newest one, whether it came whole, or as changes of the
// stored list, of the same list under another revision, or of another list, and also after a list could not be
// stored.
func TestKeptListIsTheNewest(t *testing.T) {
	dir, d := t.TempDir(), manyCopies(4)
	k := newKeptList(dir)
	if _, _, err := k.load(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing is stored: %v", err)
	}
	change := func(in *wire.Definitions) (*wire.Definitions, *wire.DefinitionsChange) {
		c := oneMore(in.Revision, 50+index.ID(in.Revision)/2)
		c.Fence = in.Fence
		next, err := c.Apply(in)
		if err != nil {
			t.Fatal(err)
		}
		return next, c
	}
	for _, step := range []struct {
		what    string
		whole   bool // the whole list is written
		prepare func() (*wire.Definitions, *wire.DefinitionsChange)
	}{
		{"the first one", true, func() (*wire.Definitions, *wire.DefinitionsChange) { return d, nil }},
		{"a change", false, func() (*wire.Definitions, *wire.DefinitionsChange) { return change(d) }},
		{"another change", false, func() (*wire.Definitions, *wire.DefinitionsChange) { return change(d) }},
		{"a change after a new revision alone", false, func() (*wire.Definitions, *wire.DefinitionsChange) {
			same := *d
			same.Revision += 2
			k.same(&same)
			return change(&same)
		}},
		{"a change of another list", true, func() (*wire.Definitions, *wire.DefinitionsChange) {
			other := manyCopies(8)
			other.Revision = d.Revision + 4
			return change(other)
		}},
		{"a change in another epoch", true, func() (*wire.Definitions, *wire.DefinitionsChange) {
			other := *d
			other.Fence.Epoch++
			return change(&other)
		}},
		{"a change after a restart", true, func() (*wire.Definitions, *wire.DefinitionsChange) {
			k = newKeptList(dir)
			return change(d)
		}},
		{"a change after one that could not be stored", true, func() (*wire.Definitions, *wire.DefinitionsChange) {
			if err := os.Rename(dir, dir+".away"); err != nil {
				t.Fatal(err)
			}
			lost, c := change(d)
			if err := k.store(lost, c); err == nil {
				t.Fatal("it was stored where nothing is")
			}
			if err := os.Rename(dir+".away", dir); err != nil {
				t.Fatal(err)
			}
			return change(lost)
		}},
		{"a whole one", true, func() (*wire.Definitions, *wire.DefinitionsChange) {
			next, _ := change(d)
			return next, nil
		}},
	} {
		next, c := step.prepare()
		if err := k.store(next, c); err != nil {
			t.Fatal(step.what, err)
		}
		d = next
		got, cut, err := newKeptList(dir).load()
		if err != nil || cut {
			t.Fatalf("%s: cut %v, %v", step.what, cut, err)
		}
		if got, want := asJSON(t, got), asJSON(t, d); !bytes.Equal(lists(got), lists(want)) {
			t.Errorf("%s: read %s\nwant %s", step.what, got, want)
		}
		text, err := os.ReadFile(filepath.Join(dir, definitionsFile))
		if err != nil {
			t.Fatal(err)
		}
		if whole := bytes.Count(text, []byte{'\n'}) == 1; whole != step.whole {
			t.Errorf("%s: written whole is %v", step.what, whole)
		}
	}
}

// BenchmarkKeptList measures how much is written, and how long that takes, when one index is added or removed.
func BenchmarkKeptList(b *testing.B) {
	for _, copies := range []int{1, 1000, 65536} {
		b.Run(strconv.Itoa(copies), func(b *testing.B) {
			dir, d := b.TempDir(), manyCopies(copies)
			k := newKeptList(dir)
			if err := k.store(d, nil); err != nil {
				b.Fatal(err)
			}
			written, size := int64(0), sizeOf(b, dir)
			whole := size
			for base := uint64(1); b.Loop(); base++ {
				c := oneMore(base, 1<<20)
				d.Revision = c.Revision
				if err := k.store(d, c); err != nil {
					b.Fatal(err)
				}
				now := sizeOf(b, dir)
				if now < size { // it was written whole
					size = 0
				}
				written, size = written+now-size, now
			}
			b.ReportMetric(float64(written)/float64(b.N), "written/op")
			b.ReportMetric(float64(whole), "whole-bytes")
		})
	}
}
