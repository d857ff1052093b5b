package ingest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"tidemark/index"
	_ "tidemark/internal/testing/draws"
	"tidemark/keyversion"
	"tidemark/timestamp"
)

func incOf(u uint64) index.Incarnation { return index.Incarnation{Epoch: 1, Term: 1, Counter: u} }

// pack keeps only the document's id.
func pack(e *keyversion.Event) []byte { return append([]byte(nil), e.DocID...) }

func TestPositionCodec(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		u := rapid.OneOf(rapid.Uint64(), rapid.Just(uint64(timestamp.Infinity)), rapid.Just(uint64(0)))
		p := Position{VBUUID: u.Draw(t, "uuid"), Side: u.Draw(t, "side"), Main: u.Draw(t, "main"), A: u.Draw(t, "a"),
			Floor: u.Draw(t, "floor"), WindowEnd: u.Draw(t, "end")}
		b := AppendPosition([]byte("before"), p)
		got, rest, err := DecodePosition(append(b[6:], "after"...))
		if err != nil || got != p || string(rest) != "after" {
			t.Fatalf("%+v became %+v, %q, %v", p, got, rest, err)
		}
		for n := range len(b) - 6 {
			if _, _, err := DecodePosition(b[6 : 6+n]); !errors.Is(err, ErrPosition) {
				t.Fatalf("%d of %d bytes: %v", n, len(b)-6, err)
			}
		}
	})
}

func FuzzDecodePosition(f *testing.F) {
	f.Add(AppendPosition(nil, Position{VBUUID: 7, Side: 1, Main: 2, A: 3, Floor: 1 << 40, WindowEnd: timestamp.Infinity}))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, rest, err := DecodePosition(b)
		if err != nil {
			return
		}
		again, _, err := DecodePosition(AppendPosition(nil, p))
		if err != nil || again != p || len(rest) > len(b) || !bytes.HasSuffix(b, rest) {
			t.Fatalf("%x: %+v, then %+v %v", b, p, again, err)
		}
	})
}

func TestHistory(t *testing.T) {
	log := timestamp.FailoverLog{{VBUUID: 9, Seqno: 50}, {VBUUID: 8, Seqno: 20}, {VBUUID: 7}}
	for _, c := range []struct {
		vbuuid uint64
		want   timestamp.FailoverLog
	}{
		{9, log}, {8, log[1:]}, {7, log[2:]}, {0, nil}, {5, timestamp.FailoverLog{{VBUUID: 5}}},
	} {
		if got := History(c.vbuuid, log); !got.Equal(c.want) {
			t.Errorf("branch %d: %v, want %v", c.vbuuid, got, c.want)
		}
	}
}

func TestChoose(t *testing.T) {
	old := timestamp.FailoverLog{{VBUUID: 7}}
	states := []Held{
		{Position{VBUUID: 7, Main: 40, Side: 40, A: 40}, old},
		{Position{VBUUID: 7, Main: 30, Side: 30, A: 30, Floor: 35}, old},
		{Position{VBUUID: 7, Main: 20, Side: 20, A: 20}, old},
	}
	for _, c := range []struct {
		from uint64 // start of the new branch
		want int
	}{{40, 0}, {39, 1}, {35, 1}, {34, 2}, {20, 2}, {19, -1}} {
		if got := Choose(states, timestamp.FailoverLog{{VBUUID: 8, Seqno: c.from}, {VBUUID: 7}}); got != c.want {
			t.Errorf("branch from %d: state %d, want %d", c.from, got, c.want)
		}
	}
	unsureState := []Held{{Position{VBUUID: 7, Side: 5, A: 9, WindowEnd: unsure}, old}}
	if Choose(unsureState, old) != 0 || Choose(unsureState, timestamp.FailoverLog{{VBUUID: 8, Seqno: 100},
		{VBUUID: 7}}) != -1 {
		t.Error("what is unsure is good on its own branch, and nowhere else")
	}
}

