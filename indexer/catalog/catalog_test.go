package catalog

import (
	"reflect"
	"strconv"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/scan"
	"tidemark/indexer/snapshots"
	"tidemark/indexer/storage/storagetest"
	"tidemark/ingest"
	"tidemark/partition"
	"tidemark/timestamp"
	"tidemark/wire"
)

// TestViewsAreAsNewAsWhatTheyAreMadeOf: what is kept of a view is never older than the definitions, what others hold,
// what is held here, and the newest rollback; and it is kept for as long as none of them changes.
func TestViewsAreAsNewAsWhatTheyAreMadeOf(t *testing.T) {
	_, s := storagetest.Open(t)
	snaps := snapshots.New(2, hclog.NewNullLogger(), time.Now)
	defer snaps.CloseAll()
	c := New(func() index.NodeID { return 1 }, snaps)
	defs := wire.Definitions{
		Indexes: []index.Definition{{ID: 1, Name: "i", Bucket: "b", State: index.Maintenance}},
		Topologies: []partition.Topology{{Index: 1, Layout: partition.Layout{Partitions: 2},
			Copies: []partition.Copy{{ID: 1, Slice: 0, Node: 1}, {ID: 2, Slice: 1, Node: 2}}}},
		Buckets: []wire.Bucket{{Name: "b", Generation: 1}},
	}
	c.Take(&defs)
	ref := func(number uint64) wire.StabilityRef {
		return wire.StabilityRef{Bucket: "b", Ref: timestamp.Ref{Generation: 1, Number: number}}
	}
	hold := func(number uint64) {
		storagetest.FlushAt(t, s, 7, number)
		snap, err := s.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		snaps.Add(1, snapshots.Held{Ref: ref(number), Snap: snap})
	}
	view := func() scan.View {
		v, err := c.View(1)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	last := view()
	for _, step := range []struct {
		what   string
		change func()
	}{
		{"a snapshot", func() { hold(10) }},
		{"a newer one", func() { hold(20) }},
		{"what another node holds", func() {
			c.SetHeld([]wire.Held{{Copy: 2, Node: 2, Ref: ref(10), OK: true}, {Copy: 9, Node: 2, Ref: ref(10), OK: true}})
		}},
		{"a snapshot that is off the branch", func() {
			snaps.Part(1, []ingest.Restore{{Copy: 1, Log: timestamp.FailoverLog{{VBUUID: 8, Seqno: 15}, {VBUUID: 7}}}},
				s.Logs())
		}},
		{"definitions", func() {
			defs.Indexes = []index.Definition{{ID: 1, Name: "other", Bucket: "b", State: index.Maintenance}}
			c.Take(&defs)
		}},
		{"a rollback", func() {
			c.Published(&wire.BucketStability{Bucket: "b", Stability: timestamp.Stability{
				Ref: timestamp.Ref{Generation: 1, RollbackID: 1, Number: 30}}})
		}},
		{"no snapshot", func() { snaps.Drop(1) }},
	} {
		step.change()
		got := view()
		want, err := c.view(1, 1)
		if err != nil {
			t.Fatal(err)
		}
		want.Prepare()
		if !reflect.DeepEqual(got, want) || reflect.DeepEqual(got, last) {
			t.Errorf("%s: %+v, want %+v, before %+v", step.what, got, want, last)
		}
		if again := view(); len(got.Held) > 0 && &again.Held[0] != &got.Held[0] {
			t.Errorf("%s: it was made twice", step.what)
		}
		last = got
	}
	if _, err := c.View(2); scan.CodeOf(err) != errcode.IndexNotHosted {
		t.Errorf("an index that is not there: %v", err)
	}
}

// manyIndexes are definitions of indexes, each with four copies on other nodes, and what these hold at a number.
func manyIndexes(n int) (wire.Definitions, func(number uint64) []wire.Held) {
	defs := wire.Definitions{Buckets: []wire.Bucket{{Name: "b", Generation: 1}}}
	for i := range n {
		id := index.ID(i + 1)
		defs.Indexes = append(defs.Indexes, index.Definition{ID: id, Bucket: "b", State: index.Maintenance})
		t := partition.Topology{Index: id, Layout: partition.Layout{Partitions: 2}}
		for k := range 4 {
			t.Copies = append(t.Copies, partition.Copy{ID: index.CopyID(4*i + k + 1), Slice: index.SliceID(k / 2),
				Node: index.NodeID(2 + k)})
		}
		defs.Topologies = append(defs.Topologies, t)
	}
	return defs, func(number uint64) []wire.Held {
		all := make([]wire.Held, 0, 4*n)
		for _, t := range defs.Topologies {
			for _, c := range t.Copies {
				all = append(all, wire.Held{Copy: c.ID, Node: c.Node, OK: true,
					Ref: wire.StabilityRef{Bucket: "b", Ref: timestamp.Ref{Generation: 1, Number: number}}})
			}
		}
		return all
	}
}

// TestViewsHaveWhatTheirCopiesHold: of a long list each view has what its own copies hold, whichever of them are not
// in it, and nothing that another node than the copy's says.
func TestViewsHaveWhatTheirCopiesHold(t *testing.T) {
	snaps := snapshots.New(2, hclog.NewNullLogger(), time.Now)
	defer snaps.CloseAll()
	c := New(func() index.NodeID { return 1 }, snaps)
	defs, holding := manyIndexes(50)
	c.Take(&defs)
	all := holding(7)
	want := map[index.CopyID]wire.Held{}
	told := all[:0]
	for i, h := range all {
		switch {
		case i%7 == 3: // not told of
			continue
		case i%11 == 5:
			h.Node = 200
		default:
			want[h.Copy] = h
		}
		told = append(told, h)
	}
	c.SetHeld(told)
	for _, d := range defs.Indexes {
		v, err := c.View(d.ID)
		if err != nil {
			t.Fatal(err)
		}
		got := map[index.CopyID]wire.Held{}
		for _, h := range v.Held {
			got[h.Copy] = h
		}
		for _, at := range v.Topology.Copies {
			h, is := got[at.ID]
			if w, should := want[at.ID]; is != should || h != w {
				t.Errorf("copy %d of index %d: %+v, want %+v", at.ID, d.ID, h, w)
			}
			delete(got, at.ID)
		}
		if len(got) > 0 {
			t.Errorf("index %d has what others hold: %v", d.ID, got)
		}
	}
}

// BenchmarkViews is what it costs to see all indexes once after a promotion, which changes what every copy holds.
func BenchmarkViews(b *testing.B) {
	for _, n := range []int{100, 1000, 4000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			snaps := snapshots.New(2, hclog.NewNullLogger(), time.Now)
			defer snaps.CloseAll()
			c := New(func() index.NodeID { return 1 }, snaps)
			defs, holding := manyIndexes(n)
			c.Take(&defs)
			lists := [2][]wire.Held{holding(1), holding(2)}
			for number := 0; b.Loop(); number++ {
				c.SetHeld(lists[number%2])
				for _, d := range defs.Indexes {
					if _, err := c.View(d.ID); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
