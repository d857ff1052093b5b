package storage

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"

	"tidemark/ingest"
	"tidemark/timestamp"
)

// Slice is one copy of a slice of an index: rows, back index, positions, checkpoints. Writing methods exclude each
// other; all other methods may run concurrently.
type Slice struct {
	store    *Store
	meta     Meta
	birth    uint64 // see metaFile
	dir      string
	log      hclog.Logger
	memTable int64

	write sync.Mutex // one writer at a time
	// highest number of a checkpoint so far, including those that could not be removed; guarded by write
	newestSeq uint64

	incoming atomic.Int64 // bytes received and not installed
	purged   atomic.Bool  // tombstones were removed, which may not be durable
	load     load

	mu        sync.Mutex
	gen       *generation // nil: closed, or Recover has not succeeded yet
	number    uint64      // of the newest generation
	ended     bool        // closed or dropped
	checking  func(error) // cancels the current or last Recover; nil: there was none
	cur       *state      // replaced, never modified
	recovery  Recovery
	alive     int // generations that are not closed yet
	snapshots int
	dropped   bool
	cps       []CheckpointInfo // newest first
	marks     []CheckpointInfo // see Mark; newest first
	reading   map[uint64]int   // checkpoints that a restore is reading
}

// generation is one data folder and its engine. A restore creates a new one; the old one lives until its last
// snapshot is closed.
type generation struct {
	number uint64
	dir    string
	eng    engine
	refs   int // guarded by Slice.mu; the slice itself holds one
	remove bool
	done   chan struct{} // closed when the engine is closed
}

const (
	generationPrefix = "db-"
	checkpointsName  = "checkpoints"
)

func (s *Slice) generationDir(n uint64) string {
	return s.store.fs.PathJoin(s.dir, generationPrefix+strconv.FormatUint(n, 10))
}

func newSlice(store *Store, dir string, m Meta, memTable int64) *Slice {
	return &Slice{
		store: store, meta: m, dir: dir, memTable: memTable,
		log: store.log.With("copy", m.Copy, "index", m.Index, "slice", m.Slice, "bucket", m.Bucket),
	}
}

// createSlice creates the folder under a temporary name and renames it, so that a copy exists whole or not at all.
func createSlice(store *Store, dir string, m Meta, memTable int64) (*Slice, error) {
	fs, tmp := store.fs, dir+tmpSuffix
	s := newSlice(store, dir, m, memTable)
	s.birth = rand.Uint64()
	err := fs.RemoveAll(tmp)
	if err == nil {
		err = fs.MkdirAll(fs.PathJoin(tmp, checkpointsName), 0o700)
	}
	if err == nil {
		err = writeSmall(fs, tmp, metaName, metaFile{Meta: m, Generation: 1, Birth: s.birth})
	}
	if err == nil {
		err = fs.Rename(tmp, dir)
	}
	if err == nil {
		err = syncDir(fs, store.opts.Dir)
	}
	if err != nil {
		return nil, errors.Join(classify(m.Copy, dir, err), fs.RemoveAll(tmp), fs.RemoveAll(dir))
	}
	eng, err := openPebble(store.res, s.generationDir(1), m, memTable, false)
	if err != nil {
		return nil, errors.Join(classify(m.Copy, dir, err), fs.RemoveAll(dir))
	}
	s.install(&generation{number: 1, dir: s.generationDir(1), eng: eng})
	return s, nil
}

// install makes a generation the current one, atomically for readers, and returns the previous one.
func (s *Slice) install(g *generation) (old *generation) {
	written := g.eng.state()
	st := written.standing(s.store.common.of(s.rows(g.number, written.number)))
	g.refs, g.done = 1, make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	old = s.gen
	s.gen, s.number, s.cur = g, g.number, &st
	s.alive++
	return old
}

// Meta returns the identity of the copy.
func (s *Slice) Meta() Meta { return s.meta }

