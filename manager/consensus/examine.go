package consensus

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/hashicorp/raft"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// The buckets of raft-boltdb's database.
const (
	logsBucket = "logs"
	confBucket = "conf"
)

// damageAdvice is the advice to operators for a damaged store. The server must not vote with it as it is, nor start
// empty under its old id.
const damageAdvice = "this manager does not start with it. Remedy: move %s away and start again; the manager joins " +
	"under a new id and copies all data from the others; remove its old id from the cluster. If no majority is " +
	"left, restore a backup"

// examine verifies a store before it is opened for writing: the length of the file, every page in use, every entry's
// checksum, that a state snapshot is intact, and that the log continues from it without a gap. It changes nothing.
// Errors wrap ErrInUse, or ErrStore with ErrDamaged, and name the file and what to do.
func (st *storage) examine() error {
	path := st.cfg.database()
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && info.Size() == 0 {
		return nil // serverID finds what must not exist without it
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStore, err)
	}
	first, err := examineLog(path, info.Size())
	if errors.Is(err, bolterrors.ErrTimeout) {
		return inUse(path)
	}
	if err == nil {
		err = st.examineSnapshots(first)
	}
	if err != nil {
		return fmt.Errorf("%w: %w; "+damageAdvice, ErrStore, err, st.cfg.Dir)
	}
	return nil
}

// examineLog reads the whole database and returns the first index from which the log has no gap, 0 if the log is
// empty: a snapshot sent by the leader leaves a gap. A bad page makes bbolt panic, or causes a fault in the memory
// that it maps; both become errors here.
func examineLog(path string, size int64) (first uint64, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %s: %v", ErrDamaged, path, p)
		}
	}()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: boltOpenTimeout})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return 0, err
	}
	if err != nil {
		return 0, fmt.Errorf("%w: %s: %w", ErrDamaged, path, err)
	}
	defer db.Close() // opened read-only: an error here loses nothing
	err = db.View(func(tx *bbolt.Tx) error {
		if tx.Size() > size {
			return fmt.Errorf("the file has %d bytes, its newest version needs %d: it was truncated", size, tx.Size())
		}
		if b := tx.Bucket([]byte(confBucket)); b != nil {
			if err := b.ForEach(func(_, _ []byte) error { return nil }); err != nil {
				return err
			}
		}
		b := tx.Bucket([]byte(logsBucket))
		if b == nil {
			return nil
		}
		last := uint64(0)
		return b.ForEach(func(key, value []byte) error {
			index, err := examineEntry(key, value)
			if first == 0 || index != last+1 {
				first = index
			}
			last = index
			return err
		})
	})
	if err != nil {
		return 0, fmt.Errorf("%w: %s: %w", ErrDamaged, path, err)
	}
	return first, nil
}

// examineEntry verifies one stored entry.
func examineEntry(key, value []byte) (index uint64, err error) {
	if len(key) != 8 {
		return 0, fmt.Errorf("a log entry's key has %d bytes, want 8", len(key))
	}
	index = binary.BigEndian.Uint64(key)
	var l raft.Log
	if err := codec.NewDecoderBytes(value, &codec.MsgpackHandle{}).Decode(&l); err != nil {
		return index, fmt.Errorf("log entry %d: %w", index, err)
	}
	return index, unseal(&l, index)
}

// examineSnapshots verifies that, if the log needs one, there is an intact state snapshot that the log continues. A
// damaged snapshot beside an older intact one costs only the replay.
func (st *storage) examineSnapshots(first uint64) error {
	dir := filepath.Join(st.cfg.Dir, "snapshots")
	names, err := snapshotsIn(dir)
	if err != nil {
		return err
	}
	var store *raft.FileSnapshotStore
	if len(names) > 0 {
		if store, err = raft.NewFileSnapshotStoreWithLogger(st.cfg.Dir, snapshotsKept,
			st.cfg.Logger.Named("snapshot")); err != nil {
			return err
		}
	}
	newest, damaged := uint64(0), []error(nil)
	for _, name := range names {
		index, err := examineSnapshot(store, name)
		if err != nil {
			damaged = append(damaged, fmt.Errorf("%w: state snapshot %s: %w", ErrDamaged, filepath.Join(dir, name), err))
			continue
		}
		newest = max(newest, index)
	}
	if first > newest+1 {
		return errors.Join(append(damaged, fmt.Errorf("%w: the log begins at entry %d and the newest intact state snapshot "+
			"ends at %d: "+
			"the entries in between are missing", ErrDamaged, first, newest))...)
	}
	if len(damaged) > 0 && newest == 0 {
		return errors.Join(damaged...)
	}
	if len(damaged) > 0 {
		st.cfg.Logger.Warn("state snapshot is damaged; an older one and the log are complete", "error",
			errors.Join(damaged...))
	}
	return nil
}

// snapshotsIn returns the names of the finished state snapshots in a folder, which need not exist.
func snapshotsIn(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		if e.IsDir() && !strings.HasSuffix(e.Name(), ".tmp") { // a .tmp was never finished
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// examineSnapshot verifies the checksum of the content, and that the metadata matches the folder's name, which
// contains term and index.
func examineSnapshot(store *raft.FileSnapshotStore, name string) (index uint64, err error) {
	meta, content, err := store.Open(name) // verifies all of the content
	if err != nil {
		return 0, err
	}
	if err := content.Close(); err != nil {
		return 0, err
	}
	if meta.ID != name || !strings.HasPrefix(name, fmt.Sprintf("%d-%d-", meta.Term, meta.Index)) {
		return 0, fmt.Errorf("its description belongs to snapshot %s, term %d, index %d", meta.ID, meta.Term, meta.Index)
	}
	return meta.Index, nil
}
