package copies

import (
	"context"
	"encoding/binary"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"tidemark/index"
	"tidemark/indexer/snapshots"
	"tidemark/indexer/storage"
	"tidemark/ingest"
	"tidemark/keyversion"
	"tidemark/timestamp"
	"tidemark/wire"
)

// flooded is a bucket without a store that feeds one copy, and that has waiting batches.
type flooded struct {
	k      *Bucket
	seqno  uint64
	taken  atomic.Int32 // batches taken to their ends
	events atomic.Int32
	at     func(event int32) // called in the loop, in the middle of taking an event
}

func newFlooded(t *testing.T) *flooded {
	t.Helper()
	k := testBucketLoop(t)
	k.node.Queue = func() int64 { return 1 << 30 }
	f := &flooded{k: k, at: func(int32) {}}
	if err := k.st.Add(ingest.Copy{ID: 1, Index: 1}); err != nil {
		t.Fatal(err)
	}
	if v := k.st.Accept(ingest.Source{Connection: 1}, &keyversion.Event{Kind: keyversion.StreamBegin,
		Begin: &keyversion.Begin{Log: timestamp.FailoverLog{{VBUUID: 7}}, Copies: []index.CopyID{1}}}); v != ingest.Taken {
		t.Fatal(v)
	}
	k.in.mem.Refused = func(*keyversion.Event, *keyversion.Statement, []byte) { f.at(f.events.Add(1)) }
	return f
}

// batch queues a batch of events, each with keys of the given size together.
func (f *flooded) batch(events, bytes int) {
	b := &keyversion.Batch{}
	key := make([]byte, min(bytes, storage.MaxKey))
	for range events {
		f.seqno++
		keys := [][]byte{nil} // which is refused, once for each event
		for size := 0; size < bytes; size += len(key) {
			keys = append(keys, key)
		}
		b.Events = append(b.Events, keyversion.Event{Kind: keyversion.Insert, Seqno: f.seqno,
			DocID: binary.BigEndian.AppendUint64(nil, f.seqno), Window: timestamp.Window{Start: f.seqno - 1, End: f.seqno},
			Statements: []keyversion.Statement{{Index: 1, Keys: keys}}})
	}
	f.k.in.boxes[0].batches <- inbound{src: ingest.Source{Connection: 1}, batch: b, release: func() { f.taken.Add(1) }}
}

