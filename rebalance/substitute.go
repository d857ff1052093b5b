package rebalance

import (
	"fmt"
	"slices"

	"tidemark/index"
)

// Substitute finds new nodes for copies whose node is gone: one without a copy of the slice, in the zone with the
// fewest copies of it, with the lowest load for its capacity; ties go to the lowest id. on lists the nodes that may
// hold the index, empty: all. held lists the copies that the index keeps. Substitute raises the Load of the chosen
// nodes in place, so that many indexes spread. Errors wrap ErrTooFewNodes.
func Substitute(nodes []Node, on []index.NodeID, held, lost []Placement) ([]Placement, error) {
	chosen := make([]Placement, 0, len(lost))
	for _, l := range lost {
		inZone, taken := map[string]int{}, map[int]bool{}
		for i, n := range nodes {
			for _, set := range [...][]Placement{held, chosen} {
				for _, h := range set {
					if h.Slice == l.Slice && h.Node == n.ID {
						inZone[n.Zone]++
						taken[i] = true
					}
				}
			}
		}
		best := -1
		for i := range nodes {
			may := len(on) == 0 || slices.Contains(on, nodes[i].ID)
			if may && !taken[i] && (best < 0 || better(&nodes[i], &nodes[best], inZone)) {
				best = i
			}
		}
		if best < 0 {
			return nil, fmt.Errorf("%w: no other running indexer may hold the index and lacks a copy of slice %d; add an "+
				"indexer",
				ErrTooFewNodes, l.Slice)
		}
		nodes[best].Load++
		chosen = append(chosen, Placement{Slice: l.Slice, Replica: l.Replica, Node: nodes[best].ID})
	}
	return chosen, nil
}

func better(a, b *Node, inZone map[string]int) bool {
	if x, y := inZone[a.Zone], inZone[b.Zone]; x != y {
		return x < y
	}
	x, y := a.Load*int(max(b.Capacity, 1)), b.Load*int(max(a.Capacity, 1))
	if x != y {
		return x < y
	}
	return a.ID < b.ID
}
