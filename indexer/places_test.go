package indexer

import (
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"tidemark/index"
	"tidemark/wire"
)

// failingDisk gives a world a disk on which all writes below the named folder of copies fail while it is named.
func failingDisk(w *world) (below *atomic.Pointer[string]) {
	below = &atomic.Pointer[string]{}
	below.Store(new(string))
	w.tweak = func(c *Config) {
		c.OrphanGrace = time.Millisecond
		c.disk = errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
			of := *below.Load()
			if of != "" && op.Kind.ReadOrWrite() == errorfs.OpIsWrite &&
				strings.HasPrefix(op.Path, filepath.Join(w.dir, copiesDir, of)) {
				return syscall.EIO
			}
			return nil
		}))
	}
	return below
}

// TestCopyThatCannotBeCreated checks that such a copy does not delay the rest of its list: the other copies are made,
// filled and served, and dropped ones are removed, also with the next list. The problem names the copy. The copy is
// made as soon as this is possible.
func TestCopyThatCannotBeCreated(t *testing.T) {
	w := newWorld(t)
	below := failingDisk(w)
	w.write(docs(0, 50, 1)...)
	w.start()
	if err := w.define(10, 40); err != nil {
		t.Fatal(err)
	}
	bad := "20"
	below.Store(&bad)
	if err := w.define(10, 20, 30); err != nil {
		t.Fatalf("a list of which one copy cannot be made: %v", err)
	}
	w.begin(nil)
	w.promote(t.Context())
	w.held(10, 30)
	w.check(1)
	w.check(3)
	w.until("what the list dropped has gone", func() bool { return !w.there(40) })
	if state := w.x.stats(t.Context()).State; state != "active" {
		t.Errorf("the indexer is %s: the other copies are written and served", state)
	}
	if detail := w.untilReadyz("copy not_held"); !strings.Contains(detail, "making copy 20: cannot be made: ") ||
		!strings.Contains(detail, syscall.EIO.Error()) {
		t.Errorf("not ready because of %q", detail)
	}
	if err := w.define(10, 20, 30, 50); err != nil {
		t.Fatal(err)
	}
	w.begin(nil)
	w.promote(t.Context())
	w.held(50)
	if w.there(20) || w.copyReport(20).Copy != 0 {
		t.Error("the copy that cannot be made is there, or reported")
	}
	below.Store(new(string))
	w.until("it is made", func() bool { return w.there(20) })
	w.begin(nil)
	w.promote(t.Context())
	w.held(20)
	w.check(2)
	w.untilReadyz("")
}

// TestMissingCopyIsDropped checks that a copy that could not be made and is dropped is not tried again, and
// is no problem any more.
func TestMissingCopyIsDropped(t *testing.T) {
	w := newWorld(t)
	below := failingDisk(w)
	w.start()
	bad := "20"
	below.Store(&bad)
	for _, ids := range [][]index.CopyID{{10, 20}, {10}} {
		if err := w.define(ids...); err != nil {
			t.Fatal(err)
		}
	}
	w.until("nothing is done with it any more", func() bool { return len(w.x.places.busy()) == 0 })
	below.Store(new(string))
	if all := w.x.health.All(); len(all) != 0 || w.there(20) {
		t.Errorf("wrong: %q, the copy is there: %v", all, w.there(20))
	}
}

// TestCopyThatCannotBeDropped checks that such a copy does not delay the rest of its list: it is closed and becomes
// an orphan, which is dropped as soon as this is possible.
func TestCopyThatCannotBeDropped(t *testing.T) {
	w := newWorld(t)
	below := failingDisk(w)
	build(t, w)
	bad := "10/DROPPED"
	below.Store(&bad)
	if err := w.define(20, 30); err != nil {
		t.Fatalf("a list of which one copy cannot be dropped: %v", err)
	}
	if !w.there(30) || !w.there(10) {
		t.Errorf("made: %v, kept: %v", w.there(30), w.there(10))
	}
	w.reported(10)
	below.Store(new(string))
	o := w.reported(10)[0]
	w.until("it is dropped", func() bool {
		w.mu.Unlock()
		defer w.mu.Lock()
		gone, err := w.dropOrphans(wire.OrphanRef{Copy: o.Copy, Index: o.Index})
		return err == nil && len(gone) == 1
	})
	w.reported()
}