func (f *flooded) run(t *testing.T) {
	ended := make(chan error, 1)
	go func() { ended <- f.k.Run(t.Context()) }()
	t.Cleanup(func() {
		f.k.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestCallDoesNotWaitForFullInbox: a call that arrives while the loop takes data is answered when the loop has taken a
// piece of one batch, however many batches wait and however large they are.
func TestCallDoesNotWaitForFullInbox(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience) // hang guard
	defer cancel()
	for _, c := range []struct {
		name                   string
		batches, events, bytes int
		mostBatches, most      int32
	}{
		{"small batches", dataInbox, 10, 100, 1, 10},
		{"large batches", dataInbox, 10, 400 << 10, 1, 10},
		{"one of a whole frame", 1, 400, 100 << 10, 0, 12},
		{"one of many events", 1, 100_000, 1, 0, takeBytes/takeEvent + 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFlooded(t)
			for range c.batches {
				f.batch(c.events, c.bytes)
			}
			var batches, events atomic.Int32
			answered := make(chan struct{})
			f.at = func(event int32) {
				if event == 1 {
					f.k.calls.queue <- func() {
						batches.Store(f.taken.Load())
						events.Store(f.events.Load())
						close(answered)
					}
				}
			}
			f.run(t)
			select {
			case <-answered:
			case <-ctx.Done():
				t.Fatal("not answered")
			}
			if b, e := batches.Load(), events.Load(); b > c.mostBatches || e > c.most {
				t.Errorf("answered after %d batches and %d events, want %d and %d at most", b, e, c.mostBatches, c.most)
			}
		})
	}
}

// TestWaitingCallsComeFirst: calls that wait when a round begins are answered before data is taken.
func TestWaitingCallsComeFirst(t *testing.T) {
	f := newFlooded(t)
	for range dataInbox {
		f.batch(1, 1)
	}
	var before [callsAtOnce]int32
	for i := range before {
		f.k.calls.queue <- func() { before[i] = f.events.Load() }
	}
	f.run(t)
	if err := f.k.do(t.Context(), func() {}); err != nil {
		t.Fatal(err)
	}
	if before != [callsAtOnce]int32{} {
		t.Errorf("answered after so many events: %v", before)
	}
}

// TestCallsDoNotStarveData: however many calls arrive, each round takes some data.
func TestCallsDoNotStarveData(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience) // hang guard
	defer cancel()
	f := newFlooded(t)
	for range dataInbox {
		f.batch(1, 1)
	}
	calls, ended := 0, make(chan struct{})
	var again func()
	again = func() {
		if calls++; f.taken.Load() == dataInbox {
			close(ended)
			return
		}
		f.k.calls.queue <- again // there is always a waiting call
	}
	f.k.calls.queue <- again
	f.run(t)
	select {
	case <-ended:
	case <-ctx.Done():
		t.Fatalf("%d of %d batches are taken", f.taken.Load(), dataInbox)
	}
	if err := f.k.do(ctx, func() {
		if most := (callsAtOnce + 1) * (dataInbox + 1); calls > most {
			t.Errorf("%d calls were answered meanwhile, want %d at most", calls, most)
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// TestBatchesPerRoundAreBounded: calls get their turn between batches that are handed out.
func TestBatchesPerRoundAreBounded(t *testing.T) {
	const copies = handAtOnce + 4
	f := newFallen(t, 2, copies)
	f.feed(t)
	f.k.lanes.lanes = newLanes(2, func(*lane, task) {})
	defer f.k.lanes.close()
	for id := range index.CopyID(copies) {
		if !f.k.st.Retake(id+1, 0) {
			t.Fatalf("copy %d cannot be taken anew", id+1)
		}
	}
	if more := f.k.pump(t.Context()); !more || f.k.work.InFlight() != handAtOnce {
		t.Errorf("first %d batches are handed out, and there are more: %v", f.k.work.InFlight(), more)
	}
	if more := f.k.pump(t.Context()); more || f.k.work.InFlight() != copies {
		t.Errorf("then %d batches are handed out, and there are more: %v", f.k.work.InFlight(), more)
	}
}

// feed starts streams of all vbuckets for all copies at their positions.
func (f *fallen) feed(t testing.TB) {
	t.Helper()
	ids := f.k.st.CopyIDs()
	for vb := range f.vbuckets {
		e := keyversion.Event{Kind: keyversion.StreamBegin, VBucket: uint16(vb),
			Begin: &keyversion.Begin{Start: 20, Log: timestamp.FailoverLog{{VBUUID: 7}}, Copies: ids}}
		if v := f.k.st.Accept(ingest.Source{Connection: 1}, &e); v != ingest.Taken {
			t.Fatal(v)
		}
	}
}

// hanging is a disk on which chosen operations hang, from when that is armed until it is freed.
type hanging struct {
	vfs.FS
	is    func(op errorfs.Op) bool
	on    atomic.Bool
	begun chan struct{} // closed when something hangs
	begin func()
	goOn  chan struct{}
	free  func()
}

func newHangingDisk(t testing.TB, is func(op errorfs.Op) bool) *hanging {
	h := &hanging{is: is, begun: make(chan struct{}), goOn: make(chan struct{})}
	h.begin = sync.OnceFunc(func() { close(h.begun) })
	h.free = sync.OnceFunc(func() { close(h.goOn) })
	t.Cleanup(h.free)
	h.FS = errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if h.on.Load() && h.is(op) {
			h.begin()
			<-h.goOn
		}
		return nil
	}))
	return h
}

// TestSnapshotsAreClosedOutsideTheLoop: closing the last snapshot of a copy's former files closes and removes the
// files; if that hangs, the loop continues.
func TestSnapshotsAreClosedOutsideTheLoop(t *testing.T) {
	for what, let := range map[string]func(ctx context.Context, f *fallen) error{
		"a vbucket is wrong": func(ctx context.Context, f *fallen) error { return f.k.Retake(ctx, 1, 0, nil, true) },
		"it parted":          func(ctx context.Context, f *fallen) error { return f.tryRollBack(ctx) },
	} {
		t.Run(what, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience) // hang guard
			defer cancel()
			disk := newHangingDisk(t, func(op errorfs.Op) bool {
				return op.Kind == errorfs.OpRemoveAll && strings.HasSuffix(op.Path, "/1/db-1")
			})
			f := newFallenOn(t, 2, 1, disk)
			f.k.node.Marks = noMarks(t)
			s := f.k.slices[1]
			snap, err := s.Snapshot()
			if err != nil {
				t.Fatal(err)
			}
			f.k.node.Snapshots.Add(1, snapshots.Held{Ref: wire.StabilityRef{Bucket: "b"}, Vector: timestamp.New(2), Snap: snap})
			if err := s.Persist(ctx); err != nil {
				t.Fatal(err)
			}
			cp, err := s.Checkpoint(ctx, storage.CheckpointMeta{})
			if err == nil {
				err = s.Restore(cp.Seq) // the same in other files: only the snapshot uses those before
			}
			if err != nil {
				t.Fatal(err)
			}
			f.feed(t)
			f.run(t)
			disk.on.Store(true)
			t.Cleanup(disk.free)
			done := make(chan error, 1)
			go func() { done <- let(ctx, f) }()
			select {
			case err := <-done:
				if err != nil {
					t.Fatal(err)
				}
			case <-ctx.Done():
				t.Fatal("it waits for the disk")
			}
			select {
			case <-disk.begun:
			case <-ctx.Done():
				t.Fatal("nothing hangs")
			}
			if b, _, err := f.k.Report(ctx, nil, true); err != nil || b.Heartbeat.Bucket != "b" {
				t.Errorf("beside it the bucket reports %+v, %v", b, err)
			}
		})
	}
}

