// Package keeper makes durable what copies hold in memory, and stores checkpoints of them. It promises that what a
// crash takes away is bounded by bytes and by time, and that what a rollback goes back to is not far. It never drops a
// copy.
package keeper

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"tidemark/index"
	"tidemark/indexer/copies"
	"tidemark/indexer/snapshots"
	"tidemark/indexer/storage"
	"tidemark/timestamp"
)

// MeasureEvery is how often sizes and what is durable are looked at.
const MeasureEvery = time.Second

// Options are what a Keeper works with.
type Options struct {
	Store        *storage.Store
	Snapshots    *snapshots.Set
	PersistEvery time.Duration              // between a copy's turns to be made durable
	Memory       int64                      // that copies may have of rows that are not durable, all together
	Checkpoint   time.Duration              // between checkpoints
	Skips        func(id index.CopyID) bool // copies that need no checkpoints
	Measure      func()                     // looks at what costs too much to look at for every report
	Log          hclog.Logger
	Now          func() time.Time
}

// Keeper makes durable what is in memory, now and then, and stores checkpoints: what a crash takes away is bounded by
// bytes and by time, and what a rollback goes back to is not far (IX-3).
//
// A copy that lacks little of being durable passes its turn, persistTurns times at most: each time costs a file, and
// its compaction into what the copy has, and little is streamed again in no time. Little is few bytes of its own,
// and few changes of its bucket, all of which have to be read again. One that is being built, or catches up, never
// passes: what it lacks is not known.
//
// Each copy has its turn once in a period, and the turns are spread over it: written together, the memtables of all
// copies would hold up scans and writes for as long as that takes.
//
// What makes durable, what stores checkpoints and what measures are loops of their own. A checkpoint waits for whoever
// writes to its copy, and for a disk: neither what a crash takes away nor what reports say may wait for it.
type Keeper struct {
	Options

	// of the loop that makes durable
	kept    map[index.CopyID]copies.RowsAt // that are durable
	passed  map[index.CopyID]passed        // turns that were passed since
	little  int64                          // bytes below which a turn is passed
	durable turns
	common  time.Time // when it is kept next where copies stand together
	fails   bool      // that could not be done the last time

	// of the loop that stores checkpoints
	saved  map[index.CopyID]copies.RowsAt // of the newest checkpoint
	stored turns
}

// passed are turns that a copy has passed since it was durable, and the changes of its bucket that there were then.
type passed struct {
	turns   int
	changes uint64
}

// turns says whose turn it is.
type turns struct {
	period time.Duration
	due    map[index.CopyID]time.Time
	fails  map[index.CopyID]bool // of those that could not be kept safe the last time
	seen   int                   // copies so far
}

const (
	// turnsPer is how often in a period it is looked at most whose turn it is.
	turnsPer = 64
	// lookMost is after how long that is done at the latest: a copy that is new has its first turn given then.
	lookMost = time.Second
	// persistTurns is how many turns a copy may pass that lacks little.
	persistTurns = 5
	// littleBytes is below how many bytes a copy lacks little, and memoryPart which part of the memory all together may
	// have of those. littleChanges is the same of the bucket's changes: three seconds of catchup on two processors.
	// The less often, the fewer times merges write all that a copy has.
	littleBytes   = 4 << 20
	memoryPart    = 4
	littleChanges = 60_000
)

func newTurns(period time.Duration) turns {
	return turns{period: period, due: map[index.CopyID]time.Time{}, fails: map[index.CopyID]bool{}}
}

// look is when it is to be looked whose turn it is: when the next one has its turn, or somebody may be new.
func (t *turns) look(now time.Time) time.Duration {
	pause := max(min(lookMost, t.period), 0)
	for _, at := range t.due {
		pause = min(pause, at.Sub(now))
	}
	return max(pause, t.period/turnsPer, time.Millisecond)
}

// its reports whether it is a copy's turn. The first one comes within a period of its first sight; the golden ratio
// lays the copies' first turns evenly, however many there are.
func (t *turns) its(id index.CopyID, now time.Time) bool {
	at, ok := t.due[id]
	if !ok {
		t.seen++
		_, part := math.Modf(float64(t.seen) * math.Phi)
		t.due[id] = now.Add(time.Duration(part * float64(t.period)))
		return false
	}
	if now.Before(at) {
		return false
	}
	t.due[id] = at.Add((now.Sub(at)/t.period + 1) * t.period) // turns that were missed do not lie together afterwards
	return true
}

// forget drops copies that are gone.
func (t *turns) forget(all []*storage.Slice) {
	if len(t.due) > len(all) {
		maps.DeleteFunc(t.due, func(id index.CopyID, _ time.Time) bool {
			return !slices.ContainsFunc(all, func(s *storage.Slice) bool { return s.Meta().Copy == id })
		})
		maps.DeleteFunc(t.fails, func(id index.CopyID, _ bool) bool { _, ok := t.due[id]; return !ok })
	}
}

// New returns one that Run lets work.
func New(o Options) *Keeper { return &Keeper{Options: o} }

