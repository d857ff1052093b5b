package core

import (
	"fmt"

	"tidemark/index"
	"tidemark/rebalance"
	"tidemark/statecontext"
)

// evictAgain is the time until a stuck removal is tried again: each attempt may look through all indexes.
const evictAgain = 5_000 // ms

// stuckEviction is the reason why a removal, or a part of it, cannot proceed now.
type stuckEviction struct {
	reason string
	again  int64 // when it is tried again, on nowMS
}

// evictions runs the removals of indexers.
type evictions struct {
	*scene
	stuck map[index.NodeID]stuckEviction
}

// step continues the removal of indexers: their copies are placed elsewhere, as many as one command carries at a
// time, and an indexer that holds none any more is removed. It decides from the present state alone, so that a new
// leader continues where the old one stopped.
func (l *evictions) step() {
	for i := range l.now.state.Indexers() {
		if i.Evicting {
			l.evict(i)
		}
	}
	for node := range l.stuck {
		if l.now.state.Indexer(node) == nil {
			delete(l.stuck, node)
		}
	}
}

// evict proposes the next command for one removal.
func (l *evictions) evict(i *statecontext.Indexer) {
	key, stuck := "evict/"+i.UUID, l.stuck[i.Node]
	if !l.mayPropose(key) || stuck.again > l.nowMS {
		return
	}
	away := func(node index.NodeID) bool {
		return l.components.indexers[node] == nil || l.away(node)
	}
	piece, held, err := evicted(l.now.state, i.Node, Living(l.now.state, away, i.Node), l.settings.EvictBytes)
	switch {
	case len(piece) > 0:
		l.propose(key, &statecontext.EvictCopies{Node: i.Node, UUID: i.UUID, Indexes: piece}, nil)
	case !held:
		l.propose(key, &statecontext.RemoveIndexer{Node: i.Node, UUID: i.UUID},
			func(_ statecontext.Result, err error) {
				if err == nil {
					l.log.Warn("indexer removed", "indexer", i.Name, "node", i.Node, "uuid", i.UUID)
				}
			})
	default:
		stuck.again = l.nowMS + evictAgain
	}
	if err == nil {
		delete(l.stuck, i.Node)
		return
	}
	if stuck.reason != err.Error() {
		l.log.Error("indexer cannot be removed yet", "indexer", i.Name, "node", i.Node, "error", err)
	}
	stuck.reason = err.Error()
	l.stuck[i.Node] = stuck
}

// evicted decides the next command: indexes that have copies on the node, and the places of their new copies. held
// reports whether the node has copies at all. err is of the first index for whose copies there is no place; other
// indexes proceed. The copies of one index are never divided between commands: they fit into any.
func evicted(s *statecontext.State, node index.NodeID, nodes []rebalance.Node,
	bytes int) (piece []statecontext.Eviction, held bool, err error) {
	size := 0
	for x := range s.Indexes() {
		if !x.Topology.IsOn(node) {
			continue
		}
		held = true
		loss, keeps, lost := LossOf(x, node, nodes, Others{})
		add, noPlace := rebalance.Substitute(nodes, Homes(s, &x.Definition, node), keeps, lost)
		if noPlace != nil {
			if err == nil {
				err = fmt.Errorf("index %s on %s: %w", loss.Name, loss.Bucket, noPlace)
			}
			continue
		}
		e := statecontext.Eviction{ID: loss.Index, IfTopology: x.TopologyCAS}
		for _, p := range add {
			e.Add = append(e.Add, statecontext.Placement(p))
		}
		if size += e.EncodedSize(); size > bytes && len(piece) > 0 {
			break
		}
		piece = append(piece, e)
	}
	return piece, held, err
}
