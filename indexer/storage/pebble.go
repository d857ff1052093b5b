package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/atomicfs"
	"github.com/hashicorp/go-hclog"

	"tidemark/index"
)

// Settings of the ordered store, measured for an index with its back index under random updates.
const (
	formatVersion   = pebble.FormatValueSeparation
	blockBytes      = 16 << 10
	indexBlockBytes = 256 << 10
	bloomBits       = 10
	l0Threshold     = 8
	l0Stop          = 1000 // writers are throttled by memory and disk space instead, see pebbleEngine.admit
	memTableStop    = 1000 // likewise
	baseLevelBytes  = 64 << 20
	tableBytes      = 16 << 20
	minMemTable     = 256 << 10
	maxMemTable     = 64 << 20
	// maxPending is the number of full memtables that may wait to be written before a flush waits for the oldest.
	maxPending = 2
	// entryOverhead is the memory cost of a record in addition to its bytes.
	entryOverhead = 48
)

// resources holds what all engines of a process share.
type resources struct {
	fs          vfs.FS
	tune        func(o *pebble.Options)           // nil: no changes
	yield       func() func(worked time.Duration) // nil: merges do not pause
	cache       *pebble.Cache
	files       *pebble.FileCache
	compactions *compactions
	space       *space
	memory      *memory
	idle        atomic.Int64 // idle iterators
	mostIdle    int64
	scratches   scratches
	logger      hclog.Logger
}

// pebbleEngine is an engine on cockroachdb/pebble: one DB without a write-ahead log, whose batches survive a crash up
// to the newest memtable that was written.
type pebbleEngine struct {
	id       index.CopyID
	dir      string
	res      *resources
	db       *pebble.DB
	health   *health
	compact  *compactor
	memTable int64
	vbuckets int
	opened   state
	readOnly bool

	flushes atomic.Uint64 // memtables written; when it changes, the durable state has changed
	changes atomic.Uint64 // of the set of tables
	corrupt atomic.Pointer[CorruptError]
	overdue atomic.Bool // of the merge that began last

	// Owned by the writer, guarded by the slice's write lock.
	fresh   bool     // no batch has been written since the engine was opened
	scratch *scratch // set during a write

	// Likewise, guarded by writing.
	recent   recent
	charged  int64  // part of it that is charged to the cache
	uncharge func() // releases that charge

	writing sync.Mutex // held from begin to end of a write; taken before rotation

	rotation sync.Mutex // one rotation at a time; taken before mem

	mem struct {
		sync.Mutex
		active    int64     // bytes since the last rotation
		pending   []rotated // memtables that are being written, oldest first
		moved     time.Time // when the oldest one began to be written
		rotations uint64    // number of the next rotation, from 1
		written   uint64    // rotations up to this one are in tables
		promised  int64     // disk space that is promised to active and pending
		lost      bool      // they will never be written
	}
	cached struct {
		sync.Mutex
		flushes uint64
		valid   bool
		state   state // durable as of flushes
		changes uint64
		sized   bool
		bytes   int64 // of the tables as of changes
		live    int64 // part of bytes, see liveBytes
	}
}

type rotated struct {
	number uint64
	bytes  int64
	done   <-chan struct{}
}

func (r *resources) options(e *pebbleEngine) *pebble.Options {
	o := &pebble.Options{
		FS:                          &guardFS{FS: r.fs, h: e.health, space: r.space, merge: e.mergeFile},
		Cache:                       r.cache,
		FileCache:                   r.files,
		DisableWAL:                  true,
		ReadOnly:                    e.readOnly,
		ErrorIfNotExists:            e.readOnly,
		MemTableSize:                uint64(e.memTable),
		MemTableStopWritesThreshold: memTableStop,
		L0CompactionThreshold:       l0Threshold,
		L0StopWritesThreshold:       l0Stop,
		L0CompactionFileThreshold:   10 * l0Stop,
		LBaseMaxBytes:               baseLevelBytes,
		FlushSplitBytes:             tableBytes,
		FormatMajorVersion:          formatVersion,
		Logger:                      engineLog{e},
	}
	o.Experimental.CompactionScheduler = e.compact
	// see footer.go for the checksum that row blocks lack
	o.Experimental.EnableColumnarBlocks = func() bool { return false }
	for i := range o.TargetFileSizes {
		o.TargetFileSizes[i] = tableBytes
	}
	for i := range o.Levels {
		o.Levels[i].BlockSize = blockBytes
		o.Levels[i].IndexBlockSize = indexBlockBytes
		o.Levels[i].FilterPolicy = backFilter{bloom.FilterPolicy(bloomBits)}
	}
	o.ApplyCompressionSettings(func() pebble.DBCompressionSettings { return pebble.DBCompressionNone })
	o.EventListener = &pebble.EventListener{
		BackgroundError: func(error) {},
		DataCorruption:  e.onCorruption,
		FlushEnd:        e.onFlush,
		CompactionBegin: func(info pebble.CompactionInfo) { e.overdue.Store(overdue(info)) },
		CompactionEnd:   e.onCompaction,
	}
	if r.tune != nil {
		r.tune(o)
	}
	return o
}

