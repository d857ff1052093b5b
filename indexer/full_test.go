package indexer

import (
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// fullable is a disk that has no space while full is set.
type fullable struct {
	vfs.FS
	full atomic.Bool
}

func newFullable() *fullable {
	d := &fullable{}
	d.FS = errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if d.full.Load() && (op.Kind == errorfs.OpCreate || op.Kind == errorfs.OpFileWrite) {
			return syscall.ENOSPC
		}
		return nil
	}))
	return d
}

// GetDiskUsage implements vfs.FS.
func (d *fullable) GetDiskUsage(path string) (vfs.DiskUsage, error) {
	u, err := d.FS.GetDiskUsage(path)
	if d.full.Load() {
		u.AvailBytes = 0
	}
	return u, err
}

// TestRestartsOnAFullDisk checks that an indexer starts on a full disk however often, even without its reserve, reports
// that, and serves what its copies hold; with space it goes on.
func TestRestartsOnAFullDisk(t *testing.T) {
	w := newWorld(t)
	disk := newFullable()
	w.tweak = func(c *Config) { c.disk = disk }
	w.write(testDoc{id: "a", value: 1}, testDoc{id: "b", value: 2})
	w.serve(10)
	w.check(1)
	w.stopIndexer()
	if err := os.Remove(filepath.Join(w.dir, copiesDir, "BALLAST")); err != nil {
		t.Fatal(err)
	}
	disk.full.Store(true)
	for range 3 {
		w.locked(func() { clear(w.report) })
		w.start()
		w.promote(t.Context())
		w.held(10)
		if rows, err := w.scan(1, `{}`); err != nil || len(rows) != 2 {
			t.Errorf("what is read: %v, %v", rows, err)
		}
		w.until("the full disk is reported", func() bool { return strings.Contains(w.report[10].Error, "no room") })
		w.stopIndexer()
	}
	w.start()
	if err := w.define(10); err != nil {
		t.Fatal(err)
	}
	w.begin(nil)
	w.write(testDoc{id: "c", value: 3})
	w.promote(t.Context())
	w.until("the node says that it cannot write", func() bool { return strings.Contains(w.health, "no room") })
	disk.full.Store(false)
	w.held(10)
	w.check(1)
	w.until("the disk is well", func() bool { return w.health == "" })
}
