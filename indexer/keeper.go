package indexer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"tidemark/index"
	"tidemark/indexer/storage"
	"tidemark/timestamp"
)

// keeper makes durable what is in memory, now and then, and stores checkpoints: what a crash takes away is bounded by
// time, and what a rollback goes back to is not far (IX-3).
//
// Each copy has its turn once in a period, and the turns are spread over it: written together, the memtables of all
// copies would hold up scans and writes for as long as that takes.
type keeper struct {
	x     *Indexer
	kept  map[index.CopyID]rowsAt // that are durable
	saved map[index.CopyID]rowsAt // of the newest checkpoint

	durable, stored turns     // of making durable, and of checkpoints
	common          time.Time // when it is kept next where copies stand together
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
	tick := time.NewTicker(max(min(p.durable.period, p.stored.period)/turnsPer, time.Millisecond))
	defer tick.Stop()
	measure := time.NewTicker(measureEvery)
	defer measure.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-measure.C:
			p.x.measure()
		case <-tick.C:
			p.step(ctx)
		}
	}
}

// step keeps the copies safe whose turn it is.
func (p *keeper) step(ctx context.Context) {
	all := p.x.store.Slices()
	for _, s := range all {
		var err error
		now, id := p.x.now(), s.Meta().Copy
		if p.durable.its(id, now) {
			err = p.persist(ctx, s)
		}
		if p.stored.its(id, now) {
			err = errors.Join(err, p.checkpoint(ctx, s))
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil && !errors.Is(err, storage.ErrClosed) {
			p.x.log.Warn("keeping a copy safe; trying again later", "copy", id, "error", err)
		}
	}
	if now := p.x.now(); !now.Before(p.common) {
		p.common = now.Add(p.durable.period)
		if err := p.x.store.KeepCommon(); err != nil {
			p.x.log.Warn("keeping where copies stand; trying again later", "error", err)
		}
	}
	p.durable.forget(all)
	p.stored.forget(all)
	p.forget()
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
	if refs := p.x.snapshots.refs(id); len(refs) > 0 {
		m.Number, m.RollbackID = refs[len(refs)-1].Number, refs[len(refs)-1].RollbackID
	}
	info, err := s.Checkpoint(ctx, m)
	if err != nil {
		return err
	}
	p.saved[id] = rowsAt{info.Generation, info.Batch}
	p.kept[id] = p.saved[id]
	return nil
}

// forget drops what is known of copies that are gone.
func (p *keeper) forget() {
	for id := range p.kept {
		if _, ok := p.x.store.Slice(id); !ok {
			delete(p.kept, id)
			delete(p.saved, id)
		}
	}
}
