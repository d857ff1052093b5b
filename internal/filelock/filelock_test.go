package filelock

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestOneHolder checks that a second holder is refused with the first one's pid, and that the lock is free once it is
// released, although a process that is just being started still has the open file.
func TestOneHolder(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "LOCK")
	for range 2 {
		l, err := Acquire(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Acquire(path); !errors.Is(err, ErrHeld) || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
			t.Errorf("a second holder: %v", err)
		}
		child, err := syscall.Dup(int(l.file.Fd())) // as a fork has it
		if err != nil {
			t.Fatal(err)
		}
		l.Release()
		defer func() { _ = syscall.Close(child) }()
	}
	if _, err := Acquire(filepath.Join(t.TempDir(), "no", "LOCK")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a folder: %v", err)
	}
}
