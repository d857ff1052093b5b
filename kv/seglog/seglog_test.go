package seglog

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	_ "tidemark/internal/testing/draws"
)

func frames(payloads ...string) []byte {
	var out []byte
	for _, p := range payloads {
		at := len(out)
		out = FinishFrame(append(BeginFrame(out), p...), at)
	}
	return out
}

func open(t testing.TB, dir string) (*Log, Report, []string, error) {
	t.Helper()
	var got []string
	l, r, err := Open(Options{Dir: dir, Identity: "b/1", SegmentBytes: 4096}, func(r Record) error {
		got = append(got, string(r.Payload))
		return nil
	})
	return l, r, got, err
}

func mustOpen(t testing.TB, dir string) (*Log, Report, []string) {
	t.Helper()
	l, r, got, err := open(t, dir)
	if err != nil {
		t.Fatal(err)
	}
	return l, r, got
}

func mustWrite(t testing.TB, l *Log, payloads ...string) {
	t.Helper()
	if _, err := l.Write(frames(payloads...)); err != nil {
		t.Fatal(err)
	}
}

func lastSegment(t testing.TB, dir string) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*"+segmentSuffix))
	if err != nil || len(names) == 0 {
		t.Fatal("no segments", err)
	}
	return names[len(names)-1]
}

func TestReopenAfterEveryKindOfStop(t *testing.T) {
	dir := t.TempDir()
	l, r, _ := mustOpen(t, dir)
	if !r.Fresh {
		t.Fatal("a new log is fresh")
	}
	mustWrite(t, l, "one", "two")
	if err := l.Close(true); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Write([]byte("three")); !errors.Is(err, ErrBroken) {
		t.Fatalf("a closed log is written: %v", err)
	}
	if err := l.Rotate(); !errors.Is(err, ErrBroken) {
		t.Fatalf("a closed log is rotated: %v", err)
	}
	l, r, got := mustOpen(t, dir)
	if !r.Clean || r.Fresh || fmt.Sprint(got) != "[one two]" {
		t.Fatalf("after an orderly stop: %+v %v", r, got)
	}
	mustWrite(t, l, "three")
	if err := l.Close(false); err != nil {
		t.Fatal(err)
	}
	l, r, got = mustOpen(t, dir)
	if r.Clean || fmt.Sprint(got) != "[one two three]" {
		t.Fatalf("after a crash: %+v %v", r, got)
	}
	_ = l.Close(true)
	l, r, _ = mustOpen(t, dir)
	_ = l.Close(false) // opened and killed before anything was written
	if !r.Clean {
		t.Fatal("orderly stop not seen")
	}
	l, r, _ = mustOpen(t, dir)
	if r.Clean {
		t.Fatal("the marker of an orderly stop served twice")
	}
	_ = l.Close(false)
}