// openPebble opens or creates a folder. Errors of damaged folders are CorruptErrors.
func openPebble(res *resources, dir string, meta Meta, memTable int64, readOnly bool) (e *pebbleEngine, err error) {
	e = &pebbleEngine{
		id: meta.Copy, dir: dir, res: res, health: newHealth(), compact: res.compactions.member(),
		memTable: min(max(memTable, minMemTable), maxMemTable), vbuckets: meta.VBuckets, readOnly: readOnly, fresh: true,
		recent: newRecent(),
	}
	e.mem.rotations = 1
	defer func() {
		// The engine's decoders may panic on foreign bytes; a damaged file must not end the process.
		if p := recover(); p != nil {
			e.health.shut()
			e, err = nil, &CorruptError{Copy: meta.Copy, File: dir, Err: fmt.Errorf("open: %v", p)}
		}
	}()
	err = checkFormat(res.fs, dir)
	if err == nil && !readOnly {
		err = removeLogs(res.fs, dir)
	}
	if err == nil && !readOnly {
		err = markFormat(res.fs, dir)
	}
	if err == nil {
		e.db, err = pebble.Open(dir, res.options(e))
	}
	if err != nil {
		e.health.shut()
		return nil, damage(meta.Copy, dir, err)
	}
	e.opened, err = e.readState(false)
	if c := e.corrupt.Load(); err == nil && c != nil {
		err = c
	}
	if err != nil {
		return nil, errors.Join(damage(meta.Copy, dir, err), e.close())
	}
	if !readOnly {
		res.memory.join(e)
	}
	return e, nil
}

// openToRead opens a folder for reading alone, because the disk has no space for what opening it writes. It refuses
// batches with cause, like an engine that a full disk has stopped: see unwell.
func openToRead(res *resources, dir string, meta Meta, memTable int64, cause error) (*pebbleEngine, error) {
	e, err := openPebble(res, dir, meta, memTable, true)
	if err != nil {
		return nil, errors.Join(cause, err)
	}
	e.health.die(fmt.Errorf("%w: it can only be read: %w", ErrReopen, cause))
	res.logger.Error("a copy can only be read: there is no space to open it for writing", "copy", meta.Copy, "error",
		cause)
	return e, nil
}

// formatMarker is the name under which Pebble stores a folder's format.
const formatMarker = "format-version"

// checkFormat returns an error wrapping ErrNewer if a folder has a newer format than this program writes. It leaves
// an invalid format to Pebble.
func checkFormat(fs vfs.FS, dir string) error {
	is, err := atomicfs.ReadMarker(fs, dir, formatMarker)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if n, e := strconv.ParseUint(is, 10, 64); err == nil && e == nil && n > uint64(formatVersion) {
		return fmt.Errorf("%s: %w: format %d, this program supports %d", dir, ErrNewer, n, formatVersion)
	}
	return err
}

// markFormat writes the format of a new folder. Otherwise Pebble would start with its oldest format and migrate
// through all of them, each with a file created, synced and removed, which is half of the cost of a new copy.
func markFormat(fs vfs.FS, dir string) (err error) {
	if _, err := fs.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := fs.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	m, _, err := atomicfs.LocateMarker(fs, dir, formatMarker)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }() // Close panics if a folder cannot be synced
	return m.Move(formatVersion.String())
}

