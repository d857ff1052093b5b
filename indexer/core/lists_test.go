package core

import (
	"slices"
	"testing"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/wire"
)

// list returns definitions with an index of two slices, ready, and one of a bucket that the list does not have.
func list(epoch, revision uint64, copies ...partition.Copy) *wire.Definitions {
	return &wire.Definitions{Fence: wire.Fence{ClusterID: "c", Epoch: epoch}, Revision: revision,
		Buckets: []wire.Bucket{{Name: "b", UUID: "u", VBuckets: 4}},
		Indexes: []index.Definition{{ID: 1, Bucket: "b", State: index.Maintenance}, {ID: 2, Bucket: "gone"}},
		Topologies: []partition.Topology{{Index: 1, Copies: copies},
			{Index: 2, Copies: []partition.Copy{{ID: 99, Node: 1, State: partition.Allocated}}},
			{Index: 3, Copies: []partition.Copy{{ID: 98, Node: 1, State: partition.Allocated}}}}}
}

func at(id index.CopyID, slice index.SliceID, node index.NodeID, state partition.CopyState) partition.Copy {
	return partition.Copy{ID: id, Slice: slice, Node: node, State: state}
}

// TestPlaced: a node's copies are those that a list places on it and that are not leaving; each comes with the other
// nodes that have the slice, if its index is ready.
func TestPlaced(t *testing.T) {
	d := list(1, 1, at(10, 0, 1, partition.Allocated), at(11, 0, 2, partition.Allocated), at(12, 0, 3, partition.Leaving),
		at(20, 1, 1, partition.Leaving), at(21, 1, 2, partition.Allocated))
	got := Placed(d, 1)
	if w := got[10]; len(got) != 1 || w.Index.ID != 1 || w.Bucket.UUID != "u" ||
		!slices.Equal(w.Others, []index.NodeID{2}) {
		t.Errorf("on node 1: %+v", got)
	}
	if got := Placed(d, 2); len(got) != 2 || !slices.Equal(got[11].Others, []index.NodeID{1}) || len(got[21].Others) > 0 {
		t.Errorf("on node 2: %+v", got)
	}
	for id, want := range map[index.CopyID][]index.NodeID{10: {2}, 11: {1}, 12: {1, 2}, 20: {2}, 21: nil, 99: nil} {
		if got := Others(d, 1, id); !slices.Equal(got, want) {
			t.Errorf("the slice of copy %d have %v, want %v", id, got, want)
		}
	}
	if got := Others(d, 7, 10); len(got) > 0 {
		t.Errorf("a slice of no index have %v", got)
	}
	d.Indexes[0].State = index.Backfill
	if got := Placed(d, 1); len(got) != 1 || len(got[10].Others) > 0 {
		t.Errorf("while the index is built no node has anything: %+v", got)
	}
	if got := Others(d, 1, 10); len(got) > 0 {
		t.Errorf("while the index is built %v have the slice", got)
	}
}

// TestLists: which list is refused, which is in force already, and which removes copies.
func TestLists(t *testing.T) {
	var l Lists
	judge := func(what string, d *wire.Definitions, want Judgement, follows bool) {
		t.Helper()
		if got, have := l.Judge(d); got != want || l.Follows(d) != follows {
			t.Errorf("%s: %d beside revision %d, follows %v; want %d, %v", what, got, have, l.Follows(d), want, follows)
		}
	}
	first := list(1, 5, at(10, 0, 1, partition.Allocated))
	judge("the first one: why copies are not in it is unknown", first, Newer, false)
	l.Take(first)
	judge("the same", first, Known, false)
	judge("an older one", list(1, 4), Older, false)
	judge("a newer one", list(1, 6), Newer, true)
	judge("a lower one, after a lost majority", list(2, 3), Newer, false)
	if l.NothingNew(list(1, 7)) || l.NothingNew(list(2, 7, at(10, 0, 1, partition.Allocated))) {
		t.Error("another list, or epoch, is nothing new")
	}
	if !l.NothingNew(list(1, 7, at(10, 0, 1, partition.Allocated))) || l.InForce.Revision != 7 || l.Obeyed != 7 {
		t.Errorf("revision %d of %d is obeyed, want 7", l.InForce.Revision, l.Obeyed)
	}
	if l.RevisionFor(1) != 7 || l.RevisionFor(2) != 0 {
		t.Errorf("leaders get revision %d, and %d", l.RevisionFor(1), l.RevisionFor(2))
	}
	stored := *first
	l = Lists{}
	l.Resume(&stored)
	if l.RevisionFor(1) != 0 || stored.Revision != 5 {
		t.Errorf("before a leader has sent a list revision %d is reported, stored is %d", l.RevisionFor(1), stored.Revision)
	}
	judge("the same, of the leader", first, Newer, false)
	judge("an older one, which takes nothing away", list(1, 4), Newer, false)
	judge("the next one", list(1, 6), Newer, true)
	other := list(1, 6)
	other.Fence.ClusterID = "other"
	judge("of another cluster", other, Newer, false)
}

// TestSort: whatever order a list has, indexes and topologies are found by id.
func TestSort(t *testing.T) {
	d := list(1, 1)
	slices.Reverse(d.Indexes)
	slices.Reverse(d.Topologies)
	Sort(d)
	if d.Indexes[0].ID != 1 || d.Topologies[2].Index != 3 || !Defines(d, 2) || Defines(d, 3) {
		t.Errorf("%+v", d)
	}
}
