package scan

import (
	"slices"
	"strings"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/partition"
	"tidemark/wire"
)

// plan is which timestamp a scan runs at, and which copies may serve each slice.
type plan struct {
	ref     wire.StabilityRef
	behind  bool        // ref is newer than what some slice's copies are known to hold
	ordered bool        // the slices stand one behind the other in the order of the index
	slices  []sliceplan // ascending by slice
}

// sliceplan lists a slice's copies in the order in which they are tried.
type sliceplan struct {
	slice      index.SliceID
	candidates []candidate
	last       error          // why the candidate before failed
	without    []index.CopyID // that cannot be read at the timestamp, whenever they are asked
	alone      bool           // not to be asked together with other slices of its node
}

type candidate struct {
	copy index.CopyID
	node index.NodeID
	held wire.StabilityRef
	last bool // the node is suspect
}

// needed marks the slices that may hold a row of the ranges. When no row can match, every slice is asked all the same:
// the timestamp has to come from somewhere.
func needed(provider partition.TopologyProvider, count int, ranges []Range) []bool {
	marked := make([]bool, count)
	for _, r := range ranges {
		provider.MayHold(marked, r.Low, r.High)
	}
	if len(ranges) == 0 {
		for i := range marked {
			marked[i] = true
		}
	}
	return marked
}

// newest is the newest timestamp that a candidate of every slice holds; each has one.
func newest(all []sliceplan) (ref wire.StabilityRef) {
	for i, s := range all {
		best := slices.MaxFunc(s.candidates, func(a, b candidate) int { return a.held.Compare(b.held.Ref) }).held
		if i == 0 || best.Compare(ref.Ref) < 0 {
			ref = best
		}
	}
	return ref
}

// choose takes the newest timestamp that one healthy copy of every slice that is needed holds, or least when that is
// newer: the nodes then wait for it; or at, when the caller has named one. turn spreads scans over copies that are
// equally good; those of
// suspect nodes are asked last.
func choose(v *View, ranges []Range, least, at *wire.StabilityRef, turn uint64, nodes Nodes,
	busier func(a, b index.NodeID) bool) (plan, error) {
	p, err := begin(v, ranges)
	if err != nil {
		return p, err
	}
	for i := range p.slices {
		if s := &p.slices[i]; len(s.candidates) == 0 {
			return p, v.unheld(s.slice, nodes)
		}
	}
	p.ref = newest(p.slices)
	if least != nil && p.ref.Compare(least.Ref) < 0 {
		p.ref, p.behind = *least, true
	}
	if at != nil {
		if at.Generation != v.Bucket.Generation || at.RollbackID != v.Bucket.RollbackID {
			return p, Errorf(errcode.SnapshotTooOld, "timestamp %s is of before bucket %q was rolled back or made anew",
				TimestampID(*at), v.Bucket.Name)
		}
		p.ref = *at
	}
	for i := range p.slices {
		p.slices[i].order(p.ref, turn, nodes.Suspect, busier)
	}
	return p, nil
}

// begin lists the slices that are needed, with the copies of each that may be asked.
func begin(v *View, ranges []Range) (plan, error) {
	if v.healthy == nil {
		v.Prepare()
	}
	if v.provider == nil {
		return plan{}, Errorf(errcode.Unavailable, "index %s (%s) is partitioned in a way that this indexer does not know: "+
			"%v; is it of an older version?", v.Definition.ID, v.Definition.Name, v.Topology.Layout.Check())
	}
	marked := needed(v.provider, len(v.healthy), ranges)
	p := plan{ordered: v.provider.Ordered(), slices: make([]sliceplan, 0, len(marked))}
	for i, m := range marked {
		if m {
			p.slices = append(p.slices, sliceplan{slice: index.SliceID(i), candidates: v.healthy[i]})
		}
	}
	return p, nil
}

// unheld says who has the copies of a slice that nobody can be asked for.
func (v *View) unheld(s index.SliceID, nodes Nodes) error {
	var on []string
	for _, c := range v.Topology.Copies {
		if c.Slice == s {
			on = append(on, nodes.Name(c.Node))
		}
	}
	return Errorf(errcode.Unavailable, "slice %d of index %s (%s) is on %s, and no copy of it can be read now: that "+
		"indexer is away, not well, or not caught up: see cluster status, start it again; an index with num_replica goes "+
		"on without it", s, v.Definition.ID, v.Definition.Name, strings.Join(on, ", "))
}

// Prepare finds out what is the same for all scans of a view. The view is not changed any more afterwards: scans share
// it.
func (v *View) Prepare() {
	v.healthy = v.candidates()
	if p, err := v.Topology.Layout.Provider(); err == nil { // else the scans say so
		v.provider = p
	}
}

// candidates returns the healthy copies of each slice.
func (v *View) candidates() [][]candidate {
	all := make([][]candidate, v.Topology.Layout.Partitions)
	held := make(map[index.CopyID]wire.StabilityRef, len(v.Topology.Copies))
	for _, h := range v.Held {
		if h.OK && h.Ref.Generation == v.Bucket.Generation && h.Ref.RollbackID == v.Bucket.RollbackID {
			held[h.Copy] = h.Ref
		}
	}
	for _, c := range v.Topology.Copies {
		if ref, ok := held[c.ID]; ok && int(c.Slice) < len(all) {
			all[c.Slice] = append(all[c.Slice], candidate{copy: c.ID, node: c.Node, held: ref})
		}
	}
	return all
}

// order puts copies that hold ref first, then those that soon will: who is far behind another copy, as an indexer that
// is slow or stands still, is asked last, and behind them who is suspect. Each group is rotated by turn; of the first
// two, if they are of one group, the one with less to do is first: two choices are enough to spread load, and leave
// nobody to whom all go at once. The candidates of the view stay as they are.
func (s *sliceplan) order(ref wire.StabilityRef, turn uint64, suspect func(index.NodeID) bool,
	busier func(a, b index.NodeID) bool) {
	n := uint64(len(s.candidates))
	if n == 1 {
		return
	}
	rotated := make([]candidate, 0, n)
	var newest wire.StabilityRef
	for i := range n {
		c := s.candidates[(i+turn)%n]
		rotated = append(rotated, c)
		if c.held.Compare(newest.Ref) > 0 {
			newest = c.held
		}
	}
	for i := range rotated {
		rotated[i].last = suspect(rotated[i].node)
	}
	slices.SortStableFunc(rotated, func(a, b candidate) int { return a.rank(ref, newest) - b.rank(ref, newest) })
	if a, b := rotated[0], rotated[1]; a.rank(ref, newest) == b.rank(ref, newest) && busier(a.node, b.node) {
		rotated[0], rotated[1] = b, a
	}
	s.candidates = rotated
}

// farBehind is how many promotions a copy lacks of those that another one has made when it is asked last. What others
// hold is known a moment later than what one holds oneself: a promotion or two, as the next one is made when all have
// made the last (stability.Pacer).
const farBehind = 3

// rank is 0 for a copy that holds ref, 2 for one that is far behind the newest, 1 between, 3 for one of a suspect node.
// All copies that scans may read are of one generation and rollback, so that numbers tell the distance.
func (c candidate) rank(ref, newest wire.StabilityRef) int {
	switch {
	case c.last:
		return 3
	case c.held.Compare(ref.Ref) >= 0:
		return 0
	case newest.Number-min(c.held.Number, newest.Number) >= farBehind:
		return 2
	}
	return 1
}
