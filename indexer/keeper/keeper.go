// Package keeper makes durable what copies hold in memory, and stores checkpoints of them. It guarantees that what a
// crash takes away is bounded by bytes and by time, and that a rollback finds a recent checkpoint. It never drops a
// copy.
package keeper

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"tidemark/index"
	"tidemark/indexer/copies"
	"tidemark/indexer/health"
	"tidemark/indexer/snapshots"
	"tidemark/indexer/storage"
	"tidemark/timestamp"
)

// MeasureEvery is the interval at which sizes and durable states are measured.
const MeasureEvery = time.Second

// Options configures a Keeper.
type Options struct {
	Store        *storage.Store
	Snapshots    *snapshots.Set
	PersistEvery time.Duration              // between attempts to make a copy durable
	Memory       int64                      // limit of rows in memory that are not durable, all copies together
	Checkpoint   time.Duration              // between checkpoints of a copy
	Skips        func(id index.CopyID) bool // copies without checkpoints
	Measure      func()                     // refreshes figures that are too expensive for every report
	Log          hclog.Logger
	Now          func() time.Time
}

// Keeper periodically makes durable what is in memory, and stores checkpoints: what a crash takes away is bounded by
// bytes and by time, and a rollback finds a recent checkpoint (IX-3).
//
// A copy with little undurable data skips its turn, at most persistTurns times: each turn costs a file and its
// compaction into the copy's other data, whereas little data is streamed again in no time. Little means few bytes of
// its own and few changes in its bucket, because all of these have to be read again. A copy that is being built, or
// catches up, never skips, because what it lacks is unknown.
//
// Each copy has one turn per period, and the turns are spread over the period: written together, the memtables of all
// copies would delay scans and writes for the whole time.
//
// Making durable, storing checkpoints and measuring are separate loops. A checkpoint waits for writers of its copy
// and for a disk; neither the bound on what a crash takes away nor reports may depend on that. Nor may other copies: a
// turn that takes longer than health.Hangs continues beside theirs, and its copy has no other one before it has ended.
type Keeper struct {
	Options
	patience time.Duration  // health.Hangs; shorter in tests
	works    sync.WaitGroup // turns in progress

	// owned by the loop that makes durable
	kept    map[index.CopyID]copies.RowsAt // durable contents
	passed  map[index.CopyID]passed        // skipped turns since then
	little  int64                          // bytes below which a turn is skipped
	durable turns
	common  time.Time // when KeepCommon is due next
	fails   bool      // the last KeepCommon failed

	// owned by the loop that stores checkpoints
	saved  map[index.CopyID]copies.RowsAt // contents of the newest checkpoint
	stored turns
}

// passed holds the number of turns that a copy has skipped since it was durable, and the changes of its bucket at
// that time.
type passed struct {
	turns   int
	changes uint64
}

// turns schedules the copies.
type turns struct {
	period time.Duration
	due    map[index.CopyID]time.Time
	fails  map[index.CopyID]bool // copies whose last turn failed
	seen   int                   // copies scheduled so far
	hung   map[*storage.Slice]*turn
}

// turn is one copy's turn.
type turn struct {
	do    func(ctx context.Context) error // waits for the disk
	kept  func()                          // records that do has succeeded
	ended chan error                      // capacity 1: the result of do
}

const (
	// turnsPer bounds how often per period the schedule is checked.
	turnsPer = 64
	// lookMost is the longest interval between checks: a new copy is scheduled then.
	lookMost = time.Second
	// persistTurns bounds the turns that a copy with little undurable data may skip.
	persistTurns = 5
	// littleBytes is the limit of undurable bytes that count as little. The limit is lower if otherwise all copies
	// together could hold more than 1/memoryPart of the memory that way. littleChanges is the limit of the bucket's
	// changes: three seconds of catchup on two processors. Skipping turns makes merges rewrite a copy's data less
	// often.
	littleBytes   = 4 << 20
	memoryPart    = 4
	littleChanges = 60_000
)

func newTurns(period time.Duration) turns {
	return turns{period: period, due: map[index.CopyID]time.Time{}, fails: map[index.CopyID]bool{},
		hung: map[*storage.Slice]*turn{}}
}

// look returns when to check the schedule next: when the next turn is due, or a new copy may have appeared.
func (t *turns) look(now time.Time) time.Duration {
	pause := max(min(lookMost, t.period), 0)
	for _, at := range t.due {
		pause = min(pause, at.Sub(now))
	}
	return max(pause, t.period/turnsPer, time.Millisecond)
}

// its reports whether a copy's turn is due. The first turn comes within one period after the copy is first seen;
// steps by the golden ratio spread the first turns evenly, however many copies there are.
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
	t.due[id] = at.Add((now.Sub(at)/t.period + 1) * t.period) // so missed turns do not come in a row
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

