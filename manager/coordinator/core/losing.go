package core

import (
	"slices"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/rebalance"
	"tidemark/statecontext"
)

// Loss is what an index loses by the removal of an indexer.
type Loss struct {
	Index        index.ID
	Name, Bucket string
	Copies       int  // on the indexer
	LastCopies   int  // of them: no other live indexer has an allocated copy of the slice
	Rebuilt      bool // slices are rebuilt from KV; until then the index cannot be scanned

	Unsure int // of LastCopies: another indexer may have a whole copy
}

// NoNode is a node id that no indexer has.
const NoNode = index.MaxNodeID + 1

// Living returns the indexers that may take copies: those that are online and neither leave nor are being removed,
// without the indexer but.
func Living(s *statecontext.State, offline func(index.NodeID) bool, but index.NodeID) (nodes []rebalance.Node) {
	for i := range s.Indexers() {
		if i.Node != but && !i.Evicting && !s.Going(i.Node) && !offline(i.Node) {
			nodes = append(nodes, rebalance.Node{ID: i.Node, UUID: i.UUID, Name: i.Name, Zone: i.Zone, Capacity: i.Capacity,
				Load: s.Load(i.Node)})
		}
	}
	return nodes
}

// Homes returns the nodes that may hold an index after node but has gone: those named in its statement, even if they
// are leaving. The result is empty, which means all nodes, if the statement names none or none of them stays.
func Homes(s *statecontext.State, d *index.Definition, but index.NodeID) (ids []index.NodeID) {
	if len(d.Nodes) == 0 {
		return nil
	}
	var stay []rebalance.Node
	for i := range s.Indexers() {
		if i.Node != but && !i.Evicting {
			stay = append(stay, rebalance.Node{ID: i.Node, UUID: i.UUID, Name: i.Name})
		}
	}
	return Named(stay, d.Nodes)
}

// filling returns the target copies of moves in progress: they are not whole yet, or have not been reported whole.
func filling(s *statecontext.State) map[index.CopyID]bool {
	copies := map[index.CopyID]bool{}
	for y := range s.RebalanceSteps() {
		if !y.State.Over() {
			copies[y.New] = true
		}
	}
	return copies
}

// LossOf returns what an index loses with a node, the placements that it keeps elsewhere, and the copies to place
// anew. A copy that is moving away is lost with the node, too, but already has its new place. An index that is being
// dropped loses nothing.
func LossOf(x *statecontext.Index, node index.NodeID, living []rebalance.Node, others Others) (loss Loss,
	held, lost []rebalance.Placement) {
	d := &x.Definition
	loss = Loss{Index: d.ID, Name: d.Name, Bucket: d.Bucket}
	if d.State == index.Dropping {
		return loss, nil, nil
	}
	stays := staying{}
	var taken []index.SliceID
	for _, o := range x.Topology.Copies {
		p := rebalance.Placement{Slice: o.Slice, Replica: o.Replica, Node: o.Node}
		switch {
		case o.State == partition.Leaving:
		case o.Node != node:
			held = append(held, p)
			whole, unsure := others.count(&o, living)
			stays.add(o.Slice, whole, unsure)
		case !twice(x, &o):
			lost, taken = append(lost, p), append(taken, o.Slice)
		case !others.filling[o.ID]: // it is moving away
			taken = append(taken, o.Slice)
		}
	}
	loss.Copies = len(taken)
	if d.State.Active() { // indexes in other states have nothing to lose
		loss.LastCopies, loss.Unsure = stays.last(taken)
	}
	loss.Rebuilt = loss.LastCopies > 0
	return loss, held, lost
}

// staying tracks, by slice, whether a whole copy stays, or a copy of which it is not known whether it is whole.
type staying map[index.SliceID]struct{ whole, unsure bool }

// add adds a copy that stays.
func (a staying) add(slice index.SliceID, whole, unsure bool) {
	s := a[slice]
	s.whole, s.unsure = s.whole || whole, s.unsure || unsure
	a[slice] = s
}

// last counts the slices of which no whole copy stays (last), and those among them for which that is not certain
// (unsure).
func (a staying) last(taken []index.SliceID) (last, unsure int) {
	for _, slice := range taken {
		switch s := a[slice]; {
		case s.whole:
		case s.unsure:
			last, unsure = last+1, unsure+1
		default:
			last++
		}
	}
	return last, unsure
}

// count reports whether a copy on another node is whole, or possibly whole.
func (o *Others) count(c *partition.Copy, living []rebalance.Node) (whole, unsure bool) {
	if c.State != partition.Allocated || o.filling[c.ID] || !slices.ContainsFunc(living,
		func(n rebalance.Node) bool { return n.ID == c.Node }) {
		return false, false
	}
	return !o.unsure[c.ID], o.unsure[c.ID]
}

// twice reports whether the replica has another copy on another node, as it has during a move.
func twice(x *statecontext.Index, c *partition.Copy) bool {
	return slices.ContainsFunc(x.Topology.Copies, func(o partition.Copy) bool {
		return o.Node != c.Node && o.Slice == c.Slice && o.Replica == c.Replica && o.State != partition.Leaving
	})
}
