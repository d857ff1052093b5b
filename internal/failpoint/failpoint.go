// Package failpoint injects faults into real processes for tests: a wrong clock, a slow disk under the Raft log, and
// steps of a rebalance that are held back. A process reads the faults from the folder given by `tidemark up
// --failpoints`, one file for each fault and process.
//
// Release builds do not contain it: only a program built with -tags failpoints has the flag. Without a folder nothing
// is read and nothing is slower.
package failpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Dir is the folder; empty means no faults.
type Dir string

// Names of the files, after the process's name and a dot; each holds a duration.
const (
	clockFile = "clock" // offset of the wall clock; read when the process starts
	writeFile = "write" // delay of each write to the Raft log's store; read at each write
)

// Names of the files for all processes: the transition to hold back, and the one that a process has held back since.
const (
	holdFile = "moves.hold"
	heldFile = "moves.held"
)

// Clock returns the clock of a process: the machine's, or one with an offset. The error names a file that holds no
// duration.
func (d Dir) Clock(process string) (func() time.Time, error) {
	offset, err := d.duration(process, clockFile)
	if err != nil || offset == 0 {
		return time.Now, err
	}
	return func() time.Time { return time.Now().Add(offset) }, nil
}

// Write returns a function to call before each write to a process's Raft log store; nil without faults.
func (d Dir) Write(process string) func() error {
	if d == "" {
		return nil
	}
	return func() error {
		delay, err := d.duration(process, writeFile)
		if delay > 0 {
			timer := time.NewTimer(delay)
			defer timer.Stop()
			<-timer.C
		}
		return err
	}
}

// Hold returns a function that reports whether a transition is held back now; nil without faults.
func (d Dir) Hold() func(what string) bool {
	if d == "" {
		return nil
	}
	return func(what string) bool {
		b, err := os.ReadFile(filepath.Join(string(d), holdFile))
		if err != nil || string(b) != what {
			return false
		}
		_ = os.WriteFile(filepath.Join(string(d), heldFile), b, 0o600) // on failure, the test times out and reports it
		return true
	}
}

// SetHold is the test's side of Hold: it holds that transition back from now on, "" for none.
func (d Dir) SetHold(what string) error {
	if err := os.Remove(filepath.Join(string(d), heldFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	path := filepath.Join(string(d), holdFile)
	if err := os.WriteFile(path+".new", []byte(what), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// Held reports whether that transition was held back since SetHold.
func (d Dir) Held(what string) bool {
	b, err := os.ReadFile(filepath.Join(string(d), heldFile))
	return err == nil && string(b) == what
}

// SetClock is the test's side of Clock: the process has that offset from its next start on.
func (d Dir) SetClock(process string, ahead time.Duration) error {
	return d.set(process, clockFile, ahead)
}

// SetWrite is the test's side of Write.
func (d Dir) SetWrite(process string, delay time.Duration) error {
	return d.set(process, writeFile, delay)
}

func (d Dir) path(process, what string) string { return filepath.Join(string(d), process+"."+what) }

func (d Dir) duration(process, what string) (time.Duration, error) {
	if d == "" {
		return 0, nil
	}
	b, err := os.ReadFile(d.path(process, what))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("failpoint: %w", err)
	}
	v, err := time.ParseDuration(strings.TrimSpace(string(b)))
	if err != nil {
		return 0, fmt.Errorf("failpoint %s: %w", d.path(process, what), err)
	}
	return v, nil
}

// set replaces the file atomically, so that a reader never sees half of it; zero removes it.
func (d Dir) set(process, what string, v time.Duration) error {
	path := d.path(process, what)
	if v == 0 {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	if err := os.WriteFile(path+".new", []byte(v.String()), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
