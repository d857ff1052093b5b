package storage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"tidemark/index"
	"tidemark/ingest"
	"tidemark/timestamp"
)

func TestLock(t *testing.T) {
	dir := t.TempDir()
	store := openTest(t, dir)
	if _, err := Open(Options{Dir: dir}); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), dir) {
		t.Fatalf("a second store on one folder: %v, want ErrLocked with the folder", err)
	}
	must(t, store.Close())
	must(t, openTest(t, dir).Close())
	if _, err := store.Create(testMeta(1)); !errors.Is(err, ErrClosed) {
		t.Fatalf("create in a closed store: %v", err)
	}
	must(t, store.Close())
}

// TestFoldersAreReadableByTheOwnerOnly: the folders contain keys of documents, which other users of the machine must
// not read.
func TestFoldersAreReadableByTheOwnerOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "copies")
	store := openTest(t, dir)
	s, err := store.Create(testMeta(1))
	must(t, err)
	must(t, s.Flush(context.Background(), historyBatch(1)))
	_, err = s.Checkpoint(context.Background(), CheckpointMeta{})
	must(t, err)
	folders := 0
	must(t, filepath.WalkDir(filepath.Dir(dir), func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.IsDir() || filepath.Base(filepath.Dir(path)) == checkpointsName { // Pebble creates these
			return err
		}
		info, err := d.Info()
		if folders++; err == nil && info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v", path, info.Mode())
		}
		return err
	}))
	if folders < 4 { // new, copies, the copy's, its checkpoints
		t.Errorf("%d folders were looked at", folders)
	}
	must(t, store.Close())
}

// TestRetire: a retired copy is gone at once and for good, whether or not its space is freed; until that is done its
// id is in use.
func TestRetire(t *testing.T) {
	dir := t.TempDir()
	store := openTest(t, dir)
	for id := index.CopyID(1); id <= 2; id++ {
		s, err := store.Create(testMeta(id))
		must(t, err)
		must(t, s.Flush(context.Background(), historyBatch(1)))
	}
	remove, err := store.Retire(1)
	must(t, err)
	if _, ok := store.Slice(1); ok || len(store.Slices()) != 1 {
		t.Fatal("it is there still")
	}
	if _, err := store.Retire(1); !errors.Is(err, ErrNotFound) {
		t.Fatalf("%v, want ErrNotFound", err)
	}
	if _, err := store.Create(testMeta(1)); !errors.Is(err, ErrExists) {
		t.Fatalf("%v, want ErrExists", err)
	}
	must(t, remove())
	_, err = store.Create(testMeta(1))
	must(t, err)

	remove, err = store.Retire(2) // and the process is killed
	must(t, err)
	crashed := t.TempDir()
	must(t, os.CopyFS(crashed, os.DirFS(dir)))
	must(t, remove())
	must(t, store.Close())
	again := openTest(t, crashed)
	if _, ok := again.Slice(2); ok || len(again.Slices()) != 1 {
		t.Fatal("it is back")
	}
	must(t, again.Close())
}

func TestCreateAndDrop(t *testing.T) {
	dir := t.TempDir()
	store := openTest(t, dir)
	for _, bad := range []Meta{{}, {Copy: 3, Bucket: "b"}, {Copy: 3, VBuckets: 4},
		{Copy: 3, Bucket: "b", VBuckets: 1 << 20}} {
		if _, err := store.Create(bad); !errors.Is(err, ErrInvalid) {
			t.Fatalf("%+v: %v, want ErrInvalid", bad, err)
		}
	}
	for id := index.CopyID(1); id <= 3; id++ {
		_, err := store.Create(testMeta(id))
		must(t, err)
	}
	if _, err := store.Create(testMeta(2)); !errors.Is(err, ErrExists) {
		t.Fatalf("%v, want ErrExists", err)
	}
	second, _ := store.Slice(2)
	must(t, second.Flush(context.Background(), historyBatch(1)))
	snap, err := second.Snapshot()
	must(t, err)
	m := newModel()
	m.apply(historyBatch(1))

	must(t, store.Drop(2))
	if err := store.Drop(2); !errors.Is(err, ErrNotFound) {
		t.Fatalf("%v, want ErrNotFound", err)
	}
	if err := second.Flush(context.Background(), historyBatch(2)); !errors.Is(err, ErrClosed) {
		t.Fatalf("a batch into a dropped copy: %v, want ErrClosed", err)
	}
	if _, err := second.Snapshot(); !errors.Is(err, ErrClosed) {
		t.Fatalf("a snapshot of a dropped copy: %v, want ErrClosed", err)
	}
	m.same(t, snap) // readers continue
	must(t, snap.Close())
	if _, err := os.Stat(filepath.Join(dir, "2")); !os.IsNotExist(err) {
		t.Fatalf("the folder is still there: %v", err)
	}
	must(t, store.Drop(3))
	must(t, store.Close())

	// A drop that a crash interrupted is finished at the next start.
	must(t, os.WriteFile(filepath.Join(dir, "1", droppedName), nil, 0o600))
	must(t, os.MkdirAll(filepath.Join(dir, "9"+tmpSuffix, "x"), 0o755))
	store = openTest(t, dir)
	if n := len(store.Slices()); n != 0 {
		t.Fatalf("%d copies", n)
	}
	for _, name := range []string{"1", "9" + tmpSuffix} {
		if _, err := os.Stat(filepath.Join(dir, name)); !os.IsNotExist(err) {
			t.Fatalf("%s is still there: %v", name, err)
		}
	}
	must(t, store.Close())
}

