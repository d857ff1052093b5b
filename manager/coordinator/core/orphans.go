package core

import (
	"tidemark/wire"
)

// redrop is the pause before an indexer is sent orphans to drop again.
const redrop = 1000 // ms

// dropOrphans sends an indexer the orphans whose grace period is over; the driver sends only those that the
// StateContext does not place on it (IM-8).
func (l *membership) dropOrphans(n *indexer) {
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
	l.send(&n.component, Control, "orphans", DropOrphans{Node: n.node, Copies: due})
}

// orphansDropped takes an indexer's answer.
func (l *membership) orphansDropped(a *OrphansDropped) {
	for _, n := range l.components.indexers {
		switch {
		case n.receiver != a.From:
		case a.Err != nil:
			n.drops.Failed(l.nowMS)
		default:
			n.drops.Succeeded(l.nowMS + redrop)
		}
	}
	if a.Err != nil {
		l.log.Debug("orphans", "indexer", a.Name, "error", a.Err)
	} else if len(a.Dropped) > 0 {
		l.log.Warn("orphaned copies were dropped", "indexer", a.Name, "copies", a.Dropped)
	}
}
