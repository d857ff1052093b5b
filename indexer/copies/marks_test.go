package copies

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/go-hclog"

	"tidemark/index"
)

// TestMarks: what is marked is marked after a restart, what was cleared is not, and a mark has the cost of itself,
// however many there are.
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
	m.Clear(1002)
	m.Clear(1009)
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
