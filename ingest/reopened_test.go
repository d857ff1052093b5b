package ingest

import (
	"slices"
	"testing"

	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/timestamp"
)

// TestReopenedBesideASideStream checks that a copy whose store lost its newest batches while a side stream runs takes
// nothing more from that stream, whose BEGIN deleted a range that exists again. It wants another one, judged by what
// it holds now.
func TestReopenedBesideASideStream(t *testing.T) {
	log := timestamp.FailoverLog{{VBUUID: 7}}
	b, err := New(Options{VBuckets: 1, Pack: func(*keyversion.Event) []byte { return []byte{1} }})
	if err != nil {
		t.Fatal(err)
	}
	held := []Position{{VBUUID: 7, Side: 17, A: 22}}
	for _, c := range []Copy{{ID: 1, Index: 1, Positions: held, Logs: []timestamp.FailoverLog{log}}, {ID: 2, Index: 2}} {
		if err := b.Add(c); err != nil {
			t.Fatal(err)
		}
	}
	main, side := Source{Connection: 1}, Source{Connection: 2}
	accept := func(take func(Source, *keyversion.Event) Verdict, src Source, e keyversion.Event) {
		t.Helper()
		if v := take(src, &e); v != Taken {
			t.Fatalf("%v: %v", e.Kind, v)
		}
	}
	both := []index.CopyID{1, 2}
	accept(b.Accept, main, keyversion.Event{Kind: keyversion.StreamBegin,
		Begin: &keyversion.Begin{Start: 27, Log: log, Copies: both}})
	begin := func(id uint64, copies ...index.CopyID) {
		t.Helper()
		wants := b.Wants()
		if len(wants) != 1 || !slices.Equal(wants[0].Copies, copies) {
			t.Fatalf("wanted: %+v, want a side stream of %v", wants, copies)
		}
		b.OpenSide(wants[0], id)
		e := keyversion.Event{Kind: keyversion.StreamBegin, Begin: &keyversion.Begin{Start: 0, Log: log, Purge: 27,
			Copies: copies}}
		e.Incarnation.Counter = id
		accept(b.AcceptSide, side, e)
	}
	deleted := func(when string) {
		t.Helper()
		var of []index.CopyID
		for _, w := range b.Work() {
			if w.Batch != nil && w.Batch.Kind == DeleteRange {
				of = append(of, w.Batch.Copies[0].ID)
			}
		}
		if !slices.Equal(of, []index.CopyID{1}) {
			t.Fatalf("%s the ranges of copies %v are deleted, want that of 1", when, of)
		}
	}
	begin(5, both...)
	deleted("first")
	if err := b.Reopened(1, held, []timestamp.FailoverLog{log}); err != nil { // before its range was deleted
		t.Fatal(err)
	}
	b.Work()
	end := keyversion.Event{Kind: keyversion.StreamEnd, Seqno: 27, Window: timestamp.Window{End: 27}}
	end.Incarnation.Counter = 5
	accept(b.AcceptSide, side, end)
	for batch := b.TakeSide(1, 0); batch != nil; batch = b.TakeSide(1, 0) {
		b.Done(batch)
	}
	if p, _ := b.Position(1, 0); p.Side != 17 || p.Whole() {
		t.Errorf("it stands at %+v, and has rows that were deleted", p)
	}
	if p, _ := b.Position(2, 0); !p.Whole() {
		t.Errorf("the other copy stands at %+v", p)
	}
	begin(6, 1)
	deleted("then")
}