func TestSnapshotsOutliveTheSlice(t *testing.T) {
	store := openTest(t, t.TempDir())
	slice, err := store.Create(testMeta(1))
	must(t, err)
	m := newModel()
	m.apply(historyBatch(1))
	must(t, slice.Flush(context.Background(), historyBatch(1)))
	_, err = slice.Checkpoint(context.Background(), CheckpointMeta{})
	must(t, err)
	must(t, slice.Flush(context.Background(), historyBatch(2)))
	m2 := m.clone()
	m2.apply(historyBatch(2))
	snap, err := slice.Snapshot()
	must(t, err)
	must(t, slice.Restore(1))
	m2.same(t, snap)
	m.sameSlice(t, slice)
	if !snap.Retain() {
		t.Fatal("retain")
	}
	must(t, snap.Close())
	if err := store.Close(); err == nil || !strings.Contains(err.Error(), "1 snapshots are still open") {
		t.Fatalf("%v, want the open snapshot named", err)
	}
	m2.same(t, snap)
	must(t, snap.Close())
	if err := snap.Close(); !errors.Is(err, ErrClosed) || snap.Retain() {
		t.Fatalf("closed twice: %v", err)
	}
	if _, err := snap.Rows(context.Background(), Range{}, false); !errors.Is(err, ErrClosed) {
		t.Fatalf("%v", err)
	}
}

func TestInvalidBatches(t *testing.T) {
	store := openTest(t, t.TempDir())
	slice, err := store.Create(testMeta(1))
	must(t, err)
	doc := []byte("d")
	for name, b := range map[string]Batch{
		"vbucket of an update":  {Updates: []Update{{VBucket: testVBuckets, DocID: doc, Seqno: 1}}},
		"no document id":        {Updates: []Update{{Seqno: 1}}},
		"long document id":      {Updates: []Update{{DocID: make([]byte, MaxDocID+1), Seqno: 1}}},
		"empty key":             {Updates: []Update{{DocID: doc, Seqno: 1, Keys: [][]byte{{}}}}},
		"long key":              {Updates: []Update{{DocID: doc, Seqno: 1, Keys: [][]byte{make([]byte, MaxKey+1)}}}},
		"vbucket of a position": {Positions: []VBPosition{{VBucket: testVBuckets}}},
		"timestamp of too many": {Timestamp: timestamp.New(testVBuckets + 1)},
	} {
		if err := slice.Flush(context.Background(), b); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	if err := slice.DeleteVBuckets(context.Background(), VBPosition{VBucket: 1}, VBPosition{VBucket: 99}); !errors.Is(err,
		ErrInvalid) {
		t.Errorf("%v", err)
	}
	if err := slice.RestoreVBuckets(context.Background(), []uint16{0}, 7); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v", err)
	}
	if n := slice.Stats().Batch; n != 0 {
		t.Fatalf("%d batches were applied", n)
	}
	large := Update{DocID: []byte(strings.Repeat("d", MaxDocID)), Seqno: 1, Keys: [][]byte{make([]byte, MaxKey)}}
	must(t, slice.Flush(context.Background(), Batch{Updates: []Update{large}}))
	if slice.Stats().Items != 1 {
		t.Fatal("the largest row was not stored")
	}
	must(t, store.Close())
}

// TestConcurrent writes, reads, checkpoints and restores concurrently; every snapshot is consistent: its rows are
// those of its back index.
func TestConcurrent(t *testing.T) {
	store := openTest(t, t.TempDir(), func(o *Options) { o.MemTableBytes = 1 << 20 })
	defer func() { must(t, store.Close()) }()
	var wg sync.WaitGroup
	for id := range 3 {
		slice, err := store.Create(testMeta(index.CopyID(id + 1)))
		must(t, err)
		done := make(chan struct{})
		wg.Go(func() { defer close(done); writeMuch(t, slice) })
		wg.Go(func() { readMuch(t, slice, done) })
	}
	wg.Wait()
}

