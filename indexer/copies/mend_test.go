package copies

import (
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"tidemark/index"
	"tidemark/indexer/snapshots"
	"tidemark/indexer/storage"
	"tidemark/wire"
)

// TestDamagedIdleCopyIsReopened: a copy in which a scan has found a bad block is reopened although nothing is written
// to it, and its bucket continues from what the copy holds then; other copies are not affected.
func TestDamagedIdleCopyIsReopened(t *testing.T) {
	f := newFallen(t, 2, 2)
	f.k.node.Marks = noMarks(t)
	all := []*storage.Slice{f.k.slices[1], f.k.slices[2]}
	for _, s := range all {
		if err := s.Persist(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	damageNewestTable(t, filepath.Join(f.dir, all[0].Meta().Copy.String()))
	snap, err := all[0].Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	err = snap.Iterate(t.Context(), storage.Range{}, false, func(_, _ []byte) error { return nil })
	if cerr := snap.Close(); !errors.Is(err, storage.ErrDamaged) || cerr != nil || all[0].Broken() == nil {
		t.Fatalf("the scan: %v, then %v", err, errors.Join(all[0].Broken(), cerr))
	}
	f.run(t)
	held := func(id index.CopyID) (main uint64) {
		if err := f.k.do(t.Context(), func() {
			p, _ := f.k.st.Position(id, 0)
			main = p.Main
		}); err != nil {
			t.Fatal(err)
		}
		return main
	}
	for end := time.Now().Add(patience); held(1) != 10; time.Sleep(time.Millisecond) {
		if MendBroken(all, []*Bucket{f.k}); time.Now().After(end) {
			t.Fatalf("it holds %d, and is broken: %v", held(1), all[0].Broken())
		}
	}
	if r := all[0].Recovery(); r.Outcome != storage.FromCheckpoint || all[0].Broken() != nil {
		t.Errorf("recovered: %+v, then %v", r, all[0].Broken())
	}
	if said := f.k.node.Health.First(); said != "" {
		t.Errorf("then health %q", said)
	}
	if g := all[1].Stats().Generation; g != 1 || held(2) != 20 {
		t.Errorf("the other one is of generation %d and holds %d", g, held(2))
	}
}

// TestReopenedCopyIsSearchedForTombstones: a copy that was reopened, and is marked as one that may hold tombstones, is
// rid of those of all its vbuckets: purges that had been written are lost with its newest batches, and those that were
// due may have failed while it was shut.
func TestReopenedCopyIsSearchedForTombstones(t *testing.T) {
	f := newFallen(t, 3, 1)
	f.k.node.Marks = noMarks(t)
	s := f.k.slices[1]
	b := storage.Batch{KeepTombstones: func(uint16) bool { return true }}
	for vb := range f.vbuckets {
		b.Updates = append(b.Updates, storage.Update{VBucket: uint16(vb), DocID: []byte("gone"), Seqno: 20})
	}
	if err := errors.Join(f.k.node.Marks.Set(1), s.Flush(t.Context(), b)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Checkpoint(t.Context(), storage.CheckpointMeta{}); err != nil {
		t.Fatal(err)
	}
	f.fill(t, s, 30)
	if err := s.Persist(t.Context()); err != nil {
		t.Fatal(err)
	}
	damageNewestTable(t, filepath.Join(f.dir, s.Meta().Copy.String()))
	if snap, err := s.Snapshot(); err != nil {
		t.Fatal(err)
	} else {
		_ = snap.Iterate(t.Context(), storage.Range{}, false, func(_, _ []byte) error { return nil })
		if err := snap.Close(); err != nil || s.Broken() == nil {
			t.Fatalf("the scan has not found the damage: %v", err)
		}
	}
	f.run(t)
	MendBroken([]*storage.Slice{s}, []*Bucket{f.k})
	eventually(t, "the copy is clean", func() bool { return !f.k.node.Marks.Has(1) })
	if r := s.Recovery(); r.Outcome != storage.FromCheckpoint {
		t.Fatalf("recovered: %+v", r)
	}
	snap, err := s.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer snap.Close()
	for vb := range f.vbuckets {
		if err := snap.Back(t.Context(), uint16(vb), func(docID []byte, seqno uint64, keys [][]byte) error {
			if len(keys) == 0 {
				t.Errorf("vbucket %d has a tombstone of %s at %d", vb, docID, seqno)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// fullable is a disk that has no space while full is set.
type fullable struct {
	vfs.FS
	full *atomic.Bool
}

// GetDiskUsage implements vfs.FS.
func (d fullable) GetDiskUsage(path string) (vfs.DiskUsage, error) {
	u, err := d.FS.GetDiskUsage(path)
	if d.full.Load() {
		u.AvailBytes = 0
	}
	return u, err
}

// TestReopenedWithoutSpace checks that a copy that is open for reading alone, because its disk is full, keeps the
// snapshots that scans read when it is to be reopened without space; with space they are released, and it is reopened.
func TestReopenedWithoutSpace(t *testing.T) {
	var full atomic.Bool
	f := newFallenOn(t, 2, 1, fullable{errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if full.Load() && (op.Kind == errorfs.OpCreate || op.Kind == errorfs.OpFileWrite) {
			return syscall.ENOSPC
		}
		return nil
	})), &full})
	s := f.k.slices[1]
	if err := s.Persist(t.Context()); err != nil {
		t.Fatal(err)
	}
	full.Store(true)
	if err := f.k.reopen(t.Context(), s); !errors.Is(err, storage.ErrDiskFull) {
		t.Fatalf("without space: %v, want %v", err, storage.ErrDiskFull)
	}
	snap, err := s.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	f.k.node.Snapshots.Add(1, snapshots.Held{Ref: wire.StabilityRef{Bucket: "b"}, Snap: snap})
	for range 2 {
		if err := f.k.reopen(t.Context(), s); !errors.Is(err, storage.ErrDiskFull) {
			t.Fatalf("again without space: %v, want %v", err, storage.ErrDiskFull)
		}
		if n := len(f.k.node.Snapshots.Refs(1)); n != 1 {
			t.Fatalf("%d snapshots are held, want 1", n)
		}
	}
	full.Store(false)
	for end := time.Now().Add(patience); f.k.reopen(t.Context(), s) != nil; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it is not reopened with space: %s", f.k.node.Health.First())
		}
	}
	if n := len(f.k.node.Snapshots.Refs(1)); n != 0 {
		t.Errorf("%d snapshots of closed files are held", n)
	}
}

// damageNewestTable changes a byte in the rows of the newest table of a copy.
func damageNewestTable(t *testing.T, copy string) {
	t.Helper()
	tables, err := filepath.Glob(filepath.Join(copy, "db-1", "*.sst")) // in the order of their numbers
	if err != nil || len(tables) == 0 {
		t.Fatal(tables, err)
	}
	file, err := os.OpenFile(tables[len(tables)-1], os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1)
	_, err = file.ReadAt(b, 10)
	if err == nil {
		b[0] ^= 1
		_, err = file.WriteAt(b, 10)
	}
	if err = errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
}
