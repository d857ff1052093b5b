package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/hashicorp/go-hclog"

	"tidemark/index"
	"tidemark/ingest"
	"tidemark/internal/diskspace"
	"tidemark/internal/testing/need"
)

// faultFS fails writes of files whose name contains a word, and reports a given amount of free space.
type faultFS struct {
	vfs.FS
	err  atomic.Pointer[error]
	gate atomic.Pointer[chan struct{}] // writes wait until it is closed
	free atomic.Int64
}

func (f *faultFS) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: uint64(f.free.Load()), TotalBytes: 1 << 40}, nil
}

func newFaultFS(word string) *faultFS {
	f := &faultFS{}
	f.free.Store(1 << 40)
	f.FS = errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		writes := op.Kind == errorfs.OpFileWrite || op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpCreate
		if g := f.gate.Load(); g != nil && writes && strings.Contains(op.Path, word) {
			<-*g
		}
		if e := f.err.Load(); e != nil && writes && strings.Contains(op.Path, word) {
			return *e
		}
		return nil
	}))
	return f
}

func (f *faultFS) fail(err error) { f.err.Store(&err) }
func (f *faultFS) heal()          { f.err.Store(nil) }

// hang makes writes wait until the returned function is called.
func (f *faultFS) hang() (goOn func()) {
	gate := make(chan struct{})
	f.gate.Store(&gate)
	return func() {
		f.gate.Store(nil)
		close(gate)
	}
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// until calls fn until it returns nil, and fails the test when that takes too long.
func until(t *testing.T, fn func() error) {
	t.Helper()
	ctx := within(t, time.Minute)
	for {
		err := fn()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatal(err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func TestDiskFull(t *testing.T) {
	fs := newFaultFS("none")
	store := openTest(t, "data", func(o *Options) { o.FS = fs })
	slice, err := store.Create(testMeta(1))
	must(t, err)
	n := uint64(1)
	for ; n <= 10; n++ {
		must(t, slice.Flush(context.Background(), historyBatch(n)))
	}
	fs.free.Store(1000)
	for range 3 {
		if err := slice.Flush(context.Background(), historyBatch(n)); !errors.Is(err, ErrDiskFull) {
			t.Fatalf("a batch without room: %v, want ErrDiskFull", err)
		}
	}
	if _, err := store.Create(testMeta(2)); !errors.Is(err, ErrDiskFull) {
		t.Fatalf("a copy without room: %v, want ErrDiskFull", err)
	}
	checkHistory(t, slice)
	fs.free.Store(1 << 40)
	for ; n <= 20; n++ {
		must(t, slice.Flush(context.Background(), historyBatch(n)))
	}
	if got := checkHistory(t, slice); got != 20 {
		t.Fatalf("at batch %d, want 20", got)
	}
	must(t, store.Close())
}

// TestNoFilesLeft checks that a file system that has bytes and no inodes counts as full, and is named.
func TestNoFilesLeft(t *testing.T) {
	fs := newFaultFS("none")
	store := openTest(t, "data", func(o *Options) { o.FS = fs })
	slice, err := store.Create(testMeta(1))
	must(t, err)
	if n := store.Room(); n < 1<<39 {
		t.Errorf("room for %d bytes", n)
	}
	has := diskspace.Space{Free: 1 << 40, Total: 1 << 40, AllFiles: 1 << 20}
	store.res.space.files = func(string) (diskspace.Space, error) { return has, nil }
	for _, err := range []error{slice.Flush(t.Context(), historyBatch(1)), store.res.space.room(1)} {
		if !errors.Is(err, ErrDiskFull) || !strings.Contains(err.Error(), "0 of 1048576 files (inodes) are left under data") {
			t.Errorf("without inodes: %v", err)
		}
	}
	if n := store.Room(); n != 1 {
		t.Errorf("room for %d bytes without inodes", n)
	}
	has.FreeFiles = 1 << 19
	must(t, slice.Flush(t.Context(), historyBatch(1)))
	must(t, store.Close())
}

// TestIdleBatchIsRefusedDuringRecovery: a slice that must be recovered refuses batches that change nothing; a slice
// that temporarily lacks space accepts them.
func TestIdleBatchIsRefusedDuringRecovery(t *testing.T) {
	for _, c := range []struct {
		name string
		fail func(*pebbleEngine)
		want error
	}{
		{"a damaged file", func(e *pebbleEngine) {
			e.onCorruption(pebble.DataCorruptionInfo{Path: "x.sst", Details: errors.New("checksum")})
		}, ErrDamaged},
		{"a manifest that could not be written", func(e *pebbleEngine) {
			engineLog{e}.Fatalf("MANIFEST set current failed: %v", syscall.EIO)
		}, ErrReopen},
		{"no room", func(e *pebbleEngine) { e.health.fail(ErrDiskFull) }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			store := openTest(t, "data", func(o *Options) { o.FS = vfs.NewMem() })
			s, err := store.Create(testMeta(1))
			must(t, err)
			must(t, s.Flush(t.Context(), historyBatch(1)))
			c.fail(s.gen.eng.(*pebbleEngine))
			for what, err := range map[string]error{
				"a batch without rows":        s.Flush(t.Context(), Batch{Common: commonOf(s)}),
				"a batch that states nothing": s.Flush(t.Context(), Batch{Common: commonOf(s), Updates: historyBatch(1).Updates}),
				"a purge of no tombstone":     purgeAll(s, testVBuckets-1),
				"a look at it":                s.Broken(),
			} {
				if !errors.Is(err, c.want) {
					t.Errorf("%s: %v, want %v", what, err, c.want)
				}
			}
			if c.want == nil {
				s.gen.eng.(*pebbleEngine).health.ok()
			} else if _, err := s.Recover(t.Context(), time.Minute, nil); err != nil || s.Broken() != nil {
				t.Errorf("recovered: %v, then %v", err, s.Broken())
			}
			must(t, store.Close())
		})
	}
}

// TestReadableWhileFull: a copy whose manifest found no space must not be reopened while there is none, whatever is
// requested: it stays readable, and accepts batches that change nothing; once there is space, it must be reopened.
func TestReadableWhileFull(t *testing.T) {
	fs := newFaultFS("none")
	store := openTest(t, "data", func(o *Options) { o.FS = fs })
	s, err := store.Create(testMeta(1))
	must(t, err)
	must(t, s.Flush(t.Context(), historyBatch(1)))
	fs.free.Store(1000)
	engineLog{s.gen.eng.(*pebbleEngine)}.Fatalf("MANIFEST set current failed: %v", syscall.ENOSPC)
	must(t, s.Broken())
	must(t, s.Flush(t.Context(), Batch{Common: commonOf(s)}))
	must(t, purgeAll(s, testVBuckets-1))
	for what, err := range map[string]error{"a batch with rows": s.Flush(t.Context(), historyBatch(2)),
		"Persist": s.Persist(t.Context()), "its figures": s.Stats().Failing} {
		if !errors.Is(err, ErrDiskFull) || NeedsRecover(err) {
			t.Errorf("%s: %v, want %v alone", what, err, ErrDiskFull)
		}
	}
	checkHistory(t, s)
	fs.free.Store(1 << 40)
	if err := s.Flush(t.Context(), Batch{Common: commonOf(s)}); !NeedsRecover(err) || !NeedsRecover(s.Broken()) {
		t.Errorf("with room again: %v, %v", err, s.Broken())
	}
	_, err = s.Recover(t.Context(), time.Minute, nil)
	must(t, err)
	must(t, store.Close())
}

// TestLostMemoryNeedsNoRoom: data in the memory of copies that cannot be written any more is lost, and no space is
// reserved for it: neither reopening these copies nor other copies wait for that space.
func TestLostMemoryNeedsNoRoom(t *testing.T) {
	fs := newFaultFS("none")
	store := openTest(t, "data", func(o *Options) { o.FS, o.MemTableBytes = fs, 256<<20 })
	space := store.res.space
	var all [3]*Slice
	for i := range all {
		var err error
		all[i], err = store.Create(testMeta(index.CopyID(i) + 1))
		must(t, err)
		b := historyBatch(1)
		for n := range b.Updates {
			b.Updates[n].Keys = [][]byte{bytes.Repeat([]byte{2}, 4000)}
		}
		must(t, all[i].Flush(t.Context(), b))
	}
	each := space.promised / int64(len(all))
	if each < 4000 {
		t.Fatalf("%d bytes are promised to each", each)
	}
	fs.free.Store(space.reserve + minMemTable + each) // of what the third one has
	for _, s := range all[:2] {
		engineLog{s.gen.eng.(*pebbleEngine)}.Fatalf("MANIFEST set current failed: %v", syscall.ENOSPC)
	}
	must(t, all[2].Broken())
	must(t, space.room(minMemTable))
	for i, s := range all[:2] {
		if err := s.Broken(); !NeedsRecover(err) {
			t.Errorf("copy %d: %v, and there is room", i+1, err)
		}
		_, err := s.Recover(t.Context(), time.Minute, nil)
		must(t, err)
		must(t, s.Flush(t.Context(), Batch{Common: commonOf(s)}))
	}
	must(t, store.Close())
	if space.promised != 0 {
		t.Errorf("%d bytes are promised when all are closed", space.promised)
	}
}

// commonOf returns a slice's position.
func commonOf(s *Slice) *ingest.Common {
	return &ingest.Common{Positions: s.Positions(), Logs: s.Logs()}
}

// TestDiskHangs: on a disk that neither writes nor fails, a batch of this slice or another waits as long as its
// context and no longer, and none of it is applied; when the disk continues, so do batches, and nothing is lost.
func TestDiskHangs(t *testing.T) {
	fs := newFaultFS(".sst")
	store := openTest(t, "data", func(o *Options) { o.FS, o.MemTableBytes = fs, 4<<20 })
	slice, err := store.Create(testMeta(1))
	must(t, err)
	other, err := store.Create(testMeta(2))
	must(t, err)
	goOn := fs.hang()
	stuck := func(s *Slice, n uint64) uint64 {
		guard := within(t, 2*time.Minute)
		for ; guard.Err() == nil; n++ {
			ctx, cancel := context.WithTimeout(guard, 20*time.Millisecond)
			b := historyBatch(n)
			for i := range b.Updates {
				b.Updates[i].Keys = append(b.Updates[i].Keys, []byte(strings.Repeat("k", 3000)))
			}
			err := s.Flush(ctx, b)
			cancel()
			if errors.Is(err, context.DeadlineExceeded) {
				return n
			}
			must(t, err)
		}
		t.Fatal("every batch found room")
		return 0
	}
	n := stuck(slice, 1)
	stuck(other, 1)
	if got := slice.Stats().Batch; got != n-1 {
		t.Errorf("at batch %d after one was given up, want %d", got, n-1)
	}
	goOn()
	must(t, slice.Flush(within(t, time.Minute), historyBatch(n)))
	must(t, slice.Persist(within(t, time.Minute)))
	if d, err := slice.Durable(); err != nil || d.Batch != n {
		t.Errorf("durable is batch %d (%v), want %d", d.Batch, err, n)
	}
	must(t, store.Close())
}

// TestHungCopyLeavesMemoryToOthers checks that a copy whose tables cannot be written, because its disk hangs, delays no
// batch of another copy for long, however much memory it holds; its own batches wait.
func TestHungCopyLeavesMemoryToOthers(t *testing.T) {
	const limit = 2 << 20
	fs := newFaultFS("data/1/db-")
	store := openTest(t, "data", func(o *Options) { o.FS, o.MemTableBytes = fs, limit })
	store.res.memory.hangs = 50 * time.Millisecond
	slice, err := store.Create(testMeta(1))
	must(t, err)
	other, err := store.Create(testMeta(2))
	must(t, err)
	batch := func(n uint64) Batch {
		b := historyBatch(n)
		for i := range b.Updates {
			b.Updates[i].Keys = append(b.Updates[i].Keys, []byte(strings.Repeat("k", 3000)))
		}
		return b
	}
	goOn, pending := fs.hang(), 0
	for n := uint64(1); pending <= maxPending; n++ {
		must(t, slice.Flush(within(t, time.Minute), batch(n)))
		_, pending = slice.gen.eng.(*pebbleEngine).reap()
	}
	for n := range uint64(70) { // among them large ones, for which there is room only if the hung copy does not count
		must(t, other.Flush(within(t, time.Minute), batch(n+1)))
	}
	if err := slice.Flush(within(t, 100*time.Millisecond), batch(1)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a batch of the hung copy: %v, want %v", err, context.DeadlineExceeded)
	}
	goOn()
	must(t, slice.Flush(within(t, time.Minute), batch(1)))
	must(t, store.Close())
}

// TestWritesFail makes the background writes of one kind of file fail, although every check finds space.
func TestWritesFail(t *testing.T) {
	for _, c := range []struct {
		word string
		err  error
		want error
		dead bool // the engine must be reopened
	}{
		{word: ".sst", err: syscall.ENOSPC, want: ErrDiskFull},
		{word: ".sst", err: syscall.EIO, want: ErrIO},
		{word: "MANIFEST", err: syscall.ENOSPC, want: ErrReopen, dead: true},
		{word: "MANIFEST", err: syscall.EIO, want: ErrReopen, dead: true},
	} {
		t.Run(fmt.Sprintf("%s %v", c.word, c.err), func(t *testing.T) {
			fs := newFaultFS(c.word)
			store := openTest(t, "data", func(o *Options) { o.FS = fs })
			slice, err := store.Create(testMeta(1))
			must(t, err)
			for n := uint64(1); n <= 10; n++ {
				must(t, slice.Flush(context.Background(), historyBatch(n)))
			}
			must(t, slice.Persist(context.Background()))
			must(t, slice.Flush(context.Background(), historyBatch(11)))
			fs.fail(c.err)
			if err := slice.Persist(within(t, time.Minute)); !errors.Is(err, c.want) {
				t.Fatalf("persist: %v, want %v", err, c.want)
			}
			if err := slice.Flush(context.Background(), historyBatch(12)); !errors.Is(err, c.want) {
				t.Fatalf("flush: %v, want %v", err, c.want)
			}
			checkHistory(t, slice)
			if d, err := slice.Durable(); err != nil || d.Batch != 10 {
				t.Fatalf("durable is batch %d (%v), want 10", d.Batch, err)
			}
			if c.dead { // repeatedly, as long as the disk fails
				if _, err := slice.Recover(t.Context(), time.Minute, nil); err != nil {
					t.Fatal(err)
				}
				err := slice.Flush(context.Background(), historyBatch(slice.Stats().Batch+1))
				if err == nil {
					err = slice.Persist(within(t, time.Minute))
				}
				if !errors.Is(err, c.want) {
					t.Fatalf("flush and persist: %v, want %v", err, c.want)
				}
				checkHistory(t, slice)
			}
			fs.heal()
			if c.dead {
				if r, err := slice.Recover(t.Context(), time.Minute, nil); err != nil || r.Outcome != Intact {
					t.Fatalf("recovered %v: %v", r, err)
				}
				if n := checkHistory(t, slice); n != 10 && n != 11 { // the failed write may have succeeded
					t.Fatalf("recovered to batch %d", n)
				}
			}
			until(t, func() error { return slice.Flush(context.Background(), historyBatch(slice.Stats().Batch+1)) })
			must(t, slice.Persist(within(t, time.Minute)))
			checkHistory(t, slice)
			must(t, store.Close())
		})
	}
}

// TestBallast: the space that the manifest needs on a full disk comes from the ballast, which is created again
// afterwards.
func TestBallast(t *testing.T) {
	mem := vfs.NewMem()
	there := func() bool { return exists(mem, "data/"+ballastName) }
	full := false
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if full && op.Kind == errorfs.OpFileWrite && strings.Contains(op.Path, "MANIFEST") && there() {
			return syscall.ENOSPC
		}
		return nil
	}))
	store := openTest(t, "data", func(o *Options) { o.FS = fs })
	slice, err := store.Create(testMeta(1))
	must(t, err)
	must(t, slice.Flush(context.Background(), historyBatch(1)))
	full = true
	must(t, slice.Persist(within(t, time.Minute)))
	if there() {
		t.Fatal("the ballast was not given up")
	}
	full = false
	must(t, slice.Flush(context.Background(), historyBatch(2)))
	if !there() {
		t.Fatal("the ballast was not made again")
	}
	checkHistory(t, slice)
	must(t, store.Close())
}

