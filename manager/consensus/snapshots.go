package consensus

import (
	"fmt"
	"slices"
	"sync"

	"github.com/hashicorp/raft"
)

// position is where a log, or a state snapshot, ends.
type position struct{ index, term uint64 }

// snapshots is the library's store of state snapshots, with two rules that the library lacks.
//
// What a snapshot does not continue goes from the log: the Raft paper has a follower discard its log when it has no
// entry at the end of a leader's snapshot, or one of another term (figure 13, rule 7); the library keeps it. Those
// entries may be what nobody wanted, and this node, once it leads, would send them to others as the past.
//
// One snapshot is written once. The library names them by term, index and millisecond, so that one which is sent twice
// within a millisecond has the name of the first: it cannot be put into place, the first is taken away with it, and the
// node is left without the log between them.
type snapshots struct {
	raft.SnapshotStore
	log raft.LogStore

	mu      sync.Mutex
	newest  position
	writing map[position]bool
}

// openSnapshots wraps a store, and lets the log follow the newest snapshot in it: the process may have ended between
// the two.
func openSnapshots(store raft.SnapshotStore, log raft.LogStore) (*snapshots, error) {
	s := &snapshots{SnapshotStore: store, log: log, writing: map[position]bool{}}
	all, err := store.List()
	if err != nil || len(all) == 0 {
		return s, err
	}
	return s, s.follow(position{all[0].Index, all[0].Term})
}

// Create begins a snapshot. One of the same place may be there already, but not on its way: whoever sends it tries
// again.
func (s *snapshots) Create(version raft.SnapshotVersion, index, term uint64, conf raft.Configuration, confIndex uint64,
	trans raft.Transport) (raft.SnapshotSink, error) {
	end := position{index, term}
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

// written says that a snapshot is no longer on its way.
func (s *snapshots) written(end position) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.writing, end)
}

// follow takes everything up to the end of a snapshot from the log, unless the log has that end itself, whole: then it
// was taken here. Entries behind it stay: the leader's next ones replace them, if they are others.
func (s *snapshots) follow(end position) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if end.index < s.newest.index {
		return nil // a leader's was quicker
	}
	var last raft.Log
	if err := s.log.GetLog(end.index, &last); err != nil || last.Term != end.term {
		if err := s.forget(end.index); err != nil {
			return err
		}
	}
	s.newest = end
	return nil
}

// forget takes the entries up to an index from the log.
func (s *snapshots) forget(index uint64) error {
	first, err := s.log.FirstIndex()
	if err != nil || first == 0 || first > index {
		return err
	}
	return s.log.DeleteRange(first, index)
}

// endAt reports whether the newest snapshot ends there.
func (s *snapshots) endAt(p position) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newest == p
}

// followed is a snapshot on its way, which the log follows when it is in place.
type followed struct {
	raft.SnapshotSink
	store *snapshots
	end   position
}

// Close puts the snapshot into place.
func (f *followed) Close() error {
	defer f.store.written(f.end)
	if err := f.SnapshotSink.Close(); err != nil {
		return err
	}
	return f.store.follow(f.end)
}

// Cancel drops the snapshot.
func (f *followed) Cancel() error {
	defer f.store.written(f.end)
	return f.SnapshotSink.Cancel()
}

// stored stands for a snapshot that is in place already, by its name. What is written to it is the same again.
type stored string

func (s stored) ID() string                    { return string(s) }
func (stored) Write(b []byte) (n int, _ error) { return len(b), nil }
func (stored) Close() error                    { return nil }
func (stored) Cancel() error                   { return nil }
