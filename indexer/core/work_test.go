package core

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"tidemark/index"
	"tidemark/ingest"
	"tidemark/keyversion"
	"tidemark/timestamp"
	"tidemark/wire"
)

// worked is a bucket whose streams run, and its Work.
type worked struct {
	t      *testing.T
	st     *Bucket
	w      *Work
	number uint64
}

var wide = Limits{Queue: math.MaxInt, Side: 1 << 10, Ahead: 1 << 10}

func newWorked(t *testing.T) *worked {
	t.Helper()
	b := hosting(t, 50)
	for vb, begin := range []keyversion.Begin{{Start: 50, Log: timestamp.FailoverLog{{VBUUID: 7}}},
		{Log: timestamp.FailoverLog{{VBUUID: 7}}}} {
		begin.Copies = []index.CopyID{10, 11, 20}
		v := b.Accept(ingest.Source{Connection: 1}, &keyversion.Event{Kind: keyversion.StreamBegin, VBucket: uint16(vb),
			Begin: &begin})
		if v != ingest.Taken {
			t.Fatalf("BEGIN of vbucket %d: %v", vb, v)
		}
	}
	return &worked{t: t, st: b, w: NewWork(b)}
}

// promote publishes the next stability timestamp, up to which everything has arrived.
func (w *worked) promote() {
	w.t.Helper()
	w.number++
	v := timestamp.New(2)
	for vb, at := range []uint64{50 + w.number, w.number} {
		w.st.Accept(ingest.Source{Connection: 1}, &keyversion.Event{Kind: keyversion.Sync, VBucket: uint16(vb), Seqno: at})
		v.Set(vb, timestamp.Position{VBUUID: 7, Seqno: at})
	}
	w.w.Look()
	s := timestamp.Stability{Ref: timestamp.Ref{Generation: 3, RollbackID: 2, Number: w.number}, Vector: v}
	if !w.st.Publish(s) {
		w.t.Fatalf("stability timestamp %d is not taken", w.number)
	}
}

// takes hands out the next batch, which must be at a stability timestamp.
func (w *worked) takes() *Handed {
	w.t.Helper()
	s := w.w.Next(wide)
	if s.Handed == nil || s.Handed.Batch == nil || s.Handed.Batch.Kind != ingest.AtStability {
		w.t.Fatalf("next is %+v, want a stability timestamp", s)
	}
	return s.Handed
}

func (w *worked) nothing(when string) {
	w.t.Helper()
	if s := w.w.Next(wide); s.Handed != nil || len(s.Restores) > 0 {
		w.t.Fatalf("%s: next is %+v, want nothing", when, s)
	}
}

// TestTimestampsAreReportedInOrder: the timestamps in flight are bounded; one that is written before another that was
// handed out earlier completes after it.
func TestTimestampsAreReportedInOrder(t *testing.T) {
	w := newWorked(t)
	var all []*Handed
	for range MaxStability {
		w.promote()
		all = append(all, w.takes())
	}
	w.promote()
	w.nothing("with as many as may be")
	if completed := w.w.Ended(all[1]); len(completed) > 0 || len(w.st.Acks()) > 0 {
		t.Fatalf("reported before the first is written: %+v", completed)
	}
	completed := w.w.Served(all[0], 10, 11, 20)
	want := []Completion{{all[0].Batch, true, true}, {all[1].Batch, true, true}, {all[1].Batch, false, false}}
	if !slices.Equal(completed, want) {
		t.Fatalf("got %+v, want that the second is shown and written when the first is shown", completed)
	}
	if completed = w.w.Ended(all[0], 10, 11, 20); !slices.Equal(completed, []Completion{{all[0].Batch, false, false}}) {
		t.Fatalf("then got %+v, want that the first is written", completed)
	}
	acks := w.st.Acks()
	if len(acks) != 2 || acks[0].Number != 1 || acks[0].Made || acks[1].Number != 2 || !acks[1].Made {
		t.Errorf("acknowledged: %+v, want that the first was made by no copy", acks)
	}
	w.w.Look()
	w.takes()
}

