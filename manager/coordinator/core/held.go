package core

import (
	"cmp"
	"slices"

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
	if l.packed != nil && (!l.heldDirty || l.nowMS-l.madeMS < int64(copies/copiesPerMS) &&
		l.nowMS >= l.madeMS) {
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
	l.packed = wire.PackHeld(list)
	l.hash = wire.HeldHash(l.packed)
}

// copiesPerMS: a list of so many copies is made anew once in a millisecond at most.
const copiesPerMS = 8
