package catalog

import (
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/scan"
	"tidemark/indexer/snapshots"
	"tidemark/indexer/storage"
	"tidemark/indexer/storage/storagetest"
	"tidemark/ingest"
	"tidemark/partition"
	"tidemark/timestamp"
	"tidemark/wire"
)

// TestViewsAreNotOlderThanTheirInputs checks that a cached view is never older than the definitions, what other
// nodes hold, what this node holds, and the newest rollback, and that it stays cached while none of these changes.
func TestViewsAreNotOlderThanTheirInputs(t *testing.T) {
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
		{"held by another node", func() {
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
		want, _, err := c.view(1, 1)
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

// twoBuckets is node 1. It knows index 1 of bucket a and index 2 of bucket b, each with a copy here (1, 2) and one on
// node 2 (11, 12).
type twoBuckets struct {
	*Catalog
	t     testing.TB
	snaps *snapshots.Set
	store *storage.Store
	node  index.NodeID
	defs  wire.Definitions
}

func newTwoBuckets(t testing.TB) *twoBuckets {
	t.Helper()
	w := &twoBuckets{t: t, node: 1, snaps: snapshots.New(2, hclog.NewNullLogger(), time.Now),
		defs: wire.Definitions{Fence: wire.Fence{ClusterID: "c", Epoch: 1}, Revision: 1}}
	w.store, _ = storagetest.Open(t)
	t.Cleanup(w.snaps.CloseAll)
	w.Catalog = New(func() index.NodeID { return w.node }, w.snaps)
	for i, name := range []string{"a", "b"} {
		id := index.ID(i + 1)
		w.defs.Buckets = append(w.defs.Buckets, wire.Bucket{Name: name, Generation: 1})
		w.defs.Indexes = append(w.defs.Indexes, index.Definition{ID: id, Bucket: name, State: index.Maintenance})
		w.defs.Topologies = append(w.defs.Topologies, partition.Topology{Index: id,
			Layout: partition.Layout{Partitions: 1}, Copies: []partition.Copy{{ID: index.CopyID(id), Node: 1},
				{ID: index.CopyID(id + 10), Node: 2}}})
	}
	w.take(func(*wire.Definitions) {})
	return w
}

// take gives the catalog changed definitions.
func (w *twoBuckets) take(change func(*wire.Definitions)) {
	d := w.defs
	d.Revision++
	d.Indexes, d.Topologies, d.Buckets = slices.Clone(d.Indexes), slices.Clone(d.Topologies), slices.Clone(d.Buckets)
	change(&d)
	w.defs = d
	w.Take(&d)
}

func at(bucket string, rollback, number uint64) wire.StabilityRef {
	return wire.StabilityRef{Bucket: bucket, Ref: timestamp.Ref{Generation: 1, RollbackID: rollback, Number: number}}
}

func (w *twoBuckets) publish(r wire.StabilityRef) {
	w.Published(&wire.BucketStability{Bucket: r.Bucket, Stability: timestamp.Stability{Ref: r.Ref}})
}

// show adds a snapshot of a copy.
func (w *twoBuckets) show(id index.CopyID, r wire.StabilityRef) {
	w.t.Helper()
	s, ok := w.store.Slice(id)
	if !ok {
		var err error
		if s, err = w.store.Create(storage.Meta{Copy: id, Index: 1, Bucket: r.Bucket, BucketUUID: "u", VBuckets: 2,
			Desc: []bool{false}}); err != nil {
			w.t.Fatal(err)
		}
	}
	storagetest.FlushAt(w.t, s, 7, 10*r.Number)
	snap, err := s.Snapshot()
	if err != nil {
		w.t.Fatal(err)
	}
	w.snaps.Add(id, snapshots.Held{Ref: r, Snap: snap})
}

// part parts what copy 1 has of vbucket 0 beyond a seqno.
func (w *twoBuckets) part(beyond uint64) {
	s, _ := w.store.Slice(1)
	w.snaps.Part(1, []ingest.Restore{{Copy: 1, Log: timestamp.FailoverLog{{VBUUID: 8, Seqno: beyond}, {VBUUID: 7}}}},
		s.Logs())
}

// held returns what node 2 holds of both indexes.
func held(a, b uint64) []wire.Held {
	return []wire.Held{{Copy: 11, Node: 2, OK: true, Ref: at("a", 0, a)},
		{Copy: 12, Node: 2, OK: true, Ref: at("b", 0, b)}}
}

// made reports for bucket a's and bucket b's index whether the view is a new one. It checks that each view equals one
// that is made now.
func (w *twoBuckets) made(was *[2]*wire.Held) (anew [2]bool) {
	w.t.Helper()
	for i := range anew {
		id := index.ID(i + 1)
		v, err := w.View(id)
		want, _, wantErr := w.view(w.node, id)
		if wantErr == nil {
			want.Prepare()
		}
		if (err == nil) != (wantErr == nil) || err == nil && !reflect.DeepEqual(v, want) {
			w.t.Errorf("index %d: %+v, %v; want %+v, %v", id, v, err, want, wantErr)
		}
		var now *wire.Held
		if len(v.Held) > 0 {
			now = &v.Held[0] // each view has its own memory
		}
		anew[i], was[i] = now != was[i] || now == nil, now
	}
	return anew
}

// woken reports which buckets' waiting scans do wakes.
func (w *twoBuckets) woken(do func()) (woken [2]bool) {
	a, b := w.Changed("a"), w.Changed("b")
	do()
	for i, changed := range []<-chan struct{}{a, b} {
		select {
		case <-changed:
			woken[i] = true
		default:
		}
	}
	return woken
}

// TestChangeRenewsViewsOfItsBucketOnly checks that a change of a bucket makes new views of its indexes and wakes its
// waiting scans, but leaves the views and scans of the other bucket alone.
func TestChangeRenewsViewsOfItsBucketOnly(t *testing.T) {
	w := newTwoBuckets(t)
	w.SetHeld(held(1, 1))
	var was [2]*wire.Held
	w.made(&was)
	a, b, both, none := [2]bool{true, false}, [2]bool{false, true}, [2]bool{true, true}, [2]bool{}
	for _, step := range []struct {
		what        string
		do          func()
		made, woken [2]bool
	}{
		{"nothing", func() {}, none, none},
		{"a timestamp of a", func() { w.publish(at("a", 0, 1)) }, a, a},
		{"the same again", func() { w.publish(at("a", 0, 1)) }, none, none},
		{"a timestamp of b", func() { w.publish(at("b", 0, 1)) }, b, b},
		{"a timestamp of neither", func() { w.publish(at("c", 0, 1)) }, none, none},
		{"a snapshot of a", func() { w.show(1, at("a", 0, 1)) }, a, none}, // who adds it calls Touch
		{"that is reported", func() { w.Touch("a") }, a, a},
		{"snapshots of b", func() { w.show(2, at("b", 0, 1)); w.show(2, at("b", 0, 2)) }, b, none},
		{"newer ones of a", func() { w.show(1, at("a", 0, 2)); w.show(1, at("a", 0, 3)) }, a, none},
		{"some that left the branch", func() { w.part(25) }, a, none},
		{"they go", func() { w.snaps.DropParted(1).Close() }, a, none},
		{"another node's of a", func() { w.SetHeld(held(2, 1)) }, a, a},
		{"the same list", func() { w.SetHeld(held(2, 1)) }, none, none},
		{"another node's of b", func() { w.SetHeld(held(2, 2)) }, b, b},
		{"of both", func() { w.SetHeld(held(3, 3)) }, both, both},
		{"a's are gone", func() { w.SetHeld(held(3, 3)[1:]) }, a, a},
		{"they are back", func() { w.SetHeld(held(3, 3)) }, a, a},
		{"its node is away", func() { h := held(3, 3); h[0].OK = false; w.SetHeld(h) }, a, a},
		{"a copy that is not known", func() {
			w.SetHeld(append(held(3, 3), wire.Held{Copy: 13, Node: 2, OK: true, Ref: at("b", 0, 3)}))
		}, a, a}, // since a's node is back
		{"it is reported alone", func() { w.SetHeld(held(3, 3)) }, none, none},
		{"another copy of a", func() {
			w.take(func(d *wire.Definitions) {
				d.Topologies[0].Copies = append(slices.Clone(d.Topologies[0].Copies), partition.Copy{ID: 13, Node: 2})
			})
		}, both, both},
		{"that has something", func() {
			w.SetHeld(append(held(3, 3), wire.Held{Copy: 13, Node: 2, OK: true, Ref: at("a", 0, 3)}))
		}, a, a},
		{"an index in another state", func() {
			w.take(func(d *wire.Definitions) { d.Indexes[0].State = index.Error })
		}, both, both},
		{"a rollback of b begins", func() { w.take(func(d *wire.Definitions) { d.Buckets[1].InRollback = true }) }, both,
			both},
		{"and ends", func() {
			w.take(func(d *wire.Definitions) { d.Buckets[1].InRollback, d.Buckets[1].RollbackID = false, 1 })
		}, both, both},
		{"the first timestamp of a arrives", func() { w.publish(at("a", 1, 5)) }, a, a},
		{"another epoch", func() { w.take(func(d *wire.Definitions) { d.Fence.Epoch++ }) }, both, both},
		{"a revision", func() {
			d := w.defs
			d.Revision++
			if !w.NothingNew(&d) {
				t.Error("it says something new")
			}
			w.defs = d
		}, none, none},
		{"another node", func() { w.node = 2 }, both, none},
		{"this one again", func() { w.node = 1 }, both, none},
		{"a in doubt", func() { w.snaps.Doubt(1).Close() }, a, none},
		{"later ones are not shown", func() { w.show(1, at("a", 1, 6)) }, none, none},
		{"trusted", func() { w.snaps.Trust(1); w.show(1, at("a", 1, 7)) }, a, none},
		{"released", func() { w.snaps.Release(1) }, a, none},
		{"b's are dropped", func() { w.snaps.Drop(2) }, b, none},
		{"b's are there again", func() { w.show(2, at("b", 1, 8)) }, b, none},
		{"all are closed", w.snaps.CloseAll, both, none},
		{"the list of an earlier run", func() { w.Resume(&w.defs) }, both, both},
	} {
		woken := w.woken(step.do)
		if made := w.made(&was); made != step.made || woken != step.woken {
			t.Errorf("%s: views of a and b made anew %v, want %v; woken %v, want %v", step.what, made, step.made, woken,
				step.woken)
		}
	}
}

// TestTimestampsOfRemovedBucketsAreUnknown checks that the timestamp of a bucket that is no longer in the definitions
// is unknown. One of a bucket that has not been in them yet is known, since the timestamp may come first.
func TestTimestampsOfRemovedBucketsAreUnknown(t *testing.T) {
	w := newTwoBuckets(t)
	known := func() (names []string) {
		for _, name := range []string{"a", "b", "early"} {
			_, newest := w.Newest(name)
			_, arrived := w.Arrived(at(name, 0, 2))
			if newest != arrived {
				t.Errorf("bucket %s: its newest timestamp is known %v, when it came %v", name, newest, arrived)
			}
			if newest {
				names = append(names, name)
			}
		}
		return names
	}
	for _, name := range []string{"a", "b", "early"} {
		w.publish(at(name, 0, 1))
		w.publish(at(name, 0, 2))
	}
	for _, step := range []struct{ lists, known []string }{
		{[]string{"a", "b"}, []string{"a", "b", "early"}},
		{[]string{"a"}, []string{"a", "early"}},
		{[]string{"a", "early"}, []string{"a", "early"}},
		{[]string{"a", "b"}, []string{"a"}},
		{nil, nil},
	} {
		w.take(func(d *wire.Definitions) {
			d.Buckets = nil
			for _, name := range step.lists {
				d.Buckets = append(d.Buckets, wire.Bucket{Name: name, Generation: 1})
			}
		})
		if got := known(); !slices.Equal(got, step.known) {
			t.Errorf("with buckets %v timestamps of %v are known, want %v", step.lists, got, step.known)
		}
	}
}

// TestViewMadeDuringAChangeIsNotCached checks that a view that was made while something changes is not cached in
// place of the view after the change.
func TestViewMadeDuringAChangeIsNotCached(t *testing.T) {
	w := newTwoBuckets(t)
	w.SetHeld(held(1, 1))
	for _, step := range []struct {
		what   string
		change func()
	}{
		{"held by others", func() { w.SetHeld(held(2, 1)) }},
		{"definitions", func() { w.take(func(d *wire.Definitions) { d.Fence.Epoch++ }) }},
		{"a snapshot", func() { w.show(1, at("a", 0, 3)) }},
		{"a timestamp", func() { w.publish(at("a", 1, 4)) }},
	} {
		v, of, err := w.view(1, 1)
		if err != nil {
			t.Fatal(err)
		}
		step.change()
		for range 2 { // before the view was requested again, and after
			w.keep(1, kept{of, v})
			got, err := w.View(1)
			want, _, _ := w.view(1, 1)
			want.Prepare()
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %+v, %v; want %+v", step.what, got, err, want)
			}
		}
	}
}

// manyIndexes returns definitions of n indexes, each with four copies on other nodes, and a function that returns
// what these hold at a timestamp's number.
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

// TestViewsHaveTimestampsOfTheirCopies checks that from a long list each view takes what its own copies hold, even if
// some are not in the list, and nothing that comes from a node other than the copy's.
func TestViewsHaveTimestampsOfTheirCopies(t *testing.T) {
	snaps := snapshots.New(2, hclog.NewNullLogger(), time.Now)
	defer snaps.CloseAll()
	c := New(func() index.NodeID { return 1 }, snaps)
	defs, holding := manyIndexes(50)
	c.Take(&defs)
	all := holding(7)
	want := map[index.CopyID]wire.Held{}
	list := all[:0]
	for i, h := range all {
		switch {
		case i%7 == 3: // not in the list
			continue
		case i%11 == 5:
			h.Node = 200
		default:
			want[h.Copy] = h
		}
		list = append(list, h)
	}
	c.SetHeld(list)
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
			t.Errorf("index %d still has positions that others hold: %v", d.ID, got)
		}
	}
}