// removeLogs removes write-ahead logs. They are empty, but because of them Pebble would write its manifest, and on a
// failing disk retry that forever.
func removeLogs(fs vfs.FS, dir string) error {
	names, err := fs.List(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, name := range names {
		if strings.HasSuffix(name, ".log") {
			err = errors.Join(err, fs.Remove(fs.PathJoin(dir, name)))
		}
	}
	return err
}

func (e *pebbleEngine) state() state { return e.opened }

// readState reads the newest state, or the newest durable one.
func (e *pebbleEngine) readState(durable bool) (state, error) {
	s := newState(e.vbuckets)
	it, err := e.db.NewIter(&pebble.IterOptions{
		LowerBound: []byte{tagLog}, UpperBound: []byte{tagState + 1}, OnlyReadGuaranteedDurable: durable,
	})
	if err != nil {
		return s, err
	}
	err = collectState(&s, it)
	return s, errors.Join(err, it.Close())
}

// close closes the engine. A panic of a damaged store becomes an error.
func (e *pebbleEngine) close() (err error) {
	e.health.shut()
	e.compact.stop()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("close %s: %v", e.dir, p)
		}
	}()
	held := e.disown()
	e.writing.Lock()
	e.recent = newRecent()
	e.charge()
	e.writing.Unlock()
	e.res.memory.leave(e, held)
	e.lose()
	return e.db.Close()
}

func (e *pebbleEngine) failing() error {
	if c := e.corrupt.Load(); c != nil {
		return c
	}
	err, _ := e.unwell()
	return err
}

// unwell is health.get, except that an engine that was stopped by a full disk reports the lack of space while it
// lasts: it stays readable, and should not be reopened before there is space.
func (e *pebbleEngine) unwell() (err error, changed <-chan struct{}) {
	err, changed = e.health.get()
	if errors.Is(err, ErrReopen) && errors.Is(err, ErrDiskFull) {
		if full := e.res.space.proven(minMemTable); full != nil {
			return full, changed
		}
	}
	return err, changed
}

// broken implements engine. It does not use admit, whose other refusals, such as lack of space, are no reason to
// recover.
func (e *pebbleEngine) broken() error {
	if err := e.failing(); NeedsRecover(err) {
		return classify(e.id, e.dir, err)
	}
	return nil
}

// stuck implements engine.
func (e *pebbleEngine) stuck() error {
	if !e.readOnly {
		return nil
	}
	if err := e.failing(); errors.Is(err, ErrDiskFull) && !NeedsRecover(err) {
		return classify(e.id, e.dir, err)
	}
	return nil
}

func (e *pebbleEngine) onFlush(info pebble.FlushInfo) {
	if info.Err != nil && len(info.Output) == 0 && info.Err.Error() != "pebble: empty table" {
		if e.health.fail(classify(e.id, e.dir, info.Err)) { // all copies on a full disk try once a second
			e.res.logger.Debug("writing a memtable failed again", "copy", e.id, "error", info.Err)
		} else {
			e.res.logger.Error("writing a memtable failed, trying again until it succeeds", "copy", e.id, "error", info.Err)
		}
		return
	}
	e.flushes.Add(1)
	e.changes.Add(1)
	e.compact.changed()
	if e.health.ok() {
		e.res.logger.Info("memtables can be written again", "copy", e.id)
	}
}

// overdue reports whether a merge is late. Merges are due at half of l0Threshold tables in level 0, all of which
// every scan and every changed key has to read; a merge is late at four times that number. Large memtables produce
// several tables that do not overlap; in that case merges yield less than they could.
func overdue(info pebble.CompactionInfo) bool {
	return slices.ContainsFunc(info.Input, func(l pebble.LevelInfo) bool {
		return l.Level == 0 && len(l.Tables) >= 2*l0Threshold
	})
}

// mergeFile returns the file that a merge writes a table to. Unless the merge is overdue, it pauses for other work.
func (e *pebbleEngine) mergeFile(f vfs.File) vfs.File {
	if e.res.yield == nil || e.overdue.Load() {
		return f
	}
	return &mergeFile{File: f, compact: e.compact, yield: e.res.yield(), since: time.Now()}
}

func (e *pebbleEngine) onCompaction(info pebble.CompactionInfo) {
	e.changes.Add(1)
	if errors.Is(info.Err, pebble.ErrCancelledCompaction) {
		return
	}
	again := e.compact.ended(info.Err == nil)
	switch {
	case info.Err == nil:
	case again: // copies on a full disk retry continuously
		e.res.logger.Debug("compaction failed again", "copy", e.id, "error", info.Err)
	default:
		e.res.logger.Warn("compaction failed, trying again later", "copy", e.id, "error", info.Err)
	}
}

// onCorruption records the first damaged file. Writes and compactions stop, reads of other files continue.
func (e *pebbleEngine) onCorruption(info pebble.DataCorruptionInfo) {
	c := &CorruptError{Copy: e.id, File: info.Path, Err: info.Details}
	if e.corrupt.CompareAndSwap(nil, c) {
		e.res.logger.Error("damaged file", "copy", e.id, "file", info.Path, "error", info.Details)
	}
	e.compact.stop()
}

func (e *pebbleEngine) stats() engineStats {
	active, pending := e.weights()
	disk, live := e.sizes()
	return engineStats{diskBytes: disk, liveBytes: live, memoryBytes: active + pending}
}

// sizes returns the size of the live tables, and an estimate of the part that is not garbage. It looks them up again
// only when they have changed. It does not use Pebble's metrics, which wait for a manifest that is being written,
// possibly long on a full disk.
func (e *pebbleEngine) sizes() (disk, live int64) {
	changes := e.changes.Load()
	e.cached.Lock()
	defer e.cached.Unlock()
	if e.cached.sized && e.cached.changes == changes {
		return e.cached.bytes, e.cached.live
	}
	levels, err := e.db.SSTables()
	if err != nil {
		return e.cached.bytes, e.cached.live
	}
	e.cached.sized, e.cached.changes, e.cached.bytes = true, changes, 0
	for _, size := range tableSizes(levels) {
		e.cached.bytes += size
	}
	e.cached.live = min(liveBytes(levels), e.cached.bytes)
	return e.cached.bytes, e.cached.live
}

// liveBytes estimates what a full compaction would leave: the tables of the lowest level, and those above it that do
// not overlap them. The other tables most often hold newer versions of what is below.
func liveBytes(levels [][]pebble.SSTableInfo) (live int64) {
	var lowest []pebble.SSTableInfo // sorted and disjoint
	for i := len(levels) - 1; i >= 0; i-- {
		if len(levels[i]) > 0 && (len(lowest) == 0 && i > 0) {
			lowest = levels[i]
			for _, t := range lowest {
				live += int64(t.Size)
			}
			continue
		}
		for _, t := range levels[i] {
			at, _ := slices.BinarySearchFunc(lowest, t.Smallest.UserKey,
				func(l pebble.SSTableInfo, key []byte) int { return bytes.Compare(l.Largest.UserKey, key) })
			if at == len(lowest) || bytes.Compare(t.Largest.UserKey, lowest[at].Smallest.UserKey) < 0 {
				live += int64(t.Size)
			}
		}
	}
	return live
}

// weights returns the bytes in memory: of the active memtable, and of those being written.
func (e *pebbleEngine) weights() (active, pending int64) {
	e.mem.Lock()
	defer e.mem.Unlock()
	for _, r := range e.mem.pending {
		pending += r.bytes
	}
	return e.mem.active, pending
}

// disown returns the sum of weights and sets them to 0, so that no bytes are counted twice. It waits for a rotation
// in progress, during which the bytes being moved are in neither.
func (e *pebbleEngine) disown() (held int64) {
	e.rotation.Lock()
	defer e.rotation.Unlock()
	e.mem.Lock()
	defer e.mem.Unlock()
	held = e.mem.active
	for _, r := range e.mem.pending {
		held += r.bytes
	}
	e.mem.active, e.mem.pending = 0, nil
	return held
}

func (e *pebbleEngine) durable() (state, error) {
	flushes := e.flushes.Load()
	e.cached.Lock()
	defer e.cached.Unlock()
	if e.cached.valid && e.cached.flushes == flushes {
		return e.cached.state, nil
	}
	s, err := e.readState(true)
	if err != nil {
		return s, classify(e.id, e.dir, err)
	}
	e.cached.valid, e.cached.flushes, e.cached.state = true, flushes, s
	return s, nil
}

func (e *pebbleEngine) persist(ctx context.Context) error {
	if e.readOnly {
		return nil // there is nothing in memory
	}
	if err, _ := e.unwell(); err != nil {
		return classify(e.id, e.dir, err)
	}
	done, err := e.newest()
	if err != nil || done == nil {
		return err
	}
	return e.await(ctx, done)
}

// newest returns a channel that is closed when everything applied so far is written, nil if it is. It rotates only a
// memtable that is not empty, so that repeated calls queue nothing.
func (e *pebbleEngine) newest() (<-chan struct{}, error) {
	e.rotation.Lock()
	defer e.rotation.Unlock()
	e.mem.Lock()
	active, last := e.mem.active, (<-chan struct{})(nil)
	if n := len(e.mem.pending); n > 0 {
		last = e.mem.pending[n-1].done
	}
	e.mem.Unlock()
	if active == 0 {
		return last, nil
	}
	return e.rotateLocked()
}

// await waits until a memtable is written, the engine fails, or ctx ends.
func (e *pebbleEngine) await(ctx context.Context, done <-chan struct{}) error {
	for {
		err, changed := e.unwell()
		select {
		case <-done:
			return nil
		default:
		}
		if err != nil {
			return classify(e.id, e.dir, err)
		}
		select {
		case <-done:
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("copy %s: %w", e.id, context.Cause(ctx))
		case <-e.health.closing:
			return fmt.Errorf("copy %s: %w", e.id, ErrClosed)
		}
	}
}

// rotate passes the memtable to the background writer.
func (e *pebbleEngine) rotate() (<-chan struct{}, error) {
	e.rotation.Lock()
	defer e.rotation.Unlock()
	return e.rotateLocked()
}

// rotateLocked counts as written at most what the rotated memtable surely holds. The number is incremented first: an
// entry noted under a number is never in a later memtable than that of the number's rotation.
func (e *pebbleEngine) rotateLocked() (<-chan struct{}, error) {
	e.mem.Lock()
	n, number := e.mem.active, e.mem.rotations
	e.mem.active = 0
	e.mem.rotations++
	e.mem.Unlock()
	done, err := e.db.AsyncFlush()
	e.mem.Lock()
	defer e.mem.Unlock()
	if err != nil {
		e.mem.active += n
		return nil, classify(e.id, e.dir, err)
	}
	if len(e.mem.pending) == 0 {
		e.mem.moved = time.Now()
	}
	e.mem.pending = append(e.mem.pending, rotated{number, n, done})
	return done, nil
}

// reap forgets memtables that have been written, and returns the oldest that has not.
func (e *pebbleEngine) reap() (oldest <-chan struct{}, pending int) {
	e.mem.Lock()
	var freed int64
	for len(e.mem.pending) > 0 {
		select {
		case <-e.mem.pending[0].done:
			freed += e.mem.pending[0].bytes
			e.mem.written = e.mem.pending[0].number
			e.mem.pending, e.mem.moved = e.mem.pending[1:], time.Now()
			continue
		default:
		}
		oldest = e.mem.pending[0].done
		break
	}
	pending = len(e.mem.pending)
	e.mem.Unlock()
	if freed > 0 {
		e.promise(-freed)
		e.res.memory.add(-freed)
	}
	return oldest, pending
}

// stalledFor returns for how long no memtable has been written although some wait; 0 if none does.
func (e *pebbleEngine) stalledFor() time.Duration {
	e.mem.Lock()
	defer e.mem.Unlock()
	if len(e.mem.pending) == 0 {
		return 0
	}
	return time.Since(e.mem.moved)
}

// promise changes how much disk space is promised to data in memory.
func (e *pebbleEngine) promise(n int64) {
	e.mem.Lock()
	defer e.mem.Unlock()
	if !e.mem.lost {
		e.mem.promised += n
		e.res.space.promise(n)
	}
}

// lose records that the data in memory will never be written, and releases the disk space promised to it.
func (e *pebbleEngine) lose() {
	e.mem.Lock()
	defer e.mem.Unlock()
	e.res.space.promise(-e.mem.promised)
	e.mem.promised, e.mem.lost = 0, true
}

// admit refuses or delays a batch of n bytes: it fails while the engine fails or there is no disk space, and waits
// while too much is not yet written, at most until ctx ends.
func (e *pebbleEngine) admit(ctx context.Context, n int64, yields bool) error {
	if err := e.failing(); err != nil {
		return classify(e.id, e.dir, err)
	}
	oldest, pending := e.reap()
	if err := e.res.space.room(n); err != nil {
		return classify(e.id, e.dir, err)
	}
	for pending > maxPending {
		if err := e.await(ctx, oldest); err != nil {
			return err
		}
		oldest, pending = e.reap()
	}
	if err := e.res.memory.admit(ctx, n, yields); err != nil {
		return fmt.Errorf("copy %s: %w", e.id, err)
	}
	return nil
}

// applied accounts for a batch, and starts writing memtables when one is full or all together are too large.
func (e *pebbleEngine) applied(n int64) error {
	e.mem.Lock()
	e.mem.active += n
	full := e.mem.active >= e.memTable*3/4
	e.mem.Unlock()
	e.promise(n)
	e.res.memory.add(n)
	if full {
		_, err := e.rotate()
		return err
	}
	return e.res.memory.shrink()
}

// checkpoint implements engine. A store that has written nothing since it was opened has no manifest to copy;
// rotating an empty memtable makes Pebble write one.
func (e *pebbleEngine) checkpoint(ctx context.Context, dir string) error {
	if e.flushes.Load() == 0 {
		done, err := e.rotate()
		if err == nil {
			err = e.await(ctx, done)
		}
		if err != nil {
			return err
		}
	}
	return classify(e.id, e.dir, e.db.Checkpoint(dir))
}

// verify reads every block of the tables and checks its checksum.
func (e *pebbleEngine) verify(ctx context.Context, budget int64, pace Pace) (read int64, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &CorruptError{Copy: e.id, File: e.dir, Err: fmt.Errorf("verify: %v", p)}
		}
	}()
	tables, err := e.tables()
	if err != nil {
		return 0, damage(e.id, e.dir, err)
	}
	for number, size := range tables {
		if budget >= 0 && read+size > budget {
			continue
		}
		path := e.res.fs.PathJoin(e.dir, fmt.Sprintf("%06d.sst", number))
		err := verifyTable(ctx, e.res.fs, path, e.readerOptions(), pace)
		if ctx.Err() != nil {
			return read, fmt.Errorf("checking copy %s: %w", e.id, context.Cause(ctx))
		}
		if errors.Is(err, os.ErrNotExist) {
			now, lerr := e.tables()
			if _, live := now[number]; lerr == nil && !live {
				continue // a compaction has removed it meanwhile
			}
		}
		if err != nil {
			var corrupt *CorruptError
			if err = damage(e.id, path, err); errors.As(err, &corrupt) {
				corrupt.File = path
			}
			return read, err
		}
		read += size
	}
	return read, nil
}

// tables returns the numbers and sizes of the live table files.
func (e *pebbleEngine) tables() (map[uint64]int64, error) {
	levels, err := e.db.SSTables()
	if err != nil {
		return nil, err
	}
	return tableSizes(levels), nil
}

func tableSizes(levels [][]pebble.SSTableInfo) map[uint64]int64 {
	all := map[uint64]int64{}
	for _, level := range levels {
		for _, t := range level {
			all[uint64(t.BackingSSTNum)] = int64(t.Size)
		}
	}
	return all
}

func (e *pebbleEngine) readerOptions() sstable.ReaderOptions {
	o := e.res.options(e)
	o.EnsureDefaults()
	return o.MakeReaderOptions()
}

// engineLog forwards Pebble's log. Its fatal errors end the engine, not the process.
type engineLog struct{ e *pebbleEngine }

// Infof implements pebble.Logger.
func (l engineLog) Infof(format string, args ...any) {
	if l.e.res.logger.IsTrace() {
		l.e.res.logger.Trace(fmt.Sprintf(format, args...), "copy", l.e.id)
	}
}

// Errorf implements pebble.Logger.
func (l engineLog) Errorf(format string, args ...any) {
	l.e.res.logger.Error(fmt.Sprintf(format, args...), "copy", l.e.id)
}

// Fatalf implements pebble.Logger.
func (l engineLog) Fatalf(format string, args ...any) {
	err := fmt.Errorf("copy %s in %s: %w: %s", l.e.id, l.e.dir, ErrReopen, fmt.Sprintf(format, args...))
	for _, a := range args {
		if cause, ok := a.(error); ok && isNoSpace(cause) {
			err = fmt.Errorf("%w: %w", err, ErrDiskFull)
		}
	}
	l.e.res.logger.Error("the store cannot continue to write", "copy", l.e.id, "error", err)
	l.e.lose()
	l.e.health.die(err)
}
