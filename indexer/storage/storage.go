// Package storage stores the index copies of one indexer: an ordered store per copy with a forward index (secondary
// key, document id) for scans and a back index (vbucket, document id) with each document's keys and the seqno that
// they reflect (IX-2, IX-3).
//
// It guarantees: a batch is applied whole or not at all, together with the positions it carries; applying is
// idempotent, because a version that is older than or equal to the stored one is skipped; after a crash a copy is
// exactly in the state after one of its batches, and identifies which; a snapshot is consistent and does not change;
// a damaged file is named and never read as if it were good. There is no write-ahead log: what a crash takes away is
// streamed again from KV.
//
// It never decides which positions are right, communicates with another process, or evaluates keys: keys are
// self-delimiting bytes in byte order (package collate).
package storage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"tidemark/index"
	"tidemark/internal/diskspace"
)

// Defaults of Options.
const (
	DefaultCacheBytes      = 256 << 20
	DefaultMemTableBytes   = 256 << 20
	DefaultReserveBytes    = 64 << 20
	DefaultVerifyBytes     = 256 << 20
	DefaultKeepCheckpoints = 3
	DefaultOpenFiles       = 512
)

// keptParts is the divisor of the cache size that bounds the memory of recent's written entries.
const keptParts = 4

// Options configures a Store. Dir is required; zero values select the defaults.
type Options struct {
	Dir string
	// CacheBytes is the size of the process-wide block cache.
	CacheBytes int64
	// MemTableBytes bounds what all copies together hold in memory before it is written.
	MemTableBytes int64
	// ReserveBytes of the disk (at most 2 % of it) stay free: a batch that would need them is refused.
	ReserveBytes int64
	// VerifyBytes of stored files, all copies together, are read and checked at Open. The rest is checked when it is
	// read.
	VerifyBytes int64
	// KeepCheckpoints is how many checkpoints each copy keeps.
	KeepCheckpoints int
	// OpenFiles bounds the table files that are kept open.
	OpenFiles int
	// Compactions bounds the concurrent compactions of all copies together (default: half of the processors, at least
	// one).
	Compactions int
	// Yield is called for each table that a merge writes. The function that it returns is called after each write,
	// with the time since the previous one, and may pause the merge in favor of other work. It is not called for a
	// merge that is overdue, whose slot other stores wait for, or whose copy is being closed. nil: merges never
	// pause.
	Yield  func() func(worked time.Duration)
	Logger hclog.Logger
	FS     vfs.FS // nil: the operating system's. Tests inject faults

	kept         int64                   // benchmarks use other values than CacheBytes/keptParts
	tune         func(o *pebble.Options) // benchmarks change settings
	closePersist time.Duration           // tests wait longer
}

func (o Options) withDefaults() Options {
	set := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	set(&o.CacheBytes, DefaultCacheBytes)
	set(&o.MemTableBytes, DefaultMemTableBytes)
	set(&o.ReserveBytes, DefaultReserveBytes)
	set(&o.VerifyBytes, DefaultVerifyBytes)
	set(&o.kept, o.CacheBytes/keptParts)
	if o.KeepCheckpoints == 0 {
		o.KeepCheckpoints = DefaultKeepCheckpoints
	}
	if o.OpenFiles == 0 {
		o.OpenFiles = DefaultOpenFiles
	}
	if o.Compactions == 0 {
		o.Compactions = max(1, runtime.GOMAXPROCS(0)/2)
	}
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.closePersist == 0 {
		o.closePersist = closePersist
	}
	return o
}

// Store is the folder with all copies of one indexer. Its methods may be called from any goroutine.
type Store struct {
	opts Options
	fs   vfs.FS
	log  hclog.Logger
	res  *resources
	lock io.Closer

	making   sync.WaitGroup // creations in progress
	common   commons
	exports  atomic.Uint64 // numbers the exports
	exported atomic.Int64  // bytes linked by open exports

	mu       sync.Mutex
	copies   map[index.CopyID]*Slice
	creating map[index.CopyID]int64
	removing map[index.CopyID]*Slice // retired, but not yet removed from the disk
	damaged  []Damage
	closed   bool
}

// Damage is a folder whose contents do not identify it as the copy that it is named after. Create of that copy
// replaces it.
type Damage struct {
	Folder string
	Copy   index.CopyID // from its name; 0 if the name is not that of a copy
	Bytes  uint64       // on disk, as far as known
	Err    error
}

const lockName = "LOCK"

const (
	// closePersist bounds how long closing the store waits for memory to be flushed.
	closePersist = 3 * time.Second
	// closeAtOnce is the number of copies that are closed concurrently.
	closeAtOnce = 8
)

