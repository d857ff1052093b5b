package kv

import (
	"os"
	"sync"

	"tidemark/kv/seglog"
)

// maxHeldBytes bounds the bytes of a log file that are held in memory with the mood Unpersisted.
const maxHeldBytes = 8 << 20

// heldFiles keeps what is written to a log in memory until it is synced, as engines keep what they acknowledge: a
// killed process loses it.
type heldFiles struct {
	mu   sync.Mutex
	last *heldFile
	lost bool
}

// heldFile is one file of the log. Its fields are guarded by of.mu.
type heldFile struct {
	seglog.File
	of   *heldFiles
	held []byte
	size int64 // bytes written to the file
}

// wrap returns a function that wraps the log's files; inner may be nil.
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
			_ = h.last.flushLocked() // a sealed file is read by its name; its own Sync reports errors
		}
		h.last = &heldFile{File: f, of: h, size: size}
		return h.last
	}
}

// lose discards what is held, and all later writes.
func (h *heldFiles) lose() {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lost = true
}

// Write holds b, or flushes everything held if it is too much. The first bytes of a file, its header, are written at
// once: a file without a header counts as damaged.
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

// flushLocked writes what is held. After an error, the caller's Truncate determines what counts.
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
