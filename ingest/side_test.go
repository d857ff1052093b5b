package ingest

import (
	"testing"

	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/timestamp"
)

// sideWorld is a bucket with one copy that lacks everything up to 10 in each vbucket, and requested it under one id.
type sideWorld struct {
	t    *testing.T
	b    *Bucket
	log  timestamp.FailoverLog
	side index.Incarnation
}

func newSideWorld(t *testing.T, vbuckets int) *sideWorld {
	t.Helper()
	pack := func(*keyversion.Event) []byte { return make([]byte, 100-entryOverhead) }
	b, err := New(Options{VBuckets: vbuckets, Pack: pack})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Add(Copy{ID: 1}); err != nil {
		t.Fatal(err)
	}
	w := &sideWorld{t: t, b: b, log: timestamp.FailoverLog{{VBUUID: 7}}, side: index.Incarnation{Counter: 5}}
	for vb := range vbuckets {
		w.maintain(1, 1, vb)
	}
	for _, want := range b.Wants() {
		b.OpenSide(want, w.side.Counter)
	}
	return w
}

// maintain starts a maintenance stream at 10.
func (w *sideWorld) maintain(conn, counter uint64, vb int) {
	w.t.Helper()
	e := &keyversion.Event{Kind: keyversion.StreamBegin, VBucket: uint16(vb), Incarnation: incOf(counter),
		Begin: &keyversion.Begin{Start: 10, Log: w.log, Copies: []index.CopyID{1}}}
	if v := w.b.Accept(Source{Connection: conn}, e); v != Taken {
		w.t.Fatalf("BEGIN of a maintenance stream: %v", v)
	}
}

func (w *sideWorld) begin(conn, start uint64, vb int) Verdict {
	return w.b.AcceptSide(Source{Connection: conn}, &keyversion.Event{Kind: keyversion.StreamBegin, VBucket: uint16(vb),
		Incarnation: w.side,
		Begin:       &keyversion.Begin{Start: start, Log: w.log, Copies: []index.CopyID{1, 2}}})
}

func (w *sideWorld) data(conn, seqno uint64, vb int) Verdict {
	return w.b.AcceptSide(Source{Connection: conn}, &keyversion.Event{Kind: keyversion.Insert, VBucket: uint16(vb),
		Incarnation: w.side, Seqno: seqno,
		DocID: []byte{byte(seqno)}, Window: timestamp.Window{Start: seqno - 1, End: seqno}})
}

