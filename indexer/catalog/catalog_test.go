package catalog

import (
	"reflect"
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