// TestTornTailAtEveryByte checks that after a kill at any byte the earlier records are there and the unfinished one
// is gone.
func TestTornTailAtEveryByte(t *testing.T) {
	dir := t.TempDir()
	l, _, _ := mustOpen(t, dir)
	mustWrite(t, l, "first", "second")
	keep := l.Size()
	mustWrite(t, l, "the record that is torn")
	_ = l.Close(false)
	path := lastSegment(t, dir)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for size := keep; size < int64(len(whole)); size++ {
		if err := os.WriteFile(path, whole[:size], 0o600); err != nil {
			t.Fatal(err)
		}
		l, r, got := mustOpen(t, dir)
		if fmt.Sprint(got) != "[first second]" || r.TornBytes != size-keep || r.Clean {
			t.Fatalf("cut at %d: %+v %v", size, r, got)
		}
		mustWrite(t, l, "after")
		_ = l.Close(false)
		if _, _, got := mustOpen(t, dir); fmt.Sprint(got) != "[first second after]" {
			t.Fatalf("cut at %d, then written: %v", size, got)
		}
	}
	zeros := append(bytes.Clone(whole[:keep]), make([]byte, 100)...)
	if err := os.WriteFile(path, zeros, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, r, got := mustOpen(t, dir); fmt.Sprint(got) != "[first second]" || r.TornBytes != 100 {
		t.Fatalf("zeros at the end: %+v %v", r, got)
	}
}

// TestFlippedBitRefusesTheStart checks that any flipped bit is reported with file, offset and advice, and that the
// file is not changed.
func TestFlippedBitRefusesTheStart(t *testing.T) {
	dir := t.TempDir()
	l, _, _ := mustOpen(t, dir)
	mustWrite(t, l, "first", "second", "third")
	_ = l.Close(true)
	path := lastSegment(t, dir)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for at := range whole {
		damaged := bytes.Clone(whole)
		damaged[at] ^= 0x10
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		_, _, _, err := open(t, dir)
		if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "offset") ||
			!strings.Contains(err.Error(), "truncate -s") {
			t.Fatalf("bit at %d: %v", at, err)
		}
		if now, _ := os.ReadFile(path); !bytes.Equal(now, damaged) {
			t.Fatalf("bit at %d: the damaged file was changed", at)
		}
	}
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, r, got := mustOpen(t, dir); len(got) != 3 || !r.Clean {
		t.Fatalf("repaired: %v %+v (a refused start must not use up the marker)", got, r)
	}
}

func TestAdviceWorks(t *testing.T) {
	dir := t.TempDir()
	l, _, _ := mustOpen(t, dir)
	mustWrite(t, l, "first")
	at := l.Size()
	mustWrite(t, l, "second", "third")
	_ = l.Close(true)
	path := lastSegment(t, dir)
	whole, _ := os.ReadFile(path)
	whole[at+FrameOverhead] ^= 1
	_ = os.WriteFile(path, whole, 0o600)
	_, _, _, err := open(t, dir)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("truncate -s %d %s", at, path)) {
		t.Fatal(err)
	}
	if err := os.Truncate(path, at); err != nil {
		t.Fatal(err)
	}
	if _, r, got := mustOpen(t, dir); fmt.Sprint(got) != "[first]" || r.Clean {
		t.Fatalf("%v %+v: what was given up counts as an unclean stop", got, r)
	}
}

func TestSegmentsRotateAndDrop(t *testing.T) {
	dir := t.TempDir()
	l, _, _ := mustOpen(t, dir)
	big := strings.Repeat("x", 1500)
	for i := range 10 {
		mustWrite(t, l, fmt.Sprint(i)+big)
	}
	sealed := l.Sealed()
	if len(sealed) < 3 {
		t.Fatalf("sealed %v", sealed)
	}
	var first []string
	if err := l.ReadSegment(sealed[0], func(r Record) error {
		first = append(first,
			string(r.Payload[:1]))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := l.DropFirst(sealed[1]); err == nil {
		t.Fatal("dropped a segment that is not the oldest")
	}
	if err := l.DropFirst(sealed[0]); err != nil {
		t.Fatal(err)
	}
	_ = l.Close(true)
	l, r, got := mustOpen(t, dir)
	if !r.Clean || len(got) != 10-len(first) {
		t.Fatalf("%d records left after dropping %v: %+v", len(got), first, r)
	}
	_ = l.Close(true)

	names, _ := filepath.Glob(filepath.Join(dir, "*"+segmentSuffix))
	middle, _ := os.ReadFile(names[1])
	_ = os.Remove(names[1])
	if _, _, _, err := open(t, dir); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), names[1]) {
		t.Fatalf("missing segment: %v", err)
	}
	_ = os.WriteFile(names[1], middle[:len(middle)-1], 0o600)
	if _, _, _, err := open(t, dir); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), names[1]) {
		t.Fatalf("torn segment in the middle: %v", err)
	}
	_ = os.WriteFile(names[1], middle, 0o600)
	if _, _, _, err := open(t, dir); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Open(Options{Dir: dir, Identity: "other"}, func(Record) error { return nil }); err == nil ||
		!strings.Contains(err.Error(), "belongs to") {
		t.Fatalf("another bucket's log: %v", err)
	}
	_ = os.Remove(filepath.Join(dir, manifestName))
	if _, _, _, err := open(t, dir); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("missing manifest: %v", err)
	}
}