// Ended reports whether the copy was dropped, or its store was closed. A copy that is closed but has not ended must
// be reopened with Recover.
func (s *Slice) Ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// Recovery returns how the copy was opened.
func (s *Slice) Recovery() Recovery {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.recovery
}

// hold returns the current generation with a reference.
func (s *Slice) hold() (*generation, *state, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gen == nil {
		return nil, nil, fmt.Errorf("copy %s: %w", s.meta.Copy, ErrClosed)
	}
	s.gen.refs++
	return s.gen, s.cur, nil
}

// release releases a reference, and closes the generation with the last one.
func (s *Slice) release(g *generation) error {
	s.mu.Lock()
	g.refs--
	last := g.refs == 0
	s.mu.Unlock()
	if !last {
		return nil
	}
	err := classify(s.meta.Copy, g.dir, g.eng.close())
	close(g.done)
	s.mu.Lock()
	s.alive--
	whole := s.dropped && s.alive == 0
	remove := g.remove
	s.mu.Unlock()
	switch {
	case whole:
		err = errors.Join(err, s.removeAll())
	case remove:
		err = errors.Join(err, s.store.fs.RemoveAll(g.dir))
	}
	return err
}

// removeAll removes the copy's folder. It renames the folder first, so that remains after a crash belong to no copy.
// The new name is unique, because from then on a copy of the same id may be created.
func (s *Slice) removeAll() error {
	defer s.store.removed(s)
	fs, tmp := s.store.fs, s.dir+"-"+strconv.FormatUint(s.birth, 16)+tmpSuffix
	err := fs.Rename(s.dir, tmp)
	if err == nil {
		err = fs.RemoveAll(tmp)
	}
	if err == nil {
		err = syncDir(fs, s.store.opts.Dir)
	}
	return classify(s.meta.Copy, s.dir, err)
}

// retire detaches the current generation from the slice; nil if it is closed already.
func (s *Slice) retire() *generation {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.gen
	s.gen = nil
	return g
}

// end closes the slice, flushing memory until ctx ends, or drops it.
func (s *Slice) end(ctx context.Context, drop bool) error {
	s.mu.Lock()
	s.ended = true
	if s.checking != nil {
		s.checking(ErrClosed)
	}
	s.mu.Unlock()
	s.write.Lock()
	defer s.write.Unlock()
	s.mu.Lock()
	s.dropped = s.dropped || drop
	open := s.snapshots
	orphan := s.dropped && s.alive == 0
	s.mu.Unlock()
	g := s.retire()
	switch {
	case g == nil && orphan:
		return s.removeAll()
	case g == nil:
		return nil
	}
	var err error
	if !drop {
		err = g.eng.persist(ctx)
		if open > 0 {
			err = errors.Join(err, fmt.Errorf("copy %s: %d snapshots are still open", s.meta.Copy, open))
		}
	}
	return errors.Join(err, s.release(g))
}

// Flush applies a batch. It waits while too much is not yet written, at most until ctx ends: on a hung disk,
// otherwise forever. On an error nothing of the batch is applied. Errors wrap ErrInvalid, ErrDiskFull, ErrIO,
// ErrDamaged, ErrReopen, ErrClosed, or ctx's error.
func (s *Slice) Flush(ctx context.Context, b Batch) error {
	if err := b.check(s.meta.VBuckets); err != nil {
		return err
	}
	s.write.Lock()
	defer s.write.Unlock()
	g, cur, err := s.hold()
	if err != nil {
		return err
	}
	next := cur.next(b.Positions)
	if c := b.Common; c != nil {
		next = cur.next(nil)
		next.positions, next.logs = c.Positions, c.Logs
	}
	next.exact = b.Timestamp.Len() > 0
	if next.exact {
		if next.stable = b.Timestamp; b.Common == nil {
			next.stable = b.Timestamp.Clone()
		}
	}
	touched, err := g.eng.flush(ctx, coalesce(nil, b.Updates), b.KeepTombstones, next, b.Common != nil, b.Yields)
	if err == nil {
		s.load.wrote(touched, b.Updates)
	}
	return s.finish(g, next, err)
}