// TestHungDiskBlocksOnlyItsCopy: whichever of a copy's files hangs, its bucket answers, the other copies are
// written and removed, and only the copy's own removal waits for it.
func TestHungDiskBlocksOnlyItsCopy(t *testing.T) {
	for what, kinds := range map[string][]errorfs.OpKind{
		"write":  {errorfs.OpFileWrite},
		"sync":   {errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo},
		"create": {errorfs.OpCreate},
		"open":   {errorfs.OpOpen, errorfs.OpFileReadAt},
		"remove": {errorfs.OpRemove, errorfs.OpRemoveAll},
	} {
		t.Run(what, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience) // hang guard
			defer cancel()
			var f *fallen
			disk := newHangingDisk(t, func(op errorfs.Op) bool {
				return slices.Contains(kinds, op.Kind) && strings.HasPrefix(op.Path, filepath.Join(f.dir, "1")+"/")
			})
			f = newFallenOn(t, 2, 2, disk)
			f.k.node.Marks = noMarks(t)
			s := f.k.slices[1]
			f.run(t)
			disk.on.Store(true)
			t.Cleanup(disk.free)
			rolled := make(chan error, 1)
			go func() { rolled <- f.tryRollBack(ctx) }() // it opens checkpoints, reads, writes, and closes them
			var keeps sync.WaitGroup
			keeps.Go(func() { _ = s.Persist(ctx) })
			keeps.Go(func() {
				if err := s.DropIncoming(); err != nil {
					t.Error(err)
				}
			})
			defer keeps.Wait()
			defer disk.free()
			select {
			case <-disk.begun:
			case err := <-rolled:
				rolled <- err
				t.Logf("the rollback does none of it: %v", err)
			case <-ctx.Done():
				t.Fatal("nothing hangs")
			}
			for range 3 {
				if _, copies, err := f.k.Report(ctx, nil, true); err != nil || len(copies) != 2 {
					t.Fatalf("reported: %d copies, %v", len(copies), err)
				}
			}
			if err := f.k.Remove(ctx, 2); err != nil {
				t.Errorf("the other copy: %v", err)
			}
			disk.free()
			if err := errors.Join(<-rolled, f.k.Remove(ctx, 1)); err != nil {
				t.Error(err)
			}
		})
	}
}