// New returns a Keeper. The caller must call Run.
func New(o Options) *Keeper { return &Keeper{Options: o, patience: health.Hangs} }

// begin resets the state: no copy is known yet.
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
	defer p.works.Wait()
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

// makeDurable makes the copies durable whose turns are due.
func (p *Keeper) makeDurable(ctx context.Context) {
	p.little = min(littleBytes, p.Memory/memoryPart/int64(max(len(p.durable.due), 1)))
	p.step(ctx, &p.durable, p.kept, p.persist)
	maps.DeleteFunc(p.passed, func(id index.CopyID, _ passed) bool { _, ok := p.Store.Slice(id); return !ok })
	if now := p.Now(); !now.Before(p.common) {
		p.common = now.Add(p.durable.period)
		err := p.Store.KeepCommon()
		if err != nil && !p.fails {
			p.Log.Warn("positions of copies cannot be stored; trying again until it succeeds", "error", err)
		}
		p.fails = err != nil
	}
}

// storeCheckpoints stores checkpoints of the copies whose turns are due.
func (p *Keeper) storeCheckpoints(ctx context.Context) { p.step(ctx, &p.stored, p.saved, p.checkpoint) }

// step gives a turn, which next returns, to the copies that are due, and forgets copies that are gone. done is the
// result of earlier turns.
func (p *Keeper) step(ctx context.Context, t *turns, done map[index.CopyID]copies.RowsAt,
	next func(*storage.Slice) *turn) {
	all := p.Store.Slices()
	for s, one := range t.hung {
		select {
		case err := <-one.ended:
			delete(t.hung, s)
			p.ended(t, s, one, err)
		default:
		}
	}
	for _, s := range all {
		if t.hung[s] != nil || !t.its(s.Meta().Copy, p.Now()) {
			continue
		}
		if p.give(ctx, t, s, next(s)); ctx.Err() != nil {
			return
		}
	}
	t.forget(all)
	maps.DeleteFunc(done, func(id index.CopyID, _ copies.RowsAt) bool {
		_, ok := p.Store.Slice(id)
		return !ok
	})
}

// give gives a copy its turn; nil: there is nothing to do. It waits until the turn has ended, unless that takes too
// long.
func (p *Keeper) give(ctx context.Context, t *turns, s *storage.Slice, one *turn) {
	if one == nil {
		delete(t.fails, s.Meta().Copy)
		return
	}
	one.ended = make(chan error, 1)
	p.works.Go(func() { one.ended <- one.do(ctx) })
	late := time.NewTimer(p.patience)
	defer late.Stop()
	select {
	case err := <-one.ended:
		if ctx.Err() == nil {
			p.ended(t, s, one, err)
		}
	case <-late.C:
		t.hung[s] = one
		p.Log.Warn("storing a copy does not end: the disk hangs, or is far too slow; other copies are stored meanwhile",
			"copy", s.Meta().Copy, "for", p.patience)
	case <-ctx.Done():
	}
}

// ended takes the result of a copy's turn.
func (p *Keeper) ended(t *turns, s *storage.Slice, one *turn, err error) {
	id := s.Meta().Copy
	if now, here := p.Store.Slice(id); !here || now != s {
		return // it was dropped meanwhile
	}
	if err == nil {
		one.kept()
	}
	if errors.Is(err, storage.ErrClosed) {
		err = nil
	}
	if err != nil && !t.fails[id] { // all copies on a full disk fail at each of their turns
		p.Log.Warn("checkpoint of a copy cannot be stored; trying again until it succeeds", "copy", id, "error", err)
	}
	if err != nil {
		t.fails[id] = true
	} else {
		delete(t.fails, id)
	}
}

// persist returns the turn in which a copy is made durable; nil if it need not be.
func (p *Keeper) persist(s *storage.Slice) *turn {
	id, st := s.Meta().Copy, s.Stats()
	rows := copies.RowsAt{Generation: st.Generation, Batch: st.Batch}
	if rows == p.kept[id] {
		return nil
	}
	if st.MemoryBytes > 0 && st.MemoryBytes < p.little && p.pass(s) {
		return nil
	}
	stable, _ := s.Timestamp() // what comes while the disk works is not durable
	return &turn{do: s.Persist, kept: func() { p.kept[id], p.passed[id] = rows, passed{changes: stable.Total()} }}
}

// pass skips the turn of a copy with few bytes, if that is allowed: the copy must have been made durable by this
// process before, and all changes of its bucket since then must be counted.
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

// checkpoint returns the turn in which a checkpoint of a copy is stored; nil if none is needed.
func (p *Keeper) checkpoint(s *storage.Slice) *turn {
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
	var info storage.CheckpointInfo
	return &turn{do: func(ctx context.Context) (err error) {
		info, err = s.Checkpoint(ctx, m)
		return err
	}, kept: func() { p.saved[id] = copies.RowsAt{Generation: info.Generation, Batch: info.Batch} }}
}
