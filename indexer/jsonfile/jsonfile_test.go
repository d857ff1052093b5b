package jsonfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFiles checks that what was written can be read, that a missing and a damaged file are distinguished, and that
// no other files are left.
func TestFiles(t *testing.T) {
	dir, got := t.TempDir(), map[string]int{}
	if err := Read(dir, "a.json", &got); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	for n := range 2 {
		if err := Write(dir, "a.json", map[string]int{"n": n}); err != nil {
			t.Fatal(err)
		}
		if err := Read(dir, "a.json", &got); err != nil || got["n"] != n {
			t.Errorf("%v, %v, want %d", got, err, n)
		}
	}
	if all, err := os.ReadDir(dir); err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Read(dir, "a.json", &got); err == nil || !strings.Contains(err.Error(), "a.json is damaged") {
		t.Errorf("a damaged one: %v", err)
	}
	if err := Write(filepath.Join(dir, "none"), "a.json", 1); err == nil {
		t.Error("a file in a folder that is not there")
	}
}
