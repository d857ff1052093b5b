package indexer

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"

	"github.com/hashicorp/go-hclog"

	"tidemark/index"
)

const marksFile = "tombstones.json"

// marks remembers, over restarts, which copies may hold tombstones of a side stream, so that what a crash leaves of
// them is removed one day. Tombstones without use cost room and nothing else.
type marks struct {
	dir string
	log hclog.Logger

	mu     sync.Mutex
	copies []index.CopyID // ascending
}

func loadMarks(dir string, log hclog.Logger) (*marks, error) {
	m := &marks{dir: dir, log: log}
	if err := readJSON(dir, marksFile, &m.copies); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("which copies hold tombstones: %w", err)
	}
	slices.Sort(m.copies)
	return m, nil
}

func (m *marks) has(id index.CopyID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := slices.BinarySearch(m.copies, id)
	return ok
}

// set marks a copy, durably.
func (m *marks) set(id index.CopyID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, ok := slices.BinarySearch(m.copies, id)
	if ok {
		return nil
	}
	next := slices.Insert(slices.Clone(m.copies), i, id)
	if err := writeJSON(m.dir, marksFile, next); err != nil {
		return err
	}
	m.copies = next
	return nil
}

// clear takes a mark away. That it cannot be stored is no harm: the copy is looked through once more.
func (m *marks) clear(id index.CopyID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, ok := slices.BinarySearch(m.copies, id)
	if !ok {
		return
	}
	m.copies = slices.Delete(slices.Clone(m.copies), i, i+1)
	if err := writeJSON(m.dir, marksFile, m.copies); err != nil {
		m.log.Warn("storing which copies hold tombstones", "error", err)
	}
}
