package consensus

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// suffixBytes is the length in bytes of the random suffix of a server id, which is written in hexadecimal.
const suffixBytes = 4

// serverIDKey is the key of the server id in the stable store: wiping the log wipes the id.
var serverIDKey = []byte("tidemark-server-id")

// Keys that the library uses.
var (
	currentTermKey = []byte("CurrentTerm")
	voteTermKey    = []byte("LastVoteTerm")
	voteKey        = []byte("LastVoteCand")
)

// storage holds what a node keeps on disk: log, votes, state snapshots, and the identity of the server.
type storage struct {
	*base
	store   *recorder
	logs    raft.LogStore // store, with a cache
	snaps   *snapshots
	disk    *disk
	cluster clusterName
	users   atomic.Bool   // stored: the cluster has had users
	member  atomic.Bool   // stored: this server was a member
	noted   atomic.Uint64 // stored format level
	epoch   atomic.Uint64 // stored epoch, 0: none

	contradictions contradictions
}

// openStore examines the stored data, opens the store, and sets the node's server id.
func (st *storage) openStore() error {
	path := st.cfg.database()
	if err := st.examine(); err != nil {
		return err
	}
	store, err := raftboltdb.New(raftboltdb.Options{
		Path: path,
		BoltOptions: &bbolt.Options{
			Timeout:        boltOpenTimeout,
			NoFreelistSync: true,
			FreelistType:   bbolt.FreelistMapType,
		},
		MsgpackUseNewTimeFormat: true,
	})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return inUse(path)
	}
	if err != nil {
		return fmt.Errorf("%w: open %s: %w", ErrStore, path, err)
	}
	st.store = &recorder{BoltStore: store, disk: st.disk, stop: st.stop}
	if st.logs, err = raft.NewLogCache(logCacheEntries, st.store); err == nil {
		var files *raft.FileSnapshotStore
		if files, err = raft.NewFileSnapshotStoreWithLogger(st.cfg.Dir, snapshotsKept,
			st.cfg.Logger.Named("snapshot")); err == nil {
			st.snaps, err = openSnapshots(files, st.logs)
		}
	}
	if err == nil {
		st.id, err = st.serverID()
	}
	if err == nil {
		err = errors.Join(st.checkLevel(), st.openIdentity())
	}
	if err == nil {
		err = st.openCommitted()
	}
	if err != nil {
		if !errors.Is(err, ErrRemoved) {
			err = fmt.Errorf("%w: %s: %w", ErrStore, st.cfg.Dir, err)
		}
		return errors.Join(err, st.store.Close())
	}
	st.store.removable, st.store.forked, st.snaps.refused = st.removable, st.forked, st.replaced
	return nil
}

// covers reports whether this node's state contains everything up to p, and its newest state snapshot ends there.
func (st *storage) covers(p position) bool {
	return st.snaps.end() == p && st.raft.AppliedIndex() >= p.index
}

func inUse(path string) error {
	return fmt.Errorf("%w: %s is locked by another process; stop that process or choose another data directory", ErrInUse,
		path)
}

// serverID returns the stored server id, or creates one.
func (st *storage) serverID() (raft.ServerID, error) {
	stored, err := st.store.Get(serverIDKey)
	if err == nil && len(stored) > 0 {
		return raft.ServerID(stored), nil
	}
	if err != nil && !errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return "", err
	}
	if has, err := raft.HasExistingState(st.logs, st.store, st.snaps); err != nil || has {
		return "", errors.Join(fmt.Errorf("the directory has Raft state but no server id: %s is missing or empty, or the "+
			"directory was assembled from parts of others; "+damageAdvice, st.cfg.database(), st.cfg.Dir), err)
	}
	var suffix [suffixBytes]byte
	if _, err := rand.Read(suffix[:]); err != nil {
		return "", err
	}
	id := st.cfg.Name + "-" + hex.EncodeToString(suffix[:])
	return raft.ServerID(id), st.store.Set(serverIDKey, []byte(id))
}

