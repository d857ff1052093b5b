package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"tidemark/internal/diskspace"
	"tidemark/kv/seglog"
)

// small is a disk of some size that has only the bucket's files.
type small struct {
	dir  string
	size int64
}

func (s *small) room(string) (diskspace.Space, error) {
	files, err := os.ReadDir(s.dir)
	free := s.size
	for _, f := range files {
		if info, err := f.Info(); err == nil { // it may have been removed meanwhile
			free -= info.Size()
		}
	}
	return diskspace.Space{Free: uint64(max(0, free)), Total: uint64(s.size)}, err
}

// bounded is a file on a small disk.
type bounded struct {
	seglog.File
	s *small
}

func (f *bounded) Write(b []byte) (int, error) {
	if r, err := f.s.room(""); err != nil || r.Free < uint64(len(b)) {
		n, _ := f.File.Write(b[:r.Free])
		return n, errors.Join(err, syscall.ENOSPC)
	}
	return f.File.Write(b)
}

// newSmall opens a bucket on a small disk, with segments as large as they are by default.
func newSmall(t *testing.T, size int64) *world {
	w := newWorld(t, 4)
	s := &small{dir: w.opts.Dir, size: size}
	w.opts.SegmentBytes, w.opts.Room = 0, s.room
	w.opts.WrapFile = func(f seglog.File) seglog.File { return &bounded{f, s} }
	w.restart(true)
	return w
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
	w := newSmall(t, size)
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

// TestADiskThatFillsUp fills a small disk with documents that are all needed. They are refused while there is room for
// deletions, and the deletions make room for documents.
func TestADiskThatFillsUp(t *testing.T) {
	w := newSmall(t, 32<<20)
	rng := rand.New(rand.NewPCG(5, 6))
	stored := 0
	var refused error
	set := func(i int) error {
		_, err := w.apply(uint16(i%4), Change{Key: fmt.Append(nil, "k", i), Value: noise(rng, 64<<10)})
		return err
	}
	for ; refused == nil; stored++ {
		refused = set(stored)
		w.b.keep(t.Context())
	}
	stored--
	if !errors.Is(refused, ErrTemporary) || !strings.Contains(refused.Error(), "make room on the disk") || w.b.Failing() {
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
	w.restart(false)
	for i := range stored {
		_, err := w.b.VBucket(uint16(i % 4)).Get(fmt.Append(nil, "k", i))
		if deleted := i%2 == 0 && i > 0; errors.Is(err, ErrNotFound) != deleted || !deleted && err != nil {
			t.Errorf("k%d after a crash: %v", i, err)
		}
	}
}

// TestADiskThatHangs checks that a bucket says so, without waiting for it, while a write does not come back.
func TestADiskThatHangs(t *testing.T) {
	w := newWorld(t, 1)
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
	if trouble := w.b.DiskTrouble(); !strings.Contains(trouble, "its disk has not answered for 6s") {
		t.Errorf("after 6 s: %q", trouble)
	}
	w.b.watch()
	close(goOn)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if trouble := w.b.DiskTrouble(); trouble != "" {
		t.Errorf("afterwards: %q", trouble)
	}
}
