package diskspace

import (
	"strings"
	"testing"
)

// TestFewFiles checks that a file system without inodes is named, and that one without a limit, or with enough of
// them, is not.
func TestFewFiles(t *testing.T) {
	for _, c := range []struct {
		free, all uint64
		few       bool
	}{{0, 0, false}, {0, 1 << 20, true}, {255, 1 << 20, true}, {256, 1 << 20, false}, {19, 1000, true}, {20, 1000, false},
		{0, 10, true}, {1, 10, false}} {
		s := Space{FreeFiles: c.free, AllFiles: c.all}
		if why := s.FewFiles("/data"); (why != "") != c.few || c.few && !strings.Contains(why, "under /data") {
			t.Errorf("%d of %d files are left: %q", c.free, c.all, why)
		}
	}
}

// TestOf checks that the file system of the tests has bytes.
func TestOf(t *testing.T) {
	if s, err := Of(t.TempDir()); err != nil || s.Free == 0 || s.Free > s.Total || s.FreeFiles > s.AllFiles {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := Of("/no such folder"); err == nil {
		t.Error("a folder that is not there has room")
	}
}
