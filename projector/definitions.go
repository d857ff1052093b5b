package projector

import (
	"context"
	"time"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/projector/core"
	"tidemark/wire"
)

// definitions are what the leader has said last of the indexes. The projector's lock guards them.
type definitions struct {
	newest     *wire.Definitions // nil: nothing yet
	evaluation *wire.Evaluation  // of newest
	changed    chan struct{}     // closed and replaced with newest
	patience   time.Duration     // of await: definitionsPatience, but for tests
}

// take takes over a newer revision.
func (d *definitions) take(newer *wire.Definitions, evaluation *wire.Evaluation) error {
	if err := core.TakeDefinitions(d.newest, newer); err != nil {
		return err
	}
	d.newest, d.evaluation = newer, evaluation
	close(d.changed)
	d.changed = make(chan struct{})
	return nil
}

// definitionsOf returns the definitions once they are of that revision or a newer one. The leader tells its indexers
// and its projectors at the same time, and an indexer may be the first to hear: it waits a little here instead of
// asking again.
func (p *Projector) definitionsOf(ctx context.Context, revision uint64) (*wire.Definitions, error) {
	patience := time.NewTimer(p.defs.patience)
	defer patience.Stop()
	for {
		p.mu.Lock()
		newest, changed := p.defs.newest, p.defs.changed
		p.mu.Unlock()
		if core.Knows(newest, revision) {
			return newest, nil
		}
		select {
		case <-changed:
			continue
		case <-patience.C:
		case <-ctx.Done():
		case <-p.runCtx.Done():
		}
		return nil, rpc.Refuse(errcode.Unavailable, "projector %s does not have definitions revision %d yet; try again",
			p.cfg.ID, revision)
	}
}
