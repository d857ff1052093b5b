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

// Marks remembers across restarts which copies may hold tombstones of a side stream, so that tombstones that survive
// a crash are removed eventually. Useless tombstones cost space and nothing else. Only Set and Keep wait for the
// disk.
type Marks struct {
	log hclog.Logger

	writing sync.Mutex    // held while the file is written; taken before mu
	file    *jsonfile.Log // all marked copies, ascending, then lists of markChange

	mu     sync.Mutex
	copies map[index.CopyID]*marksWrite // the write that contains the mark
	noted  []markChange                 // changes for the next write
	next   *marksWrite                  // nil if noted is empty
}

// markChange is a change of marks in the file.
type markChange struct {
	Copy    index.CopyID `json:"copy"`
	Cleared bool         `json:"cleared,omitempty"`
}

// marksWrite is one write of the changes that were noted before it began. Marks.mu guards it.
type marksWrite struct {
	ended bool
	err   error
}

// LoadMarks reads the marks in a folder, if there are any.
func LoadMarks(dir string, log hclog.Logger) (*Marks, error) {
	m := &Marks{log: log, copies: map[index.CopyID]*marksWrite{}, file: jsonfile.NewLog(dir, marksFile)}
	stored := &marksWrite{ended: true}
	cut, err := m.file.Read(func(b []byte) error {
		var all []index.CopyID
		err := json.Unmarshal(b, &all)
		for _, id := range all {
			m.copies[id] = stored
		}
		return err
	}, func(b []byte) error {
		var changes []markChange
		err := json.Unmarshal(b, &changes)
		for _, c := range changes {
			if m.copies[c.Copy] = stored; c.Cleared {
				delete(m.copies, c.Copy)
			}
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("reading which copies hold tombstones: %w", err)
	}
	if cut {
		log.Warn("last change of the list of copies with tombstones was not stored completely", "file", marksFile)
	}
	return m, nil
}

// Has reports whether a copy is marked, or is being marked.
func (m *Marks) Has(id index.CopyID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.copies[id] != nil
}

// Set marks a copy durably. Marks that are set while the file is being written share the next write.
func (m *Marks) Set(id index.CopyID) error {
	m.mu.Lock()
	w := m.copies[id]
	if w == nil {
		w = m.note(markChange{Copy: id})
		m.copies[id] = w
	}
	ended, err := w.ended, w.err
	m.mu.Unlock()
	if ended {
		return err
	}
	return m.store(w)
}

// Clear removes a mark without waiting: the change is stored by the next write, or by Keep. first reports that no
// other change was pending, so that the caller has to arrange for Keep. If the change cannot be stored, the copy is
// searched for tombstones once more, which does no harm.
func (m *Marks) Clear(id index.CopyID) (first bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.copies[id] == nil {
		return false
	}
	delete(m.copies, id)
	first = m.next == nil
	m.note(markChange{Copy: id, Cleared: true})
	return first
}

// Keep stores pending changes.
func (m *Marks) Keep() {
	m.mu.Lock()
	w := m.next
	m.mu.Unlock()
	if w == nil {
		return
	}
	if err := m.store(w); err != nil {
		m.log.Warn("storing which copies hold tombstones", "error", err)
	}
}

// note adds a change to the next write, which it returns. The caller holds mu.
func (m *Marks) note(c markChange) *marksWrite {
	if m.next == nil {
		m.next = &marksWrite{}
	}
	m.noted = append(m.noted, c)
	return m.next
}

// store waits until a write has ended. The first of its waiters to get the lock performs it.
func (m *Marks) store(w *marksWrite) error {
	m.writing.Lock()
	defer m.writing.Unlock()
	m.mu.Lock()
	if w.ended {
		m.mu.Unlock()
		return w.err
	}
	changes := m.noted // w is the next write: all writes before it have ended
	m.noted, m.next = nil, nil
	m.mu.Unlock()
	err := m.file.Write(m.all, changes)
	m.mu.Lock()
	defer m.mu.Unlock()
	if w.ended, w.err = true, err; err != nil {
		maps.DeleteFunc(m.copies, func(_ index.CopyID, in *marksWrite) bool { return in == w })
	}
	return err
}

// all returns the marked copies, including those that a later write will store.
func (m *Marks) all() any {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.copies))
}