// TestCloseWhileFailing: closing does not wait for a disk that stays full.
func TestCloseWhileFailing(t *testing.T) {
	for word, want := range map[string]error{".sst": ErrDiskFull, "MANIFEST": ErrReopen} {
		fs := newFaultFS(word)
		store := openTest(t, "data", func(o *Options) { o.FS = fs })
		slice, err := store.Create(testMeta(1))
		must(t, err)
		must(t, slice.Flush(context.Background(), historyBatch(1)))
		fs.fail(syscall.ENOSPC)
		if err := slice.Persist(within(t, time.Minute)); !errors.Is(err, want) {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- store.Close() }()
		select {
		case err := <-done:
			if !errors.Is(err, want) {
				t.Fatalf("%s: closed with %v, want the error", word, err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s: close hangs", word)
		}
	}
}

// TestRealDisk is the same on a small file system of its own, if the machine permits creating one.
func TestRealDisk(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=32m"); err != nil {
		need.Missing(t, "mounting a small file system: %v; run as root", err)
	}
	t.Cleanup(func() { must(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	store := openTest(t, dir+"/data")
	t.Cleanup(func() { _ = store.Close() }) // already closed on success
	slice, err := store.Create(testMeta(1))
	must(t, err)
	const large = 64 << 10
	grow := func(n uint64) error {
		return slice.Flush(context.Background(), Batch{Updates: []Update{{DocID: fmt.Appendf(nil, "doc%05d", n), Seqno: n,
			Keys: [][]byte{fmt.Appendf(nil, "%0*d", large, n)}}}})
	}
	n := uint64(1)
	for ; err == nil && n < 10_000; n++ {
		err = grow(n)
	}
	if !errors.Is(err, ErrDiskFull) {
		t.Fatalf("after %d batches: %v, want ErrDiskFull", n, err)
	}
	applied := slice.Stats().Batch
	if applied < 50 || applied != n-2 {
		t.Fatalf("batch %d, %d were taken", applied, n-2)
	}
	count := func() int64 {
		snap, err := slice.Snapshot()
		must(t, err)
		c, err := snap.Count(context.Background(), []Range{{Low: []byte{0}}})
		must(t, errors.Join(err, snap.Close()))
		return c
	}
	if got := count(); got != int64(applied) {
		t.Fatalf("%d rows, want %d", got, applied)
	}
	// There is space for accepted batches, at the latest when compactions have released theirs.
	until(t, func() error { return slice.Persist(within(t, time.Minute)) })
	must(t, syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, "size=64m"))
	until(t, func() error { return grow(applied + 1) })
	must(t, store.Close())
	store = openTest(t, dir+"/data")
	slice, _ = store.Slice(1)
	if got := count(); got != int64(applied)+1 || slice.Stats().Batch != applied+1 {
		t.Fatalf("reopened with %d rows at batch %d, want %d", got, slice.Stats().Batch, applied+1)
	}
	must(t, store.Close())
}

// slowTables calls entered for each table that is opened for reading.
type slowTables struct {
	vfs.FS
	entered atomic.Pointer[func()]
}

func (f *slowTables) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	if each := f.entered.Load(); each != nil && isTable(name) {
		(*each)()
	}
	return f.FS.Open(name, opts...)
}

// TestRecoverEndsWithItsContext: a copy that is reopened reads all its files, which may take very long; the end of
// the process, or of the copy, does not wait for that.
func TestRecoverEndsWithItsContext(t *testing.T) {
	fs := &slowTables{FS: vfs.NewMem()}
	store := openTest(t, "data", func(o *Options) { o.FS = fs })
	slice, err := store.Create(testMeta(1))
	must(t, err)
	for n := uint64(1); n <= 60; n++ {
		must(t, slice.Flush(t.Context(), historyBatch(n)))
	}
	must(t, slice.Persist(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	stop := func() { cancel() }
	fs.entered.Store(&stop)
	if _, err := slice.Recover(ctx, time.Minute, nil); !errors.Is(err, context.Canceled) {
		t.Fatalf("its context has ended: %v", err)
	}
	fs.entered.Store(nil)
	if r, err := slice.Recover(t.Context(), time.Minute, nil); err != nil || r.Outcome != Intact {
		t.Fatalf("tried again: %v, %v", r, err)
	}
	checkHistory(t, slice)

	ended := make(chan error, 1)
	drop := sync.OnceFunc(func() {
		remove, err := store.Retire(1)
		if err != nil {
			ended <- err
			return
		}
		go func() { ended <- remove() }()
		until(t, func() error {
			if !slice.Ended() {
				return errors.New("not closed yet")
			}
			return nil
		})
	})
	fs.entered.Store(&drop)
	if _, err := slice.Recover(t.Context(), time.Minute, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("the copy was dropped meanwhile: %v", err)
	}
	must(t, <-ended)
	must(t, store.Close())
}

// TestUnreadableBlock: a batch that has to read an unreadable block fails with ErrIO, although the engine can write;
// the copy cannot be reopened until the block can be read.
func TestUnreadableBlock(t *testing.T) {
	const docs = 20_000 // in several tables, so that not everything is in a cache
	var bad atomic.Bool
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if reads := op.Kind == errorfs.OpFileReadAt || op.Kind == errorfs.OpFileRead; reads && bad.Load() &&
			strings.HasSuffix(op.Path, ".sst") {
			return syscall.EIO
		}
		return nil
	}))
	open := func() *Store {
		return openTest(t, "data", func(o *Options) {
			o.FS, o.kept, o.CacheBytes, o.MemTableBytes, o.VerifyBytes = fs, 1, 1, 1<<20, 1
		})
	}
	up := func(n int, seqno uint64) Update {
		return Update{DocID: fmt.Appendf(nil, "doc%06d", n), Seqno: seqno,
			Keys: [][]byte{fmt.Appendf(nil, "%0200d", n+int(seqno))}}
	}
	store := open()
	slice, err := store.Create(testMeta(1))
	must(t, err)
	var b Batch
	for n := range docs {
		b.Updates = append(b.Updates, up(n, 1))
	}
	must(t, slice.Flush(context.Background(), b))
	must(t, slice.Persist(context.Background()))
	must(t, store.Close())

	store = open()
	slice, _ = store.Slice(testMeta(1).Copy)
	change := Batch{Updates: []Update{up(docs/2, 2)}}
	bad.Store(true)
	for range 2 {
		if err := slice.Flush(context.Background(), change); !errors.Is(err, ErrIO) || slice.Stats().Failing != nil {
			t.Fatalf("a batch beside an unreadable block: %v, the engine: %v", err, slice.Stats().Failing)
		}
	}
	if _, err := slice.Recover(context.Background(), time.Minute, nil); !errors.Is(err, ErrIO) {
		t.Fatalf("opened again beside an unreadable block: %v", err)
	}
	if err := slice.Flush(context.Background(), change); !errors.Is(err, ErrClosed) {
		t.Fatalf("a batch for a copy that is shut: %v", err)
	}
	bad.Store(false)
	if r, err := slice.Recover(context.Background(), time.Minute, nil); err != nil || r.Outcome != Intact {
		t.Fatalf("opened again: %+v, %v", r, err)
	}
	must(t, slice.Flush(context.Background(), change))
	must(t, store.Close())
}

// TestFullDiskIsLoggedOnce checks that a copy whose memtable cannot be written is logged at the first failure and
// when writes succeed again, and not at each retry in between: all copies of a node retry once a second.
func TestFullDiskIsLoggedOnce(t *testing.T) {
	var full atomic.Bool
	var tries atomic.Int64
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if full.Load() && op.Kind == errorfs.OpCreate && strings.Contains(op.Path, ".sst") {
			tries.Add(1)
			return syscall.ENOSPC
		}
		return nil
	}))
	var said bytes.Buffer // the logger has a lock
	store := openTest(t, "data", func(o *Options) {
		o.FS, o.Logger = fs, hclog.New(&hclog.LoggerOptions{Output: &said, Level: hclog.Info})
	})
	slice, err := store.Create(testMeta(1))
	must(t, err)
	must(t, slice.Flush(context.Background(), historyBatch(1)))
	full.Store(true)
	if err := slice.Persist(within(t, time.Minute)); !errors.Is(err, ErrDiskFull) {
		t.Fatal(err)
	}
	until(t, func() error {
		if n := tries.Load(); n < 5 {
			return fmt.Errorf("%d tries", n)
		}
		return nil
	})
	full.Store(false)
	until(t, func() error { return slice.Persist(within(t, time.Minute)) })
	must(t, store.Close())
	for _, text := range []string{"writing a memtable failed", "memtables can be written again"} {
		if n := strings.Count(said.String(), text); n != 1 {
			t.Errorf("%q is said %d times:\n%s", text, n, said.String())
		}
	}
}

