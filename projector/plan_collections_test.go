package projector

import (
	"context"
	"fmt"
	"testing"

	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/kv/mcbp"
	"tidemark/partition"
	"tidemark/wire"
)

// Only indexes on a document's collection determine how it is processed; the indexes of all collections join and
// leave together.
func TestPlanByCollection(t *testing.T) {
	d := &wire.Definitions{Revision: 9}
	for i, m := range []index.Member{{}, {Scope: "s", Collection: "c", ID: 9}, {Scope: "s", Collection: "c", ID: 9},
		{Scope: "s", Collection: "c", ID: 12}} {
		id := index.ID(i + 1)
		d.Indexes = append(d.Indexes, index.Definition{ID: id, Bucket: "b", Member: m, State: index.Maintenance,
			Keys: []index.KeyExpr{{Expr: "a"}}})
		d.Topologies = append(d.Topologies, partition.Topology{Index: id,
			Layout: partition.Layout{Scheme: partition.HashDocID, Partitions: 1},
			Copies: []partition.Copy{{ID: index.CopyID(id * 10), Node: 1, State: partition.Allocated}}})
	}
	pl, bad, err := newAssessor().plan(nil, d, "b", keyversion.ClassMaintenance, map[index.NodeID]string{1: "h:1"}, nil)
	if err != nil || len(bad) > 0 {
		t.Fatal(err, bad)
	}
	got := fmt.Sprint(pl.ids, pl.sources, pl.of(9).sources, pl.of(12).sources, pl.view.Copies(1))
	if got != "[1 2 3 4] [1] [2 3] [4] [10 20 30 40]" {
		t.Error(got)
	}
	if pl.of(8) != nil || pl.program.Sources() != 1 || pl.of(9).program.Sources() != 2 || pl.view.Sources() != 1 {
		t.Errorf("%d and %d sources, the view %d", pl.program.Sources(), pl.of(9).program.Sources(), pl.view.Sources())
	}
	pl, _, err = newAssessor().plan(nil, d, "b", keyversion.ClassCatchup,
		map[index.NodeID]string{1: "h:1"}, []index.CopyID{40})
	if err != nil || pl.of(0) != nil || len(pl.of(12).promised) != 1 || pl.of(9) != nil {
		t.Errorf("a side stream for one copy: %+v %v", pl, err)
	}
}

// Documents of two collections with the same id, and of a third without an index: each index gets its own documents
// and deletions. One stream carries all.
func TestDocumentsOfCollections(t *testing.T) {
	e := newEngine(t)
	w := newWorldAt(t, e.Addr())
	d := w.definitions(1, 1, 2)
	d.Indexes[1].Member = index.Member{Scope: "s", Collection: "c", ID: 9, Manifest: 2}
	if _, err := w.client.Definitions(context.Background(), w.url, d); err != nil {
		t.Fatal(err)
	}
	w.startAt(3, 1, 0)
	s := e.stream(3)
	s.peer.Send(mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPSnapshotMarker, 3, s.opaque),
		Extras: mcbp.SnapshotMarker{End: 4}.AppendExtras(nil)})
	s.document(1, 0)
	s.document(2, 9)
	s.document(3, 10)
	s.peer.Send(mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPDeletion, 3, s.opaque),
		Extras: mcbp.Deletion{Seqno: 4}.AppendExtras(nil), Key: mcbp.AppendCollectionKey(nil, 9, []byte("k1"))})
	w.expect(3, "1:STREAM_BEGIN@0", "1:INSERT@1", "1:INSERT@2", "1:DELETE@4")
	for _, kind := range []keyversion.Kind{keyversion.Insert, keyversion.Delete} {
		for _, ev := range w.data.kinds(kind) {
			want := index.ID(1)
			if ev.Seqno > 1 {
				want = 2
			}
			places := 0
			for _, st := range ev.Statements {
				if places++; st.Index != want {
					t.Errorf("the document at %d is sent to index %d", ev.Seqno, st.Index)
				}
			}
			if ev.Rest != nil {
				for _, p := range ev.Rest.All() {
					if places++; p.Index != want {
						t.Errorf("index %d gets an empty statement of the document at %d", p.Index, ev.Seqno)
					}
				}
			}
			if places == 0 {
				t.Errorf("no index gets the document at %d", ev.Seqno)
			}
		}
	}
}
