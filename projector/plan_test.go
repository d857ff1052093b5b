package projector

import (
	"fmt"
	"testing"

	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/partition"
	"tidemark/wire"
)

// One index that cannot be evaluated or placed must not stop the others of its bucket.
func TestPlanOmitsInvalidIndexes(t *testing.T) {
	d := &wire.Definitions{Revision: 9}
	add := func(id index.ID, bucket string, state index.State, expr string, l partition.Layout, copies ...partition.Copy) {
		d.Indexes = append(d.Indexes, index.Definition{ID: id, Name: fmt.Sprint("i", id), Bucket: bucket, State: state,
			Keys: []index.KeyExpr{{Expr: expr}}})
		d.Topologies = append(d.Topologies, partition.Topology{Index: id, Layout: l, Copies: copies})
	}
	one := partition.Layout{Scheme: partition.HashDocID, Partitions: 1}
	at := func(id index.CopyID, slice index.SliceID, state partition.CopyState) partition.Copy {
		return partition.Copy{ID: id, Slice: slice, Node: 1, State: state}
	}
	add(1, "b", index.Maintenance, "a", one, at(10, 0, partition.Allocated))
	add(2, "b", index.Maintenance, "a +", one, at(20, 0, partition.Allocated))       // no expression
	add(3, "b", index.Maintenance, "a", partition.Layout{Scheme: 99, Partitions: 1}) // no layout
	add(4, "b", index.Maintenance, "a", one, at(40, 7, partition.Allocated))         // no such slice
	add(5, "other", index.Maintenance, "a", one, at(50, 0, partition.Allocated))     // not ours
	add(6, "b", index.Dropping, "a", one, at(60, 0, partition.Allocated))            // not active
	// one is not there yet
	add(7, "b", index.Backfill, "a", one, at(70, 0, partition.Allocated), at(71, 0, partition.Placed))
	// its node has no address yet
	add(8, "b", index.Backfill, "c", one, partition.Copy{ID: 80, Node: 2, State: partition.Allocated})
	// an earlier version took it
	add(9, "b", index.Maintenance, `DATE_PART_STR(a, "decennium")`, one, at(90, 0, partition.Allocated))
	pl, bad, err := newAssessor().plan(nil, d, "b", keyversion.ClassMaintenance, map[index.NodeID]string{1: "h:1"}, nil)
	if err != nil || len(bad) != 3 {
		t.Fatalf("%v, left out %v", err, bad)
	}
	if got := fmt.Sprint(pl.view.Copies(1)); got != "[10 70 90]" || pl.program.Sources() != 4 || pl.view.Sources() != 4 ||
		pl.revision != 9 {
		t.Errorf("copies %s, %d sources, revision %d", got, pl.program.Sources(), pl.revision)
	}
	pl, _, err = newAssessor().plan(nil, d, "b", keyversion.ClassCatchup,
		map[index.NodeID]string{1: "h:1"}, []index.CopyID{71})
	if err != nil || fmt.Sprint(pl.view.Copies(1)) != "[71]" || pl.program.Sources() != 1 {
		t.Errorf("a side stream feeds %v: %v", pl.view.Copies(1), err)
	}
}