// Open opens the folder and every copy in it. Each copy is at its last durable batch; a damaged one is at its newest
// intact checkpoint, or empty: see (*Slice).Recovery. An error means that the folder cannot be used at all: it wraps
// ErrLocked, ErrIO or ErrNewer, or names the copy that cannot be read for a reason other than damage.
func Open(o Options) (*Store, error) {
	o = o.withDefaults()
	if o.Dir == "" {
		return nil, fmt.Errorf("%w: no folder for index data", ErrInvalid)
	}
	err := o.FS.MkdirAll(o.Dir, 0o700)
	if err == nil {
		err = syncDir(o.FS, o.FS.PathDir(o.Dir))
	}
	if err != nil {
		return nil, fmt.Errorf("%w: create %s: %w", ErrIO, o.Dir, err)
	}
	lock, err := o.FS.Lock(o.FS.PathJoin(o.Dir, lockName))
	if err != nil {
		return nil, fmt.Errorf("%w: %s (stop the other indexer, or give this one its own folder): %w", ErrLocked, o.Dir, err)
	}
	// Memtables are charged to the cache, so their size is added to it.
	cache := pebble.NewCache(o.CacheBytes + o.MemTableBytes)
	s := &Store{
		opts: o, fs: o.FS, log: o.Logger, lock: lock, copies: map[index.CopyID]*Slice{},
		removing: map[index.CopyID]*Slice{},
		res: &resources{
			fs: o.FS, tune: o.tune, yield: o.Yield, cache: cache, files: pebble.NewFileCache(max(1, o.Compactions), o.OpenFiles),
			compactions: newCompactions(o.Compactions), memory: newMemory(o.MemTableBytes, o.kept), logger: o.Logger,
			mostIdle: min(maxAllIdle, o.CacheBytes/idleCache),
			space:    &space{fs: o.FS, dir: o.Dir, reserve: o.ReserveBytes, files: diskspace.Of},
		},
	}
	s.res.space.fill()
	s.loadCommon()
	if err := s.openAll(); err != nil {
		if errors.Is(err, ErrDiskFull) {
			err = fmt.Errorf("%w; make room on the disk of %s and start the indexer again: nothing is lost", err, o.Dir)
		}
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// openAll opens the copies, after removing what an interrupted Drop or Create left behind.
func (s *Store) openAll() error {
	names, err := s.fs.List(s.opts.Dir)
	if err != nil {
		return fmt.Errorf("%w: list %s: %w", ErrIO, s.opts.Dir, err)
	}
	slices.Sort(names)
	var found []string
	for _, name := range names {
		dir := s.fs.PathJoin(s.opts.Dir, name)
		switch _, err := index.ParseID(name); {
		case strings.HasSuffix(name, tmpSuffix) || err == nil && exists(s.fs, s.fs.PathJoin(dir, droppedName)):
			if err := s.fs.RemoveAll(dir); err != nil {
				return fmt.Errorf("%w: remove %s: %w", ErrIO, dir, err)
			}
		case err == nil:
			found = append(found, dir)
		}
	}
	budget := s.opts.VerifyBytes
	for _, dir := range found {
		slice, read, err := openSlice(s, dir, s.res.memory.share(len(found)), budget)
		budget -= read
		var corrupt *CorruptError
		if errors.As(err, &corrupt) {
			s.log.Error("folder of a copy is unreadable except for its name; the copy must be built "+
				"again", "folder", dir, "error", err)
			s.damaged = append(s.damaged, Damage{Folder: dir, Copy: copyOf(s.fs.PathBase(dir)), Bytes: bytesBelow(s.fs, dir),
				Err: err})
			continue
		}
		if err != nil {
			return err
		}
		s.copies[slice.meta.Copy] = slice
	}
	return nil
}

// Damaged returns the folders that Open could not use as copies.
func (s *Store) Damaged() []Damage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.damaged)
}

// DropDamaged removes the damaged folder that is named after a copy. It returns false if there is none.
func (s *Store) DropDamaged(id index.CopyID) (bool, error) {
	dir, ok := s.keepDamaged(id)
	if !ok {
		return false, nil
	}
	tmp, err := s.moveAway(dir)
	s.leavePlace(id)
	if err != nil {
		return false, err
	}
	s.removeMoved(tmp)
	return true, nil
}

// keepDamaged reserves the id of a copy whose folder is damaged, so that no other operation touches the folder.
func (s *Store) keepDamaged(id index.CopyID) (dir string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.damaged, func(d Damage) bool { return d.Copy == id })
	if _, soon := s.creating[id]; id == 0 || i < 0 || s.closed || soon {
		return "", false
	}
	s.keepLocked(id, 0)
	return s.damaged[i].Folder, true
}

