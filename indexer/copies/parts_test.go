package copies

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"tidemark/index"
	"tidemark/indexer/core"
	"tidemark/indexer/health"
	"tidemark/indexer/packed"
	"tidemark/indexer/snapshots"
	"tidemark/indexer/storage"
	"tidemark/indexer/storage/storagetest"
	"tidemark/ingest"
	"tidemark/internal/testing/atonce"
	_ "tidemark/internal/testing/draws"
	"tidemark/keyversion"
	"tidemark/timestamp"
	"tidemark/wire"
)

func TestMain(m *testing.M) {
	atonce.Tests(6) // most of their time is waiting
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"))
}

// noMarks returns the Marks of an empty folder.
func noMarks(t testing.TB) *Marks {
	t.Helper()
	m, err := LoadMarks(t.TempDir(), hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// testNode returns a node whose callbacks do nothing.
func testNode(log hclog.Logger) *Node {
	return &Node{Snapshots: snapshots.New(2, log, time.Now), Health: &health.Health{},
		Metrics: NewMetrics(prometheus.NewRegistry()), Log: log, Now: time.Now, Queue: func() int64 { return 1 << 20 },
		Report: func() {}, Sides: func() {}, Touch: func(string) {}, Marks: &Marks{}}
}

// testBucketLoop returns a bucket without a running loop.
func testBucketLoop(t testing.TB) *Bucket {
	t.Helper()
	k, err := NewBucket(testNode(hclog.NewNullLogger()), wire.Bucket{Name: "b", UUID: "u", VBuckets: 2})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// TestDiskFull: a write that finds no space is reported and retried until there is space; a slice that must be
// reopened is reopened.
func TestDiskFull(t *testing.T) {
	k := testBucketLoop(t)
	_, s := storagetest.Open(t)
	tries := 0
	o := k.persistently(t.Context(), s, func() error {
		if tries++; tries < 3 {
			return fmt.Errorf("no: %w", storage.ErrDiskFull)
		}
		if why := k.node.Health.First(); why == "" {
			t.Error("nothing is wrong with the health of a node whose disk is full")
		}
		return nil
	})
	if o != (outcome{}) || k.node.Health.First() != "" {
		t.Errorf("outcome %+v, health %q", o, k.node.Health.First())
	}
	o = k.persistently(t.Context(), s, func() error { return fmt.Errorf("torn: %w", storage.ErrReopen) })
	if o.again != s || k.node.Health.First() != "" {
		t.Errorf("outcome %+v, health %q", o, k.node.Health.First())
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

// TestUnreadableCopies: copies with an unreadable block are reopened after a while, and a copy that their writers
// kept waiting is then written.
func TestUnreadableCopies(t *testing.T) {
	k := testBucketLoop(t)
	var tries atomic.Int64
	k.node.Now = func() time.Time { return time.Unix(0, 0).Add(time.Duration(tries.Add(1)) * health.Hangs / 8) }
	st, first := storagetest.Open(t)
	second, err := st.Create(storage.Meta{Copy: 2, Index: 1, Bucket: "b", BucketUUID: "u", VBuckets: 2,
		Desc: []bool{false}})
	if err != nil {
		t.Fatal(err)
	}
	read := fmt.Errorf("a block: %w: %w", storage.ErrIO, syscall.EIO)
	var again [2]atomic.Bool
	wrote := make(chan struct{})
	l := newLanes(2, func(n *lane, _ task) {
		if n.slice == nil {
			close(wrote)
			return
		}
		o := k.persistently(t.Context(), n.slice, func() error { return read })
		again[n.copy-1].Store(o.again == n.slice)
	})
	for _, n := range []*lane{{copy: 1, slice: first}, {copy: 2, slice: second}, {copy: 3}} {
		l.give(n, task{class: serving})
	}
	select {
	case <-wrote:
	case <-time.After(patience):
		t.Fatal("a good copy waits for two that cannot be read: " + k.node.Health.First())
	}
	l.all.Wait()
	for i := range again {
		if !again[i].Load() {
			t.Errorf("copy %d was not opened again", i+1)
		}
	}
	if said := k.node.Health.First(); said != "" {
		t.Errorf("then health %q", said)
	}
}

// TestUnreadable: only a lasting failure counts, of a copy whose engine can write.
func TestUnreadable(t *testing.T) {
	_, s := storagetest.Open(t)
	var u unreadable
	for _, c := range []struct {
		at   time.Duration
		err  error
		last bool
	}{
		{0, storage.ErrIO, false}, {health.Hangs - 1, storage.ErrIO, false}, {health.Hangs, storage.ErrIO, true},
		{health.Hangs + 1, storage.ErrDiskFull, false}, {health.Hangs + 2, storage.ErrIO, false},
		{2*health.Hangs + 1, storage.ErrIO, false}, {2*health.Hangs + 2, storage.ErrIO, true},
	} {
		if last := u.last(time.Unix(0, 0).Add(c.at), s, c.err); last != c.last {
			t.Errorf("%v after %v: lasted too long: %v", c.err, c.at, last)
		}
	}
}

// TestRestore: a vbucket is restored to the newest checkpoint on the branch, or emptied.
func TestRestore(t *testing.T) {
	k := testBucketLoop(t)
	_, s := storagetest.Open(t)
	for _, at := range []uint64{10, 20, 30} {
		storagetest.FlushAt(t, s, 7, at)
		if _, err := s.Checkpoint(t.Context(), storage.CheckpointMeta{Logs: s.Logs()}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ branch, want uint64 }{{25, 20}, {12, 10}, {4, 0}} {
		log := timestamp.FailoverLog{{VBUUID: 8, Seqno: c.branch}, {VBUUID: 7}}
		b := &copyBack{lane: &lane{copy: 1, slice: s}, what: []ingest.Restore{{Copy: 1, Log: log}}}
		k.restoreCopy(t.Context(), b, patience)
		r := b.done
		if len(r) != 1 || b.outcome.again != nil || r[0].position.Main != c.want || s.Positions()[0].Main != c.want {
			t.Errorf("branch from %d: %+v %v, stored %+v, want %d", c.branch, r, b.outcome, s.Positions()[0], c.want)
		}
	}
}

// TestLargeBatch: a batch that is split has the same result as one that is not.
func TestLargeBatch(t *testing.T) {
	k := testBucketLoop(t)
	k.node.Piece = 1 << 20
	k.node.Marks = noMarks(t)
	_, s := storagetest.Open(t)
	var a packed.Arena
	b, err := ingest.New(ingest.Options{VBuckets: 2, Pack: a.Pack})
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
	if err := k.writeCopy(context.Background(), &underway{Handed: &core.Handed{Batch: batch}}, 0, s); err != nil {
		t.Fatal(err)
	}
	if got := s.Stats(); got.Items != n || got.Batch < 3 {
		t.Errorf("%d rows in %d batches, want %d in several", got.Items, got.Batch, n)
	}
	h, ok := k.node.Snapshots.Acquire(1, nil)
	if !ok || h.Ref.Number != 1 {
		t.Errorf("no snapshot: %+v", h.Ref)
	} else {
		err = h.Snap.Close()
	}
	k.node.Snapshots.CloseAll()
	if err != nil {
		t.Error(err)
	}
	if pos := s.Positions()[0]; pos.Main != n {
		t.Errorf("position %+v", pos)
	}
}

// TestPieceOfABatch: a copy with a piece of a batch is not exact below the batch's end.
func TestPieceOfABatch(t *testing.T) {
	_, s := storagetest.Open(t)
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
	f := &flush{copy: cut, slice: s, batch: storage.Batch{Updates: []storage.Update{row}}}
	if err := f.early(t.Context()); err != nil {
		t.Fatal(err)
	}
	b, err := ingest.New(ingest.Options{VBuckets: 2, Pack: new(packed.Arena).Pack})
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

// TestCancelledCallNeverRuns: a cancelled call never runs.
func TestCancelledCallNeverRuns(t *testing.T) {
	k := testBucketLoop(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	ran := false
	go func() { done <- k.do(ctx, func() { ran = true }) }()
	f := <-k.calls.queue // the loop has taken the call, but not started it
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	f()
	if ran {
		t.Error("it ran after it was given up")
	}
}