// faulty fails writes after some bytes, as a full disk does.
type faulty struct {
	File
	room       *int
	noTruncate *bool
}

func (f faulty) Write(b []byte) (int, error) {
	if len(b) > *f.room {
		n, _ := f.File.Write(b[:*f.room])
		*f.room = 0
		return n, syscall.ENOSPC
	}
	*f.room -= len(b)
	return f.File.Write(b)
}

func (f faulty) Truncate(size int64) error {
	if *f.noTruncate {
		return syscall.EIO
	}
	return f.File.Truncate(size)
}

// stuck hangs in each write of more than a header once it is switched on.
type stuck struct {
	File
	begun, goOn chan struct{}
}

func (s stuck) Write(b []byte) (int, error) {
	if len(b) > segmentHeaderBytes {
		s.begun <- struct{}{}
		<-s.goOn
	}
	return s.File.Write(b)
}

// TestSizeIsReportedWhileAWriteHangs checks that Size and Largest return while a write hangs, and equal the sizes of
// the files over new segments, drops and a restart.
func TestSizeIsReportedWhileAWriteHangs(t *testing.T) {
	dir := t.TempDir()
	begun, goOn := make(chan struct{}), make(chan struct{})
	opts := Options{Dir: dir, Identity: "b/1", SegmentBytes: 4096,
		Wrap: func(f File) File { return stuck{f, begun, goOn} }}
	onDisk := func() (sum, largest int64) {
		names, _ := filepath.Glob(filepath.Join(dir, "*"+segmentSuffix))
		for _, name := range names {
			info, err := os.Stat(name)
			if err != nil {
				t.Fatal(err)
			}
			sum, largest = sum+info.Size(), max(largest, info.Size())
		}
		return sum, largest
	}
	check := func(l *Log, when string) {
		t.Helper()
		sum, largest := onDisk()
		if l.Size() != sum || l.Largest() != largest {
			t.Errorf("%d bytes, %d of the largest segment are reported %s, want %d and %d", l.Size(), l.Largest(), when, sum,
				largest)
		}
	}
	l, _, err := Open(opts, func(Record) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	for n := range 4 {
		written := make(chan error, 1)
		go func() {
			_, err := l.Write(frames(strings.Repeat("y", 3400-100*n)))
			written <- err
		}()
		<-begun
		checked := make(chan struct{})
		go func() { check(l, fmt.Sprint("before write ", n)); close(checked) }()
		select {
		case <-checked:
		case <-time.After(time.Minute):
			t.Errorf("the size is not reported while write %d hangs", n)
		}
		goOn <- struct{}{}
		if err := <-written; err != nil {
			t.Fatal(err)
		}
	}
	if err := l.DropFirst(1); err != nil {
		t.Fatal(err)
	}
	check(l, "after a drop")
	if err := l.Close(true); err != nil {
		t.Fatal(err)
	}
	if l, _, err = Open(opts, func(Record) error { return nil }); err != nil {
		t.Fatal(err)
	}
	check(l, "after a start")
	if err := l.Close(true); err != nil {
		t.Fatal(err)
	}
}

func TestFullDiskLeavesTheLogAsItWas(t *testing.T) {
	dir := t.TempDir()
	room, noTruncate := 1<<20, false
	opts := Options{Dir: dir, Identity: "b/1", SegmentBytes: 4096,
		Wrap: func(f File) File { return faulty{f, &room, &noTruncate} }}
	l, _, err := Open(opts, func(Record) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	mustWrite(t, l, "kept")
	for room = range 60 { // whatever fits of the record, and of the next segment's header
		if _, err := l.Write(frames(strings.Repeat("y", 5000))); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("room for %d bytes: %v", room, err)
		}
	}
	room = 1 << 20
	mustWrite(t, l, "again")
	room, noTruncate = 3, true
	if _, err := l.Write(frames("lost")); !errors.Is(err, ErrBroken) {
		t.Fatalf("write that cannot be undone: %v", err)
	}
	room = 1 << 20
	if _, err := l.Write(frames("refused")); !errors.Is(err, ErrBroken) {
		t.Fatalf("write to a broken log: %v", err)
	}
	_ = l.Close(true)
	if _, r, got := mustOpen(t, dir); fmt.Sprint(got) != "[kept again]" || r.Clean {
		t.Fatalf("%v %+v", got, r)
	}
}

// TestPrefixProperty checks for any writes, sizes, stops and cuts that the log contains a prefix of what was written,
// and all of it if nothing was cut off.
func TestPrefixProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "seglog") //nolint:usetesting // one for each drawn case
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		var model []string
		for range rapid.IntRange(1, 4).Draw(t, "runs") {
			var got []string
			l, _, err := Open(Options{Dir: dir, Identity: "b/1", SegmentBytes: 512}, func(r Record) error {
				got = append(got, string(r.Payload))
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if fmt.Sprint(got) != fmt.Sprint(model) {
				t.Fatalf("got %d records, want %d", len(got), len(model))
			}
			for range rapid.IntRange(0, 6).Draw(t, "writes") {
				batch := rapid.SliceOfN(rapid.StringN(1, 80, 200), 1, 4).Draw(t, "batch")
				if _, err := l.Write(frames(batch...)); err != nil {
					t.Fatal(err)
				}
				model = append(model, batch...)
			}
			if err := l.Close(rapid.Bool().Draw(t, "orderly")); err != nil {
				t.Fatal(err)
			}
			if cut := rapid.IntRange(0, 40).Draw(t, "cut"); cut > 0 {
				names, _ := filepath.Glob(filepath.Join(dir, "*"+segmentSuffix))
				info, _ := os.Stat(names[len(names)-1])
				size := max(info.Size()-int64(cut), segmentHeaderBytes)
				_ = os.Truncate(names[len(names)-1], size)
				var left int64 = segmentHeaderBytes
				n := 0
				_, _ = scanSegment(names[len(names)-1], l.segments[len(l.segments)-1].number, "b/1", true, func(r Record) error {
					left += int64(len(r.Payload)) + FrameOverhead
					n++
					return nil
				})
				before := 0
				for _, s := range l.segments[:len(l.segments)-1] {
					_ = l.ReadSegment(s.number, func(Record) error { before++; return nil })
				}
				model = model[:before+n]
			}
		}
	})
}