// TestRemovedCopyHoldsNoTimestamps: what was in flight when a copy was removed does not count for a later copy of its
// id.
func TestRemovedCopyHoldsNoTimestamps(t *testing.T) {
	w := newWorked(t)
	w.promote()
	h := w.takes()
	w.w.Remove(10)
	at := ingest.Position{VBUUID: 7, Main: 51, Side: 51, A: 51}
	if err := w.st.Add(ingest.Copy{ID: 10, Index: 1, Positions: []ingest.Position{at, {}},
		Logs: []timestamp.FailoverLog{{{VBUUID: 7}}, nil}}); err != nil {
		t.Fatal(err)
	}
	w.w.Served(h)
	w.w.Ended(h)
	for _, s := range w.st.States() {
		if want := uint64(1); s.ID == 10 && s.Held.Number != 0 || s.ID != 10 && s.Held.Number != want {
			t.Errorf("copy %d holds %+v", s.ID, s.Held)
		}
	}
}

// TestRestoresWaitForWritesInFlight: restores wait for what is in flight, and nothing is handed out until they are
// done.
func TestRestoresWaitForWritesInFlight(t *testing.T) {
	w := newWorked(t)
	w.promote()
	h := w.takes()
	log := timestamp.FailoverLog{{VBUUID: 8, Seqno: 40}, {VBUUID: 7}}
	w.st.CarryOut(&wire.RollbackRequest{RollbackID: 3, Incarnation: index.Incarnation{Counter: 1},
		Logs: []timestamp.FailoverLog{log, log}})
	w.nothing("while a batch is under way")
	w.w.Ended(h)
	s := w.w.Next(wide)
	var of []index.CopyID
	for _, r := range s.Restores {
		if of = append(of, r.Copy); r.VBucket != 0 {
			t.Errorf("vbucket %d is put back", r.VBucket)
		}
		w.st.Restored(r, ingest.Position{}, nil)
	}
	if slices.Sort(of); !slices.Equal(of, []index.CopyID{10, 11, 20}) || w.st.Restoring() > 0 {
		t.Fatalf("put back: %v", of)
	}
	w.nothing("before it is notified that they are back")
	if w.w.Restored(); w.w.Waits() {
		t.Error("something waits")
	}
}

// TestRangeDeletionsOfACopyAreBatched: however many ranges of copies are to be deleted, one batch per copy is in
// flight, which has them in order; a range that follows a restore stays behind it.
func TestRangeDeletionsOfACopyAreBatched(t *testing.T) {
	w := newWorked(t)
	type part struct {
		copy    index.CopyID
		vbucket int
	}
	taken := func(of ...part) {
		t.Helper()
		for _, p := range of {
			if !w.st.Retake(p.copy, p.vbucket) {
				t.Fatalf("%+v cannot be taken anew", p)
			}
		}
	}
	handed := func(id index.CopyID, vbuckets ...int) *Handed {
		t.Helper()
		s := w.w.Next(wide)
		if s.Handed == nil || s.Handed.Batch == nil || len(s.Handed.Batch.Copies) != 1 {
			t.Fatalf("next is %+v, want a batch of copy %d", s, id)
		}
		var of []int
		for _, p := range s.Handed.Batch.Copies[0].Parts {
			if of = append(of, p.VBucket); !p.DeleteRange {
				t.Errorf("vbucket %d is not deleted", p.VBucket)
			}
		}
		if c := &s.Handed.Batch.Copies[0]; c.ID != id || !slices.Equal(of, vbuckets) {
			t.Fatalf("copy %d has ranges %v deleted, want copy %d and %v", c.ID, of, id, vbuckets)
		}
		return s.Handed
	}
	taken(part{10, 1}, part{20, 0}, part{10, 0}, part{20, 1}, part{10, 1})
	first := handed(10, 1, 0, 1)
	taken(part{20, 0})
	second := handed(20, 0, 1, 0)
	log := timestamp.FailoverLog{{VBUUID: 8, Seqno: 1}, {VBUUID: 7}}
	w.st.CarryOut(&wire.RollbackRequest{RollbackID: 3, Incarnation: index.Incarnation{Counter: 1},
		Logs: []timestamp.FailoverLog{log, log}})
	w.nothing("while ranges are being deleted")
	w.w.Ended(first)
	w.w.Ended(second)
	if s := w.w.Next(wide); len(s.Restores) == 0 {
		t.Fatalf("next is %+v, want what is put back", s)
	}
}

