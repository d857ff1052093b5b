package core

import (
	"cmp"
	"slices"

	"tidemark/partition"
	"tidemark/wire"
)

// heldList is which copies hold which stability timestamp, for scans.
type heldList struct {
	*scene
	packed []byte
	hash   uint64
	madeMS int64
}

// pack lists which copies hold which stability timestamp, for scans. With many copies there are always some that
// have moved on: the list is then made anew now and then only.
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
		ok := !n.offline && n.heard
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

// once leaves one row of each copy, of a list ascending by copy. Where two indexers say that they have it, as one was
// given the other's files, that one counts whose it is.
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

// places reports whether the state places a copy on the indexer that says that it has it.
func (l *heldList) places(h *wire.Held) bool {
	x := l.now.state.Index(l.components.indexers[h.Node].copies[h.Copy].Index)
	return x != nil && slices.ContainsFunc(x.Topology.Copies, func(c partition.Copy) bool {
		return c.ID == h.Copy && c.Node == h.Node
	})
}

// copiesPerMS: a list of so many copies is made anew once in a millisecond at most.
const copiesPerMS = 8
