package indexer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"tidemark/index"
	"tidemark/indexer/storage"
	"tidemark/timestamp"
)

// keeper makes durable what is in memory, now and then, and stores checkpoints: what a crash takes away is bounded by
// time, and what a rollback goes back to is not far (IX-3).
//
// Each copy has its turn once in a period, and the turns are spread over it: written together, the memtables of all
// copies would hold up scans and writes for as long as that takes.
//
// What makes durable, what stores checkpoints and what measures are loops of their own. A checkpoint waits for whoever
// writes to its copy, and for a disk: neither what a crash takes away nor what reports say may wait for it.
type keeper struct {
	x *Indexer

	// of the loop that makes durable
	kept    map[index.CopyID]rowsAt // that are durable
	durable turns
	common  time.Time // when it is kept next where copies stand together

	// of the loop that stores checkpoints
	saved  map[index.CopyID]rowsAt // of the newest checkpoint
	stored turns
}

// rowsAt names what a copy held after one of its batches.
type rowsAt struct{ generation, batch uint64 }

// before reports whether r was there earlier. A data folder that is newer begins with what an older batch held, and
// counts on from there.
func (r rowsAt) before(o rowsAt) bool {
	return r.generation < o.generation || r.generation == o.generation && r.batch < o.batch
}

func newestRows(s *storage.Slice) rowsAt {
	st := s.Stats()
	return rowsAt{st.Generation, st.Batch}
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

// spanLag keeps so many checkpoints that the oldest of them is older than KV's replicas may lag: two follow each other
// after Checkpoint at the least.
func (c *Config) spanLag() error {
	if c.KeepCheckpoints == 0 {
		c.KeepCheckpoints = storage.DefaultKeepCheckpoints
	}
	span := (max(c.ReplicaLag, 0) + c.Checkpoint - 1) / c.Checkpoint
	if span >= MaxCheckpoints {
		return fmt.Errorf("indexer: KV replicas that lag by %v take %d checkpoints %v apart, at most %d are kept: raise "+
			"--checkpoint-every to %v or more, or lower --replica-lag",
			c.ReplicaLag, span+1, c.Checkpoint, MaxCheckpoints, (c.ReplicaLag/(MaxCheckpoints-1) +
				time.Second).Truncate(time.Second))
	}
	c.KeepCheckpoints = max(c.KeepCheckpoints, int(span)+1)
	return nil
}

// Run works until ctx ends.
func (p *keeper) Run(ctx context.Context) error {
	p.kept, p.saved = map[index.CopyID]rowsAt{}, map[index.CopyID]rowsAt{}
	p.durable = turns{period: p.x.cfg.PersistEvery, due: map[index.CopyID]time.Time{}}
	p.stored = turns{period: p.x.cfg.Checkpoint, due: map[index.CopyID]time.Time{}}
	var g errgroup.Group
	g.Go(func() error { every(ctx, measureEvery, p.x.measure); return nil })
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
func (p *keeper) makeDurable(ctx context.Context) {
	p.step(ctx, &p.durable, p.kept, p.persist)
	if now := p.x.now(); !now.Before(p.common) {
		p.common = now.Add(p.durable.period)
		if err := p.x.store.KeepCommon(); err != nil {
			p.x.log.Warn("keeping where copies stand; trying again later", "error", err)
		}
	}
}

// storeCheckpoints stores checkpoints of the copies whose turn it is.
func (p *keeper) storeCheckpoints(ctx context.Context) { p.step(ctx, &p.stored, p.saved, p.checkpoint) }

// step keeps the copies safe whose turn it is; done is what is known of those that had one.
func (p *keeper) step(ctx context.Context, t *turns, done map[index.CopyID]rowsAt,
	keep func(context.Context, *storage.Slice) error) {
	all := p.x.store.Slices()
	for _, s := range all {
		id := s.Meta().Copy
		if !t.its(id, p.x.now()) {
			continue
		}
		err := keep(ctx, s)
		if ctx.Err() != nil {
			return
		}
		if err != nil && !errors.Is(err, storage.ErrClosed) {
			p.x.log.Warn("keeping a copy safe; trying again later", "copy", id, "error", err)
		}
	}
	t.forget(all)
	maps.DeleteFunc(done, func(id index.CopyID, _ rowsAt) bool {
		_, ok := p.x.store.Slice(id)
		return !ok
	})
}

func (p *keeper) persist(ctx context.Context, s *storage.Slice) error {
	rows := newestRows(s)
	if rows == p.kept[s.Meta().Copy] {
		return nil
	}
	if err := s.Persist(ctx); err != nil {
		return err
	}
	p.kept[s.Meta().Copy] = rows
	return nil
}

func (p *keeper) checkpoint(ctx context.Context, s *storage.Slice) error {
	id := s.Meta().Copy
	if p.x.isOrphan(id) {
		return nil
	}
	if newestRows(s) == p.saved[id] {
		s.Mark()
		return nil
	}
	stable, _ := s.Timestamp()
	m := storage.CheckpointMeta{Stable: stable, Logs: s.Logs(), CreatedMS: p.x.now().UnixMilli()}
	for _, pos := range s.Positions() {
		w := timestamp.Window{Start: pos.Main, End: pos.Main}
		if pos.WindowEnd != timestamp.Infinity {
			w.End = max(pos.Main, pos.WindowEnd)
		}
		m.Windows = append(m.Windows, w)
	}
	if refs := p.x.snapshots.Refs(id); len(refs) > 0 {
		m.Number, m.RollbackID = refs[len(refs)-1].Number, refs[len(refs)-1].RollbackID
	}
	info, err := s.Checkpoint(ctx, m)
	if err != nil {
		return err
	}
	p.saved[id] = rowsAt{info.Generation, info.Batch}
	return nil
}
