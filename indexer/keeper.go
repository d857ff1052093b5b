package indexer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tidemark/index"
	"tidemark/storage"
	"tidemark/timestamp"
)

// keeper makes durable what is in memory, now and then, and stores checkpoints: what a crash takes away is bounded by
// time, and what a rollback goes back to is not far (IX-3).
type keeper struct {
	x     *Indexer
	kept  map[index.CopyID]uint64 // batch number that is durable
	saved map[index.CopyID]uint64 // batch number of the newest checkpoint
}

// spanLag keeps so many checkpoints that the oldest of them is older than KV's replicas may lag: two follow each other after
// Checkpoint at the least.
func (c *Config) spanLag() error {
	if c.KeepCheckpoints == 0 {
		c.KeepCheckpoints = storage.DefaultKeepCheckpoints
	}
	span := (max(c.ReplicaLag, 0) + c.Checkpoint - 1) / c.Checkpoint
	if span >= MaxCheckpoints {
		return fmt.Errorf("indexer: KV replicas that lag by %v take %d checkpoints %v apart, at most %d are kept: raise --checkpoint-every to %v or more, or lower --replica-lag",
			c.ReplicaLag, span+1, c.Checkpoint, MaxCheckpoints, (c.ReplicaLag/(MaxCheckpoints-1) + time.Second).Truncate(time.Second))
	}
	c.KeepCheckpoints = max(c.KeepCheckpoints, int(span)+1)
	return nil
}

// Run works until ctx ends.
func (p *keeper) Run(ctx context.Context) error {
	p.kept, p.saved = map[index.CopyID]uint64{}, map[index.CopyID]uint64{}
	persist := time.NewTicker(p.x.cfg.PersistEvery)
	defer persist.Stop()
	checkpoint := time.NewTicker(p.x.cfg.Checkpoint)
	defer checkpoint.Stop()
	measure := time.NewTicker(measureEvery)
	defer measure.Stop()
	for {
		var todo func(context.Context, *storage.Slice) error
		select {
		case <-ctx.Done():
			return nil
		case <-measure.C:
			p.x.measure()
			continue
		case <-persist.C:
			todo = p.persist
		case <-checkpoint.C:
			todo = p.checkpoint
		}
		for _, s := range p.x.store.Slices() {
			if err := todo(ctx, s); err != nil && ctx.Err() == nil && !errors.Is(err, storage.ErrClosed) {
				p.x.log.Warn("keeping a copy safe; trying again later", "copy", s.Meta().Copy, "error", err)
			}
			if ctx.Err() != nil {
				return nil
			}
		}
		p.forget()
	}
}

func (p *keeper) persist(ctx context.Context, s *storage.Slice) error {
	batch := s.Stats().Batch
	if batch == p.kept[s.Meta().Copy] {
		return nil
	}
	if err := s.Persist(ctx); err != nil {
		return err
	}
	p.kept[s.Meta().Copy] = batch
	return nil
}

func (p *keeper) checkpoint(ctx context.Context, s *storage.Slice) error {
	id := s.Meta().Copy
	if s.Stats().Batch == p.saved[id] || p.x.isOrphan(id) {
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
	p.saved[id], p.kept[id] = info.Batch, info.Batch
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