// purges hands out the next removal of tombstones, which must be of these vbuckets of a copy.
func (w *worked) purges(id index.CopyID, vbuckets ...uint16) Purge {
	w.t.Helper()
	s := w.w.Next(wide)
	if s.Handed == nil || s.Handed.Batch != nil || s.Handed.Purge.Copy != id ||
		!slices.Equal(s.Handed.Purge.VBuckets, vbuckets) {
		w.t.Fatalf("next is %+v, want a purge of vbuckets %v of copy %d", s.Handed, vbuckets, id)
	}
	return s.Handed.Purge
}

// clean checks which copies are clean.
func (w *worked) clean(when string, want ...index.CopyID) {
	w.t.Helper()
	if clean := w.w.Clean(); !slices.Equal(clean, want) {
		w.t.Errorf("%s clean: %v, want %v", when, clean, want)
	}
}

// TestPurges: tombstones are removed when nothing else is to be written, those of all vbuckets that are due at a time,
// each once, if the copy is whole; what a purge leaves comes again; the copy is clean when all are gone.
func TestPurges(t *testing.T) {
	w := newWorked(t)
	w.w.PurgeAll(10)
	w.w.PurgeAll(99) // of a copy that is not here
	w.w.PurgeAll(10)
	w.promote()
	h := w.takes()
	w.nothing("while a batch is under way")
	w.w.Ended(h)
	p := w.purges(10, 0, 1)
	w.nothing("while a purge is under way")
	w.clean("while a purge is under way")
	w.w.Purged(p, 1)
	w.clean("with one vbucket left")
	w.w.Purged(w.purges(10, 1), 0) // the copy was reopened
	w.clean("after one that did nothing")
	w.w.Purged(w.purges(10, 1), 1)
	w.clean("after all", 10)
	w.nothing("at the end")
}

// TestPurgesOfACopyReopenedAgainAndAgain: what is due does not grow while there is always something else to write.
func TestPurgesOfACopyReopenedAgainAndAgain(t *testing.T) {
	w := newWorked(t)
	w.promote()
	h := w.takes()
	w.w.PurgeAll(20)
	for range 100 {
		w.w.PurgeAll(10)
	}
	if due := w.w.purges[10]; len(due) != w.st.vbuckets {
		t.Errorf("%d vbuckets are due, the bucket has %d", len(due), w.st.vbuckets)
	}
	w.w.Ended(h)
	for _, id := range []index.CopyID{20, 10} { // each once
		w.w.Purged(w.purges(id, 0, 1), 2)
	}
	w.nothing("at the end")
}

// TestPurgesLeaveWhatIsNeeded: tombstones stay in a vbucket whose side stream has not ended, also if that has begun
// since they were due; they go when it has ended.
func TestPurgesLeaveWhatIsNeeded(t *testing.T) {
	w := newWorked(t)
	w.w.PurgeAll(10) // vbucket 0 is at 50
	w.w.Purged(w.purges(10, 0, 1), 1)
	begin := keyversion.Begin{Start: 70, Log: timestamp.FailoverLog{{VBUUID: 7}}, Copies: []index.CopyID{10, 11, 20}}
	if v := w.st.Accept(ingest.Source{Connection: 2}, &keyversion.Event{Kind: keyversion.StreamBegin, VBucket: 1,
		Begin: &begin}); v != ingest.Taken {
		t.Fatalf("BEGIN at 70: %v", v)
	}
	if pos, _ := w.st.Position(10, 1); pos.Whole() {
		t.Fatalf("vbucket 1 lacks nothing at %+v", pos)
	}
	w.w.PurgeAll(10)
	w.w.Purged(w.purges(10, 0), 1)
	w.nothing("while vbucket 1 needs them")
	w.clean("while vbucket 1 needs them")
	if !w.st.Tombstones(10) {
		t.Error("it holds no tombstones")
	}
}

