package copies

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"

	"github.com/hashicorp/go-hclog"

	"tidemark/index"
	"tidemark/indexer/jsonfile"
)

const marksFile = "tombstones.json"

// Marks remembers, over restarts, which copies may hold tombstones of a side stream, so that what a crash leaves of
// them is removed one day. Tombstones without use cost room and nothing else.
type Marks struct {
	dir string
	log hclog.Logger

	mu     sync.Mutex
	copies []index.CopyID // ascending
}

// LoadMarks reads those of a folder, if there are any.
func LoadMarks(dir string, log hclog.Logger) (*Marks, error) {
	m := &Marks{dir: dir, log: log}
	if err := jsonfile.Read(dir, marksFile, &m.copies); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("which copies hold tombstones: %w", err)
	}
	slices.Sort(m.copies)
	return m, nil
}

// Has reports whether a copy is marked.
func (m *Marks) Has(id index.CopyID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := slices.BinarySearch(m.copies, id)
	return ok
}

// Set marks a copy, durably.
func (m *Marks) Set(id index.CopyID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, ok := slices.BinarySearch(m.copies, id)
	if ok {
		return nil
	}
	next := slices.Insert(slices.Clone(m.copies), i, id)
	if err := jsonfile.Write(m.dir, marksFile, next); err != nil {
		return err
	}
	m.copies = next
	return nil
}

// Clear takes a mark away. That it cannot be stored is no harm: the copy is looked through once more.
func (m *Marks) Clear(id index.CopyID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, ok := slices.BinarySearch(m.copies, id)
	if !ok {
		return
	}
	m.copies = slices.Delete(slices.Clone(m.copies), i, i+1)
	if err := jsonfile.Write(m.dir, marksFile, m.copies); err != nil {
		m.log.Warn("storing which copies hold tombstones", "error", err)
	}
}
