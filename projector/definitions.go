package projector

import (
	"context"
	"time"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/projector/core"
	"tidemark/wire"
)

// definitions holds the newest definitions from the leader. The projector's lock guards it.
type definitions struct {
	newest     *wire.Definitions // nil before the first
	evaluation *wire.Evaluation  // of newest
	changed    chan struct{}     // closed and replaced with newest
	timeout    time.Duration     // of definitionsOf: definitionsTime except in tests
}

// take stores newer definitions.
func (d *definitions) take(newer *wire.Definitions, evaluation *wire.Evaluation) error {
	if err := core.TakeDefinitions(d.newest, newer); err != nil {
		return err
	}
	d.newest, d.evaluation = newer, evaluation
	close(d.changed)
	d.changed = make(chan struct{})
	return nil
}

// definitionsOf returns the definitions once they are of the given revision or a newer one. The leader sends them to
// indexers and projectors at the same time, and an indexer may receive them first: its request waits here for a short
// time, so that the indexer need not repeat it.
func (p *Projector) definitionsOf(ctx context.Context, revision uint64) (*wire.Definitions, error) {
	timeout := time.NewTimer(p.defs.timeout)
	defer timeout.Stop()
	for {
		p.mu.Lock()
		newest, changed := p.defs.newest, p.defs.changed
		p.mu.Unlock()
		if core.HasRevision(newest, revision) {
			return newest, nil
		}
		select {
		case <-changed:
			continue
		case <-timeout.C:
		case <-ctx.Done():
		case <-p.runCtx.Done():
		}
		return nil, rpc.Refuse(errcode.Unavailable, "projector %s does not have definitions revision %d yet; try again",
			p.cfg.ID, revision)
	}
}