// finish publishes the state after a batch that was applied.
func (s *Slice) finish(g *generation, next *state, err error) error {
	if err == nil {
		s.mu.Lock()
		if s.gen == g {
			s.cur = next
		}
		s.mu.Unlock()
	}
	return errors.Join(err, s.release(g))
}

// next returns the state of the batch after s. It shares with s what does not change.
func (s *state) next(changed []VBPosition) *state {
	n := *s
	n.number++
	n.exact = false
	if len(changed) > 0 {
		n.positions = slices.Clone(s.positions)
	}
	logs := false
	for _, c := range changed {
		n.positions[c.VBucket] = c.Position
		if c.Log == nil {
			continue
		}
		if !logs {
			n.logs, logs = slices.Clone(s.logs), true
		}
		n.logs[c.VBucket] = c.Log.Clone()
	}
	return &n
}

// DeleteVBuckets removes all rows of vbuckets and sets their positions, in batches of bounded size like
// RestoreVBuckets. It blocks and fails like Flush.
func (s *Slice) DeleteVBuckets(ctx context.Context, to ...VBPosition) error {
	return s.replace(ctx, to, nil)
}

// replace makes the rows of vbuckets equal to those of from, and sets their positions.
func (s *Slice) replace(ctx context.Context, to []VBPosition, from view) error {
	if err := (&Batch{Positions: to}).check(s.meta.VBuckets); err != nil {
		return err
	}
	for len(to) > 0 {
		n, err := s.replaceSome(ctx, to, from)
		if err != nil {
			return err
		}
		to = to[n:]
	}
	return nil
}

// replaceSome does so for as many of the first vbuckets as one batch takes, at least one.
func (s *Slice) replaceSome(ctx context.Context, to []VBPosition, from view) (done int, err error) {
	s.write.Lock()
	defer s.write.Unlock()
	g, cur, err := s.hold()
	if err != nil {
		return 0, err
	}
	next, done, err := g.eng.replace(ctx, to, from, cur)
	return done, s.finish(g, next, err)
}

// PurgeTombstones removes the tombstones of vbuckets whose side streams have ended: of as many of the first ones as it
// reads at a time, at least one. It returns their number. With last, when all are done, their removal and that of
// earlier calls is durable: the caller may forget that there were any. Otherwise nothing is written, because during a
// build there are many calls. It blocks and fails like Flush, even if there are none; after an error some may have been
// removed.
func (s *Slice) PurgeTombstones(ctx context.Context, vbs []uint16, last bool) (done int, err error) {
	if done, err = s.purge(ctx, vbs); err != nil || !last || done < len(vbs) || !s.purged.Load() {
		return done, err
	}
	if err := s.Persist(ctx); err != nil {
		return 0, err
	}
	s.purged.Store(false)
	return done, nil
}

func (s *Slice) purge(ctx context.Context, vbs []uint16) (done int, err error) {
	s.write.Lock()
	defer s.write.Unlock()
	g, _, err := s.hold()
	if err != nil {
		return 0, err
	}
	done, removed, err := g.eng.purge(ctx, vbs)
	if removed {
		s.purged.Store(true)
	}
	return done, errors.Join(err, s.release(g))
}

// Persist makes everything applied so far durable.
func (s *Slice) Persist(ctx context.Context) error {
	g, _, err := s.hold()
	if err != nil {
		return err
	}
	return errors.Join(g.eng.persist(ctx), s.release(g))
}

// present returns the state after the newest batch.
func (s *Slice) present() *state {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cur
}

// Positions returns the slice's positions, one per vbucket.
func (s *Slice) Positions() []ingest.Position { return slices.Clone(s.present().positions) }

