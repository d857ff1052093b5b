package core

import (
	"slices"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/rebalance"
	"tidemark/statecontext"
)

// Loss is what the removal means for an index.
type Loss struct {
	Index        index.ID
	Name, Bucket string
	Copies       int  // that the indexer had
	LastCopies   int  // of them: no other living indexer has an allocated copy of the slice
	Rebuilt      bool // slices are built anew from KV; until then the index cannot be scanned

	Unsure int // of LastCopies: another indexer may have a whole copy
}

// NoNode is the number of no indexer.
const NoNode = index.MaxNodeID + 1

// Living lists the indexers that may take copies: not those that are being removed, nor one that is to be.
func Living(s *statecontext.State, offline func(index.NodeID) bool, but index.NodeID) (nodes []rebalance.Node) {
	for i := range s.Indexers() {
		if i.Node != but && !i.Evicting && !s.Going(i.Node) && !offline(i.Node) {
			nodes = append(nodes, rebalance.Node{ID: i.Node, UUID: i.UUID, Name: i.Name, Zone: i.Zone, Capacity: i.Capacity,
				Load: s.Load(i.Node)})
		}
	}
	return nodes
}

// Homes are the nodes that may hold an index when one goes: those that its statement names, of all that stay, though
// one of these may be leaving; none, which is all, where it names none or none of these stays.
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

// filling are the copies that slices are moving to: they are not whole yet, or nobody has said so.
func filling(s *statecontext.State) map[index.CopyID]bool {
	copies := map[index.CopyID]bool{}
	for y := range s.RebalanceSteps() {
		if !y.State.Over() {
			copies[y.New] = true
		}
	}
	return copies
}

// LossOf tells what an index loses with a node: what it keeps elsewhere, and the copies to be placed anew. A copy that
// is moving away is lost with the node, too, but has its new place already. An index that is being dropped loses
// nothing.
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
	if d.State.Active() { // others have nothing to lose
		loss.LastCopies, loss.Unsure = stays.last(taken)
	}
	loss.Rebuilt = loss.LastCopies > 0
	return loss, held, lost
}

// staying says of slices whether a whole copy of them stays, or a copy of which nobody knows whether it is whole.
type staying map[index.SliceID]struct{ whole, unsure bool }

// add adds a copy that stays.
func (a staying) add(slice index.SliceID, whole, unsure bool) {
	s := a[slice]
	s.whole, s.unsure = s.whole || whole, s.unsure || unsure
	a[slice] = s
}

// last counts the slices of which no whole copy stays, and those of them of which that is not sure.
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

// count reports whether a copy elsewhere counts as whole, or may be.
func (o *Others) count(c *partition.Copy, living []rebalance.Node) (whole, unsure bool) {
	if c.State != partition.Allocated || o.filling[c.ID] || !slices.ContainsFunc(living,
		func(n rebalance.Node) bool { return n.ID == c.Node }) {
		return false, false
	}
	return !o.unsure[c.ID], o.unsure[c.ID]
}

// twice reports whether a replica has another copy on another node, as it has while it moves.
func twice(x *statecontext.Index, c *partition.Copy) bool {
	return slices.ContainsFunc(x.Topology.Copies, func(o partition.Copy) bool {
		return o.Node != c.Node && o.Slice == c.Slice && o.Replica == c.Replica && o.State != partition.Leaving
	})
}
