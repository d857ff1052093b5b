package store

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/internal/diskspace"
	"tidemark/kv/seglog"
)

// small is a disk of some size that has only files of buckets, and what others take.
type small struct {
	mu     sync.Mutex
	dirs   []string
	size   int64
	others int64
}

func (s *small) room(string) (diskspace.Space, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.roomLocked(), nil
}

func (s *small) roomLocked() diskspace.Space {
	free := s.size - s.others
	for _, dir := range s.dirs {
		files, _ := os.ReadDir(dir)
		for _, f := range files {
			if info, err := f.Info(); err == nil { // it may have been removed meanwhile
				free -= info.Size()
			}
		}
	}
	return diskspace.Space{Free: uint64(max(0, free)), Total: uint64(s.size)}
}

func (s *small) take(bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.others += bytes
}

// bounded is a file on a small disk.
type bounded struct {
	seglog.File
	s *small
}

func (f *bounded) Write(b []byte) (int, error) {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	if free := f.s.roomLocked().Free; free < uint64(len(b)) {
		n, _ := f.File.Write(b[:free])
		return n, syscall.ENOSPC
	}
	return f.File.Write(b)
}

// newSmall opens buckets on a small disk, with segments as large as they are by default.
func newSmall(t *testing.T, size int64, buckets int) ([]*world, *small) {
	s := &small{size: size}
	disk := s.disk()
	ws := make([]*world, buckets)
	for i := range ws {
		ws[i] = s.open(t, disk, 4)
	}
	return ws, s
}

func (s *small) disk() *Disk {
	disk := NewDisk("/small")
	disk.measure = s.room
	return disk
}

func (s *small) open(t *testing.T, disk *Disk, vbuckets int) *world {
	w := newWorld(t, vbuckets)
	s.dirs = append(s.dirs, w.opts.Dir)
	w.opts.SegmentBytes, w.opts.Disk = 0, disk
	w.opts.WrapFile = func(f seglog.File) seglog.File { return &switchable{File: &bounded{f, s}, w: w} }
	w.restart(true)
	return w
}

