// Package filelock gives a folder to one process.
package filelock

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
)

// ErrHeld is wrapped when another process has a lock, or another holder in this one.
var ErrHeld = errors.New("in use")

// Lock is a lock that is held.
type Lock struct{ file *os.File }

// Acquire takes the lock of the file at path, which is made where it is missing and says who has it. The lock is held
// until Release, or until the process ends, however it does. Errors wrap ErrHeld or are those of the operating system.
func Acquire(path string) (*Lock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err //nolint:wrapcheck // names the path
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer func() { _ = f.Close() }()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("locking %s: %w", path, err)
		}
		b, _ := io.ReadAll(io.LimitReader(f, 32)) // who has it is a courtesy
		return nil, fmt.Errorf("%w by pid %s", ErrHeld, strings.TrimSpace(string(b)))
	}
	l := &Lock{file: f}
	if err := f.Truncate(0); err == nil {
		if _, err = f.WriteAt(fmt.Appendf(nil, "%d\n", os.Getpid()), 0); err != nil {
			l.Release()
			return nil, err //nolint:wrapcheck // names the path
		}
	}
	return l, nil
}

// Release gives the lock up. The lock is one of the open file, which a process that is being started at this moment has
// too until it runs its program: closing the file here would leave it held for as long.
func (l *Lock) Release() {
	_ = syscall.Flock(int(l.file.Fd()), syscall.LOCK_UN)
	_ = l.file.Close()
}