func writeMuch(t *testing.T, s *Slice) {
	for n := uint64(1); n <= 90; n++ {
		b := historyBatch(n)
		for i := range b.Updates {
			b.Updates[i].DocID = fmt.Appendf(nil, "%s-%d", b.Updates[i].DocID, n%7)
		}
		if err := s.Flush(context.Background(), b); err != nil {
			t.Error(err)
			return
		}
		var err error
		switch n % 40 {
		case 10:
			_, err = s.Checkpoint(context.Background(), CheckpointMeta{Number: n})
		case 20:
			err = s.RestoreVBuckets(context.Background(), []uint16{1, 3}, s.Checkpoints()[0].Seq)
		case 30:
			err = errors.Join(s.DeleteVBuckets(context.Background(), VBPosition{VBucket: 2, Position: ingest.Position{A: n}}),
				purgeAll(s, 3))
		case 39:
			err = s.Restore(s.Checkpoints()[0].Seq)
		}
		if err != nil {
			t.Error(n, err)
			return
		}
	}
}

func readMuch(t *testing.T, s *Slice, done <-chan struct{}) {
	ctx := context.Background()
	for {
		select {
		case <-done:
			return
		default:
		}
		if err := readOnce(ctx, s); err != nil {
			t.Error(err)
			return
		}
		if _, err := s.Durable(); err != nil {
			t.Error(err)
			return
		}
	}
}

func readOnce(ctx context.Context, s *Slice) error {
	snap, err := s.Snapshot()
	if err != nil {
		return err
	}
	forward, back := map[string]bool{}, 0
	err = snap.Iterate(ctx, Range{}, false, func(k, id []byte) error {
		forward[fmt.Sprintf("%x|%s", k, id)] = true
		return nil
	})
	for vb := range uint16(testVBuckets) {
		err = errors.Join(err, snap.Back(ctx, vb, func(id []byte, _ uint64, keys [][]byte) error {
			for _, k := range keys {
				if back++; !forward[fmt.Sprintf("%x|%s", k, id)] {
					return fmt.Errorf("batch %d: the row %x of %s is missing", snap.Batch(), k, id)
				}
			}
			return nil
		}))
	}
	if err == nil && (back != len(forward) || int64(back) != snap.Items()) {
		err = fmt.Errorf("batch %d: %d rows, %d by the back index, %d counted", snap.Batch(), len(forward), back,
			snap.Items())
	}
	return errors.Join(err, snap.Close())
}

func TestContextEndsAWalk(t *testing.T) {
	store := openTest(t, t.TempDir())
	slice, err := store.Create(testMeta(1))
	must(t, err)
	must(t, slice.Flush(context.Background(), historyBatch(1)))
	snap, err := slice.Snapshot()
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := snap.Iterate(ctx, Range{}, false, func(_, _ []byte) error { return nil }); !errors.Is(err,
		context.Canceled) {
		t.Fatal(err)
	}
	stop := errors.New("enough")
	if err := snap.Iterate(context.Background(), Range{}, false, func(_, _ []byte) error { return stop }); !errors.Is(err,
		stop) {
		t.Fatal(err)
	}
	must(t, snap.Close())
	must(t, store.Close())
}

// slowRemoval is a file system in which folders of dropped copies take long to be removed.
type slowRemoval struct {
	vfs.FS
	began, goOn chan struct{}
	once        sync.Once
}

// RemoveAll removes a folder.
func (f *slowRemoval) RemoveAll(path string) error {
	if info, err := f.Stat(path); err == nil && info.IsDir() && strings.HasSuffix(path, tmpSuffix) {
		f.once.Do(func() {
			close(f.began)
			<-f.goOn
		})
	}
	return f.FS.RemoveAll(path)
}

// TestCreateBesideRemoval: a copy that is created while one of its id is being removed from the disk keeps its
// folder.
func TestCreateBesideRemoval(t *testing.T) {
	fs := &slowRemoval{FS: vfs.NewMem(), began: make(chan struct{}), goOn: make(chan struct{})}
	store := openTest(t, "data", func(o *Options) { o.FS = fs })
	_, err := store.Create(testMeta(1))
	must(t, err)
	dropped := make(chan error, 1)
	go func() { dropped <- store.Drop(1) }()
	<-fs.began
	made := make(chan error, 1)
	go func() {
		_, err := store.Create(testMeta(1))
		made <- err
	}()
	select {
	case err = <-made: // it need not wait for the removal
	case <-time.After(time.Minute):
		t.Fatal("the new copy waits for the old one's removal")
	}
	close(fs.goOn)
	must(t, errors.Join(err, <-dropped))
	must(t, store.Close())
	store = openTest(t, "data", func(o *Options) { o.FS = fs })
	if _, there := store.Slice(1); !there {
		t.Error("the new copy went with the old one")
	}
	must(t, store.Close())
}