func FuzzOpenSegment(f *testing.F) {
	good := append(segmentHeader(1, "b/1"), frames("one", "two")...)
	f.Add(good)
	f.Add(good[:len(good)-2])
	f.Add(append(bytes.Clone(good), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0))
	f.Add(append(bytes.Clone(good), 0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4, 5, 6, 7, 8))
	f.Fuzz(func(t *testing.T, content []byte) {
		path := filepath.Join(t.TempDir(), "0000000000000001.seg")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, last := range []bool{false, true} {
			total := int64(segmentHeaderBytes)
			end, err := scanSegment(path, 1, "b/1", last, func(r Record) error {
				if r.Offset != total {
					t.Fatalf("record at %d, want %d", r.Offset, total)
				}
				total += int64(len(r.Payload)) + FrameOverhead
				return nil
			})
			if err == nil && end != 0 && (end != total || end > int64(len(content))) {
				t.Fatalf("end %d, records end at %d", end, total)
			}
		}
	})
}

// deaf counts syncs, and fails them while it is switched on.
type deaf struct {
	File
	syncs *int
	fails *bool
}

func (d deaf) Sync() error {
	*d.syncs++
	if *d.fails {
		return syscall.EIO
	}
	return d.File.Sync()
}

// TestAFailedSyncIsNotTriedAgain checks that after a failed sync the file is neither synced nor written again, and
// that the log names what may not be on disk until that is dropped; the next Open does so, too.
func TestAFailedSyncIsNotTriedAgain(t *testing.T) {
	dir := t.TempDir()
	syncs, fails := 0, false
	opts := Options{Dir: dir, Identity: "b/1", SegmentBytes: 4096,
		Wrap: func(f File) File { return deaf{f, &syncs, &fails} }}
	l, _, err := Open(opts, func(Record) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	mustWrite(t, l, "one")
	fails = true
	if err := l.Sync(); !errors.Is(err, ErrUnsynced) || !strings.Contains(err.Error(), l.path(1)) {
		t.Fatal(err)
	}
	fails, syncs = false, 0
	for range 2 {
		if err := l.Sync(); !errors.Is(err, ErrUnsynced) || !strings.Contains(err.Error(), l.path(1)) ||
			!errors.Is(err, syscall.EIO) {
			t.Fatalf("the next sync: %v", err)
		}
	}
	if syncs != 0 {
		t.Errorf("%d syncs of a file whose sync has failed", syncs)
	}
	if number, err := l.Write(frames("two")); err != nil || number != 2 {
		t.Fatalf("a write after it went to segment %d: %v", number, err)
	}
	if err := l.DropFirst(1); !errors.Is(err, ErrUnsynced) {
		t.Errorf("a drop by the way: %v", err)
	}
	if err := l.Close(true); !errors.Is(err, ErrUnsynced) {
		t.Errorf("an orderly end: %v", err)
	}
	l, r, err := Open(opts, func(Record) error { return nil })
	if err != nil || r.Clean {
		t.Fatal(r, err)
	}
	if err := l.Sync(); !errors.Is(err, ErrUnsynced) {
		t.Fatalf("after the next start: %v", err)
	}
	if err := l.Renew(); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, l, "one", "two")
	sealed := l.Sealed()
	if err := l.DropThrough(sealed[len(sealed)-1]); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.Sync(), l.Close(true)); err != nil {
		t.Fatal(err)
	}
	if _, r, got := mustOpen(t, dir); !r.Clean || fmt.Sprint(got) != "[one two]" {
		t.Fatalf("%+v %v", r, got)
	}
}

