package kv

import (
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"tidemark/kv/seglog"
)

const (
	spareName = "spare"
	// leastSpare is the least size of the spare file. It is twice as large as the map if that is larger.
	leastSpare = 64 << 10
	// spareEvery is the pause between two attempts to make the spare file without need.
	spareEvery = time.Minute
)

// spare writes the node's small files, and keeps room for them in a file that is removed when there is none otherwise.
// The buckets keep room on the disk, too, but others may use that up. A node that cannot store a newer map goes on
// with its old one after it was failed over, and one that cannot store a promise holds up the failover of others.
type spare struct {
	dir string
	put func(path string, value any) error // seglog.WriteJSON

	mu    sync.Mutex
	again time.Time // not before: the next attempt of refill
}

func newSpare(dir string) *spare { return &spare{dir: dir, put: seglog.WriteJSON} }

// write replaces a file of the folder, in place of the spare file if the disk is full otherwise.
func (s *spare) write(name string, value any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	path := filepath.Join(s.dir, name)
	err := s.put(path, value)
	if isFull(err) && os.Remove(filepath.Join(s.dir, spareName)) == nil {
		err = s.put(path, value)
	}
	return err
}

// refill makes the spare file if it is missing, or larger if it is too small, unless that was tried a moment ago.
// Without room for it, there is none, or it stays as it is.
func (s *spare) refill(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Before(s.again) {
		return
	}
	s.again = now.Add(spareEvery)
	size := int64(leastSpare)
	if m, err := os.Stat(filepath.Join(s.dir, mapName)); err == nil {
		size = max(size, 2*m.Size())
	}
	path, had := filepath.Join(s.dir, spareName), int64(0)
	if i, err := os.Stat(path); err == nil {
		had = i.Size()
	}
	if had < size && appendNoise(path, size-had) != nil && had == 0 {
		_ = os.Remove(path) // a part of the least size would be taken for nothing
	}
}

// appendNoise appends n bytes for which a file system that compresses needs as much room.
func appendNoise(path string, n int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	noise := make([]byte, n)
	_, _ = rand.Read(noise) // never fails
	if _, err = f.Write(noise); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// isFull reports whether an error means that the disk, or a quota, has no room.
func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }
