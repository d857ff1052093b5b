package scan

import (
	"slices"
	"strings"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/partition"
	"tidemark/wire"
)

// plan is the timestamp that a scan runs at, and the copies that may serve each slice.
type plan struct {
	ref     wire.StabilityRef
	behind  bool        // ref is newer than what the copies of some slice are known to hold
	ordered bool        // the order of the slices is the order of the index
	slices  []sliceplan // sorted by slice
}

// sliceplan lists a slice's copies in the order in which they are tried.
type sliceplan struct {
	slice      index.SliceID
	candidates []candidate
	last       error          // why the previous candidate failed
	without    []index.CopyID // copies that can never be read at the timestamp
	alone      bool           // must not be requested together with other slices of its node
}

type candidate struct {
	copy index.CopyID
	node index.NodeID
	held wire.StabilityRef
	last bool // the node is suspect
}

// needed marks the slices that may hold a row of the ranges. If no row can match, all slices are marked, because the
// scan needs a timestamp from somewhere.
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

// newest returns the newest timestamp that a candidate of every slice holds. Each slice must have a candidate.
func newest(all []sliceplan) (ref wire.StabilityRef) {
	for i, s := range all {
		best := slices.MaxFunc(s.candidates, func(a, b candidate) int { return a.held.Compare(b.held.Ref) }).held
		if i == 0 || best.Compare(ref.Ref) < 0 {
			ref = best
		}
	}
	return ref
}

// choose picks the scan's timestamp and orders the copies. The timestamp is the newest one that a healthy copy of
// every needed slice holds; or least if that is newer, for which the nodes then wait; or at, if the caller has named
// one. turn spreads scans over equally good copies. Copies of suspect nodes come last.
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
			return p, Errorf(errcode.SnapshotTooOld, "timestamp %s is older than the rollback or re-creation of bucket %q",
				TimestampID(*at), v.Bucket.Name)
		}
		p.ref = *at
	}
	for i := range p.slices {
		p.slices[i].order(p.ref, turn, nodes.Suspect, busier)
	}
	return p, nil
}

// begin returns the needed slices with the candidates of each.
func begin(v *View, ranges []Range) (plan, error) {
	if v.healthy == nil {
		v.Prepare()
	}
	if v.provider == nil {
		return plan{}, Errorf(errcode.Unavailable, "index %s (%s) has a partitioning that this indexer does not support: "+
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

// unheld returns the error for a slice of which no copy can be read, and names the indexers that have its copies.
func (v *View) unheld(s index.SliceID, nodes Nodes) error {
	var on []string
	for _, c := range v.Topology.Copies {
		if c.Slice == s {
			on = append(on, nodes.Name(c.Node))
		}
	}
	return Errorf(errcode.Unavailable, "slice %d of index %s (%s) is on %s, and no copy of it can be read: the "+
		"indexer is offline, unhealthy or not caught up: see cluster status, and restart it; an index with num_replica "+
		"survives that", s, v.Definition.ID, v.Definition.Name, strings.Join(on, ", "))
}

// Prepare computes what all scans of a view share. The view must not be modified afterwards.
func (v *View) Prepare() {
	v.healthy = v.candidates()
	if p, err := v.Topology.Layout.Provider(); err == nil { // otherwise the scans return the error
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

// order sorts the copies: first those that hold ref, then those that soon will, then those far behind another copy,
// as on an indexer that is slow or stuck, and last those of suspect nodes. Each group is rotated by turn. If the
// first two are of one group, the less busy one comes first: two random choices suffice to spread load without
// sending every scan to the same node. The view's candidates are not modified.
func (s *sliceplan) order(ref wire.StabilityRef, turn uint64, suspect func(index.NodeID) bool,
	busier func(a, b index.NodeID) bool) {
	n := uint64(len(s.candidates))
	if n == 1 {
		return
	}
	rotated := make([]candidate, 0, n)
	for i := range n {
		c := s.candidates[(i+turn)%n]
		c.last = suspect(c.node)
		rotated = append(rotated, c)
	}
	newest := newestHeld(rotated)
	slices.SortStableFunc(rotated, func(a, b candidate) int { return a.rank(ref, newest) - b.rank(ref, newest) })
	if a, b := rotated[0], rotated[1]; a.rank(ref, newest) == b.rank(ref, newest) && busier(a.node, b.node) {
		rotated[0], rotated[1] = b, a
	}
	s.candidates = rotated
}

// newestHeld returns the newest timestamp that one of the copies holds.
func newestHeld(all []candidate) (ref wire.StabilityRef) {
	for _, c := range all {
		if c.held.Compare(ref.Ref) > 0 {
			ref = c.held
		}
	}
	return ref
}

// farBehind is the number of promotions from which on a copy counts as far behind. Other nodes' positions arrive a
// moment later than this node's own: a promotion or two, as the next one is made when all have made the last
// (stability.Pacer).
const farBehind = 3

// rank returns 0 for a copy that holds ref, 2 for one that is far behind the newest, 1 for one between, and 3 for one
// of a suspect node. All copies that scans may read are of one generation and rollback, so numbers can be subtracted.
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
