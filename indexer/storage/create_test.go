package storage

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"tidemark/index"
)

// TestCreateAtOnce: copies are created concurrently, each id once; a store that is closed meanwhile leaves none open.
func TestCreateAtOnce(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir)
	const copies = 6
	var mu sync.Mutex
	made, refused := map[index.CopyID]int{}, 0
	var all sync.WaitGroup
	for i := range 2 * copies {
		all.Go(func() {
			id := index.CopyID(i/2 + 1)
			_, err := s.Create(testMeta(id))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				made[id]++
			case errors.Is(err, ErrExists):
				refused++
			default:
				t.Error(err)
			}
		})
	}
	all.Wait()
	if len(made) != copies || refused != copies || len(s.Slices()) != copies {
		t.Errorf("made %v, %d refused, %d there; want %d each", made, refused, len(s.Slices()), copies)
	}
	for i := range copies {
		all.Go(func() {
			if _, err := s.Create(testMeta(index.CopyID(copies + 1 + i))); err != nil && !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
		})
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	all.Wait()
	s = openTest(t, dir) // its lock is free
	if n := len(s.Slices()); n < copies || n > 2*copies {
		t.Errorf("%d copies after it was closed, want %d to %d", n, copies, 2*copies)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// brokenOps is a file system in memory that fails operations while bad is set.
func brokenOps(fails func(errorfs.Op) bool, bad *atomic.Bool) vfs.FS {
	return errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if bad.Load() && fails(op) {
			return syscall.EMFILE
		}
		return nil
	}))
}

// TestCreateAfterFailures: the remains of a failed Create or removal do not obstruct a later Create.
func TestCreateAfterFailures(t *testing.T) {
	own := index.CopyID(1).String()
	for _, c := range []struct {
		name  string
		there bool // and dropped while the disk fails
		fails func(errorfs.Op) bool
	}{
		{"its folder cannot be synced", false, func(op errorfs.Op) bool {
			return op.Kind == errorfs.OpOpenDir && op.Path == "data"
		}},
		{"nor removed", false, func(op errorfs.Op) bool {
			return op.Kind == errorfs.OpOpenDir && op.Path == "data" ||
				op.Kind == errorfs.OpRemoveAll && strings.HasSuffix(op.Path, own)
		}},
		{"its removal cannot rename", true, func(op errorfs.Op) bool {
			return op.Kind == errorfs.OpRename && strings.HasSuffix(op.Path, own)
		}},
		{"its removal cannot remove", true, func(op errorfs.Op) bool { return op.Kind == errorfs.OpRemoveAll }},
	} {
		t.Run(c.name, func(t *testing.T) {
			var bad atomic.Bool
			fs := brokenOps(c.fails, &bad)
			store := openTest(t, "data", func(o *Options) { o.FS = fs })
			if c.there {
				s, err := store.Create(testMeta(1))
				must(t, err)
				must(t, s.Flush(t.Context(), historyBatch(1)))
			}
			bad.Store(true)
			var err error
			if c.there {
				err = store.Drop(1)
			} else {
				_, err = store.Create(testMeta(1))
			}
			if err == nil {
				t.Fatal("nothing failed")
			}
			bad.Store(false)
			s, err := store.Create(testMeta(1))
			must(t, err)
			if n := s.Items(); n != 0 {
				t.Errorf("the new copy has %d rows", n)
			}
			must(t, store.Close())
			store = openTest(t, "data", func(o *Options) { o.FS = fs })
			if n := len(store.Slices()); n != 1 {
				t.Errorf("%d copies after the next start, want 1", n)
			}
			must(t, store.Close())
			if names, err := fs.List("data"); err != nil || slices.ContainsFunc(names, func(name string) bool {
				return strings.HasSuffix(name, tmpSuffix)
			}) {
				t.Errorf("left are %v (%v)", names, err)
			}
		})
	}
}

// TestRetireFails: a copy that could not be retired remains a copy, also after the next start.
func TestRetireFails(t *testing.T) {
	var bad atomic.Bool
	own := index.CopyID(1).String()
	fs := brokenOps(func(op errorfs.Op) bool {
		return op.Kind == errorfs.OpOpenDir && strings.HasSuffix(op.Path, own)
	}, &bad)
	store := openTest(t, "data", func(o *Options) { o.FS = fs })
	s, err := store.Create(testMeta(1))
	must(t, err)
	bad.Store(true)
	if err := store.Drop(1); !errors.Is(err, ErrIO) {
		t.Fatalf("a copy whose folder cannot be synced is retired: %v", err)
	}
	bad.Store(false)
	must(t, s.Flush(t.Context(), historyBatch(1)))
	must(t, store.Close())
	store = openTest(t, "data", func(o *Options) { o.FS = fs })
	if _, there := store.Slice(1); !there {
		t.Error("it is gone after the next start")
	}
	must(t, store.Drop(1))
	_, err = store.Create(testMeta(1))
	must(t, err)
	must(t, store.Close())
}