func (w *sideWorld) is(what string, got, want Verdict) {
	w.t.Helper()
	if got != want {
		w.t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// TestSideStreamReportsAPurgeLate checks that a repeated BEGIN with a higher purge seqno has the effect of a first one,
// and that a BEGIN repeated for another reason has not.
func TestSideStreamReportsAPurgeLate(t *testing.T) {
	w := newSideWorld(t, 1)
	begin := func(conn, purge uint64) {
		t.Helper()
		w.is("BEGIN", w.b.AcceptSide(Source{Connection: conn}, &keyversion.Event{Kind: keyversion.StreamBegin,
			Incarnation: w.side, Begin: &keyversion.Begin{Log: w.log, Purge: purge,
				Copies: []index.CopyID{1}}}), Taken)
	}
	deleted := func() (n int) {
		for _, work := range w.b.Work() {
			if work.Batch != nil && work.Batch.Kind == DeleteRange {
				n++
			}
		}
		return n
	}
	w.b.copies[0].parts[0].pos.Main = 12 // it has rows
	begin(2, 0)
	if n := deleted(); n != 0 {
		t.Errorf("nothing was purged: %d ranges deleted", n)
	}
	begin(2, 5)
	if n := deleted(); n != 1 {
		t.Errorf("deletions up to 5 were purged: %d ranges deleted", n)
	}
	w.is("seqno 1", w.data(2, 1, 0), Taken)
	w.b.TakeSide(0, 0)
	w.b.ConnectionLost(2)
	begin(3, 5)
	if n := deleted(); n != 0 {
		t.Errorf("it goes on over another connection: %d ranges deleted", n)
	}
}

// TestSideStreamSurvivesReconnects checks that neither a lost connection nor a restart of the maintenance stream on
// the same branch discards what a side stream has delivered; on another branch the side stream is dropped.
func TestSideStreamSurvivesReconnects(t *testing.T) {
	w := newSideWorld(t, 1)
	w.is("BEGIN", w.begin(2, 0, 0), Taken)
	w.is("seqno 1", w.data(2, 1, 0), Taken)
	w.is("seqno 2", w.data(2, 2, 0), Taken)
	w.b.ConnectionLost(2)
	if s := w.b.SideStreams(); len(s) != 1 || !s[0].Lost || s[0].Finished || s[0].At != 2 {
		t.Fatalf("after its connection was lost: %+v", s)
	}
	w.is("before BEGIN over the next connection", w.data(3, 3, 0), NotOwner)
	w.is("BEGIN over the next connection", w.begin(3, 1, 0), Taken)
	w.is("seqno 2 again", w.data(3, 2, 0), Covered)
	w.is("seqno 3", w.data(3, 3, 0), Taken)
	w.is("a late event of the connection before", w.data(2, 4, 0), NotOwner)

	w.maintain(4, 2, 0)
	w.is("after BEGIN on the same branch", w.data(3, 4, 0), Taken)
	if ids := w.b.Abandoned(); len(ids) != 0 {
		t.Errorf("%v were given up", ids)
	}
	if got := w.b.Wants(); len(got) != 0 {
		t.Errorf("what is under way is wanted once more: %+v", got)
	}

	w.log = timestamp.FailoverLog{{VBUUID: 8, Seqno: 10}, {VBUUID: 7}}
	w.maintain(5, 3, 0)
	w.is("after BEGIN on another branch", w.data(3, 5, 0), NotOwner)
	if ids := w.b.Abandoned(); len(ids) != 1 {
		t.Errorf("%v were given up, want one", ids)
	}
}

// TestSideStreamGivenUp checks that a stream that does not resume is wanted again from the written position.
func TestSideStreamGivenUp(t *testing.T) {
	w := newSideWorld(t, 1)
	w.is("BEGIN", w.begin(2, 0, 0), Taken)
	w.is("seqno 1", w.data(2, 1, 0), Taken)
	w.b.ConnectionLost(2)
	w.b.SideFailed(0, w.side.Counter)
	w.is("BEGIN too late", w.begin(3, 1, 0), NotOwner)
	w.b.Done(w.b.TakeSide(1, 0))
	if got := w.b.Wants(); len(got) != 1 || got[0].From != 1 || got[0].To != 10 {
		t.Errorf("wanted: %+v, want 1 to 10", got)
	}
}

// TestSideStreamBrokenOff checks that a stream that is over before its end does not affect others. What has arrived
// of it counts, except for a document of which only a part arrived; the rest is wanted from there.
func TestSideStreamBrokenOff(t *testing.T) {
	w := newSideWorld(t, 2)
	for vb := range 2 {
		w.is("BEGIN", w.begin(2, 0, vb), Taken)
		w.is("seqno 3", w.data(2, 3, vb), Taken)
	}
	half := &keyversion.Event{Kind: keyversion.Insert, Incarnation: w.side, Seqno: 4, DocID: []byte("d"),
		Window: timestamp.Window{Start: 3, End: 4}, More: true}
	w.is("a part of seqno 4", w.b.AcceptSide(Source{Connection: 2}, half), Taken)
	drop := &keyversion.Event{Kind: keyversion.DropData, Incarnation: w.side, Seqno: 5}
	w.is("DropData", w.b.AcceptSide(Source{Connection: 2}, drop), Taken)
	w.is("seqno 5 of the one", w.data(2, 5, 0), NotOwner)
	w.is("seqno 5 of the other", w.data(2, 5, 1), Taken)
	w.b.Done(w.b.TakeSide(1, 0))
	if ids := w.b.Abandoned(); len(ids) != 0 {
		t.Errorf("%v were given up: the producer would be asked to stop all of it", ids)
	}
	if s := w.b.SideStreams(); len(s) != 1 || s[0].VBucket != 1 || s[0].At != 5 {
		t.Errorf("open: %+v, want vbucket 1 at 5", s)
	}
	wants := w.b.Wants()
	if len(wants) != 1 || wants[0].VBucket != 0 || wants[0].From != 3 || wants[0].To != 10 {
		t.Fatalf("wanted: %+v, want 3 to 10 of vbucket 0", wants)
	}
	w.side.Counter++
	w.b.OpenSide(wants[0], w.side.Counter)
	w.is("BEGIN of the next one", w.begin(3, 3, 0), Taken)
	w.is("END", w.b.AcceptSide(Source{Connection: 3}, &keyversion.Event{Kind: keyversion.StreamEnd, Incarnation: w.side,
		Seqno: 10, Window: timestamp.Window{End: 12}}), Taken)
	batch := w.b.TakeSide(1, 0)
	for _, p := range batch.Copies[0].Parts {
		if p.VBucket == 0 && (p.Position.Side != 10 || p.Position.Floor < 12) {
			t.Errorf("%+v, want all up to 10, exact from 12 on", p.Position)
		}
	}
}

// TestSideStreamBeyondItsEnd: engines end a finite stream with the snapshot that contains its end. What is above the
// end belongs to the maintenance stream; how far the stream read determines how far a version may have been hidden.
func TestSideStreamBeyondItsEnd(t *testing.T) {
	w := newSideWorld(t, 1)
	w.is("BEGIN", w.begin(2, 0, 0), Taken)
	w.is("seqno 4", w.data(2, 4, 0), Taken)
	w.is("seqno 12", w.data(2, 12, 0), Covered)
	w.is("seqno 15", w.data(2, 15, 0), Covered)
	w.is("END", w.b.AcceptSide(Source{Connection: 2}, &keyversion.Event{Kind: keyversion.StreamEnd, Incarnation: w.side,
		Seqno: 15, Window: timestamp.Window{End: 17}}), Taken)
	batch := w.b.TakeSide(1, 0)
	if len(batch.Segments) != 1 || len(batch.Segments[0].Events) != 1 || batch.Segments[0].Events[0].Seqno != 4 {
		t.Fatalf("%+v, want seqno 4 alone", batch.Segments)
	}
	if p := batch.Copies[0].Parts[0].Position; p.Side != 10 || p.Floor != 17 {
		t.Errorf("%+v, want all up to 10, exact from 17 on", p)
	}
	w.b.Done(batch)
	if got := w.b.Wants(); len(got) != 0 {
		t.Errorf("wanted: %+v", got)
	}
}

// TestSideBatches checks that a batch of side streams is bounded, and that every vbucket gets its turn.
func TestSideBatches(t *testing.T) {
	const vbuckets, each = 4, 100 // bytes of an entry
	w := newSideWorld(t, vbuckets)
	for vb := range vbuckets {
		w.is("BEGIN", w.begin(2, 0, vb), Taken)
		for seqno := range uint64(2) {
			w.is("data", w.data(2, seqno+1, vb), Taken)
		}
	}
	var order []int
	for w.b.SideBytes() > 0 {
		batch := w.b.TakeSide(1, 3*each)
		if batch == nil || batch.Bytes() > 4*each {
			t.Fatalf("a batch of at most %d bytes: %+v", 3*each, batch)
		}
		for _, s := range batch.Segments {
			order = append(order, s.VBucket)
		}
		w.b.Done(batch)
		w.data(2, uint64(3+len(order)/2), 0) // the first one keeps delivering
		if len(order) > 8 {
			t.Fatalf("the turns were %v", order)
		}
		if len(order) == vbuckets {
			break
		}
	}
	for vb, got := range order {
		if got != vb {
			t.Fatalf("the turns were %v, want each vbucket once", order)
		}
	}
	if w.b.TakeSide(1<<20, 3*each) != nil {
		t.Error("what is less than was asked for was given out")
	}
}

// TestSideStreamOfARemovedCopy checks that a side stream delivers nothing for a removed copy, not even when its id is
// added again: that copy requests what it lacks itself. A stream for the removed copy alone is dropped.
func TestSideStreamOfARemovedCopy(t *testing.T) {
	w := newSideWorld(t, 1)
	w.is("BEGIN", w.begin(2, 0, 0), Taken)
	w.is("seqno 1", w.data(2, 1, 0), Taken)
	w.b.Remove(1)
	if ids := w.b.Abandoned(); len(ids) != 1 || len(w.b.SideStreams()) != 0 || w.b.SideBytes() != 0 {
		t.Errorf("%v were given up, %+v are open, and %d bytes wait", ids, w.b.SideStreams(), w.b.SideBytes())
	}
	held := Position{VBUUID: 7, Side: 4, Main: 4, A: 4}
	if err := w.b.Add(Copy{ID: 1, Positions: []Position{held}, Logs: []timestamp.FailoverLog{w.log}}); err != nil {
		t.Fatal(err)
	}
	if got := w.b.Wants(); len(got) != 1 || got[0].From != 4 || got[0].To != 10 {
		t.Errorf("wanted: %+v, want 4 to 10", got)
	}
}

// TestSideStreamOfTwoCopies checks that a stream for two copies continues for the remaining one, and not for the
// removed one when that is added again.
func TestSideStreamOfTwoCopies(t *testing.T) {
	w := newSideWorld(t, 1)
	if err := w.b.Add(Copy{ID: 2}); err != nil {
		t.Fatal(err)
	}
	w.is("ACTIVATE", w.b.Accept(Source{Connection: 1}, &keyversion.Event{Kind: keyversion.Activate, Incarnation: incOf(1),
		Seqno: 10, Copies: []index.CopyID{2}}), Taken)
	w.b.SideFailed(0, w.side.Counter)
	w.b.TakeSide(1, 0)
	w.b.Abandoned()
	wants := w.b.Wants()
	if len(wants) != 1 || len(wants[0].Copies) != 2 {
		t.Fatalf("wanted: %+v, want one stream for both", wants)
	}
	w.b.OpenSide(wants[0], w.side.Counter)
	w.is("BEGIN", w.begin(2, 0, 0), Taken)
	w.is("seqno 1", w.data(2, 1, 0), Taken)
	w.b.Remove(1)
	if err := w.b.Add(Copy{ID: 1}); err != nil {
		t.Fatal(err)
	}
	w.is("seqno 2", w.data(2, 2, 0), Taken)
	batch := w.b.TakeSide(1, 0)
	if batch == nil || len(batch.Copies) != 1 || batch.Copies[0].ID != 2 || len(w.b.Abandoned()) != 0 {
		t.Errorf("%+v, want a batch for copy 2", batch)
	}
	if len(wants[0].Copies) != 2 {
		t.Error("what was asked for is changed")
	}
}

// TestOldTombstonesArePurged checks that tombstones from before are purged when the copy is whole, by a part that
// requests it.
func TestOldTombstonesArePurged(t *testing.T) {
	w := newTurnsWorld(t)
	w.b.HoldsTombstones(1, 0)
	if !w.b.Tombstones(1) {
		t.Error("it holds none")
	}
	w.write()
	batch, _ := w.b.Next(Room{Stability: true, SideMost: 1, SideLeast: 1 << 20, AheadFrom: 1 << 30})
	if batch == nil || len(batch.Copies[0].Parts) != 1 || !batch.Copies[0].Parts[0].PurgeTombstones || w.b.Tombstones(1) {
		t.Errorf("%+v", batch)
	}
}

// A copy is joining while streams that will feed it have not begun: it is about to lack more.
func TestJoining(t *testing.T) {
	b, err := New(Options{VBuckets: 2, Pack: func(*keyversion.Event) []byte { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Add(Copy{ID: 1}); err != nil {
		t.Fatal(err)
	}
	w := &sideWorld{t: t, b: b, log: timestamp.FailoverLog{{VBUUID: 7}}}
	for vb, want := range []bool{false, true} { // before the first, and before the second begins
		if b.Joining() != want {
			t.Errorf("before stream %d of 2 begins: joining %v", vb+1, !want)
		}
		w.maintain(1, 1, vb)
	}
	if b.Joining() {
		t.Error("all have begun, and it joins still")
	}
}