// TestPurgesBeforeTheLast: only the purge after which a copy has no tombstones is the last one, which makes it clean,
// because it makes the removal of all of them durable; no earlier one does, whatever becomes of the others meanwhile.
func TestPurgesBeforeTheLast(t *testing.T) {
	w := newWorked(t)
	w.st.HoldsTombstones(10, 1)
	w.w.Stir(10)
	p := w.purges(10, 0)
	if p.Last {
		t.Error("the last purge is one beside which vbucket 1 has tombstones")
	}
	if !w.st.Retake(10, 1) {
		t.Fatal("vbucket 1 cannot be taken anew")
	}
	h := w.w.Next(wide).Handed // vbucket 1 is deleted, with its tombstones
	w.w.Purged(p, 1)
	w.w.Ended(h)
	w.clean("after a purge that was not the last")
	w.w.Stir(10)
	if p = w.purges(10, 0); !p.Last {
		t.Error("the last purge is not the last")
	}
	w.w.Purged(p, 1)
	w.clean("after the last", 10)
}

// TestPurgesOfWhatIsNotHere: a copy that could not be written to, or was removed meanwhile, is not clean: it may have
// tombstones when it comes back.
func TestPurgesOfWhatIsNotHere(t *testing.T) {
	w := newWorked(t)
	for _, id := range []index.CopyID{10, 11} {
		w.w.PurgeAll(id)
	}
	w.w.Purged(w.purges(10, 0, 1), -1)
	p := w.purges(11, 0, 1)
	w.w.Remove(11)
	w.w.Purged(p, 2)
	w.clean("after both")
	w.w.PurgeAll(20)
	w.w.Purged(w.purges(20, 0, 1), 2)
	w.w.Remove(20)
	w.clean("after the third")
	w.nothing("at the end")
}

// TestStir: a copy that is to be checked is written to once, when nothing else is, however often that is requested; a
// copy that is not here is not.
func TestStir(t *testing.T) {
	w := newWorked(t)
	w.promote()
	h := w.takes()
	for range 3 {
		w.w.Stir(99)
		w.w.Stir(10)
	}
	w.nothing("while a stability timestamp is under way")
	w.w.Ended(h)
	w.w.Purged(w.purges(10, 0), 1)
	w.nothing("after it")
}

// TestCleanBesideOthers: a copy is clean when its own purges are done, whatever other copies have waiting; a copy
// that got more of them, as a side stream ended meanwhile, is not.
func TestCleanBesideOthers(t *testing.T) {
	w := newWorked(t)
	for _, id := range []index.CopyID{10, 11, 20} {
		w.w.PurgeAll(id)
	}
	p := w.purges(10, 0, 1)
	w.w.PurgeAll(10)
	w.w.Purged(p, 2)
	w.clean("with more of copy 10")
	w.w.Purged(w.purges(11, 0, 1), 2)
	w.clean("after copy 11", 11)
	w.w.Purged(w.purges(20, 0, 1), 2)
	w.clean("after copy 20", 20)
	w.w.Purged(w.purges(10, 0, 1), 2)
	w.clean("after copy 10", 10)
	w.nothing("at the end")
	if len(w.w.purges) > 0 {
		t.Errorf("at the end %v wait", w.w.purges)
	}
}

// BenchmarkPurges measures what one removal of a copy's tombstones costs the loop, by the number of copies that have
// some: with many as much as with few.
func BenchmarkPurges(b *testing.B) {
	const vbuckets = 1024
	at, logs := make([]ingest.Position, vbuckets), make([]timestamp.FailoverLog, vbuckets)
	for vb := range at {
		at[vb], logs[vb] = ingest.Position{VBUUID: 7, Main: 51, Side: 51, A: 51}, timestamp.FailoverLog{{VBUUID: 7}}
	}
	for _, copies := range []int{10, 100} {
		b.Run(fmt.Sprintf("copies=%d", copies), func(b *testing.B) {
			st, err := NewBucket(&wire.Bucket{Name: "b"}, vbuckets, func(*keyversion.Event) []byte { return nil })
			if err != nil {
				b.Fatal(err)
			}
			w := NewWork(st)
			for id := range index.CopyID(copies) {
				if err := st.Add(ingest.Copy{ID: id + 1, Index: index.ID(id + 1), Positions: at, Logs: logs}); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				if len(w.purges) == 0 {
					for id := range index.CopyID(copies) {
						w.PurgeAll(id + 1)
					}
				}
				p := w.Next(wide).Handed.Purge
				w.Purged(p, len(p.VBuckets))
				w.Clean()
			}
		})
	}
}