// recorder is the log and the stable store as Raft sees them. It stores each entry with a checksum over everything
// that defines its meaning, and reports ErrDamaged if the entry does not read back; it times each write and records
// its failure (type disk). The library panics if it cannot write the current term; recorder retries that write until
// it succeeds, since a node that cannot store its term must not take part, but need not die. The library stores a
// vote in two writes, the term first; recorder stores it in one. Otherwise a disk that fills up between them would
// leave the new term with the candidate of the previous vote, and the library would take that candidate for the one
// it has voted for, without a check of the candidate's log. It removes no entry that was committed here and is in no
// state snapshot (removable). It gives entries their marks, and stores none that continues another log than this one.
type recorder struct {
	*raftboltdb.BoltStore
	voteTerm  uint64        // of the vote about to be stored; owned by Raft's goroutine
	last      tail          // owned by Raft's goroutine, the only one that stores entries
	removals  atomic.Uint64 // completed calls of DeleteRange, also those of the goroutine that takes state snapshots
	disk      *disk
	stop      <-chan struct{}
	committed *committed                   // nil before openCommitted
	removable func(low, high uint64) error // nil before Raft runs
	forked    func(at position) error      // nil before Raft runs
}

// Close closes the store and the record of what is committed.
func (r *recorder) Close() error {
	var err error
	if r.committed != nil {
		err = r.committed.close()
	}
	return errors.Join(err, r.BoltStore.Close())
}

// StoreLog implements raft.LogStore.
func (r *recorder) StoreLog(log *raft.Log) error { return r.StoreLogs([]*raft.Log{log}) }

// StoreLogs implements raft.LogStore.
func (r *recorder) StoreLogs(logs []*raft.Log) error {
	removals := r.removals.Load() // before the write: a removal at the same time may remove what is stored
	if l := r.stamp(logs); l != nil && r.forked != nil {
		return r.forked(position{l.Index, l.Term})
	}
	sealed := make([]raft.Log, len(logs))
	stored := make([]*raft.Log, len(logs))
	for i, l := range logs {
		sealed[i] = *l
		sealed[i].Extensions = seal(l)
		stored[i] = &sealed[i]
	}
	r.last = tail{} // after a write that fails it is not known what is stored
	if err := r.disk.write(func() error { return r.BoltStore.StoreLogs(stored) }); err != nil {
		return err
	}
	end := logs[len(logs)-1]
	r.last = tail{end.Index, decodeMark(end.Extensions), removals}
	return nil
}

// GetLog implements raft.LogStore. Errors wrap ErrDamaged if the stored entry is not what was written.
func (r *recorder) GetLog(index uint64, log *raft.Log) error {
	if err := r.BoltStore.GetLog(index, log); err != nil {
		if !errors.Is(err, raft.ErrLogNotFound) {
			err = fmt.Errorf("%w: log entry %d: %w", ErrDamaged, index, err)
		}
		return err
	}
	return unseal(log, index)
}

// DeleteRange implements raft.LogStore.
func (r *recorder) DeleteRange(low, high uint64) error {
	if r.removable != nil {
		if err := r.removable(low, high); err != nil {
			return err
		}
	}
	defer r.removals.Add(1) // even if it fails, and not before: what is stored until it ends may be removed
	return r.disk.write(func() error { return r.BoltStore.DeleteRange(low, high) })
}

// Set implements raft.StableStore.
func (r *recorder) Set(key, value []byte) error {
	if slices.Equal(key, voteKey) {
		value = append(binary.BigEndian.AppendUint64(nil, r.voteTerm), value...)
	}
	return r.disk.write(func() error { return r.BoltStore.Set(key, value) })
}

// Get implements raft.StableStore.
func (r *recorder) Get(key []byte) ([]byte, error) {
	value, err := r.BoltStore.Get(key)
	if err == nil && slices.Equal(key, voteKey) {
		_, value, err = splitVote(value)
	}
	return value, err
}

