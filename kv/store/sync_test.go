package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"tidemark/kv/seglog"
)

// platter is the disk below the kernel's cache: what a crash of the machine leaves. A failed sync drops what it
// should have written, as kernels do, and the next sync does not report it.
type platter struct {
	durable map[string]int64 // by path: bytes of the file that are really on disk
	holed   map[string]bool  // something was dropped: nothing after it counts
	failing bool
	syncs   int
}

type cached struct {
	seglog.File
	p    *platter
	path string
}

func (c *cached) Sync() error {
	c.p.syncs++
	if c.p.failing {
		c.p.holed[c.path] = true
		return syscall.EIO
	}
	info, err := os.Stat(c.path)
	if err == nil && !c.p.holed[c.path] {
		c.p.durable[c.path] = info.Size()
	}
	return err
}

func newPlatter(w *world) *platter {
	p := &platter{durable: map[string]int64{}, holed: map[string]bool{}}
	w.opts.WrapFile = func(f seglog.File) seglog.File {
		path := f.(*os.File).Name()
		if info, err := os.Stat(path); err == nil && p.durable[path] == 0 && info.Size() > 0 {
			p.durable[path] = info.Size() // it existed before
		}
		return &cached{f, p, path}
	}
	return p
}

// sync runs a round of both loops.
func (w *world) sync() error {
	err := w.b.sync()
	if err != nil && w.b.renew(w.t.Context()) == nil {
		return nil
	}
	return err
}

// crash simulates a crash of the machine.
func (p *platter) crash(w *world) {
	w.t.Helper()
	_ = w.b.Abandon()
	names, err := filepath.Glob(filepath.Join(w.opts.Dir, "*.seg"))
	if err != nil || len(names) == 0 {
		w.t.Fatal(err, names)
	}
	for _, name := range names {
		if err := os.Truncate(name, p.durable[name]); err != nil {
			w.t.Fatal(err)
		}
	}
	w.open()
}

// A successful sync after a failed one proves nothing. Writes are refused until everything acknowledged is in other
// files, which are synced; then a crash of the machine loses none of it.
func TestFailedSyncIsRepaired(t *testing.T) {
	for _, sealed := range []bool{false, true} {
		t.Run(fmt.Sprintf("sealed %v", sealed), func(t *testing.T) {
			w := newWorld(t, 2)
			if sealed {
				w.opts.SegmentBytes = 200
			}
			p := newPlatter(w)
			w.restart(true)
			if err := w.sync(); err != nil {
				t.Fatal(err)
			}
			for i := range 20 {
				w.set(uint16(i%2), fmt.Sprint("k", i), "1")
			}
			w.delete(0, "k0")
			p.failing = true
			for range 3 {
				if err := w.sync(); !errors.Is(err, seglog.ErrUnsynced) {
					t.Fatalf("a sync that fails: %v", err)
				}
			}
			if _, err := w.apply(0, Change{Key: []byte("new"), Value: []byte("1")}); !errors.Is(err, ErrTemporary) ||
				!errors.Is(err, seglog.ErrUnsynced) || !errors.Is(err, syscall.EIO) {
				t.Errorf("a write meanwhile: %v", err)
			}
			if !w.b.Failing() || !w.b.unsynced.Load() {
				t.Error("it does not say that something is wrong")
			}
			if r, err := w.b.VBucket(0).Get([]byte("k2")); err != nil || string(r.Doc.Value) != "1" {
				t.Errorf("a read meanwhile: %v", err)
			}
			p.failing = false
			for range maxBackoff {
				if err := w.sync(); err == nil {
					break
				}
			}
			if w.b.Failing() {
				t.Fatal("the disk is well, and it still fails")
			}
			w.set(0, "new", "1")
			if err := w.sync(); err != nil {
				t.Fatal(err)
			}
			before := []string{contentsOf(w, 0), contentsOf(w, 1)}
			p.crash(w)
			for vb, want := range before {
				if got := contentsOf(w, uint16(vb)); got != want {
					t.Errorf("vbucket %d after a crash of the machine:\n%s\nbefore:\n%s", vb, got, want)
				}
			}
		})
	}
}

// contentsOf returns what is stored in a vbucket.
func contentsOf(w *world, vb uint16) string {
	i := w.b.VBucket(vb).Info()
	return fmt.Sprint(i.High, i.Items, i.Tombstones, w.shown(vb, 0, 1<<62))
}

// A process that ends before everything is rewritten leaves that to the next one.
func TestAFailedSyncIsRemembered(t *testing.T) {
	w := newWorld(t, 1)
	p := newPlatter(w)
	w.restart(true)
	w.set(0, "a", "1")
	p.failing = true
	if err := w.b.Close(); !errors.Is(err, seglog.ErrUnsynced) {
		t.Fatalf("an orderly stop: %v", err)
	}
	p.failing = false
	w.open()
	if err := w.sync(); err != nil {
		t.Fatal(err)
	}
	want := contentsOf(w, 0)
	p.crash(w)
	if got := contentsOf(w, 0); got != want {
		t.Errorf("%s, before %s", got, want)
	}
	if err := w.sync(); err != nil {
		t.Errorf("it is remembered although all is well: %v", err)
	}
}

// A disk that keeps failing is not filled with copies.
func TestAFailedSyncDoesNotFillTheDisk(t *testing.T) {
	w := newWorld(t, 1)
	p := newPlatter(w)
	w.restart(true)
	for i := range 1000 {
		w.set(0, fmt.Sprint("k", i), fmt.Sprint(i))
	}
	p.failing = true
	before := w.b.DiskBytes()
	for range 200 {
		_ = w.sync()
	}
	if now := w.b.DiskBytes(); now > before+1000 {
		t.Errorf("the log has %d bytes, before %d", now, before)
	}
	if p.syncs > 20 {
		t.Errorf("%d syncs in 200 rounds", p.syncs)
	}
}

// TestSyncsDoNotWaitForHousekeeping: what is written is synced even while compaction, or other housekeeping, does not
// end.
func TestSyncsDoNotWaitForHousekeeping(t *testing.T) {
	w := newWorld(t, 2)
	w.opts.Housekeep = time.Millisecond
	w.opts.Now = time.Now
	synced := make(chan struct{}, 1)
	w.opts.WrapFile = func(f seglog.File) seglog.File { return &signalled{f, synced} }
	w.restart(true)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	late := time.After(time.Minute)
	v := w.b.VBucket(0)
	v.mu.Lock() // all housekeeping needs this lock
	go func() { ended <- w.b.Run(ctx) }()
	defer func() {
		cancel()
		v.mu.Unlock()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	for i := range 5 { // the first may precede the others' beginning
		select {
		case <-synced:
		default:
		}
		w.set(1, "k", fmt.Sprint(i))
		select {
		case <-synced:
		case <-late:
			t.Fatal("nothing is synced any more")
		}
	}
}

// signalled signals each sync.
type signalled struct {
	seglog.File
	synced chan struct{}
}

func (s *signalled) Sync() error {
	err := s.File.Sync()
	select {
	case s.synced <- struct{}{}:
	default:
	}
	return err
}