// Logs returns the failover logs, one per vbucket; nil where none has been set.
func (s *Slice) Logs() []timestamp.FailoverLog { return slices.Clone(s.present().logs) }

// Timestamp returns the newest stability timestamp that the slice was flushed to. exact reports that nothing has been
// applied since.
func (s *Slice) Timestamp() (stable timestamp.Vector, exact bool) {
	st := s.present()
	return st.stable.Clone(), st.exact
}

// Durable is the state that would exist after SIGKILL or power loss now. The caller must not modify it.
type Durable struct {
	Generation uint64 // of the data folder; each generation has batch numbers of its own
	Batch      uint64 // number of the newest batch in it, 0 for none
	Positions  []ingest.Position
	Stable     timestamp.Vector // newest stability timestamp flushed to
	Exact      bool             // nothing has been applied since
}

// Durable returns the durable state. It is cheap while nothing new has been written.
func (s *Slice) Durable() (Durable, error) {
	g, _, err := s.hold()
	if err != nil {
		return Durable{}, err
	}
	st, err := g.eng.durable()
	err = errors.Join(err, s.release(g))
	st = st.standing(s.store.common.of(s.rows(g.number, st.number)))
	return Durable{Generation: g.number, Batch: st.number, Positions: st.positions, Stable: st.stable,
		Exact: st.exact}, err
}

// Stats holds a copy's statistics.
type Stats struct {
	Items       int64  // rows of the forward index
	Batch       uint64 // number of the newest batch
	Generation  uint64 // of the data folder; each generation has batch numbers of its own
	DiskBytes   int64
	LiveBytes   int64  // part of DiskBytes that is not overwritten or deleted, estimated
	MemoryBytes int64  // applied and not yet written
	Written     uint64 // entries that batches have written, changed or removed since the process started
	Read        uint64 // entries that scans have read since then
	Snapshots   int    // open snapshots
	Checkpoints int
	Failing     error // why batches are refused now, or nil
}

// Stats returns the copy's statistics; zero for a closed copy.
func (s *Slice) Stats() Stats {
	g, cur, err := s.hold()
	if err != nil {
		return Stats{Failing: err}
	}
	es := g.eng.stats()
	st := Stats{
		Items: cur.items, Batch: cur.number, Generation: g.number, DiskBytes: es.diskBytes, LiveBytes: es.liveBytes,
		MemoryBytes: es.memoryBytes, Written: s.load.written.Load(), Read: s.load.read.Load(),
		Failing: g.eng.failing(),
	}
	s.mu.Lock()
	st.Snapshots, st.Checkpoints = s.snapshots, len(s.cps)
	s.mu.Unlock()
	if err := s.release(g); err != nil {
		st.Failing = err
	}
	return st
}

// Incoming returns how many bytes were received from another indexer and are not installed.
func (s *Slice) Incoming() int64 { return s.incoming.Load() }

// Items returns the number of entries after the newest batch.
func (s *Slice) Items() int64 { return s.present().items }

// Counted returns the number of entries, and the data folder and batch that it belongs to. Unlike Stats it never
// holds files that another goroutine may release meanwhile, and so never waits for a disk.
func (s *Slice) Counted() (items int64, generation, batch uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gen == nil {
		return 0, 0, 0, fmt.Errorf("copy %s: %w", s.meta.Copy, ErrClosed)
	}
	return s.cur.items, s.gen.number, s.cur.number, nil
}

// generations returns the numbers of the data folders.
func (s *Slice) generations() ([]uint64, error) {
	names, err := s.store.fs.List(s.dir)
	if err != nil {
		return nil, err
	}
	var all []uint64
	for _, name := range names {
		if n, err := strconv.ParseUint(strings.TrimPrefix(name, generationPrefix), 10, 64); err == nil &&
			strings.HasPrefix(name, generationPrefix) {
			all = append(all, n)
		}
	}
	return all, nil
}
