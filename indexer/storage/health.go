package storage

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"tidemark/internal/diskspace"
)

const (
	// roomPoll is the interval at which a full disk is checked again.
	roomPoll = 100 * time.Millisecond
	// firstDelay and maxDelay bound the doubling pause after a failed background write.
	firstDelay = 10 * time.Millisecond
	maxDelay   = time.Second
)

// health tracks whether an engine's background writes succeed. While they do not, writers get its error.
type health struct {
	mu      sync.Mutex
	err     error
	fatal   bool // err is permanent
	delay   time.Duration
	changed chan struct{} // closed and replaced at each change
	closing chan struct{}
	closed  bool
}

func newHealth() *health {
	return &health{changed: make(chan struct{}), closing: make(chan struct{})}
}

// set notes that background work fails, nil: that it goes well. It reports whether it failed already.
func (h *health) set(err error, fatal bool) (already bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	already = h.err != nil
	if h.fatal || err == nil && h.err == nil {
		return already
	}
	h.err, h.fatal = err, fatal
	if err == nil {
		h.delay = 0
	} else {
		h.delay = min(max(2*h.delay, firstDelay), maxDelay)
	}
	close(h.changed)
	h.changed = make(chan struct{})
	return already
}

func (h *health) fail(err error) (already bool) { return h.set(err, false) }
func (h *health) die(err error)                 { h.set(err, true) }
func (h *health) ok() (failed bool)             { return h.set(nil, false) }

func (h *health) get() (err error, changed <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err, h.changed
}

// shut ends all waits, because the engine is being closed.
func (h *health) shut() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.closed = true
		close(h.closing)
	}
}

// pause waits for the delay after a failure, or until the engine is being closed. After a fatal failure it waits for
// the latter only, so that an engine that cannot write does not retry in a loop.
func (h *health) pause() {
	h.mu.Lock()
	delay, fatal := h.delay, h.fatal
	h.mu.Unlock()
	switch {
	case fatal:
		<-h.closing
	case delay > 0:
		h.wait(delay)
	}
}

// wait returns false if the engine is being closed.
func (h *health) wait(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-h.closing:
		return false
	}
}

// The ballast is a file that is removed when a write that must not fail finds no space.
const (
	ballastName  = "BALLAST"
	ballastBytes = 2 << 20
	// refillPause is the least time between attempts to create the ballast.
	refillPause = time.Second
)

// space tracks the free space of a disk, minus what is promised to data in memory.
type space struct {
	fs      vfs.FS
	dir     string
	reserve int64
	files   func(dir string) (diskspace.Space, error)

	mu       sync.Mutex // never held during disk operations, because every flush takes it
	promised int64
	ballast  bool      // it exists
	filling  bool      // it is being created or removed
	refill   time.Time // not created again before this time
	refused  error     // the last attempt to create it found no space; nil: it did, or failed for another reason
}

