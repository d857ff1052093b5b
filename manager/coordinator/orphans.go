package coordinator

import (
	"context"

	"tidemark/index"
	"tidemark/statecontext"
	"tidemark/wire"
)

// redrop is the pause before an indexer is told again, or told of more orphans.
const redrop = 1000 // ms

// dropOrphans tells an indexer which of the orphans whose grace is over the StateContext does not place on it (IM-8).
// It cannot be undone: leadership is checked first, and nothing is dropped while a restore is under way.
func (l *leader) dropOrphans(n *indexer) {
	var due []wire.OrphanRef
	for _, o := range n.orphans {
		if o.LeftMS == 0 {
			due = append(due, wire.OrphanRef{Copy: o.Copy, Index: o.Index})
		}
	}
	if len(due) == 0 {
		return
	}
	n.drops.Begin()
	n.control.put(task{key: "orphans", do: func(ctx context.Context) {
		a := &orphansAnswer{n: n}
		if a.err = l.cfg.Consensus.ReadBarrier(ctx); a.err == nil {
			if ask := unknown(l.cfg.Consensus.State(), n.node, due); len(ask) > 0 {
				a.reply, a.err = fenced(ctx, n.fences, func(f wire.Fence) (*wire.DropOrphansReply, error) {
					return l.cfg.Indexers.DropOrphans(ctx, n.addr, &wire.DropOrphans{Fence: f, Copies: ask})
				})
			}
		}
		_ = l.post(ctx, a)
	}})
}

// unknown returns the copies that a state does not place on a node, whatever their indexes are about to become.
func unknown(s *statecontext.State, node index.NodeID, copies []wire.OrphanRef) (none []wire.OrphanRef) {
	if s.Staging() != nil {
		return nil
	}
	known := map[index.CopyID]bool{}
	for x := range s.Indexes() {
		for _, c := range x.Topology.Copies {
			if c.Node == node {
				known[c.ID] = true
			}
		}
	}
	for _, r := range copies {
		if !known[r.Copy] {
			none = append(none, r)
		}
	}
	return none
}

// orphansAnswer is an indexer's answer to what it was told of its orphans.
type orphansAnswer struct {
	n     *indexer
	reply *wire.DropOrphansReply // nil when none could be named
	err   error
}

func (a *orphansAnswer) apply(l *leader) {
	if a.err != nil {
		a.n.drops.Failed(l.nowMS)
		l.log.Debug("orphans", "indexer", a.n.name, "error", a.err)
		return
	}
	a.n.drops.Succeeded(l.nowMS + redrop)
	if a.reply != nil && len(a.reply.Dropped) > 0 {
		l.log.Warn("orphans were dropped", "indexer", a.n.name, "copies", a.reply.Dropped)
	}
}
