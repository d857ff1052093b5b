// Package failpoint lets tests with real processes spoil what a process takes from its machine, the clock, and the disk
// under the Raft log, and hold the steps of a rebalance back. A process looks into a folder that `tidemark up
// --failpoints` names; there is one file for each fault and process.
//
// What is shipped does not have it: only a program built with -tags failpoints knows the flag. Where no folder is named
// nothing is read and nothing is slower.
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

// Dir is the folder; empty: there are no faults.
type Dir string

// Names of the files, after the process's and a dot; each holds a duration.
const (
	clockFile = "clock" // the wall clock is that much ahead; read when the process starts
	writeFile = "write" // every write to the Raft log's store takes that much longer; read at every write
)

// Names of the files that concern all processes: what is held back, and what somebody has held back since.
const (
	holdFile = "moves.hold"
	heldFile = "moves.held"
)

// Clock gives the clock of a process: the machine's, or one that is ahead or behind. The error names a file that holds
// no duration.
func (d Dir) Clock(process string) (func() time.Time, error) {
	offset, err := d.duration(process, clockFile)
	if err != nil || offset == 0 {
		return time.Now, err
	}
	return func() time.Time { return time.Now().Add(offset) }, nil
}

// Write gives what goes before each write to the Raft log's store of a process, nil where there are no faults.
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

// Hold gives what says of a transition whether it is held back now, nil where there are no faults.
func (d Dir) Hold() func(what string) bool {
	if d == "" {
		return nil
	}
	return func(what string) bool {
		b, err := os.ReadFile(filepath.Join(string(d), holdFile))
		if err != nil || string(b) != what {
			return false
		}
		_ = os.WriteFile(filepath.Join(string(d), heldFile), b, 0o600) // else the test waits in vain, and says so
		return true
	}
}

// SetHold is the test's side of Hold: that transition is held back from now on, "" for none.
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

// SetClock is the test's side of Clock: the process has that clock from its next start on.
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

// set replaces the file as a whole, so that a reader never sees half of it; zero removes it.
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
