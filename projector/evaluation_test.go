package projector

import (
	"fmt"
	"strings"
	"testing"

	"tidemark/expression"
	"tidemark/index"
	"tidemark/partition"
	"tidemark/wire"
)

// Indexes that cannot be evaluated are reported in any state, new ones first, and parsed once.
func TestAssess(t *testing.T) {
	d := &wire.Definitions{Revision: 9, Indexers: []wire.Endpoint{{Node: 1, Maintenance: "h:1"}}}
	add := func(id index.ID, state index.State, expr string, slice index.SliceID) {
		d.Indexes = append(d.Indexes, index.Definition{ID: id, Name: fmt.Sprint("i", id), Bucket: "b", State: state,
			Keys: []index.KeyExpr{{Expr: expr}}})
		d.Topologies = append(d.Topologies, partition.Topology{Index: id,
			Layout: partition.Layout{Scheme: partition.HashDocID, Partitions: 1},
			Copies: []partition.Copy{{ID: index.CopyID(id * 10), Slice: slice, Node: 1, State: partition.Allocated}}})
	}
	add(1, index.Maintenance, "a", 0)
	add(2, index.Error, "SOON(a)", 0)
	add(3, index.Maintenance, "LATER(a, 'x')", 0)
	add(4, index.Pending, "a +", 0)
	add(5, index.Backfill, "a", 7) // no such slice
	add(6, index.Error, "a", 0)    // for another reason
	a := newAssessor()
	e := a.assess(d)
	got := ""
	for _, u := range e.Indexes {
		got += fmt.Sprint(u.Index, " ")
		if u.Error == "" || strings.Contains(u.Error, "\n") {
			t.Errorf("index %d: %q", u.Index, u.Error)
		}
	}
	if got != "3 5 4 2 " || e.Revision != 9 || e.Rules != expression.Rules || e.More {
		t.Errorf("%s, %+v", got, e)
	}
	if !strings.Contains(e.Indexes[0].Error, "LATER") || !strings.Contains(e.Indexes[3].Error, "SOON(a)") {
		t.Errorf("%+v", e.Indexes)
	}
	d.Indexes[1].Keys = []index.KeyExpr{{Expr: "a"}} // it does not happen in practice: an index's expressions never change
	if e := a.assess(d); len(e.Indexes) != 3 {
		t.Errorf("an expression that changes: %+v", e.Indexes)
	}
	for id := index.ID(10); id < 10+wire.MaxUnevaluated; id++ {
		add(id, index.Maintenance, "SOON(a)", 0)
	}
	if e := a.assess(d); len(e.Indexes) != wire.MaxUnevaluated || !e.More || e.Indexes[0].Index != 3 {
		t.Errorf("%d are listed, more %v", len(e.Indexes), e.More)
	}
	d.Indexes, d.Topologies = d.Indexes[:1], d.Topologies[:1]
	if e := a.assess(d); len(e.Indexes) != 0 || len(a.seen) != 1 {
		t.Errorf("%+v, %d remembered", e, len(a.seen))
	}
}