// TestRenewReportsAnotherFailedSync checks that Renew returns an error if another goroutine's sync of the new
// segment has failed, although nothing is left to sync: before the caller rewrites records in vain.
func TestRenewReportsAnotherFailedSync(t *testing.T) {
	syncs, fails := 0, false
	l, _, err := Open(Options{Dir: t.TempDir(), Identity: "b/1", SegmentBytes: 4096,
		Wrap: func(f File) File { return deaf{f, &syncs, &fails} }}, func(Record) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	mustWrite(t, l, "one")
	number, err := l.renew()
	if err != nil || number != 2 {
		t.Fatal(number, err)
	}
	fails = true
	if err := l.Sync(); !errors.Is(err, ErrUnsynced) {
		t.Fatal(err)
	}
	fails = false
	if err := l.renewed(number); !errors.Is(err, ErrUnsynced) || !strings.Contains(err.Error(), l.path(2)) {
		t.Errorf("with the new segment lost: %v", err)
	}
	if err := l.Renew(); err != nil {
		t.Errorf("the next one: %v", err)
	}
	mustWrite(t, l, "one")
	sealed := l.Sealed()
	if err := errors.Join(l.DropThrough(sealed[len(sealed)-1]), l.Sync(), l.Close(true)); err != nil {
		t.Error(err)
	}
}
