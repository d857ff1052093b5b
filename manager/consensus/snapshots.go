package consensus

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// position is the end of a log or of a state snapshot.
type position struct{ index, term uint64 }

// snapshots is the library's store of state snapshots with two rules added.
//
// Log entries that a snapshot does not continue are removed. In the Raft paper a follower discards its log if it has
// no entry at the end of the leader's snapshot, or one of another term (figure 13, rule 7); the library keeps the
// log. Those entries may be uncommitted, and once this node leads it would send them to others as history.
//
// A snapshot is written only once. The library names snapshots by term, index and millisecond, so one sent twice
// within a millisecond gets the name of the first: it cannot be put into place, the first is removed with it, and the
// node lacks the log between them.
//
// None is written that stands for another history than what was committed here (refused).
type snapshots struct {
	raft.SnapshotStore
	log     raft.LogStore
	refused func(position) error // nil before Raft runs

	mu      sync.Mutex // held while the log is trimmed
	writing map[position]bool
	placed  atomic.Pointer[position] // end of the newest one in place: the log need not keep what is before it
	newest  atomic.Pointer[position] // placed, once the log before it has nothing else than it any more
}

// openSnapshots wraps a store and trims the log to the newest snapshot in it, because the process may have ended
// between storing a snapshot and trimming the log.
func openSnapshots(store raft.SnapshotStore, log raft.LogStore) (*snapshots, error) {
	s := &snapshots{SnapshotStore: store, log: log, writing: map[position]bool{}}
	s.placed.Store(&position{})
	s.newest.Store(&position{})
	all, err := store.List()
	if err != nil || len(all) == 0 {
		return s, err
	}
	return s, s.follow(position{all[0].Index, all[0].Term})
}

// Create begins a snapshot. If the same one exists, writing it again is harmless; if it is still being written,
// Create returns an error, and the sender retries.
func (s *snapshots) Create(version raft.SnapshotVersion, index, term uint64, conf raft.Configuration, confIndex uint64,
	trans raft.Transport) (raft.SnapshotSink, error) {
	end := position{index, term}
	if s.refused != nil {
		if err := s.refused(end); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	busy := s.writing[end]
	s.writing[end] = true
	s.mu.Unlock()
	if busy {
		return nil, fmt.Errorf("the state snapshot of index %d, term %d is being written; try again", index, term)
	}
	sink, err := s.SnapshotStore.Create(version, index, term, conf, confIndex, trans)
	var all []*raft.SnapshotMeta
	if err == nil {
		all, err = s.List()
	}
	if err == nil && slices.ContainsFunc(all, func(m *raft.SnapshotMeta) bool { return m.ID == sink.ID() }) {
		id := sink.ID()
		err = sink.Cancel()
		sink = stored(id)
	}
	if err != nil {
		s.written(end)
		return nil, err
	}
	return &followed{SnapshotSink: sink, store: s, end: end}, nil
}

// written records that a snapshot is no longer being written.
func (s *snapshots) written(end position) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.writing, end)
}

// follow removes everything up to the end of a snapshot from the log, unless the log contains that very end: then the
// snapshot was taken here. Entries after it stay; the leader's next entries replace them if they differ.
func (s *snapshots) follow(end position) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if end.index < s.end().index {
		return nil // a newer one from a leader came first
	}
	s.placed.Store(&end)
	var last raft.Log
	if err := s.log.GetLog(end.index, &last); err != nil || last.Term != end.term {
		if err := s.forget(end.index); err != nil {
			return err
		}
	}
	s.newest.Store(&end)
	return nil
}

// forget removes the log entries up to an index.
func (s *snapshots) forget(index uint64) error {
	first, err := s.log.FirstIndex()
	if err != nil || first == 0 || first > index {
		return err
	}
	return s.log.DeleteRange(first, index)
}

// end returns where the newest snapshot ends to which the log is trimmed.
func (s *snapshots) end() position { return *s.newest.Load() }

// followed is a snapshot being written; closing it trims the log.
type followed struct {
	raft.SnapshotSink
	store *snapshots
	end   position
}

// Close puts the snapshot into place and trims the log.
func (f *followed) Close() error {
	defer f.store.written(f.end)
	if err := f.SnapshotSink.Close(); err != nil {
		return err
	}
	return f.store.follow(f.end)
}

// Cancel discards the snapshot.
func (f *followed) Cancel() error {
	defer f.store.written(f.end)
	return f.SnapshotSink.Cancel()
}

// stored stands for a snapshot, by its name, that is already in place. Writes to it are discarded.
type stored string

func (s stored) ID() string                    { return string(s) }
func (stored) Write(b []byte) (n int, _ error) { return len(b), nil }
func (stored) Close() error                    { return nil }
func (stored) Cancel() error                   { return nil }