// fill stores documents k0, k1, … of some size, in turn in each bucket, until one is refused. It returns the number in
// each.
func fill(t *testing.T, ws []*world, bytes int) (stored int) {
	t.Helper()
	value := make([]byte, bytes)
	for ; ; stored++ {
		for _, w := range ws {
			_, err := w.applySome(uint16(stored%4), Change{Key: fmt.Append(nil, "k", stored), Value: value})
			if errors.Is(err, ErrTemporary) && strings.Contains(err.Error(), "is refused") {
				return stored
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// applySome applies a change and waits for the log if some have been made.
func (w *world) applySome(vb uint16, c Change) (Result, error) {
	r, err := w.b.VBucket(vb).Apply(c)
	if w.b.commit.current().Size() > 10_000 || err != nil {
		if werr := w.b.commit.current().Wait(); werr != nil {
			return r, werr
		}
	}
	return r, err
}

// wantRoom checks that a bucket's disk has room for deletions, and that nothing waits to be written.
func wantRoom(t *testing.T, w *world) {
	t.Helper()
	if space := w.b.commit.space; space.full() || space.waiting.Load() != 0 {
		t.Errorf("the disk is full, or something waits: %s", space.trouble())
	}
}

func noise(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// TestASmallDiskIsCompacted writes five times as much as a small disk has room for. It has to be compacted before it is
// full, although its log is smaller than the garbage that a large disk may have.
func TestASmallDiskIsCompacted(t *testing.T) {
	const size, docs, valueBytes = 32 << 20, 100, 64 << 10
	ws, _ := newSmall(t, size, 1)
	w := ws[0]
	rng := rand.New(rand.NewPCG(3, 4))
	want := map[string]string{}
	refused := 0
	for n := range 5 * size / valueBytes {
		key, value := fmt.Sprint("k", n%docs), string(noise(rng, valueBytes))
		for try := 0; ; try++ {
			_, err := w.apply(uint16(n%4), Change{Key: []byte(key), Value: []byte(value)})
			if err == nil {
				break
			}
			if w.b.Failing() || !errors.Is(err, ErrTemporary) || !strings.Contains(err.Error(), "kept for deletions") {
				t.Fatalf("write %d: %v", n, err)
			}
			if refused++; try > 3 {
				t.Fatalf("write %d is refused after compaction: %v", n, err)
			}
			w.b.keep(t.Context())
		}
		want[key] = value
	}
	if refused == 0 {
		t.Error("the disk was never almost full")
	}
	w.restart(false)
	for i := range docs {
		key := fmt.Sprint("k", i)
		if r, err := w.b.VBucket(uint16(i % 4)).Get([]byte(key)); err != nil || string(r.Doc.Value) != want[key] {
			t.Errorf("%s after a crash: %v", key, err)
		}
	}
}

// TestFullDiskIsFreedByDeletions fills a small disk with documents that are all needed. They are refused
// while there is room for deletions, and the deletions make room for documents.
func TestFullDiskIsFreedByDeletions(t *testing.T) {
	ws, _ := newSmall(t, 32<<20, 1)
	w := ws[0]
	rng := rand.New(rand.NewPCG(5, 6))
	set := func(i int) error {
		_, err := w.apply(uint16(i%4), Change{Key: fmt.Append(nil, "k", i), Value: noise(rng, 64<<10)})
		return err
	}
	stored := fill(t, ws, 64<<10)
	w.b.keep(t.Context())
	w.b.watch()
	if refused := set(stored); !errors.Is(refused, ErrTemporary) || w.b.Failing() ||
		!strings.Contains(refused.Error(), "make room on the disk") {
		t.Fatalf("refused after %d documents with %v", stored, refused)
	}
	if trouble := w.b.DiskTrouble(); !strings.Contains(trouble, "accepts no documents: ") {
		t.Errorf("it says: %q", trouble)
	}
	for i := range stored {
		if i%2 == 0 {
			w.delete(uint16(i%4), fmt.Sprint("k", i))
		}
	}
	w.b.keep(t.Context())
	if err := set(0); err != nil || w.b.DiskTrouble() != "" {
		t.Fatalf("after every other document was deleted: %v, %q", err, w.b.DiskTrouble())
	}
	w.b.watch()
	w.restart(false)
	for i := range stored {
		_, err := w.b.VBucket(uint16(i % 4)).Get(fmt.Append(nil, "k", i))
		if deleted := i%2 == 0 && i > 0; errors.Is(err, ErrNotFound) != deleted || !deleted && err != nil {
			t.Errorf("k%d after a crash: %v", i, err)
		}
	}
}

// TestFullDiskIsLoggedOnceAMinute checks that the buckets of a node have one line a minute together about their disk.
func TestFullDiskIsLoggedOnceAMinute(t *testing.T) {
	ws, _ := newSmall(t, 32<<20, 3)
	fill(t, ws, 64<<10)
	var log bytes.Buffer
	logger := hclog.New(&hclog.LoggerOptions{Output: &log})
	for minute := 1; minute <= 3; minute++ {
		for range 3 {
			for _, w := range ws {
				w.b.opts.Logger = logger
				w.b.watch()
			}
		}
		if said := strings.Count(log.String(), "disk is almost full"); said != minute {
			t.Fatalf("in minute %d the log has it %d times: %s", minute, said, log.String())
		}
		for _, w := range ws {
			w.now = w.now.Add(lineEvery)
		}
	}
}

// TestSmallDocumentsAreDeleted deletes small documents on a full disk: their tombstones use up the room for deletions
// long before there is as much garbage as Compact waits for otherwise.
func TestSmallDocumentsAreDeleted(t *testing.T) {
	for _, c := range []struct {
		name           string
		buckets, bytes int
		newestFirst    int // so many, which are in the segment that is still open; 0 means all, oldest first
	}{{"one bucket", 1, 100, 0}, {"three buckets", 3, 100, 0}, {"newest first", 1, 5, 20_000},
		{"many buckets", 30, 5, 0}} {
		t.Run(c.name, func(t *testing.T) {
			ws, _ := newSmall(t, 16<<20-100<<10, c.buckets)
			stored := fill(t, ws, c.bytes)
			refused := 0
			if c.buckets > 3 { // not all are deleted
				stored = min(stored, 1000)
			}
			for n := range cmp.Or(c.newestFirst, stored) {
				i := n
				if c.newestFirst > 0 {
					i = stored - 1 - n
				}
				for _, w := range ws {
					c := Change{Kind: Delete, Key: fmt.Append(nil, "k", i)}
					_, err := w.applySome(uint16(i%4), c)
					if errors.Is(err, ErrTemporary) && strings.Contains(err.Error(), "deletions are refused") {
						refused++
						for _, w := range ws {
							w.b.keep(t.Context())
						}
						_, err = w.apply(uint16(i%4), c)
					}
					if err != nil {
						t.Fatalf("deletion %d of %d: %v", n, stored, err)
					}
				}
			}
			if refused == 0 {
				t.Error("the room for deletions was never used up")
			}
			for _, w := range ws {
				if err := w.b.commit.current().Wait(); err != nil {
					t.Error(err)
				}
			}
			for _, w := range ws {
				w.b.keep(t.Context())
				wantRoom(t, w)
				if c.newestFirst == 0 && c.buckets <= 3 {
					w.set(0, "new", "1")
				}
			}
		})
	}
}

// TestRefusedDeletionCompactsOtherBuckets checks that a deletion which is refused in one bucket lets the garbage of
// another one be removed, when the disk has just less room than the deletion needs.
func TestRefusedDeletionCompactsOtherBuckets(t *testing.T) {
	ws, disk := newSmall(t, 16<<20-100<<10, 2)
	fill(t, ws, 100)
	remove := func(w *world, i int) error {
		_, err := w.apply(uint16(i%4), Change{Kind: Delete, Key: fmt.Append(nil, "k", i)})
		return err
	}
	space := ws[0].b.commit.space
	for i := 0; !space.lacks(space.compactionReserve.Load() + 200); i++ {
		if err := remove(ws[0], i); err != nil {
			t.Fatal(err)
		}
	}
	room, _ := disk.room("")
	disk.take(int64(room.Free) - space.compactionReserve.Load() - 10)
	space.look()
	if err := remove(ws[1], 0); !errors.Is(err, ErrTemporary) || space.full() {
		t.Fatalf("a deletion at the limit: %v", err)
	}
	for _, w := range ws {
		w.b.keep(t.Context())
	}
	if err := remove(ws[1], 0); err != nil {
		t.Error(err)
	}
}

// TestALogWithoutGarbageIsLeftAlone checks that a full disk on which nothing was deleted is not compacted again and
// again, although the states of vbuckets in its segments count as garbage.
func TestALogWithoutGarbageIsLeftAlone(t *testing.T) {
	s := &small{size: 16 << 20}
	w := s.open(t, s.disk(), MaxVBuckets)
	for i := range 900 {
		w.set(uint16(i), fmt.Sprint("k", i), string(make([]byte, 10_000)))
		if i%200 == 0 {
			w.restart(false) // writes states
		}
	}
	fillUp := func() { // others leave no room for deletions
		room, _ := s.room("")
		s.take(int64(room.Free) - w.b.commit.space.compactionReserve.Load() + 1)
		w.b.keep(t.Context())
	}
	for range 3 { // the first ones may find something
		fillUp()
	}
	before := w.b.stats.Relocated.Load()
	for range 3 {
		fillUp()
	}
	if space := w.b.commit.space; !space.full() || w.b.compacted.left < 10*space.deletionReserve/squeezeShare {
		t.Fatalf("the disk has room, or there are only %d bytes of states", w.b.compacted.left)
	}
	if copied := w.b.stats.Relocated.Load() - before; copied > 0 {
		t.Errorf("%d documents were copied for nothing", copied)
	}
}

// TestSmallWritesAreCounted checks that the disk is not measured after each small write, and that what was written
// counts as used at once, for each bucket of the disk.
func TestSmallWritesAreCounted(t *testing.T) {
	ws, disk := newSmall(t, 128<<20, 2)
	looks := 0
	space := ws[0].b.commit.space
	space.measure = func(dir string) (diskspace.Space, error) {
		looks++
		return disk.room(dir)
	}
	const writes, bytes = 1000, 10_000
	for i := range writes {
		ws[i%2].set(0, fmt.Sprint("k", i), string(make([]byte, bytes)))
		if i%100 > 0 {
			continue
		}
		room, _ := disk.room("")
		if over := space.free() - int64(room.Free); over < -4096 || over > 4096 { // headers of segments are not counted
			t.Fatalf("after %d writes %d bytes are free, and %d count as free", i+1, room.Free, space.free())
		}
	}
	if want := writes * bytes / lookAfterBytes; looks < want || looks > want+1 {
		t.Errorf("the disk was measured %d times, want %d", looks, want)
	}
}

// TestPendingWritesCountAsUsed checks that a document is refused on a disk that has room only for the one that
// another bucket is about to write.
func TestPendingWritesCountAsUsed(t *testing.T) {
	ws, disk := newSmall(t, 128<<20, 2)
	large := Change{Key: []byte("k"), Value: make([]byte, MaxValueBytes)}
	disk.take(128<<20 - 60<<20)
	if err := ws[0].b.Compact(t.Context()); err != nil {
		t.Fatal(err)
	}
	r, err := ws[0].b.VBucket(0).Apply(large)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ws[1].b.VBucket(0).Apply(large); !errors.Is(err, ErrTemporary) {
		t.Errorf("a second large document: %v", err)
	}
	if err := r.Ticket.Wait(); err != nil {
		t.Error(err)
	}
	wantRoom(t, ws[0])
}

// TestTwoBucketsAreCompacted compacts two buckets at once on a disk that has room for one compaction: the second waits
// while the first, in the middle of its own, waits for the disk.
func TestTwoBucketsAreCompacted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // Wait returns when the second has to wait, or has been compacted
		ws, _ := newSmall(t, 128<<20, 2)
		stored := fill(t, ws, 64<<10)
		for i := range stored / 3 { // what is in the oldest segments stays, and has to be copied
			for _, w := range ws {
				w.delete(uint16((stored-1-i)%4), fmt.Sprint("k", stored-1-i))
			}
		}
		second := make(chan error, 1)
		began := false
		ws[0].writing = func() {
			began = true
			go func() { second <- ws[1].b.Compact(t.Context()) }()
			synctest.Wait()
			if copied := ws[1].b.stats.Relocated.Load(); copied > 0 || len(second) > 0 {
				t.Errorf("the second has copied %d documents while the first was in the middle of its own", copied)
			}
		}
		if err := ws[0].b.Compact(t.Context()); err != nil || !began {
			t.Fatalf("it has copied something: %v; %v", began, err)
		}
		if err := <-second; err != nil {
			t.Fatal(err)
		}
		for _, w := range ws {
			if failed, dropped := w.b.stats.WriteErrors.Load(), w.b.stats.SegmentsDropped.Load(); failed > 0 || dropped == 0 {
				t.Errorf("%d writes have failed, %d segments were dropped", failed, dropped)
			}
			wantRoom(t, w)
			w.set(0, "new", "1")
		}
	})
}

// TestCompactionWaitsForRoom checks that a compaction does not begin for which others have left no room. This is found
// out once a minute and logged once; as soon as there is room, the log is compacted.
func TestCompactionWaitsForRoom(t *testing.T) {
	ws, disk := newSmall(t, 32<<20, 1)
	w := ws[0]
	stored := fill(t, ws, 10_000)
	for i := range stored {
		if i%2 == 0 {
			w.delete(uint16(i%4), fmt.Sprint("k", i))
		}
	}
	room, _ := disk.room("")
	taken := int64(room.Free) - 1<<20
	disk.take(taken)
	var log bytes.Buffer
	w.b.opts.Logger = hclog.New(&hclog.LoggerOptions{Output: &log})
	for range 3 {
		size := w.b.DiskBytes()
		if err := w.b.Compact(t.Context()); err == nil || !strings.Contains(err.Error(), "make room on the disk") {
			t.Errorf("a compaction without room: %v", err)
		}
		if err := w.b.Compact(t.Context()); !errors.Is(err, errNotNow) {
			t.Errorf("at once after it: %v", err)
		}
		w.now = w.now.Add(dueAgain)
		w.b.keep(t.Context()) // fails for want of room, and begins the next pause
		w.b.keep(t.Context())
		w.now = w.now.Add(dueAgain)
		if w.b.Failing() || w.b.DiskBytes() > size+1<<10 {
			t.Errorf("the log has grown from %d to %d bytes", size, w.b.DiskBytes())
		}
	}
	if trouble := w.b.DiskTrouble(); !strings.Contains(trouble, "and deletions until compaction has made room") {
		t.Errorf("it says: %q", trouble)
	}
	if said := strings.Count(log.String(), "compaction postponed"); said != 1 {
		t.Errorf("the log has it %d times: %s", said, log.String())
	}
	if err := w.b.Compact(t.Context()); !errors.Is(err, ErrTemporary) { // begins a pause
		t.Error(err)
	}
	disk.take(-taken)
	if err := w.b.Compact(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantRoom(t, w)
	w.set(0, "new", "1")
}

// TestDeletionsDuringACompaction deletes documents while a full log is compacted, and others take what that frees. What
// these deletions leave must not be taken for garbage that cannot be removed.
func TestDeletionsDuringACompaction(t *testing.T) {
	ws, disk := newSmall(t, 16<<20, 1)
	w := ws[0]
	stored := fill(t, ws, 100)
	deleted := 0
	remove := func() (n int) {
		for ; deleted < stored-1; n++ {
			c := Change{Kind: Delete, Key: fmt.Append(nil, "k", deleted)}
			if _, err := w.b.VBucket(uint16(deleted % 4)).Apply(c); err != nil {
				return n
			}
			deleted++
		}
		return n
	}
	written := func() {
		if err := w.b.commit.current().Wait(); err != nil {
			t.Fatal(err)
		}
	}
	remove()
	written()
	during := 0
	w.opts.Disk.measure = func(dir string) (diskspace.Space, error) {
		r, _ := disk.room(dir)
		if w.b.stats.SegmentsDropped.Load() > 8 && during < 1000 { // what is deleted then has been copied before
			disk.take(-200 << 10)
			r, err := disk.room(dir)
			w.opts.Disk.limit.Store(w.opts.Disk.written.Load() + int64(r.Free))
			during += remove()
			return r, err
		}
		if more := int64(r.Free) - w.b.commit.space.compactionReserve.Load(); more > 0 {
			disk.take(more)
		}
		return disk.room(dir)
	}
	w.b.keep(t.Context())
	w.opts.Disk.measure = disk.room
	written()
	if during == 0 || deleted == stored-1 || !w.b.commit.space.low() {
		t.Fatalf("%d deletions during the compaction, %d of %d in all", during, deleted, stored)
	}
	remove()
	written()
	w.b.keep(t.Context())
	if n := remove(); n == 0 {
		t.Errorf("after %d of %d deletions, the next is refused, and stays refused", deleted, stored)
	}
	written()
}

// TestAPurgeWithoutRoomIsRetried checks that tombstones are purged soon after there is room for it.
func TestAPurgeWithoutRoomIsRetried(t *testing.T) {
	ws, disk := newSmall(t, 32<<20, 1)
	w := ws[0]
	w.set(0, "a", "1")
	w.delete(0, "a")
	w.set(0, "b", string(make([]byte, 100_000)))
	w.now = w.now.Add(w.opts.PurgeAfter + DefaultPurgeAfter + time.Hour)
	room, _ := disk.room("")
	taken := int64(room.Free) - 64<<10
	disk.take(taken)
	if err := w.b.purgeDue(t.Context()); !errors.Is(err, ErrTemporary) {
		t.Fatalf("a purge without room: %v", err)
	}
	disk.take(-taken)
	w.now = w.now.Add(dueAgain)
	if err := w.b.purgeDue(t.Context()); err != nil || w.b.stats.Purged.Load() != 1 {
		t.Errorf("with room: %v, %d tombstones were purged", err, w.b.stats.Purged.Load())
	}
}

// TestALargeDocumentAtTheLimit stores documents up to the largest size, alone and in one batch, on a disk that is
// almost full. Whatever is accepted, the log can be compacted, and documents can be deleted.
func TestALargeDocumentAtTheLimit(t *testing.T) {
	value := make([]byte, MaxValueBytes)
	for _, c := range []struct{ size, at, accepted int64 }{ // with segments smaller, and not much smaller, than a document
		{64 << 20, 10 << 20, 0}, {64 << 20, 45 << 20, 1}, {256 << 20, 10 << 20, 0}, {256 << 20, 45 << 20, 1},
	} {
		t.Run(fmt.Sprint(c.size>>20, " ", c.at>>20), func(t *testing.T) {
			ws, disk := newSmall(t, c.size, 1)
			w := ws[0]
			room, _ := disk.room("")
			space := w.b.commit.space
			for i := 0; int64(room.Free) > space.compactionReserve.Load()+space.deletionReserve+c.at+128<<10; i++ {
				w.set(0, fmt.Sprint("k", i), string(value[:64<<10]))
				room, _ = disk.room("")
			}
			accepted := int64(0)
			var last *Ticket
			for i := range 3 { // in one batch
				r, err := w.b.VBucket(0).Apply(Change{Key: fmt.Append(nil, "big", i), Value: value})
				if err == nil {
					accepted, last = accepted+1, r.Ticket
				} else if !errors.Is(err, ErrTemporary) {
					t.Fatal(err)
				}
			}
			if err := last.Wait(); err != nil || accepted != c.accepted {
				t.Fatalf("%d large documents were accepted, want %d: %v", accepted, c.accepted, err)
			}
			wantRoom(t, w)
			w.delete(0, "k0")
			if err := w.b.PurgeTombstones(t.Context(), time.Hour); err != nil {
				t.Errorf("after %d large documents: %v", accepted, err)
			}
			wantRoom(t, w)
		})
	}
}

// TestLargeDocumentsAreReplaced replaces large documents again and again on a disk that has room for a few versions:
// their size, not only that of what is stored, decides when the log has to be compacted.
func TestLargeDocumentsAreReplaced(t *testing.T) {
	ws, _ := newSmall(t, 120<<20, 1)
	w := ws[0]
	for i := range 10 {
		c := Change{Key: fmt.Append(nil, "k", i%2), Value: make([]byte, MaxValueBytes)}
		_, err := w.apply(0, c)
		if errors.Is(err, ErrTemporary) {
			w.b.keep(t.Context())
			_, err = w.apply(0, c)
		}
		if err != nil {
			t.Fatalf("version %d: %v", i, err)
		}
	}
}

// TestHungDiskIsReported checks that a bucket says so, without waiting for it, while a write does not come back.
func TestHungDiskIsReported(t *testing.T) {
	w := newWorld(t, 1)
	log := w.logs()
	begun, goOn, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	w.writing = func() { close(begun); <-goOn }
	go func() {
		_, err := w.apply(0, Change{Key: []byte("k"), Value: []byte("1")})
		done <- err
	}()
	<-begun
	if trouble := w.b.DiskTrouble(); trouble != "" {
		t.Errorf("at once: %q", trouble)
	}
	w.now = w.now.Add(hangsAfter + time.Second)
	if trouble := w.b.DiskTrouble(); !strings.Contains(trouble, "its disk has not answered a write for 6s") {
		t.Errorf("after 6 s: %q", trouble)
	}
	for range 2 {
		w.b.watch()
	}
	wantLines(t, log, "[ERROR] disk hangs: bucket=world because=\"cannot be written at the moment: its disk has not "+
		"answered")
	close(goOn)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if trouble := w.b.DiskTrouble(); trouble != "" {
		t.Errorf("afterwards: %q", trouble)
	}
	for range 2 {
		w.b.watch()
	}
	wantLines(t, log, "[INFO]  disk answers again: bucket=world")
}

// TestWhatIsLoggedOfAFullDisk: an almost full disk, one that is not any more, and a large document for which there is
// no room have a line each.
func TestWhatIsLoggedOfAFullDisk(t *testing.T) {
	ws, disk := newSmall(t, 128<<20, 1)
	w := ws[0]
	log := w.logs()
	look := func() {
		w.now = w.now.Add(lineEvery)
		w.b.commit.space.look()
		w.b.watch()
	}
	look()
	wantLines(t, log)
	room, _ := disk.room("")
	taken := int64(room.Free) - w.b.commit.space.compactionReserve.Load() - w.b.commit.space.deletionReserve
	disk.take(taken - MaxValueBytes/2)
	w.b.commit.space.look()
	if _, err := w.b.VBucket(0).Apply(Change{Key: []byte("k"), Value: make([]byte, MaxValueBytes)}); !errors.Is(err,
		ErrTemporary) {
		t.Fatalf("a large document: %v", err)
	}
	look()
	wantLines(t, log, "[ERROR] disk has no room for a large document, which was refused; make room on the disk: "+
		"bucket=world bytes=")
	look()
	wantLines(t, log)
	disk.take(MaxValueBytes)
	look()
	wantLines(t, log, "[ERROR] disk is almost full: bucket=world because=")
	disk.take(-taken)
	look()
	wantLines(t, log, "[INFO]  disk is not almost full any more: bucket=world")
	look()
	wantLines(t, log)
}

// logs returns what the bucket logs from now on.
func (w *world) logs() *bytes.Buffer {
	log := &bytes.Buffer{}
	w.b.opts.Logger = hclog.New(&hclog.LoggerOptions{Output: log, DisableTime: true})
	return log
}

// wantLines checks how the lines logged since it was last called begin.
func wantLines(t *testing.T, log *bytes.Buffer, want ...string) {
	t.Helper()
	text := log.String()
	log.Reset()
	lines := strings.SplitAfter(text, "\n")
	if lines = lines[:len(lines)-1]; len(lines) != len(want) {
		t.Fatalf("%d lines, want %d:\n%s", len(lines), len(want), text)
	}
	for i, line := range lines {
		if !strings.HasPrefix(line, want[i]) {
			t.Errorf("line %d is %swant %s", i, line, want[i])
		}
	}
}
