package copies

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"

	"github.com/hashicorp/go-hclog"

	"tidemark/index"
	"tidemark/indexer/jsonfile"
)

const marksFile = "tombstones.log"

// Marks remembers, over restarts, which copies may hold tombstones of a side stream, so that what a crash leaves of
// them is removed one day. Tombstones without use cost room and nothing else.
type Marks struct {
	log hclog.Logger

	mu     sync.Mutex
	copies map[index.CopyID]bool
	file   *jsonfile.Log // all that are marked, ascending, and markChange after that
}

// markChange is how a change of marks is stored.
type markChange struct {
	Copy    index.CopyID `json:"copy"`
	Cleared bool         `json:"cleared,omitempty"`
}

// LoadMarks reads those of a folder, if there are any.
func LoadMarks(dir string, log hclog.Logger) (*Marks, error) {
	m := &Marks{log: log, copies: map[index.CopyID]bool{}, file: jsonfile.NewLog(dir, marksFile)}
	cut, err := m.file.Read(func(b []byte) error {
		var all []index.CopyID
		err := json.Unmarshal(b, &all)
		for _, id := range all {
			m.copies[id] = true
		}
		return err
	}, func(b []byte) error {
		var c markChange
		err := json.Unmarshal(b, &c)
		if m.copies[c.Copy] = true; c.Cleared {
			delete(m.copies, c.Copy)
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("which copies hold tombstones: %w", err)
	}
	if cut {
		log.Warn("the newest change of which copies hold tombstones was not stored to its end", "file", marksFile)
	}
	return m, nil
}

// Has reports whether a copy is marked.
func (m *Marks) Has(id index.CopyID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.copies[id]
}

// Set marks a copy, durably.
func (m *Marks) Set(id index.CopyID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.copies[id] {
		return nil
	}
	m.copies[id] = true
	err := m.store(markChange{Copy: id})
	if err != nil {
		delete(m.copies, id)
	}
	return err
}

// Clear takes a mark away. That it cannot be stored is no harm: the copy is looked through once more.
func (m *Marks) Clear(id index.CopyID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.copies[id] {
		return
	}
	delete(m.copies, id)
	if err := m.store(markChange{Copy: id, Cleared: true}); err != nil {
		m.log.Warn("storing which copies hold tombstones", "error", err)
	}
}

// store writes what has changed. The lock is held.
func (m *Marks) store(c markChange) error {
	return m.file.Write(func() any { return slices.Sorted(maps.Keys(m.copies)) }, c)
}