// begin knows of no copy yet.
func (p *Keeper) begin() {
	p.kept, p.saved = map[index.CopyID]copies.RowsAt{}, map[index.CopyID]copies.RowsAt{}
	p.passed = map[index.CopyID]passed{}
	p.durable, p.stored = newTurns(p.PersistEvery), newTurns(p.Checkpoint)
}

// Run works until ctx ends.
func (p *Keeper) Run(ctx context.Context) error {
	p.begin()
	var g errgroup.Group
	g.Go(func() error { again(ctx, func() time.Duration { return MeasureEvery }, p.Measure); return nil })
	g.Go(func() error {
		again(ctx, func() time.Duration { return p.durable.look(p.Now()) }, func() { p.makeDurable(ctx) })
		return nil
	})
	g.Go(func() error {
		again(ctx, func() time.Duration { return p.stored.look(p.Now()) }, func() { p.storeCheckpoints(ctx) })
		return nil
	})
	return g.Wait()
}

// again calls f after each pause until ctx ends.
func again(ctx context.Context, pause func() time.Duration, f func()) {
	timer := time.NewTimer(pause())
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			f()
			timer.Reset(pause())
		}
	}
}

// makeDurable makes the copies durable whose turn it is.
func (p *Keeper) makeDurable(ctx context.Context) {
	p.little = min(littleBytes, p.Memory/memoryPart/int64(max(len(p.durable.due), 1)))
	p.step(ctx, &p.durable, p.kept, p.persist)
	maps.DeleteFunc(p.passed, func(id index.CopyID, _ passed) bool { _, ok := p.Store.Slice(id); return !ok })
	if now := p.Now(); !now.Before(p.common) {
		p.common = now.Add(p.durable.period)
		err := p.Store.KeepCommon()
		if err != nil && !p.fails {
			p.Log.Warn("keeping where copies stand; trying again until it succeeds", "error", err)
		}
		p.fails = err != nil
	}
}

// storeCheckpoints stores checkpoints of the copies whose turn it is.
func (p *Keeper) storeCheckpoints(ctx context.Context) { p.step(ctx, &p.stored, p.saved, p.checkpoint) }

// step keeps the copies safe whose turn it is; done is what is known of those that had one.
func (p *Keeper) step(ctx context.Context, t *turns, done map[index.CopyID]copies.RowsAt,
	keep func(context.Context, *storage.Slice) error) {
	all := p.Store.Slices()
	for _, s := range all {
		id := s.Meta().Copy
		if !t.its(id, p.Now()) {
			continue
		}
		err := keep(ctx, s)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, storage.ErrClosed) {
			err = nil
		}
		if err != nil && !t.fails[id] { // all copies on a full disk fail at each of their turns
			p.Log.Warn("keeping a copy safe; trying again until it succeeds", "copy", id, "error", err)
		}
		if err != nil {
			t.fails[id] = true
		} else {
			delete(t.fails, id)
		}
	}
	t.forget(all)
	maps.DeleteFunc(done, func(id index.CopyID, _ copies.RowsAt) bool {
		_, ok := p.Store.Slice(id)
		return !ok
	})
}

func (p *Keeper) persist(ctx context.Context, s *storage.Slice) error {
	id, st := s.Meta().Copy, s.Stats()
	rows := copies.RowsAt{Generation: st.Generation, Batch: st.Batch}
	if rows == p.kept[id] {
		return nil
	}
	if st.MemoryBytes > 0 && st.MemoryBytes < p.little && p.pass(s) {
		return nil
	}
	if err := s.Persist(ctx); err != nil {
		return err
	}
	p.kept[id] = rows
	stable, _ := s.Timestamp()
	p.passed[id] = passed{changes: stable.Total()}
	return nil
}

// pass lets a copy with few bytes pass a turn, if it may: one that has been made durable by this process, and of whose
// bucket all changes since are counted.
func (p *Keeper) pass(s *storage.Slice) bool {
	id := s.Meta().Copy
	stable, exact := s.Timestamp()
	was, known := p.passed[id]
	if !known || !exact || stable.Total()-was.changes >= littleChanges || was.turns >= persistTurns {
		return false
	}
	was.turns++
	p.passed[id] = was
	return true
}

func (p *Keeper) checkpoint(ctx context.Context, s *storage.Slice) error {
	id := s.Meta().Copy
	if p.Skips(id) {
		return nil
	}
	if copies.NewestRows(s) == p.saved[id] {
		s.Mark()
		return nil
	}
	stable, _ := s.Timestamp()
	m := storage.CheckpointMeta{Stable: stable, Logs: s.Logs(), CreatedMS: p.Now().UnixMilli()}
	for _, pos := range s.Positions() {
		w := timestamp.Window{Start: pos.Main, End: pos.Main}
		if pos.WindowEnd != timestamp.Infinity {
			w.End = max(pos.Main, pos.WindowEnd)
		}
		m.Windows = append(m.Windows, w)
	}
	if refs := p.Snapshots.Refs(id); len(refs) > 0 {
		m.Number, m.RollbackID = refs[len(refs)-1].Number, refs[len(refs)-1].RollbackID
	}
	info, err := s.Checkpoint(ctx, m)
	if err != nil {
		return err
	}
	p.saved[id] = copies.RowsAt{Generation: info.Generation, Batch: info.Batch}
	return nil
}