// GetUint64 implements raft.StableStore.
func (r *recorder) GetUint64(key []byte) (term uint64, err error) {
	if !slices.Equal(key, voteTermKey) {
		return r.BoltStore.GetUint64(key)
	}
	value, err := r.BoltStore.Get(voteKey)
	if err == nil {
		term, _, err = splitVote(value)
	}
	return term, err
}

// splitVote splits a stored vote into term and candidate.
func splitVote(value []byte) (term uint64, candidate []byte, err error) {
	if len(value) < 8 {
		return 0, nil, fmt.Errorf("%w: the stored vote has %d bytes", ErrDamaged, len(value))
	}
	return binary.BigEndian.Uint64(value), value[8:], nil
}

// SetUint64 implements raft.StableStore. The term of a vote is kept in memory until its candidate is stored.
func (r *recorder) SetUint64(key []byte, value uint64) error {
	if slices.Equal(key, voteTermKey) {
		r.voteTerm = value
		return nil
	}
	if slices.Equal(key, currentTermKey) { // at start the library writes the present term again; the disk may be full
		if have, err := r.GetUint64(key); err == nil && have == value {
			return nil
		}
	}
	for {
		err := r.disk.write(func() error { return r.BoltStore.SetUint64(key, value) })
		if err == nil || !slices.Equal(key, currentTermKey) {
			return err
		}
		r.disk.cfg.Logger.Error("term cannot be stored; this node does not vote until it can", "term", value, "error",
			err)
		rest := time.NewTimer(termRetry)
		select {
		case <-rest.C:
		case <-r.stop:
			rest.Stop()
			runtime.Goexit() // ends Raft's goroutine in order; at an error the library would panic
		}
	}
}

// termRetry is the pause between two attempts to store the current term.
const termRetry = 250 * time.Millisecond

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sumBytes is the length of the checksum at the end of a stored entry's extensions.
const sumBytes = 4

// seal returns the extensions of an entry, its mark, followed by its checksum over index, term, type, extensions and
// data. The library keeps extensions as they are, and passes them on.
func seal(l *raft.Log) []byte {
	return binary.LittleEndian.AppendUint32(slices.Clone(l.Extensions), sum(l, l.Extensions))
}

// head returns what defines an entry beside its data and extensions: index, term and type. Checksums and marks are over
// these bytes, and are stored.
func head(l *raft.Log) []byte {
	b := binary.LittleEndian.AppendUint64(make([]byte, 0, 25), l.Index) // one more number has room
	b = binary.LittleEndian.AppendUint64(b, l.Term)
	return append(b, byte(l.Type))
}

func sum(l *raft.Log, extensions []byte) uint32 {
	counted := binary.LittleEndian.AppendUint64(head(l), uint64(len(extensions)))
	crc := crc32.Update(crc32.Checksum(counted, castagnoli), castagnoli, extensions)
	return crc32.Update(crc, castagnoli, l.Data)
}

// unseal verifies a stored entry and removes its checksum. Entries written by versions without checksums have none.
func unseal(l *raft.Log, index uint64) error {
	if l.Index != index {
		return fmt.Errorf("%w: log entry %d has the index %d", ErrDamaged, index, l.Index)
	}
	if len(l.Extensions) == 0 {
		return nil
	}
	if len(l.Extensions) < sumBytes {
		return fmt.Errorf("%w: log entry %d: its checksum has %d bytes, want %d", ErrDamaged, index, len(l.Extensions),
			sumBytes)
	}
	own := l.Extensions[:len(l.Extensions)-sumBytes]
	want := binary.LittleEndian.Uint32(l.Extensions[len(own):])
	if got := sum(l, own); got != want {
		return fmt.Errorf("%w: log entry %d of term %d: checksum %08x, want %08x: the entry was changed after it was written",
			ErrDamaged, index, l.Term, got, want)
	}
	if l.Extensions = own; len(own) == 0 {
		l.Extensions = nil
	}
	return nil
}