func TestRefuses(t *testing.T) {
	if _, err := New(Options{VBuckets: timestamp.MaxVBuckets + 1, Pack: pack}); !errors.Is(err, ErrVBucket) {
		t.Errorf("too many vbuckets: %v", err)
	}
	b, err := New(Options{VBuckets: 2, Pack: pack})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Add(Copy{ID: 1, Positions: make([]Position, 3)}); !errors.Is(err, ErrVBucket) {
		t.Errorf("positions of another bucket: %v", err)
	}
	if err := errors.Join(b.Add(Copy{ID: 1}), b.Add(Copy{ID: 1})); !errors.Is(err, ErrCopy) {
		t.Errorf("a copy twice: %v", err)
	}
	for _, e := range []keyversion.Event{{Kind: keyversion.StreamBegin}, {Kind: keyversion.Sync, VBucket: 2}} {
		if v := b.Accept(Source{}, &e); v != Malformed {
			t.Errorf("%v of vbucket %d: %v", e.Kind, e.VBucket, v)
		}
		if v := b.AcceptSide(Source{}, &e); v == Taken {
			t.Errorf("side: %v of vbucket %d: %v", e.Kind, e.VBucket, v)
		}
	}
	if b.Publish(timestamp.Stability{Vector: timestamp.New(3)}) ||
		b.Publish(timestamp.Stability{Ref: timestamp.Ref{Generation: 5}, Vector: timestamp.New(2)}) {
		t.Error("a timestamp of another length or generation was taken")
	}
	for n := range uint64(3 * MaxStability) {
		b.Publish(timestamp.Stability{Ref: timestamp.Ref{Number: n + 1}, Vector: timestamp.Vector{VBUUIDs: []uint64{7, 7},
			Seqnos: []uint64{100 + n, 0}}})
	}
	if b.Pending() > MaxStability {
		t.Errorf("%d timestamps wait", b.Pending())
	}
}

