package copies

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/index"
)

// TestMarks: a mark survives a restart, a cleared one does not return, and setting a mark costs the same, however
// many there are.
func TestMarks(t *testing.T) {
	dir := t.TempDir()
	load := func() *Marks {
		m, err := LoadMarks(dir, hclog.NewNullLogger())
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	size := func() int64 {
		info, err := os.Stat(filepath.Join(dir, marksFile))
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	m := load()
	for _, id := range []index.CopyID{1001, 1002, 1003, 1002} {
		if err := m.Set(id); err != nil {
			t.Fatal(err)
		}
	}
	was := size()
	if !m.Clear(1002) || m.Clear(1009) || m.Clear(1002) {
		t.Error("Clear does not report whether it is the first")
	}
	if size() != was {
		t.Error("clearing a mark has written something")
	}
	m.Keep()
	m.Keep()
	if cost := size() - was; cost <= 0 || cost > 100 {
		t.Errorf("a mark that is cleared costs %d bytes", cost)
	}
	for n := range 2 {
		m = load()
		for id, want := range map[index.CopyID]bool{1001: true, 1002: false, 1003: true, 1004: n > 0} {
			if m.Has(id) != want {
				t.Errorf("after restart %d copy %d is marked: %v", n, id, !want)
			}
		}
		if err := m.Set(1004); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(dir, marksFile)); err != nil {
		t.Fatal(err)
	}
	_ = load().Set(1)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if m = load(); m.Set(2) == nil || m.Has(2) {
		t.Error("a mark that cannot be stored is there")
	}
}

// stuck makes the next write of marks hang, as on a hung disk, until goOn is called. The file must exist.
func stuck(t *testing.T, dir string) (goOn func()) {
	t.Helper()
	path := filepath.Join(dir, marksFile)
	if err := errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600)); err != nil {
		t.Fatal(err)
	}
	var f *os.File
	// not before the write has begun, which would otherwise wait for the next reader
	t.Cleanup(func() { _ = f.Close() })
	return func() {
		var err error
		if f, err = os.OpenFile(path, os.O_RDWR, 0); err != nil { // it cannot be synced: the file is written anew
			t.Fatal(err)
		}
	}
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not so: " + what)
		}
	}
}

// TestMarksOnAHungDisk: while a mark is being written only callers that set one wait, and all marks that are set
// meanwhile share one write.
func TestMarksOnAHungDisk(t *testing.T) {
	const more = 8
	dir := t.TempDir()
	m, err := LoadMarks(dir, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(m.Set(1), m.Set(2)); err != nil {
		t.Fatal(err)
	}
	goOn := stuck(t, dir)
	ended := make(chan error, more+1)
	set := func(id index.CopyID) { ended <- m.Set(id) }
	noted := func() int {
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(m.noted)
	}
	go set(100)
	eventually(t, "the first is being written", func() bool { return m.Has(100) && noted() == 0 })
	for id := range index.CopyID(more) {
		go set(101 + id)
	}
	eventually(t, "the others wait", func() bool { return noted() == more })
	if !m.Has(1) || m.Has(3) || m.Set(2) != nil || m.Clear(1) || m.Has(1) {
		t.Error("what is stored is not as it is")
	}
	goOn()
	for range more + 1 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	content, err := os.ReadFile(filepath.Join(dir, marksFile))
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(content, []byte("\n")); n != 2 {
		t.Errorf("%d writes, want one of all and one of what was set meanwhile:\n%s", n, content)
	}
	if m, err = LoadMarks(dir, hclog.NewNullLogger()); err != nil || len(m.copies) != more+2 || m.Has(1) {
		t.Errorf("then %v are marked, %v", m.copies, err)
	}
}

// TestLoopBesideAHungDisk: a bucket answers while the file of tombstone marks is being written.
func TestLoopBesideAHungDisk(t *testing.T) {
	f := newFallen(t, 2, 1)
	dir := t.TempDir()
	m, err := LoadMarks(dir, hclog.NewNullLogger())
	if err == nil {
		err = errors.Join(m.Set(1), m.Set(2))
	}
	if err != nil {
		t.Fatal(err)
	}
	f.k.node.Marks = m
	goOn := stuck(t, dir)
	f.run(t)
	t.Cleanup(goOn)
	ctx, cancel := context.WithTimeout(t.Context(), patience) // hang guard
	defer cancel()
	if err := f.k.do(ctx, func() { f.k.work.PurgeAll(1) }); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the copy is clean, and that is being stored", func() bool {
		if err := f.k.do(ctx, func() {}); err != nil {
			t.Fatal(err)
		}
		free := m.writing.TryLock()
		if free {
			m.writing.Unlock()
		}
		return !m.Has(1) && !free
	})
	if err := f.k.do(ctx, func() {}); err != nil || !m.Has(2) {
		t.Errorf("the loop waits for the disk: %v", err)
	}
}