// TestStartOnAFullDisk checks that a store starts on a full disk, however often, even if its ballast is used up: copies
// can be read, refuse batches by the disk's name, and leave no files behind. They are recovered once there is space.
func TestStartOnAFullDisk(t *testing.T) {
	fs := newFaultFS("data/1/")
	open := func() *Store { return openTest(t, "data", func(o *Options) { o.FS = fs }) }
	store := open()
	slice, err := store.Create(testMeta(1))
	must(t, err)
	must(t, slice.Flush(context.Background(), historyBatch(1)))
	must(t, slice.Persist(within(t, time.Minute)))
	must(t, store.Close())
	must(t, fs.Remove("data/"+ballastName)) // it is used up
	fs.fail(syscall.ENOSPC)
	fs.free.Store(0)
	had := 0
	for range 4 {
		store = open()
		slice, _ = store.Slice(1)
		checkHistory(t, slice)
		if err := slice.Broken(); err != nil {
			t.Errorf("it is to be recovered without space: %v", err)
		}
		if err := slice.Flush(t.Context(), historyBatch(2)); !errors.Is(err, ErrDiskFull) || NeedsRecover(err) {
			t.Errorf("a batch is refused with %v", err)
		}
		if err := slice.Stats().Failing; !errors.Is(err, ErrDiskFull) {
			t.Errorf("reported: %v", err)
		}
		must(t, store.Close())
		names, err := fs.List("data/1/db-1")
		must(t, err)
		if had != 0 && len(names) > had {
			t.Errorf("there are %d files, %d before", len(names), had)
		}
		had = len(names)
	}
	store = open()
	slice, _ = store.Slice(1)
	fs.free.Store(1 << 40)
	if err := slice.Broken(); !NeedsRecover(err) {
		t.Errorf("with space it is not to be recovered: %v", err)
	}
	for range 2 { // the space is gone again
		if _, err := slice.Recover(t.Context(), time.Minute, nil); !errors.Is(err, ErrDiskFull) {
			t.Errorf("recovered without space: %v", err)
		}
		checkHistory(t, slice)
	}
	fs.heal()
	if _, err := slice.Recover(t.Context(), time.Minute, nil); err != nil {
		t.Fatal(err)
	}
	must(t, slice.Flush(t.Context(), historyBatch(2)))
	if got := checkHistory(t, slice); got != 2 {
		t.Errorf("at batch %d, want 2", got)
	}
	must(t, store.Close())
}