// fill creates the ballast if it is missing, unless another goroutine does, or the last attempt has just failed.
// Without space for it, there is no ballast.
func (s *space) fill() {
	s.mu.Lock()
	if s.ballast || s.filling || time.Now().Before(s.refill) {
		s.mu.Unlock()
		return
	}
	s.filling = true
	s.mu.Unlock()
	path := s.fs.PathJoin(s.dir, ballastName)
	err := writeSynced(s.fs, path, make([]byte, ballastBytes))
	if err != nil {
		_ = s.fs.Remove(path) // the ballast is optional
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.filling, s.ballast, s.refused = false, err == nil, nil
	if err != nil {
		s.refill = time.Now().Add(refillPause)
	}
	if isNoSpace(err) {
		s.refused = err
	}
}

// give removes the ballast; it returns false if there was none.
func (s *space) give() bool {
	s.mu.Lock()
	had := s.ballast
	if had {
		s.ballast, s.filling = false, true // fill must wait until it is removed
	}
	s.mu.Unlock()
	if !had {
		return false
	}
	err := s.fs.Remove(s.fs.PathJoin(s.dir, ballastName))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.filling = false
	return err == nil
}

// room returns an error wrapping ErrDiskFull unless n more bytes can be written in addition to the promised bytes and
// the reserve.
func (s *space) room(n int64) error {
	usage, err := s.fs.GetDiskUsage(s.dir)
	if errors.Is(err, vfs.ErrUnsupported) {
		usage.AvailBytes, err = math.MaxInt64, nil
	}
	if err != nil {
		return fmt.Errorf("%w: free space of %s: %w", ErrIO, s.dir, err)
	}
	if free, promised, reserve := s.of(&usage); free < promised+n+reserve {
		return fmt.Errorf("%w: %s has %d bytes free, need %d and %d for data in memory and %d in reserve: make room",
			ErrDiskFull, s.dir, free, n, promised, reserve)
	}
	if few := s.few(); few != "" {
		return fmt.Errorf("%w: %s", ErrDiskFull, few)
	}
	s.fill()
	return nil
}

// proven is room, except that it also returns an error if the newest attempt to create the ballast found no space. A
// file system may refuse writes while it reports free space: quotas, or no space for its own metadata.
func (s *space) proven(n int64) error {
	if err := s.room(n); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refused == nil {
		return nil
	}
	return fmt.Errorf("%w: %s has free space, but refuses to write %d bytes: raise the quota or make room: %w",
		ErrDiskFull, s.dir, ballastBytes, s.refused)
}

// few returns a description of a file system that has too few files left; "" if it has enough, or cannot be measured.
func (s *space) few() string {
	r, err := s.files(s.dir)
	if err != nil {
		return ""
	}
	return r.FewFiles(s.dir)
}

// of returns the free bytes of the disk, and the parts of them that are promised and in reserve.
func (s *space) of(usage *vfs.DiskUsage) (free, promised, reserve int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(min(usage.AvailBytes, 1<<62)), s.promised, min(s.reserve, int64(usage.TotalBytes/50))
}

// left returns how many bytes are neither used, promised nor in reserve.
func (s *space) left(usage *vfs.DiskUsage) int64 {
	free, promised, reserve := s.of(usage)
	return free - promised - reserve
}

// promise changes the number of bytes in memory that will be written.
func (s *space) promise(n int64) {
	s.mu.Lock()
	s.promised += n
	s.mu.Unlock()
}

// guardFS is the file system that an engine writes through. Creating a table blocks while there is no space and after
// a failure, which limits the rate of retries. Small files (the manifest) get the space of the ballast, because an
// engine cannot continue after a failed write of one.
type guardFS struct {
	vfs.FS
	h     *health
	space *space
	merge func(vfs.File) vfs.File // wraps a table that a merge writes
}

func isTable(name string) bool { return strings.HasSuffix(name, ".sst") }

// Create implements vfs.FS.
func (g *guardFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if isTable(name) {
		if category == compactionCategory {
			return g.compactionTable(name, category)
		}
		g.h.pause()
		g.waitRoom()
		return g.FS.Create(name, category)
	}
	f, err := g.FS.Create(name, category)
	if isNoSpace(err) && g.space.give() {
		f, err = g.FS.Create(name, category)
	}
	if err != nil {
		return nil, err
	}
	return &guardFile{File: f, g: g}, nil
}

// compactionCategory is Pebble's category for files that compactions write.
const compactionCategory = vfs.DiskWriteCategory("pebble-compaction")

// compactionTable creates a table for a compaction. It refuses to use space that is promised to data in memory.
func (g *guardFS) compactionTable(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if err := g.space.room(tableBytes); err != nil {
		return nil, &os.PathError{Op: "create", Path: name, Err: syscall.ENOSPC}
	}
	f, err := g.FS.Create(name, category)
	if err != nil {
		return nil, err
	}
	return g.merge(f), nil
}

// waitRoom waits until half of the disk's reserve is free again, or the engine is being closed.
func (g *guardFS) waitRoom() {
	var full bool
	for {
		usage, err := g.FS.GetDiskUsage(g.space.dir)
		if err != nil || usage.AvailBytes >= uint64(min(g.space.reserve, int64(usage.TotalBytes/50)))/2 {
			break
		}
		full = true
		g.h.fail(fmt.Errorf("%w: %s has %d bytes free", ErrDiskFull, g.space.dir, usage.AvailBytes))
		if !g.h.wait(roomPoll) {
			return
		}
	}
	if full {
		g.h.ok()
	}
}

type guardFile struct {
	vfs.File
	g *guardFS
}

// mergeFile is a table that a merge writes. It pauses between writes as yield decides, unless several stores wait for
// the merge's slot.
type mergeFile struct {
	vfs.File
	compact *compactor
	yield   func(worked time.Duration)
	since   time.Time // end of the last write, including its pause
}

// Write implements vfs.File.
func (f *mergeFile) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	if f.compact.mayPause() {
		f.yield(time.Since(f.since))
	}
	f.since = time.Now()
	return n, err
}

// Write implements vfs.File.
func (f *guardFile) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	if isNoSpace(err) && f.g.space.give() {
		var more int
		more, err = f.File.Write(p[n:])
		n += more
	}
	return n, err
}

// Sync implements vfs.File.
func (f *guardFile) Sync() error {
	err := f.File.Sync()
	if isNoSpace(err) && f.g.space.give() {
		err = f.File.Sync()
	}
	return err
}
