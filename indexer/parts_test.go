package indexer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"tidemark/index"
	"tidemark/indexer/storage"
	"tidemark/ingest"
	_ "tidemark/internal/testing/draws"
	"tidemark/keyversion"
	"tidemark/timestamp"
	"tidemark/wire"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"))
}

// someRests are such as events share; two say the same.
var someRests = []*keyversion.Places{
	nil,
	keyversion.NewPlaces([]keyversion.Place{{Index: 1, Slice: 0}, {Index: 2, Slice: index.AllSlices}}),
	keyversion.NewPlaces([]keyversion.Place{{Index: 1, Slice: 0}, {Index: 2, Slice: index.AllSlices}}),
	keyversion.NewPlaces([]keyversion.Place{{Index: 3, Slice: 1}, {Index: 3, Slice: index.AllSlices},
		{Index: 9, Slice: 1}}),
}

// TestPack: every copy gets out of a packed event exactly what the event states for it.
func TestPack(t *testing.T) {
	kinds := []keyversion.Kind{keyversion.Insert, keyversion.Delete, keyversion.UpsertDeletion}
	var mine spreader
	rapid.Check(t, func(t *rapid.T) {
		var a arena
		var packed [][]byte
		var events []keyversion.Event
		for range rapid.IntRange(1, 20).Draw(t, "events") {
			e := keyversion.Event{Kind: rapid.SampledFrom(kinds).Draw(t, "kind"),
				DocID: rapid.SliceOfN(rapid.Byte(), 1, 300).Draw(t, "doc")}
			for i := range rapid.IntRange(0, 3).Draw(t, "statements") {
				s := keyversion.Statement{Index: index.ID(1 + i), Slice: index.SliceID(rapid.SampledFrom([]int{0, 1,
					int(index.AllSlices)}).Draw(t, "slice"))}
				for range rapid.IntRange(0, 3).Draw(t, "keys") {
					s.Keys = append(s.Keys, rapid.SliceOfN(rapid.Byte(), 0, 10000).Draw(t, "key"))
				}
				e.Statements = append(e.Statements, s)
			}
			e.Rest = rapid.SampledFrom(someRests).Draw(t, "rest")
			events, packed = append(events, e), append(packed, a.pack(&e))
		}
		batch := &ingest.Batch{Segments: make([]ingest.Segment, 2)}
		for i := range packed {
			of := &batch.Segments[i%2].Events
			*of = append(*of, ingest.Entry{Data: packed[i], Rest: events[i].Rest})
		}
		for ix := range index.ID(4) {
			for no := range index.SliceID(2) {
				batch.Copies = append(batch.Copies, ingest.CopyBatch{Index: ix, Slice: no})
			}
		}
		shares, stating := mine.spread(batch), map[[2]int]int{}
		for i := range events {
			for ix := range index.ID(4) {
				for no := range index.SliceID(2) {
					u := unpacker{index: ix, slice: no}
					got, ok := u.update(packed[i], events[i].Rest, unknown, 9, 77)
					at, has := shares[2*int(ix)+int(no)].has(i%2, i/2, len(batch.Segments[i%2].Events))
					if has != ok {
						t.Fatalf("%v for %d/%d: in the share %v, want %v", events[i].Kind, ix, no, !ok, ok)
					}
					if has {
						at, _ := u.update(packed[i], events[i].Rest, at, 9, 77)
						if !slices.EqualFunc(at.Keys, got.Keys, slices.Equal) || string(at.DocID) != string(got.DocID) {
							t.Fatalf("%v for %d/%d: %v where the share says, want %v", events[i].Kind, ix, no, at, got)
						}
					}
					if len(got.Keys) > 0 {
						stating[[2]int{int(ix), int(no)}]++
					}
					want, wantOK := stated(&events[i], ix, no)
					if ok != wantOK || ok && (string(got.DocID) != string(events[i].DocID) || got.VBucket != 9 || got.Seqno != 77 ||
						!slices.EqualFunc(got.Keys, want, slices.Equal)) {
						t.Fatalf("%v for %d/%d: %v %v, want %v %v", events[i].Kind, ix, no, got.Keys, ok, want, wantOK)
					}
				}
			}
		}
		for i := range shares {
			if n := stating[[2]int{i / 2, i % 2}]; shares[i].stating != n {
				t.Fatalf("%d events with keys in share %d, want %d", shares[i].stating, i, n)
			}
		}
	})
}