// TestReadableWithoutQuota: a copy that is open for reading alone, because its disk refuses writes, is neither closed
// nor read whole again while that lasts, although the disk reports free space; afterwards it is recovered.
func TestReadableWithoutQuota(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		free int64
	}{{"a quota", syscall.EDQUOT, 1 << 40}, {"metadata", syscall.ENOSPC, 1 << 40}, {"a full disk", syscall.ENOSPC, 0}} {
		t.Run(c.name, func(t *testing.T) {
			disk := newFaultFS("data/")
			fs := &slowTables{FS: disk}
			store := openTest(t, "data", func(o *Options) { o.FS = fs })
			slice, err := store.Create(testMeta(1))
			must(t, err)
			must(t, slice.Flush(t.Context(), historyBatch(1)))
			must(t, slice.Persist(within(t, time.Minute)))
			disk.fail(c.err)
			disk.free.Store(c.free)
			if _, err := slice.Recover(t.Context(), time.Minute, nil); !errors.Is(err, ErrDiskFull) || NeedsRecover(err) {
				t.Fatalf("reopened while writes are refused: %v, want %v alone", err, ErrDiskFull)
			}
			snap, err := slice.Snapshot()
			must(t, err)
			present, opened := slice.gen, atomic.Int64{}
			count := func() { opened.Add(1) }
			fs.entered.Store(&count)
			for range 3 {
				must(t, slice.Broken())
				if err := slice.Flush(t.Context(), historyBatch(2)); !errors.Is(err, ErrDiskFull) || NeedsRecover(err) {
					t.Errorf("a batch is refused with %v, want %v alone", err, ErrDiskFull)
				}
				if _, err := slice.Recover(t.Context(), 0, func() {
					t.Error("snapshots are to be closed without need")
				}); !errors.Is(err, ErrDiskFull) || NeedsRecover(err) {
					t.Errorf("reopened again: %v, want %v alone", err, ErrDiskFull)
				}
			}
			fs.entered.Store(nil)
			if n := opened.Load(); n != 0 || slice.gen != present {
				t.Errorf("%d tables were opened, and the copy was reopened: %v", n, slice.gen != present)
			}
			checkHistory(t, slice)

			disk.heal()
			disk.free.Store(1 << 40)
			until(t, func() error {
				if !NeedsRecover(slice.Broken()) {
					return errors.New("with space it is not to be recovered")
				}
				return nil
			})
			_, err = slice.Recover(t.Context(), time.Minute, func() { must(t, snap.Close()) })
			must(t, err)
			must(t, slice.Flush(t.Context(), historyBatch(2)))
			if got := checkHistory(t, slice); got != 2 {
				t.Errorf("at batch %d, want 2", got)
			}
			must(t, store.Close())
		})
	}
}
