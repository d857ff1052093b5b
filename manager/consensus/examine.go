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

// The buckets of raft-boltdb.
const (
	logsBucket = "logs"
	confBucket = "conf"
)

// wayOut is what to do with a store that is not whole. It must not vote again as it is, nor start empty under its old
// id.
const wayOut = "this manager does not start on it. Way out: move %s away and start again; the manager joins under a " +
	"new id and takes" +
	" everything from the others; remove its old id from the cluster. If no majority is left, restore a backup"

// examine looks at a store before it is opened for writing: the file's length, every page in use, every entry's
// checksum, that a state snapshot is whole, and that the log goes on, without a gap, where it ends.
// Nothing is changed. Errors wrap ErrInUse or ErrStore, the latter ErrDamaged too, with the file and the way out.
func (st *storage) examine() error {
	path := st.cfg.database()
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && info.Size() == 0 {
		return nil // serverID looks for what should not be there without it
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
		return fmt.Errorf("%w: %w; "+wayOut, ErrStore, err, st.cfg.Dir)
	}
	return nil
}

// examineLog reads the whole database and gives the index from which the log has no gap, 0 when it is empty: a snapshot
// that the leader sent leaves one behind. A page that bbolt stumbles over makes it panic, or is a fault of the memory
// that it maps: both become errors here.
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
	defer db.Close() // read only: there is nothing to lose
	err = db.View(func(tx *bbolt.Tx) error {
		if tx.Size() > size {
			return fmt.Errorf("the file has %d bytes, its newest version needs %d: it was cut off", size, tx.Size())
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

// examineEntry checks one stored entry.
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

// examineSnapshots makes sure that there is a whole state snapshot that the log continues, if the log needs one. One
// that is not whole beside an older one that is costs nothing but the replay.
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
		return errors.Join(append(damaged, fmt.Errorf("%w: the log begins at entry %d and the newest whole state snapshot "+
			"ends at %d: "+
			"the entries between are missing", ErrDamaged, first, newest))...)
	}
	if len(damaged) > 0 && newest == 0 {
		return errors.Join(damaged...)
	}
	if len(damaged) > 0 {
		st.cfg.Logger.Warn("a state snapshot is damaged; an older one and the log hold everything", "error",
			errors.Join(damaged...))
	}
	return nil
}

// snapshotsIn returns the names of the finished state snapshots in a folder, which need not be there.
func snapshotsIn(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		if e.IsDir() && !strings.HasSuffix(e.Name(), ".tmp") { // those were never finished
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// examineSnapshot checks the content's checksum, and what the description says against the folder's name, which holds
// term and index too.
func examineSnapshot(store *raft.FileSnapshotStore, name string) (index uint64, err error) {
	meta, content, err := store.Open(name) // it reads all of it
	if err != nil {
		return 0, err
	}
	if err := content.Close(); err != nil {
		return 0, err
	}
	if meta.ID != name || !strings.HasPrefix(name, fmt.Sprintf("%d-%d-", meta.Term, meta.Index)) {
		return 0, fmt.Errorf("its description is of snapshot %s, term %d, index %d", meta.ID, meta.Term, meta.Index)
	}
	return meta.Index, nil
}