// keepLocked reserves a copy's id and a share of the memory until leavePlace. The caller holds the lock.
func (s *Store) keepLocked(id index.CopyID, share int64) {
	if s.creating == nil {
		s.creating = map[index.CopyID]int64{}
	}
	s.creating[id] = share
	s.making.Add(1)
}

// leavePlace releases a reserved id.
func (s *Store) leavePlace(id index.CopyID) {
	s.mu.Lock()
	delete(s.creating, id)
	s.mu.Unlock()
	s.making.Done()
}

// moveAway renames a folder that is not a copy's to a name that is removed at the next start at the latest, and
// removes it from the list of damaged folders. The caller has reserved the copy's id. The lock is not held during the
// renaming, so that operations on other copies do not wait for the disk.
func (s *Store) moveAway(dir string) (tmp string, err error) {
	tmp = dir + "-" + strconv.FormatUint(rand.Uint64(), 16) + tmpSuffix
	if err := s.fs.Rename(dir, tmp); err != nil {
		return "", fmt.Errorf("%w: move %s away: %w", ErrIO, dir, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.damaged = slices.DeleteFunc(s.damaged, func(d Damage) bool { return d.Folder == dir })
	return tmp, nil
}

// removeMoved removes a folder that was moved away.
func (s *Store) removeMoved(tmp string) {
	if err := s.fs.RemoveAll(tmp); err != nil {
		s.log.Warn("rest of a folder without a readable copy stays until the next start", "folder", tmp, "error", err)
	}
}

// copyOf returns the copy whose folder has this name, or 0.
func copyOf(name string) index.CopyID {
	n, err := index.ParseID(name)
	if id := index.CopyID(n); err == nil && id.String() == name {
		return id
	}
	return 0
}

// bytesBelow returns the total size of the files in a folder.
func bytesBelow(fs vfs.FS, dir string) (sum uint64) {
	names, _ := fs.List(dir)
	for _, name := range names {
		path := fs.PathJoin(dir, name)
		switch info, err := fs.Stat(path); {
		case err != nil:
		case info.IsDir():
			sum += bytesBelow(fs, path)
		default:
			sum += uint64(max(info.Size(), 0))
		}
	}
	return sum
}

// Slices returns the copies, sorted by id.
func (s *Store) Slices() []*Slice {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*Slice, 0, len(s.copies))
	for _, c := range s.copies {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *Slice) int { return int(int64(a.meta.Copy - b.meta.Copy)) })
	return all
}

// Room returns how many bytes new copies may occupy, beyond the reserve and what is promised to data in memory, and at
// least 1; 0 if the disk cannot be measured.
func (s *Store) Room() uint64 {
	usage, err := s.fs.GetDiskUsage(s.opts.Dir)
	switch {
	case err != nil:
		return 0
	case s.res.space.few() != "":
		return 1
	}
	return uint64(max(s.res.space.left(&usage), 1))
}

// Exported returns the number of bytes linked by open exports. Files of them that compactions have replaced since
// occupy disk space only for the exports.
func (s *Store) Exported() int64 { return s.exported.Load() }

// Slice returns a copy.
func (s *Store) Slice(id index.CopyID) (*Slice, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.copies[id]
	return c, ok
}

// Create creates an empty copy. It is durable when Create returns. Errors wrap ErrExists, ErrInvalid, ErrDiskFull or
// ErrIO.
func (s *Store) Create(m Meta) (*Slice, error) {
	dir, share, err := s.reserve(m)
	if err != nil {
		return nil, err
	}
	defer s.making.Done()
	slice, err := createSlice(s, dir, m, share)
	s.mu.Lock()
	delete(s.creating, m.Copy)
	closed := s.closed
	if err == nil && !closed {
		s.copies[m.Copy] = slice
	}
	s.mu.Unlock()
	switch {
	case err != nil:
		return nil, err
	case closed:
		return nil, errors.Join(fmt.Errorf("create copy %s: store %s: %w", m.Copy, s.opts.Dir, ErrClosed),
			slice.end(context.Background(), false))
	}
	return slice, nil
}