// has reports whether the share of a segment of n events has one of them, once, and where its statement is.
func (s *share) has(segment, number, n int) (at int, has bool) {
	times := 0
	events := make([]ingest.Entry, n)
	for e, place := range s.whole().each(segment, events) {
		if e == &events[number] {
			at = place
			times++
		}
	}
	return at, times == 1
}

// stated is the obvious reading of an event.
func stated(e *keyversion.Event, ix index.ID, no index.SliceID) ([][]byte, bool) {
	if e.Kind == keyversion.Delete && len(e.Statements) == 0 && e.Rest == nil {
		return nil, true
	}
	for _, s := range e.Explicit(nil) {
		if s.Index != ix || s.Slice != no && s.Slice != index.AllSlices {
			continue
		}
		var keys [][]byte
		for _, k := range s.Keys {
			if e.Kind == keyversion.Insert && len(k) > 0 {
				keys = append(keys, k)
			}
		}
		return keys, true
	}
	return nil, false
}

func openStore(t *testing.T) (*storage.Store, *storage.Slice) {
	t.Helper()
	st, err := storage.Open(storage.Options{Dir: t.TempDir(), CacheBytes: 4 << 20, MemTableBytes: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	s, err := st.Create(storage.Meta{Copy: 1, Index: 1, Bucket: "b", BucketUUID: "u", VBuckets: 2, Desc: []bool{false}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// a disk that stands still is not waited for
		if err := st.Close(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
	return st, s
}

func flushAt(t *testing.T, s *storage.Slice, uuid, seqno uint64) {
	t.Helper()
	v := timestamp.New(2)
	v.Set(0, timestamp.Position{VBUUID: uuid, Seqno: seqno})
	err := s.Flush(context.Background(), storage.Batch{Timestamp: v, Positions: []storage.VBPosition{{VBucket: 0,
		Position: ingest.Position{VBUUID: uuid, Main: seqno, Side: seqno, A: seqno},
		Log:      timestamp.FailoverLog{{VBUUID: uuid}}}}})
	if err != nil {
		t.Fatal(err)
	}
}

// TestSnapshots: the newest few are kept, a reader's stays as long as it reads, and those off the branch go.
func TestSnapshots(t *testing.T) {
	_, s := openStore(t)
	snaps := newSnapshots(3, hclog.NewNullLogger())
	for n := range uint64(5) {
		flushAt(t, s, 7, 10*(n+1))
		snap, err := s.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		snaps.add(1, held{ref: wire.StabilityRef{Ref: timestamp.Ref{Number: n + 1}}, snap: snap})
	}
	if refs := snaps.refs(1); len(refs) != 3 || refs[0].Number != 3 || refs[2].Number != 5 {
		t.Fatalf("kept %v", refs)
	}
	if _, ok := snaps.acquire(1, &wire.StabilityRef{Ref: timestamp.Ref{Number: 2}}); ok {
		t.Error("a snapshot that was let go was given")
	}
	h, ok := snaps.acquire(1, nil)
	if !ok || h.ref.Number != 5 {
		t.Fatalf("the newest is %v", h.ref)
	}
	// branch 8 begins at 45: what holds 50 is not on it
	snaps.part(1, []ingest.Restore{{Copy: 1, Log: timestamp.FailoverLog{{VBUUID: 8, Seqno: 45}, {VBUUID: 7}}}}, s.Logs())
	if refs := snaps.refs(1); len(refs) != 2 || refs[1].Number != 4 {
		t.Errorf("on the branch: %v", refs)
	}
	if newest, ok := snaps.acquire(1, nil); !ok || newest.ref.Number != 4 || newest.snap.Close() != nil {
		t.Errorf("a scan gets %v", newest.ref)
	}
	past := snaps.retain(1) // other vbuckets can still be restored from what has parted
	if len(past) != 3 || past[2].Batch() != 5 {
		t.Errorf("%d snapshots to restore from", len(past))
	}
	for _, p := range past {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	snaps.dropParted(1)
	if past := snaps.retain(1); len(past) != 2 {
		t.Errorf("%d snapshots to restore from when all is restored", len(past))
	} else if err := errors.Join(past[0].Close(), past[1].Close()); err != nil {
		t.Error(err)
	}
	snaps.closeAll()
	if got := s.Stats().Snapshots; got != 1 {
		t.Errorf("%d snapshots open, the reader has 1", got)
	}
	if err := h.snap.Close(); err != nil {
		t.Error(err)
	}
}

func TestMarks(t *testing.T) {
	dir := t.TempDir()
	m, err := loadMarks(dir, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []index.CopyID{5, 2, 5, 9} {
		if err := m.set(id); err != nil {
			t.Fatal(err)
		}
	}
	m.clear(2)
	m.clear(3)
	if m, err = loadMarks(dir, hclog.NewNullLogger()); err != nil || !slices.Equal(m.copies, []index.CopyID{5, 9}) {
		t.Errorf("after a restart: %v, %v", m.copies, err)
	}
}

// testBucketLoop is a bucket that nothing runs.
func testBucketLoop(t testing.TB) *bucket {
	t.Helper()
	x := &Indexer{fills: &filler{}, cfg: Config{QueueBytes: 1 << 20}, log: hclog.NewNullLogger(),
		report: make(chan struct{}, 1), sides: make(chan struct{}, 1),
		metrics: newMetrics(), snapshots: newSnapshots(2, hclog.NewNullLogger()), now: time.Now, changed: make(chan struct{})}
	k, err := x.newBucket(wire.Bucket{Name: "b", UUID: "u", VBuckets: 2})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// TestDiskFull: a write that finds no room is told and tried until there is room; a slice that must be reopened is.
func TestDiskFull(t *testing.T) {
	k := testBucketLoop(t)
	_, s := openStore(t)
	tries := 0
	o := k.persistently(t.Context(), s, func() error {
		if tries++; tries < 3 {
			return fmt.Errorf("no: %w", storage.ErrDiskFull)
		}
		if why := k.x.health.get(); why == "" {
			t.Error("nothing is wrong with the health of a node whose disk is full")
		}
		return nil
	})
	if o != (outcome{}) || k.x.health.get() != "" {
		t.Errorf("outcome %+v, health %q", o, k.x.health.get())
	}
	o = k.persistently(t.Context(), s, func() error { return fmt.Errorf("torn: %w", storage.ErrReopen) })
	if o.again != s || k.x.health.get() != "" {
		t.Errorf("outcome %+v, health %q", o, k.x.health.get())
	}
	if o = k.persistently(t.Context(), s, func() error { return storage.ErrClosed }); !o.missing {
		t.Errorf("a dropped copy: %+v", o)
	}
	ctx, cancel := context.WithCancel(t.Context())
	o = k.persistently(ctx, s, func() error { cancel(); return storage.ErrDiskFull })
	if o != (outcome{}) {
		t.Errorf("at the end of the run: %+v", o)
	}
}

// TestRestore: a vbucket goes back to the newest checkpoint on the branch, or to nothing.
func TestRestore(t *testing.T) {
	k := testBucketLoop(t)
	_, s := openStore(t)
	for _, at := range []uint64{10, 20, 30} {
		flushAt(t, s, 7, at)
		if _, err := s.Checkpoint(t.Context(), storage.CheckpointMeta{Logs: s.Logs()}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ branch, want uint64 }{{25, 20}, {12, 10}, {4, 0}} {
		log := timestamp.FailoverLog{{VBUUID: 8, Seqno: c.branch}, {VBUUID: 7}}
		p := &putBack{what: []ingest.Restore{{Copy: 1, Log: log}}, slices: map[index.CopyID]*storage.Slice{1: s}}
		k.restore(t.Context(), p)
		r, again := p.done, p.again
		if len(r) != 1 || len(again) > 0 || r[0].position.Main != c.want || s.Positions()[0].Main != c.want {
			t.Errorf("branch from %d: %+v %v, stored %+v, want %d", c.branch, r, again, s.Positions()[0], c.want)
		}
	}
}

// TestLargeBatch: a batch that is cut holds the same as one that is not.
func TestLargeBatch(t *testing.T) {
	k := testBucketLoop(t)
	k.piece = 1 << 20
	k.x.marks = &marks{dir: t.TempDir(), log: hclog.NewNullLogger()}
	_, s := openStore(t)
	var a arena
	b, err := ingest.New(ingest.Options{VBuckets: 2, Pack: a.pack})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Add(ingest.Copy{ID: 1, Index: 1}); err != nil {
		t.Fatal(err)
	}
	src := ingest.Source{Connection: 1}
	for vb := range uint16(2) {
		b.Accept(src, &keyversion.Event{Kind: keyversion.StreamBegin, VBucket: vb,
			Begin: &keyversion.Begin{Log: timestamp.FailoverLog{{VBUUID: 7}}, Copies: []index.CopyID{1}}})
	}
	key := make([]byte, 50<<10)
	const n = 60 // of 50 KiB each: several pieces
	for q := range uint64(n) {
		key[0], key[1] = 1, byte(q)
		b.Accept(src, &keyversion.Event{Kind: keyversion.Insert, Seqno: q + 1, Window: timestamp.Window{End: n},
			DocID:      fmt.Appendf(nil, "doc-%d", q),
			Statements: []keyversion.Statement{{Index: 1, Keys: [][]byte{key}}}})
	}
	b.Accept(src, &keyversion.Event{Kind: keyversion.Sync, Seqno: n})
	v := timestamp.New(2)
	v.Set(0, timestamp.Position{VBUUID: 7, Seqno: n})
	b.Publish(timestamp.Stability{Ref: timestamp.Ref{Number: 1}, Vector: v})
	batch, _ := b.Flush()
	if err := k.writeCopy(context.Background(), &underway{batch: batch}, 0, s); err != nil {
		t.Fatal(err)
	}
	if got := s.Stats(); got.Items != n || got.Batch < 3 {
		t.Errorf("%d rows in %d batches, want %d in several", got.Items, got.Batch, n)
	}
	h, ok := k.x.snapshots.acquire(1, nil)
	if !ok || h.ref.Number != 1 {
		t.Errorf("no snapshot: %+v", h.ref)
	} else {
		err = h.snap.Close()
	}
	k.x.snapshots.closeAll()
	if err != nil {
		t.Error(err)
	}
	if pos := s.Positions()[0]; pos.Main != n {
		t.Errorf("position %+v", pos)
	}
}

// TestPieceOfABatch: who goes on from a copy of whose batch a piece is written is not exact below the batch's end.
func TestPieceOfABatch(t *testing.T) {
	k := testBucketLoop(t)
	_, s := openStore(t)
	log := timestamp.FailoverLog{{VBUUID: 7}}
	const piece, end = 5, 70
	held := ingest.Position{VBUUID: 7, Main: piece, Side: piece, A: piece}
	other := ingest.Position{VBUUID: 7}
	if err := s.Flush(t.Context(), storage.Batch{Positions: []storage.VBPosition{{VBucket: 0, Position: held, Log: log},
		{VBucket: 1, Position: other, Log: log}}}); err != nil {
		t.Fatal(err)
	}
	whole := ingest.Position{VBUUID: 7, Main: end, Side: end, A: end}
	cut := &ingest.CopyBatch{ID: 1, Index: 1, Parts: []ingest.Part{{Position: whole}}}
	row := storage.Update{DocID: []byte("d"), Seqno: end - 1, Keys: [][]byte{{1}}}
	if err := k.early(t.Context(), &storage.Batch{Updates: []storage.Update{row}}, cut, s); err != nil {
		t.Fatal(err)
	}
	b, err := ingest.New(ingest.Options{VBuckets: 2, Pack: new(arena).pack})
	if err == nil {
		err = b.Add(ingest.Copy{ID: 1, Index: 1, Ready: true, Positions: s.Positions(), Logs: s.Logs()})
	}
	if err != nil {
		t.Fatal(err)
	}
	src := ingest.Source{Connection: 1}
	for vb, start := range []uint64{piece, 0} {
		b.Accept(src, &keyversion.Event{Kind: keyversion.StreamBegin, VBucket: uint16(vb),
			Begin: &keyversion.Begin{Start: start, Log: log, Copies: []index.CopyID{1}}})
	}
	for n, at := range []uint64{40, end - 1, end} {
		b.Accept(src, &keyversion.Event{Kind: keyversion.Sync, Seqno: at})
		v := timestamp.New(2)
		v.Set(0, timestamp.Position{VBUUID: 7, Seqno: at})
		b.Publish(timestamp.Stability{Ref: timestamp.Ref{Number: uint64(n) + 1}, Vector: v})
		batch, _ := b.Flush()
		if batch == nil || batch.Copies[0].Exact != (at == end) {
			t.Fatalf("at %d: %+v, want that it is exact from %d on", at, batch, end)
		}
		b.Done(batch)
	}
}

// TestDo: a command that was given up never runs.
func TestDo(t *testing.T) {
	k := testBucketLoop(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	ran := false
	go func() { done <- k.do(ctx, func() { ran = true }) }()
	f := <-k.control // the loop has taken it, but not yet begun
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	f()
	if ran {
		t.Error("it ran after it was given up")
	}
}

func TestChooseProjector(t *testing.T) {
	all := []wire.ProjectorEndpoint{{ID: "a"}, {ID: "b"}, {ID: "c"}}
	for _, c := range []struct {
		owner index.ProjectorID
		tries int
		want  index.ProjectorID
	}{{"b", 0, "b"}, {"b", 1, "c"}, {"b", 2, "b"}, {"b", 3, "a"}, {"b", 4, "b"}, {"b", 5, "c"}, {"", 0, "a"},
		{"gone", 1, "b"}, {"", 5, "c"}} {
		if got := choose(all, c.owner, c.tries).ID; got != c.want {
			t.Errorf("owner %q, try %d: %s, want %s", c.owner, c.tries, got, c.want)
		}
	}
	if got := choose(all[:1], "a", 7).ID; got != "a" {
		t.Errorf("of one: %s", got)
	}
}

// TestSidePauses: when the owner of a vbucket's stream could not open a side stream for a while, however long and
// whoever else was asked meanwhile, it is asked again soon after it can.
func TestSidePauses(t *testing.T) {
	all := make([]wire.ProjectorEndpoint, 64)
	for i := range all {
		all[i].ID = index.ProjectorID(strconv.Itoa(i))
	}
	for unable := time.Duration(0); unable < time.Minute; unable += 77 * time.Millisecond {
		at, tries := time.Duration(0), 0
		for ; at < unable || choose(all, "40", tries).ID != "40"; tries++ {
			at += sidePause(tries)
		}
		if late := at - unable; late > 2*sideMost {
			t.Fatalf("unable for %s: asked again %s later, at most %s are due", unable, late, 2*sideMost)
		}
	}
}
