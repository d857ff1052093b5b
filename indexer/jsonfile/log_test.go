package jsonfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// readLog returns the whole and the changes of a file as numbers.
func readLog(dir string) (all []int, cut bool, err error) {
	take := func(b []byte) error {
		var n int
		err := json.Unmarshal(b, &n)
		all = append(all, n)
		return err
	}
	cut, err = NewLog(dir, "a.log").Read(take, take)
	return all, cut, err
}

// write writes a change, or v as the whole.
func write(t *testing.T, l *Log, v, change any) {
	t.Helper()
	if err := l.Write(func() any { return v }, change); err != nil {
		t.Fatal(err)
	}
}

// TestLog checks that what was written is read in order, and that a log that has not written yet, or has failed to
// write a change, writes the whole.
func TestLog(t *testing.T) {
	dir := t.TempDir()
	if _, _, err := readLog(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	l := NewLog(dir, "a.log")
	for _, step := range []struct {
		what          string
		before        func() error
		whole, change any
		want          []int
	}{
		{"a whole", nil, 1, nil, []int{1}},
		{"a change", nil, 12, 2, []int{1, 2}},
		{"another change", nil, 123, 3, []int{1, 2, 3}},
		{"a whole again", nil, 4, nil, []int{4}},
		{"a change of it", nil, 45, 5, []int{4, 5}},
		{"the file is gone", func() error { return os.Remove(filepath.Join(dir, "a.log")) }, 6, 66, []int{6}},
		{"another run", func() error { l = NewLog(dir, "a.log"); return nil }, 7, 77, []int{7}},
		{"a change that has no JSON", nil, 8, func() {}, []int{8}},
	} {
		if step.before != nil {
			if err := step.before(); err != nil {
				t.Fatal(err)
			}
		}
		write(t, l, step.whole, step.change)
		if all, cut, err := readLog(dir); err != nil || cut || !slices.Equal(all, step.want) {
			t.Errorf("%s: %v, %v, %v", step.what, all, cut, err)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := l.Write(func() any { return 9 }, 99); err == nil {
		t.Error("written into a folder that is not there")
	}
}

// TestLogDue checks that changes take at most a few times the room of the whole, and that wholes become rarer as it
// grows.
func TestLogDue(t *testing.T) {
	for _, bytes := range []int{10, spareBytes, 4 * spareBytes} {
		dir, whole := t.TempDir(), strings.Repeat("x", bytes)
		l, change, n := NewLog(dir, "a.log"), strings.Repeat("c", 32<<10), 0
		for write(t, l, whole, nil); !l.due(); n++ {
			write(t, l, whole, change)
		}
		info, err := os.Stat(filepath.Join(dir, "a.log"))
		if err != nil {
			t.Fatal(err)
		}
		most := int64(3*(bytes+20) + spareBytes + len(change) + 20)
		if info.Size() > most || n*(len(change)+20) < 2*bytes {
			t.Errorf("a whole of %d bytes: %d changes, %d bytes", bytes, n, info.Size())
		}
		if write(t, l, whole, change); l.size != l.whole {
			t.Errorf("a whole of %d bytes was due, and is not written", bytes)
		}
	}
}

// TestDamagedLog checks that the whole and the first changes can be read from a file that is cut anywhere. A changed
// byte is an error, except in the last line, which may be the result of a crash: then everything before that line is
// read.
func TestDamagedLog(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.log")
	l := NewLog(dir, "a.log")
	for _, n := range []int{11, 22, 33} {
		write(t, l, n, n)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	try := func(what string, b []byte) (all []int, cut bool, err error) {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		all, cut, err = readLog(dir)
		if want := []int{11, 22, 33}; err == nil && !slices.Equal(all, want[:len(all)]) {
			t.Errorf("%s: %v", what, all)
		}
		if err != nil && !strings.Contains(err.Error(), "a.log is damaged: line ") {
			t.Errorf("%s: %v", what, err)
		}
		return all, cut, err
	}
	line := len(good) / 3
	for n := range len(good) + 1 {
		all, cut, err := try(fmt.Sprintf("%d bytes", n), good[:n])
		if wrong := err != nil; wrong != (n < line) {
			t.Errorf("%d bytes: %v", n, err)
		} else if !wrong && (len(all) != n/line || cut != (n%line > 0)) {
			t.Errorf("%d bytes: %v, cut %v", n, all, cut)
		}
		if zeros := make([]byte, 100); n >= line { // a file may have grown before its bytes were written
			all, cut, err := try("zeros", append(slices.Clone(good[:n]), zeros...))
			if err != nil || !cut || len(all) != n/line {
				t.Errorf("%d bytes and zeros: %v, cut %v, %v", n, all, cut, err)
			}
		}
	}
	for i := range good {
		for bit := range 8 {
			b := slices.Clone(good)
			b[i] ^= 1 << bit
			all, cut, err := try(fmt.Sprintf("bit %d of byte %d", bit, i), b)
			switch {
			case err == nil && cut && i/line == 2 && len(all) == 2:
			case err == nil && cut && i == 2*line-1 && len(all) == 1: // two lines have become the last one
			case err != nil && i/line < 2:
			case err == nil && !cut && len(all) == 3 && i%line < sumDigits: // the same digit
			default:
				t.Errorf("bit %d of byte %d: %v, cut %v, %v", bit, i, all, cut, err)
			}
		}
	}
}
