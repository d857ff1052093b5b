package kv

import (
	"os"
	"sync"

	"tidemark/kv/seglog"
)

// maxHeldBytes of a log file are kept in memory at most, in the mood Unpersisted.
const maxHeldBytes = 8 << 20

// heldFiles keeps what is written to a log in memory until it is synced, as engines keep what they acknowledge: who is
// killed loses it.
type heldFiles struct {
	mu   sync.Mutex
	last *heldFile
	lost bool
}

// heldFile is one file of the log. Its fields are guarded by the group's lock.
type heldFile struct {
	seglog.File
	of   *heldFiles
	held []byte
	size int64 // in the file
}

// wrap wraps the log's files; inner may be nil.
func (h *heldFiles) wrap(inner func(seglog.File) seglog.File) func(seglog.File) seglog.File {
	return func(f seglog.File) seglog.File {
		size := int64(0)
		if s, ok := f.(interface{ Stat() (os.FileInfo, error) }); ok {
			if info, err := s.Stat(); err == nil {
				size = info.Size()
			}
		}
		if inner != nil {
			f = inner(f)
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.last != nil {
			_ = h.last.flushLocked() // a file that is sealed is read by its name; its own Sync tells what is wrong
		}
		h.last = &heldFile{File: f, of: h, size: size}
		return h.last
	}
}

// lose forgets what is held, and what is written from now on.
func (h *heldFiles) lose() {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lost = true
}

// Write keeps b, or all of it when that is much. The first bytes of a file, its header, are not kept: a file without
// one is damage.
func (f *heldFile) Write(b []byte) (int, error) {
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	first := f.size == 0 && len(f.held) == 0
	f.held = append(f.held, b...)
	if first || len(f.held) > maxHeldBytes {
		if err := f.flushLocked(); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// flushLocked writes what is held. After an error the caller's Truncate tells what counts.
func (f *heldFile) flushLocked() error {
	if f.of.lost {
		f.held = nil
		return nil
	}
	n, err := f.File.Write(f.held)
	f.size += int64(n)
	f.held = f.held[n:]
	return err
}

// Truncate implements seglog.File.
func (f *heldFile) Truncate(size int64) error {
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	if size >= f.size {
		f.held = f.held[:min(int64(len(f.held)), size-f.size)]
		return nil
	}
	f.held, f.size = nil, size
	return f.File.Truncate(size)
}

// Sync implements seglog.File.
func (f *heldFile) Sync() error {
	f.of.mu.Lock()
	err := f.flushLocked()
	f.of.mu.Unlock()
	if err != nil {
		return err
	}
	return f.File.Sync()
}