// reserve checks that a copy can be created and reserves its id. Several copies may be created concurrently, because
// most of the time is spent waiting for the disk. Close waits for making.
func (s *Store) reserve(m Meta) (dir string, share int64, err error) {
	if err := m.check(); err != nil {
		return "", 0, err
	}
	dir = s.fs.PathJoin(s.opts.Dir, m.Copy.String())
	removing, share, err := s.keepPlace(m)
	if err != nil {
		return "", 0, err
	}
	if err = s.clear(m.Copy, dir, removing); err == nil {
		err = s.res.space.room(minMemTable)
	}
	if err != nil {
		s.leavePlace(m.Copy)
		return "", 0, err
	}
	return dir, share, nil
}

// keepPlace reserves the id of a copy to be created. removing reports that an earlier copy with the id is still being
// removed.
func (s *Store) keepPlace(m Meta) (removing bool, share int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false, 0, fmt.Errorf("create copy %s: store %s: %w", m.Copy, s.opts.Dir, ErrClosed)
	}
	_, there := s.copies[m.Copy]
	if _, soon := s.creating[m.Copy]; there || soon {
		return false, 0, fmt.Errorf("%w: copy %s in %s", ErrExists, m.Copy, s.opts.Dir)
	}
	share = s.res.memory.next(s.creating)
	s.keepLocked(m.Copy, share)
	return s.removing[m.Copy] != nil, share, nil
}

// clear removes the folder that occupies the place of a copy to be created: a damaged one, or the remains of a failed
// Create or removal. It does not wait for one that is still being removed, but returns an error.
func (s *Store) clear(id index.CopyID, dir string, removing bool) error {
	if !exists(s.fs, dir) {
		return nil
	}
	if removing {
		return fmt.Errorf("%w: copy %s is being removed from %s", ErrExists, id, s.opts.Dir)
	}
	moved, err := s.moveAway(dir)
	if err == nil {
		s.removeMoved(moved)
	}
	return err
}

// Drop removes a copy: it calls Retire and then the function that Retire returns.
func (s *Store) Drop(id index.CopyID) error {
	remove, err := s.Retire(id)
	if err != nil {
		return err
	}
	return remove()
}

// Retire removes a copy. When it returns, the copy is gone for good, also after a crash. The function that it returns
// closes the copy and frees its disk space, which takes longer; with open snapshots, the last one to be closed does
// that. Until then no copy with the id can be created; if it fails, Create removes the remains. If the copy does not
// exist, the error wraps ErrNotFound. Copies may be retired concurrently.
func (s *Store) Retire(id index.CopyID) (remove func() error, err error) {
	s.mu.Lock()
	slice, ok := s.copies[id]
	if ok {
		delete(s.copies, id)
		s.removing[id] = slice
	}
	s.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("copy %s in %s: %w", id, s.opts.Dir, ErrNotFound)
	}
	err = writeSynced(s.fs, s.fs.PathJoin(slice.dir, droppedName), nil)
	if err == nil {
		err = syncDir(s.fs, slice.dir)
	}
	if err != nil {
		_ = s.fs.Remove(s.fs.PathJoin(slice.dir, droppedName)) // it remains a copy, also after the next start
		s.mu.Lock()
		delete(s.removing, id)
		s.copies[id] = slice
		s.mu.Unlock()
		return nil, classify(id, slice.dir, err)
	}
	return func() error { return slice.end(context.Background(), true) }, nil
}

// removed records that the removal of a retired copy from the disk has ended or failed.
func (s *Store) removed(c *Slice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removing[c.meta.Copy] == c { // otherwise another copy with the id was retired meanwhile
		delete(s.removing, c.meta.Copy)
	}
}

// Close closes every copy, flushing memory, and releases the folder. The error names snapshots that are still open;
// their copies are closed with the last of them.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	s.making.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), s.opts.closePersist)
	defer cancel()
	all := s.Slices()
	// otherwise closing the copies reports the errors
	if each(all, func(c *Slice) error { return c.Persist(ctx) }) == nil {
		if err := s.KeepCommon(); err != nil {
			s.log.Warn("shared file of positions was not written: each copy will continue from its own positions", "error", err)
		}
	}
	s.mu.Lock()
	s.copies = map[index.CopyID]*Slice{}
	s.mu.Unlock()
	err := each(all, func(c *Slice) error { return c.end(ctx, false) })
	s.res.files.Unref()
	s.res.cache.Unref()
	return errors.Join(err, s.lock.Close())
}

// each calls f for every slice, several concurrently, and returns all errors.
func each(all []*Slice, f func(*Slice) error) error {
	errs := make([]error, len(all))
	var g errgroup.Group
	g.SetLimit(closeAtOnce)
	for i, c := range all {
		g.Go(func() error {
			errs[i] = f(c)
			return nil
		})
	}
	_ = g.Wait() // all errors are collected
	return errors.Join(errs...)
}
