package ingest

import (
	"math"
	"testing"

	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/timestamp"
)

// turnsWorld is a bucket of one vbucket with a ready copy, 1, and one that is being built, 2, which gets everything
// up to 10,000 by a side stream.
type turnsWorld struct {
	t      *testing.T
	b      *Bucket
	number uint64 // of the newest stability timestamp
	brings uint64 // seqno that the side stream delivers next
}

const turnsActive = 10_000

func newTurnsWorld(t *testing.T) *turnsWorld {
	t.Helper()
	b, err := New(Options{VBuckets: 1, Pack: func(*keyversion.Event) []byte { return make([]byte, 100-entryOverhead) }})
	if err != nil {
		t.Fatal(err)
	}
	w := &turnsWorld{t: t, b: b, brings: 1}
	log := timestamp.FailoverLog{{VBUUID: 7}}
	held := Position{VBUUID: 7, Main: turnsActive, Side: turnsActive, A: turnsActive}
	for _, c := range []Copy{{ID: 1, Index: 1, Ready: true, Positions: []Position{held},
		Logs: []timestamp.FailoverLog{log}}, {ID: 2, Index: 2}} {
		if err := b.Add(c); err != nil {
			t.Fatal(err)
		}
	}
	w.maintenance(keyversion.Event{Kind: keyversion.StreamBegin, Begin: &keyversion.Begin{Start: turnsActive, Log: log,
		Copies: []index.CopyID{1, 2}}})
	for _, want := range b.Wants() {
		b.OpenSide(want, 5)
	}
	w.side(keyversion.Event{Kind: keyversion.StreamBegin, Begin: &keyversion.Begin{Log: log,
		Copies: []index.CopyID{1, 2}}})
	return w
}

func (w *turnsWorld) maintenance(e keyversion.Event) {
	w.t.Helper()
	e.Incarnation = incOf(1)
	if v := w.b.Accept(Source{Connection: 1}, &e); v != Taken {
		w.t.Fatalf("%v of the maintenance stream: %v", e.Kind, v)
	}
}

func (w *turnsWorld) side(e keyversion.Event) {
	w.t.Helper()
	e.Incarnation = index.Incarnation{Counter: 5}
	if v := w.b.AcceptSide(Source{Connection: 2}, &e); v != Taken {
		w.t.Fatalf("%v of the side stream: %v", e.Kind, v)
	}
}

// bring makes the side stream deliver n documents of 100 bytes.
func (w *turnsWorld) bring(n int) {
	for range n {
		w.side(keyversion.Event{Kind: keyversion.Insert, Seqno: w.brings, DocID: []byte("d"),
			Window: timestamp.Window{End: turnsActive}})
		w.brings++
	}
}

// write makes KV write a document, and promotes a stability timestamp at it.
func (w *turnsWorld) write() {
	w.number++
	seqno := turnsActive + w.number
	w.maintenance(keyversion.Event{Kind: keyversion.Insert, Seqno: seqno, DocID: []byte("d"),
		Window: timestamp.Window{Start: seqno - 1, End: seqno}})
	w.maintenance(keyversion.Event{Kind: keyversion.Sync, Seqno: seqno})
	v := timestamp.New(1)
	v.Set(0, timestamp.Position{VBUUID: 7, Seqno: seqno})
	if !w.b.Publish(timestamp.Stability{Ref: timestamp.Ref{Number: w.number}, Vector: v}) {
		w.t.Fatalf("stability timestamp %d was not taken", w.number)
	}
}

func (w *turnsWorld) next(r Room) *Batch {
	t, _ := w.b.Next(r)
	if t != nil {
		w.b.Done(t)
	}
	return t
}

// TestTurns checks that a stability timestamp waits for at most one, small, batch of side streams, however much they
// deliver, and that side streams progress and the queue is emptied however often stability timestamps come.
func TestTurns(t *testing.T) {
	const most = 1000
	w := newTurnsWorld(t)
	room := Room{Stability: true, SideLeast: 1, SideMost: most, AheadFrom: math.MaxInt}
	given := map[BatchKind]int{}
	for range 50 {
		w.bring(20) // more than one batch takes
		w.write()
		for first := range 2 {
			b := w.next(room)
			if b == nil {
				t.Fatal("nothing to be written, but there is")
			}
			given[b.Kind]++
			if b.Kind == FromSide && b.Bytes() > most {
				t.Fatalf("a batch of %d bytes of side streams, at most %d were asked for", b.Bytes(), most)
			}
			if b.Kind == AtStability && b.Ref.Number != w.number {
				t.Fatalf("stability timestamp %d is written when %d is there (step %d)", b.Ref.Number, w.number, first)
			}
		}
	}
	if given[AtStability] != 50 || given[FromSide] != 50 {
		t.Errorf("batches by kind: %v, want 50 of each", given)
	}
	room.AheadFrom, room.AheadBytes = 0, most
	for range 10 {
		w.bring(20)
		w.write()
		w.maintenance(keyversion.Event{Kind: keyversion.Insert, Seqno: turnsActive + w.number + 1, DocID: []byte("e"),
			Window: timestamp.Window{Start: turnsActive + w.number, End: turnsActive + w.number + 1}})
		kinds := map[BatchKind]bool{}
		for range 3 {
			if b := w.next(room); b != nil {
				kinds[b.Kind] = true
			}
		}
		if !kinds[FromSide] || !kinds[Ahead] {
			t.Fatalf("of three batches none makes room, or none is of side streams: %v", kinds)
		}
		w.number++ // what was applied ahead is above the previous timestamp
	}
}

// TestSideStreamInPiecesEqualsOneWrite checks that a side stream written in pieces has the same result as one written
// at once, and that each piece has its exact position.
func TestSideStreamInPiecesEqualsOneWrite(t *testing.T) {
	w := newTurnsWorld(t)
	w.bring(95)
	w.side(keyversion.Event{Kind: keyversion.StreamEnd, Seqno: turnsActive, Window: timestamp.Window{End: turnsActive}})
	reached := uint64(0)
	for n := 0; ; n++ {
		b := w.next(Room{SideLeast: 1, SideMost: 1000})
		if b == nil {
			t.Fatalf("it ends at %d", reached)
		}
		if len(b.Copies) != 1 || b.Copies[0].ID != 2 || len(b.Copies[0].Parts) != 1 {
			t.Fatalf("%+v, want the copy that is built alone", b.Copies)
		}
		p, events := b.Copies[0].Parts[0], b.Segments[0].Events
		if events[0].Seqno != reached+1 {
			t.Fatalf("a piece begins at %d, the one before reached %d", events[0].Seqno, reached)
		}
		for i := range events {
			if !p.Selects(&events[i]) {
				t.Errorf("seqno %d is left out", events[i].Seqno)
			}
		}
		if reached = events[len(events)-1].Seqno; reached == 95 {
			if p.Position.Side != turnsActive || p.Position.WindowEnd == timestamp.Infinity || n != 9 {
				t.Errorf("the last of %d pieces: %+v", n+1, p.Position)
			}
			break
		}
		if p.Position.Side != reached || p.Position.WindowEnd != timestamp.Infinity {
			t.Fatalf("a piece up to %d: %+v", reached, p.Position)
		}
	}
	if len(w.b.Wants()) != 0 || len(w.b.SideStreams()) != 0 || w.b.SideBytes() != 0 {
		t.Errorf("left over: %+v, %+v, %d bytes", w.b.Wants(), w.b.SideStreams(), w.b.SideBytes())
	}
}
