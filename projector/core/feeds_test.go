package core

import (
	"fmt"
	"testing"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/wire"
)

// TestFedBy: the maintenance stream carries active, placed indexes to allocated copies; a side stream carries what
// was requested, to copies in any state; a subscriber's stream carries each index whole.
func TestFedBy(t *testing.T) {
	copies := func(node index.NodeID, ids ...index.CopyID) (all []partition.Copy) {
		for i, id := range ids {
			all = append(all, partition.Copy{ID: id, Node: node + index.NodeID(i), State: partition.Allocated})
		}
		return all
	}
	made := partition.Copy{ID: 12, Node: 3, State: partition.Placed}
	d := &wire.Definitions{Revision: 7,
		Indexes: []index.Definition{{ID: 1, Bucket: "b", State: index.Maintenance},
			{ID: 2, Bucket: "b", State: index.Dropping}, {ID: 3, Bucket: "c", State: index.Maintenance}, {ID: 4, Bucket: "b", State: index.Backfill},
			{ID: 5, Bucket: "b", State: index.Backfill}, {ID: 6, Bucket: "b", State: index.Backfill, Origin: 1, Replaces: 1},
			{ID: 7, Bucket: "b", State: index.Maintenance, Origin: 2}},
		Topologies: []partition.Topology{{Index: 4, Copies: copies(1, 40)}, {Index: 3, Copies: copies(1, 30)},
			{Index: 2, Copies: copies(1, 20)}, {Index: 1, Copies: append(copies(1, 10, 11), made)}}}
	for _, c := range []struct {
		what string
		t    *wire.SideTarget // nil: maintenance
		want string
	}{
		{"maintenance", nil, "1:[10 11] 4:[40] "},
		{"copies", &wire.SideTarget{Node: 1, Copies: []index.CopyID{10, 40}}, "1:[10] 4:[40] "},
		{"a copy that its host has just made", &wire.SideTarget{Node: 3, Copies: []index.CopyID{12}}, "1:[12] "},
		{"copies that are gone", &wire.SideTarget{Node: 1, Copies: []index.CopyID{9, 20}}, ""},
		{"a subscriber", &wire.SideTarget{Indexes: []index.ID{1, 5}}, "1:[1] 5:[5] "},
		{"a subscriber of one that was split", &wire.SideTarget{Indexes: []index.ID{2}}, "2:[2] "},
		{"a subscriber of one that is gone", &wire.SideTarget{Indexes: []index.ID{7, 9}}, ""},
	} {
		defs, only := d, []index.CopyID(nil)
		if c.t != nil {
			defs, only = SideFeed(d, c.t)
		}
		got := ""
		for _, f := range FedBy(defs, "b", only) {
			var ids []index.CopyID
			for i := range f.Topology.Copies {
				if Feeds(&f.Topology.Copies[i], only) {
					ids = append(ids, f.Topology.Copies[i].ID)
				}
			}
			got += fmt.Sprintf("%d:%v ", uint64(f.Index.ID), ids)
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
	if HasRevision(nil, 0) || HasRevision(d, 8) || !HasRevision(d, 7) || !HasRevision(d, 6) {
		t.Error("definitions know what is of their revision and of older ones")
	}
}
