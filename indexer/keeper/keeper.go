// Package keeper makes durable what copies hold in memory, and stores checkpoints of them. It promises that what a
// crash takes away is bounded by time, and that what a rollback goes back to is not far. It never drops a copy.
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
	PersistEvery time.Duration              // what a crash may take away, to be streamed again
	Checkpoint   time.Duration              // between checkpoints
	Skips        func(id index.CopyID) bool // copies that need no checkpoints
	Measure      func()                     // looks at what costs too much to look at for every report
	Log          hclog.Logger
	Now          func() time.Time
}

// Keeper makes durable what is in memory, now and then, and stores checkpoints: what a crash takes away is bounded by
// time, and what a rollback goes back to is not far (IX-3).
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
	durable turns
	common  time.Time // when it is kept next where copies stand together

	// of the loop that stores checkpoints
	saved  map[index.CopyID]copies.RowsAt // of the newest checkpoint
	stored turns
}

// turns says whose turn it is.
type turns struct {
	period time.Duration
	due    map[index.CopyID]time.Time
	seen   int // copies so far
}

// turnsPer is how often in a period it is looked whose turn it is.
const turnsPer = 64

// look is how often it is to be looked whose turn it is.
func (t *turns) look() time.Duration { return max(t.period/turnsPer, time.Millisecond) }

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
	}
}

// New returns one that Run lets work.
func New(o Options) *Keeper { return &Keeper{Options: o} }

// Run works until ctx ends.
func (p *Keeper) Run(ctx context.Context) error {
	p.kept, p.saved = map[index.CopyID]copies.RowsAt{}, map[index.CopyID]copies.RowsAt{}
	p.durable = turns{period: p.PersistEvery, due: map[index.CopyID]time.Time{}}
	p.stored = turns{period: p.Checkpoint, due: map[index.CopyID]time.Time{}}
	var g errgroup.Group
	g.Go(func() error { every(ctx, MeasureEvery, p.Measure); return nil })
	g.Go(func() error { every(ctx, p.durable.look(), func() { p.makeDurable(ctx) }); return nil })
	g.Go(func() error { every(ctx, p.stored.look(), func() { p.storeCheckpoints(ctx) }); return nil })
	return g.Wait()
}

// every calls f now and then until ctx ends.
func every(ctx context.Context, pause time.Duration, f func()) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			f()
		}
	}
}

// makeDurable makes the copies durable whose turn it is.
func (p *Keeper) makeDurable(ctx context.Context) {
	p.step(ctx, &p.durable, p.kept, p.persist)
	if now := p.Now(); !now.Before(p.common) {
		p.common = now.Add(p.durable.period)
		if err := p.Store.KeepCommon(); err != nil {
			p.Log.Warn("keeping where copies stand; trying again later", "error", err)
		}
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
		if err != nil && !errors.Is(err, storage.ErrClosed) {
			p.Log.Warn("keeping a copy safe; trying again later", "copy", id, "error", err)
		}
	}
	t.forget(all)
	maps.DeleteFunc(done, func(id index.CopyID, _ copies.RowsAt) bool {
		_, ok := p.Store.Slice(id)
		return !ok
	})
}

func (p *Keeper) persist(ctx context.Context, s *storage.Slice) error {
	rows := copies.NewestRows(s)
	if rows == p.kept[s.Meta().Copy] {
		return nil
	}
	if err := s.Persist(ctx); err != nil {
		return err
	}
	p.kept[s.Meta().Copy] = rows
	return nil
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