// TestLaggard checks that an indexer that lags by many more promotions than it queues keeps acknowledging while it
// catches up.
func TestLaggard(t *testing.T) {
	b, err := New(Options{VBuckets: 1, Pack: func(*keyversion.Event) []byte { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Add(Copy{ID: 1}); err != nil {
		t.Fatal(err)
	}
	log := timestamp.FailoverLog{{VBUUID: 7}}
	b.Accept(Source{}, &keyversion.Event{Kind: keyversion.StreamBegin,
		Begin: &keyversion.Begin{Log: log, Copies: []index.CopyID{1}}})
	const behind = 1000
	for n := range uint64(behind) {
		b.Publish(timestamp.Stability{Ref: timestamp.Ref{Number: n + 1},
			Vector: timestamp.Vector{VBUUIDs: []uint64{7}, Seqnos: []uint64{n + 1}}})
	}
	var acked []uint64
	for n := range uint64(behind) {
		b.Accept(Source{}, &keyversion.Event{Kind: keyversion.Insert, Seqno: n + 1,
			Window: timestamp.Window{Start: n, End: n + 1}})
		for batch, _ := b.Flush(); batch != nil; batch, _ = b.Flush() {
			a, _ := b.Done(batch)
			acked = append(acked, a.Number)
		}
	}
	if len(acked) < MaxStability/2 || acked[0] != 1 || acked[len(acked)-1] != behind {
		t.Errorf("it acknowledged %v; want the first, the last, and some between", acked)
	}
	if widest := slices.Max(gaps(acked)); widest > 4*behind/MaxStability {
		t.Errorf("it acknowledged %v: %d promotions apart", acked, widest)
	}
}

func gaps(numbers []uint64) (all []uint64) {
	for i := 1; i < len(numbers); i++ {
		all = append(all, numbers[i]-numbers[i-1])
	}
	return all
}

// TestMemory checks that queued bytes are counted, and released.
func TestMemory(t *testing.T) {
	b, err := New(Options{VBuckets: 1, Pack: func(e *keyversion.Event) []byte { return make([]byte, 100) }})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Add(Copy{ID: 1}); err != nil {
		t.Fatal(err)
	}
	log := timestamp.FailoverLog{{VBUUID: 7}}
	begin := func(inc, start uint64, l timestamp.FailoverLog) {
		b.Accept(Source{Connection: 1}, &keyversion.Event{Kind: keyversion.StreamBegin, Incarnation: incOf(inc),
			Begin: &keyversion.Begin{Start: start, Log: l, Copies: []index.CopyID{1}}})
	}
	send := func(inc, from, to uint64) {
		for q := from; q <= to; q++ {
			b.Accept(Source{Connection: 1}, &keyversion.Event{Kind: keyversion.Insert, Incarnation: incOf(inc), Seqno: q,
				Window: timestamp.Window{Start: q - 1, End: q}})
		}
		b.Accept(Source{Connection: 1}, &keyversion.Event{Kind: keyversion.Sync, Incarnation: incOf(inc), Seqno: to})
	}
	begin(1, 0, log)
	send(1, 1, 10)
	each := 100 + entryOverhead
	if got := b.QueueBytes(); got != 10*each {
		t.Errorf("10 events: %d bytes", got)
	}
	b.Publish(timestamp.Stability{Ref: timestamp.Ref{Number: 1}, Logs: []timestamp.FailoverLog{log},
		Vector: timestamp.Vector{VBUUIDs: []uint64{7}, Seqnos: []uint64{4}}})
	batch, _ := b.Flush()
	if b.QueueBytes() != 10*each || b.Queued() != 6*each || batch.Bytes() != 4*each {
		t.Errorf("in a batch: %d, queued %d, batch %d", b.QueueBytes(), b.Queued(), batch.Bytes())
	}
	b.Done(batch)
	if b.QueueBytes() != 6*each {
		t.Errorf("after it: %d", b.QueueBytes())
	}
	begin(2, 4, timestamp.FailoverLog{{VBUUID: 8, Seqno: 5}, {VBUUID: 7}}) // 6 to 10 are on a lost branch
	if b.QueueBytes() != 0 {
		t.Errorf("after a failover: %d", b.QueueBytes())
	}
	send(2, 5, 5)
	b.Remove(1)
	if b.QueueBytes() != 0 {
		t.Errorf("without copies: %d", b.QueueBytes())
	}
}

// BenchmarkAccept measures the cost of an event from Accept to the batch, with four copies.
func BenchmarkAccept(b *testing.B) {
	const vbs = 128
	block := make([]byte, 200)
	s, err := New(Options{VBuckets: vbs, Pack: func(*keyversion.Event) []byte { return block }})
	if err != nil {
		b.Fatal(err)
	}
	ids := []index.CopyID{1, 2, 3, 4}
	for _, id := range ids {
		if err := s.Add(Copy{ID: id}); err != nil {
			b.Fatal(err)
		}
	}
	src := Source{Projector: "p1", Connection: 1}
	log := timestamp.FailoverLog{{VBUUID: 7}}
	for v := range vbs {
		s.Accept(src, &keyversion.Event{Kind: keyversion.StreamBegin, VBucket: uint16(v), Incarnation: incOf(1),
			Begin: &keyversion.Begin{Log: log, Copies: ids}})
	}
	at := timestamp.New(vbs)
	logs := make([]timestamp.FailoverLog, vbs)
	for v := range vbs {
		logs[v] = log
	}
	number := uint64(0)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		v := i % vbs
		at.Seqnos[v]++
		at.VBUUIDs[v] = 7
		q := at.Seqnos[v]
		s.Accept(src, &keyversion.Event{Kind: keyversion.Insert, VBucket: uint16(v), Incarnation: incOf(1), Seqno: q,
			Window: timestamp.Window{Start: q - 1, End: q}})
		if i%10_000 != 9_999 {
			continue
		}
		for v := range vbs {
			s.Accept(src, &keyversion.Event{Kind: keyversion.Sync, VBucket: uint16(v), Incarnation: incOf(1),
				Seqno: at.Seqnos[v]})
		}
		number++
		s.Publish(timestamp.Stability{Ref: timestamp.Ref{Number: number}, Vector: at.Clone(), Logs: logs})
		t, _ := s.Flush()
		if t == nil || !t.Copies[3].Exact {
			b.Fatal("not flushed")
		}
		s.Done(t)
	}
}

// BenchmarkFlush measures the cost of a promotion in a bucket of 1,024 vbuckets that all change, by the number of
// copies.
func BenchmarkFlush(b *testing.B) {
	for _, copies := range []int{6, 246, 600} {
		b.Run(fmt.Sprint(copies), func(b *testing.B) { benchPromotions(b, copies) })
	}
}

func benchPromotions(b *testing.B, copies int) {
	const vbs = 1024
	s, err := New(Options{VBuckets: vbs, Pack: func(*keyversion.Event) []byte { return []byte("x") }})
	if err != nil {
		b.Fatal(err)
	}
	var ids []index.CopyID
	for id := range index.CopyID(copies) {
		if ids = append(ids, id+1); s.Add(Copy{ID: id + 1}) != nil {
			b.Fatal("not added")
		}
	}
	src, log, logs := Source{Projector: "p1", Connection: 1}, timestamp.FailoverLog{{VBUUID: 7}},
		make([]timestamp.FailoverLog, vbs)
	for v := range vbs {
		logs[v] = log
		s.Accept(src, &keyversion.Event{Kind: keyversion.StreamBegin, VBucket: uint16(v), Incarnation: incOf(1),
			Begin: &keyversion.Begin{Log: log, Copies: ids}})
	}
	at := timestamp.New(vbs)
	b.ReportAllocs()
	for number := uint64(1); b.Loop(); number++ {
		for v := range vbs {
			at.VBUUIDs[v], at.Seqnos[v] = 7, number
			s.Accept(src, &keyversion.Event{Kind: keyversion.Insert, VBucket: uint16(v), Incarnation: incOf(1), Seqno: number,
				Window: timestamp.Window{Start: number - 1, End: number}})
		}
		s.Publish(timestamp.Stability{Ref: timestamp.Ref{Number: number}, Vector: at.Clone(), Logs: logs})
		t, _ := s.Flush()
		if t == nil || !t.Copies[copies-1].Exact {
			b.Fatal("not flushed")
		}
		s.Done(t)
		s.States()
	}
}

// TestProgressCountsOnlyWhenWritten checks that what a side stream has delivered counts as done only when it is
// written.
func TestProgressCountsOnlyWhenWritten(t *testing.T) {
	b, err := New(Options{VBuckets: 1, Pack: func(*keyversion.Event) []byte { return []byte("x") }})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Add(Copy{ID: 1}); err != nil {
		t.Fatal(err)
	}
	log, src := timestamp.FailoverLog{{VBUUID: 7}}, Source{Connection: 1}
	begin := func(start uint64) *keyversion.Begin {
		return &keyversion.Begin{Start: start, Log: log, Copies: []index.CopyID{1}}
	}
	done := func(want uint64) {
		t.Helper()
		if s := b.States()[0]; s.Done != want || s.Total != 10 {
			t.Errorf("%d of %d are done, want %d of 10", s.Done, s.Total, want)
		}
	}
	b.Accept(src, &keyversion.Event{Kind: keyversion.StreamBegin, Incarnation: incOf(1), Begin: begin(10)})
	done(0)
	side := index.Incarnation{Counter: 5}
	b.OpenSide(b.Wants()[0], side.Counter)
	b.AcceptSide(src, &keyversion.Event{Kind: keyversion.StreamBegin, Incarnation: side, Begin: begin(0)})
	upTo := uint64(0)
	bring := func(to uint64) *Batch {
		for upTo < to {
			upTo++
			e := &keyversion.Event{Kind: keyversion.Insert, Incarnation: side, Seqno: upTo, DocID: []byte{byte(upTo)},
				Window: timestamp.Window{Start: upTo - 1, End: upTo}}
			if v := b.AcceptSide(src, e); v != Taken {
				t.Fatalf("seqno %d: %v", upTo, v)
			}
		}
		return b.TakeSide(0, 0)
	}
	first := bring(4)
	done(0)
	b.Done(first)
	done(4)
	second := bring(9)
	done(4)
	b.Done(second)
	done(9)
}

// A recovery raises the rollback id above rollbacks that it may have missed (statecontext.RaiseEpoch): timestamps
// with a rollback id above the last one carried out here are accepted, and the next rollback is carried out.
func TestMissedRollbacksAreSkipped(t *testing.T) {
	b, err := New(Options{VBuckets: 1, Pack: pack})
	if err != nil {
		t.Fatal(err)
	}
	if got := b.Rollback(1, make([]timestamp.FailoverLog, 1), incOf(1)); got != RollbackStarted {
		t.Fatalf("the first rollback: outcome %d", got)
	}
	const passed = 1 << 20
	if !b.Publish(timestamp.Stability{Ref: timestamp.Ref{RollbackID: passed, Number: 1}, Vector: timestamp.New(1)}) {
		t.Error("a timestamp after the recovery is refused")
	}
	if b.Publish(timestamp.Stability{Ref: timestamp.Ref{RollbackID: 1, Number: 2}, Vector: timestamp.New(1)}) {
		t.Error("a timestamp of the lost history is taken after it")
	}
	log := []timestamp.FailoverLog{{{VBUUID: 9}}}
	if got := b.Rollback(passed+1, log, incOf(2)); got != RollbackStarted {
		t.Errorf("the next rollback: outcome %d", got)
	}
}
