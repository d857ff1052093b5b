// Package filelock locks a folder for one process.
package filelock

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// ErrHeld is wrapped if another process, or another holder in this process, has the lock.
var ErrHeld = errors.New("in use")

// Lock is a held lock.
type Lock struct{ file *os.File }

// Acquire locks the file at path, creates it if it is missing, and writes the holder's process id to it. The lock is
// held until Release, or until the process ends for whatever reason. Errors wrap ErrHeld or are those of the
// operating system.
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
		b, _ := io.ReadAll(io.LimitReader(f, 32)) // best effort: only for the message
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

// Alive reports whether the process that last locked the file runs. Unlike an attempt to lock it, it is never in the
// way of a process that does; but if that process has ended, another one may have its id by now.
func Alive(path string) bool {
	b, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || pid <= 0 {
		return false
	}
	err = syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}

// Release releases the lock. The lock belongs to the open file, which a process being started shares until it
// executes its program: merely closing the file here would leave it locked until then.
func (l *Lock) Release() {
	_ = syscall.Flock(int(l.file.Fd()), syscall.LOCK_UN)
	_ = l.file.Close()
}
