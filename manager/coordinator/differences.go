package coordinator

import (
	"fmt"
	"slices"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/statecontext"
	"tidemark/wire"
)

// differEvery is how often the copies that differ are compared with what is committed of them.
const differEvery = 1000 // ms

// differing is what an indexer has told of its copies that differ from the KV data.
type differing struct {
	copies []wire.CopyDifference // by number
	rounds uint64
}

// silent reports whether an indexer that does not list a copy says that it is right: it has compared all its copies,
// and its list ends behind this one, or names all there are.
func (d *differing) silent(id index.CopyID) bool {
	n := len(d.copies)
	return d.rounds > 0 && (n < wire.MaxDifferingCopies || id < d.copies[n-1].Copy) &&
		!slices.ContainsFunc(d.copies, func(x wire.CopyDifference) bool { return x.Copy == id })
}

// stepDifferences commits which copies differ from the KV data, as their indexers tell, so that whoever watches hears
// that one is wrong, and that it is right again.
func (l *Leader) stepDifferences() {
	s := l.now.state
	if l.nowMS-l.periodic.differMS < differEvery || s.FormatLevel() < statecontext.RebalanceFormat() {
		return
	}
	l.periodic.differMS = l.nowMS
	// What is right again goes first: there is room for so many copies only, and for so many proposals.
	for d := range s.Differences() {
		n := l.components.indexers[d.Node]
		if !hosts(s, d.Index, d.Copy, d.Node) || n != nil && n.heard && n.differing.silent(d.Copy) {
			l.propose(differenceKey(d.Copy), &statecontext.NoteDifference{Index: d.Index, Copy: d.Copy, Node: d.Node}, nil)
		}
	}
	for i := range s.Indexers() {
		n := l.components.indexers[i.Node]
		if n == nil {
			continue
		}
		for _, x := range n.differing.copies {
			c := &statecontext.NoteDifference{Index: x.Index, Copy: x.Copy, Node: n.node, Documents: max(x.Documents, 1),
				Kind: string(x.Kind), TakenAnew: x.TakenAnew}
			if d := s.Difference(x.Copy); (d == nil || !c.Matches(d)) && hosts(s, x.Index, x.Copy, n.node) {
				l.propose(differenceKey(x.Copy), c, nil)
			}
		}
	}
}

func differenceKey(id index.CopyID) string { return fmt.Sprint("difference/", id) }

// hosts reports whether a node has a copy of an index.
func hosts(s *statecontext.State, id index.ID, copy index.CopyID, node index.NodeID) bool {
	x := s.Index(id)
	return x != nil && slices.ContainsFunc(x.Topology.Copies, func(c partition.Copy) bool {
		return c.ID == copy && c.Node == node && c.State != partition.Leaving
	})
}