// BenchmarkViews measures one view of every index after a promotion, which changes what every copy holds.
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

// BenchmarkViewBesideAnotherBucket measures one view of an index of 64 slices for a scan, if nothing changes, if
// another bucket changes, and if its own bucket changes.
func BenchmarkViewBesideAnotherBucket(b *testing.B) {
	const count = 64
	for _, changed := range []string{"none", "other", "own"} {
		b.Run(changed, func(b *testing.B) {
			snaps := snapshots.New(2, hclog.NewNullLogger(), time.Now)
			defer snaps.CloseAll()
			c := New(func() index.NodeID { return 1 }, snaps)
			top := partition.Topology{Index: 1, Layout: partition.Layout{Partitions: count}}
			var all []wire.Held
			for i := range 2 * count {
				id, node := index.CopyID(i+1), index.NodeID(2+i%7)
				top.Copies = append(top.Copies, partition.Copy{ID: id, Slice: index.SliceID(i / 2), Node: node})
				all = append(all, wire.Held{Copy: id, Node: node, OK: true, Ref: at("own", 0, 5)})
			}
			c.Take(&wire.Definitions{Indexes: []index.Definition{{ID: 1, Bucket: "own", State: index.Maintenance}},
				Topologies: []partition.Topology{top}, Buckets: []wire.Bucket{{Name: "own", Generation: 1}}})
			c.SetHeld(all)
			b.ReportAllocs()
			for number := uint64(1); b.Loop(); number++ {
				if changed != "none" {
					c.Published(&wire.BucketStability{Bucket: changed, Stability: timestamp.Stability{
						Ref: timestamp.Ref{Generation: 1, Number: number}}})
				}
				if _, err := c.View(1); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
