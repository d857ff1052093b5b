package core

import (
	"cmp"
	"slices"

	"tidemark/partition"
	"tidemark/wire"
)

// heldList is the list of the stability timestamps that copies hold, sent to indexers for scans.
type heldList struct {
	*scene
	packed []byte
	hash   uint64
	madeMS int64
}

// pack rebuilds the list if it has changed. With many copies some have always moved on: the list is then rebuilt only
// once in copies/copiesPerMS milliseconds.
func (l *heldList) pack() {
	copies := 0
	for _, n := range l.components.indexers {
		copies += len(n.copies)
	}
	if l.packed != nil && (!l.heldDirty || l.rests(l.madeMS, int64(copies/copiesPerMS))) {
		return
	}
	l.heldDirty, l.madeMS = false, l.nowMS
	list := make([]wire.Held, 0, copies)
	for _, n := range l.components.indexers {
		ok := !n.offline && n.reported
		for _, c := range n.copies {
			if c.Held.Number > 0 {
				list = append(list, wire.Held{Copy: c.Copy, Node: n.node, Ref: c.Held, OK: ok})
			}
		}
	}
	slices.SortFunc(list, func(a, b wire.Held) int {
		return cmp.Or(cmp.Compare(a.Copy, b.Copy),
			cmp.Compare(a.Node, b.Node))
	})
	l.packed = wire.PackHeld(l.once(list))
	l.hash = wire.HeldHash(l.packed)
}

// once keeps one row per copy, of a list sorted by copy. If two indexers claim the same copy, because one was given
// the other's files, the row of the indexer on which the state places the copy wins.
func (l *heldList) once(list []wire.Held) []wire.Held {
	left := list[:0]
	for _, h := range list {
		n := len(left)
		switch {
		case n == 0 || left[n-1].Copy != h.Copy:
			left = append(left, h)
		case l.places(&h):
			left[n-1] = h
		}
	}
	return left
}

// places reports whether the state places a copy on the indexer that reports it.
func (l *heldList) places(h *wire.Held) bool {
	x := l.now.state.Index(l.components.indexers[h.Node].copies[h.Copy].Index)
	return x != nil && slices.ContainsFunc(x.Topology.Copies, func(c partition.Copy) bool {
		return c.ID == h.Copy && c.Node == h.Node
	})
}

// copiesPerMS limits how often the list is rebuilt: with so many copies at most once per millisecond.
const copiesPerMS = 8
