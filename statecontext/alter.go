package statecontext

import (
	"slices"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/partition"
)

// AlterIndex changes the nodes on which an index may be placed, or its number of replicas. New copies are filled from
// KV while the existing copies go on serving; copies of dropped replicas leave, and the remaining replicas are
// renumbered in their order. Rejections: UnknownIndex, CASMismatch, IndexChanged, StateMismatch unless the index is
// READY or waits for BUILD INDEX, RebalanceRunning while slices of it are being moved, InvalidArgument,
// StateMismatch if a slice would be left without an allocated copy, those of placements, and those of StartRebalance
// (IndexChanged instead of StalePlan).
type AlterIndex struct {
	ID index.ID
	// IfMatch, unless 0, must equal the definition's ModifiedCAS. It is the user's precondition.
	IfMatch uint64
	// IfPlanned, unless 0, is the ModifiedCAS of the definition for which the command was planned.
	IfPlanned uint64
	Replicas  uint8               // number of replicas after the change
	Drop      []partition.Replica // replicas to drop, ascending
	Add       []Placement         // copies of the new replicas
	Nodes     []string            // uuids or names of the indexers that may hold the index; empty: all
	// Statement is the canonical CREATE INDEX text after the change, as in Definition.Statement.
	Statement string
	// Start begins the rebalance that moves the slices now placed on other nodes; nil: nothing moves. It begins together
	// with the change or not at all, so that a leader change cannot separate the two (Result.Number).
	Start *StartRebalance
}

func (*AlterIndex) kind() kind { return kindAlterIndex }

func (c *AlterIndex) append(dst []byte) []byte {
	dst = append(appendUint(appendUint(appendUint(dst, uint64(c.ID)), c.IfMatch), c.IfPlanned), c.Replicas)
	dst = appendUint(dst, uint64(len(c.Drop)))
	for _, r := range c.Drop {
		dst = append(dst, byte(r))
	}
	dst = appendUint(appendPlacements(dst, c.Add), uint64(len(c.Nodes)))
	for _, n := range c.Nodes {
		dst = appendString(dst, n)
	}
	dst = appendString(dst, c.Statement)
	if c.Start != nil {
		dst = c.Start.append(dst)
	}
	return dst
}

func decodeAlterIndex(d *decoder) *AlterIndex {
	c := &AlterIndex{ID: index.ID(d.uint()), IfMatch: d.uint(), IfPlanned: d.uint(), Replicas: d.byte()}
	for n := d.count(); n > 0 && d.err == nil; n-- {
		c.Drop = append(c.Drop, partition.Replica(d.byte()))
	}
	c.Add = d.placements()
	for n := d.count(); n > 0 && d.err == nil; n-- {
		c.Nodes = append(c.Nodes, d.string())
	}
	c.Statement = d.string()
	if d.err == nil && len(d.b) > 0 {
		c.Start = decodeStartRebalance(d)
	}
	return c
}

func (c *AlterIndex) apply(t *tx) *Rejection {
	p, rejection := t.index(c.ID)
	if rejection != nil {
		return rejection
	}
	x := *p
	f := &x.Definition
	if rejection := c.admit(t, &x); rejection != nil {
		return rejection
	}
	if rejection := checkPlanned(f, c.IfPlanned); rejection != nil {
		return rejection
	}
	if rejection := t.s.checkNew(c.Add); rejection != nil {
		return newPlan(rejection)
	}
	x.Topology.Copies = c.without(&x)
	if rejection := c.keeps(&x); rejection != nil {
		return rejection
	}
	x.Topology.Copies = t.placeCopies(x.Topology.Copies, c.Add)
	f.Replicas, f.Nodes, f.Statement = c.Replicas, c.Nodes, c.Statement
	if rejection := t.checkDefinition(f); rejection != nil {
		return rejection
	}
	if rejection := t.s.checkPlacement(x.Topology.Layout, f.Replicas, x.Topology.Copies); rejection != nil {
		return newPlan(rejection)
	}
	if len(c.Add) > 0 {
		x.PlacedCAS = t.cas
	}
	t.result.Index = f.ID
	t.setIndex(x, true, len(c.Add)+len(c.Drop) > 0)
	return c.start(t)
}

// start begins the rebalance that is part of the command, if there is one.
func (c *AlterIndex) start(t *tx) *Rejection {
	if c.Start == nil {
		return nil
	}
	rejection := c.Start.apply(t)
	if rejection != nil && rejection.Code == errcode.StalePlan { // the user has named no plan
		return reject(errcode.IndexChanged, "%s", rejection.Message)
	}
	return rejection
}

// countsUp reports whether Replicas is what remains after Drop of the existing replicas.
func (c *AlterIndex) countsUp(replicas int) bool {
	left := replicas - len(c.Drop)
	return left >= 0 && (len(c.Drop) == 0 || left == int(c.Replicas) && len(c.Add) == 0)
}

func (c *AlterIndex) admit(t *tx, x *Index) *Rejection {
	f := &x.Definition
	if rejection := matches(f, c.IfMatch); rejection != nil {
		return rejection
	}
	switch {
	case f.Replaces != 0 || t.s.Successor(f) != nil:
		return splitting(f)
	case f.State != index.Maintenance && !x.Waits():
		return reject(errcode.StateMismatch, "index %d (%s) is in state %s; wait until it is ready", f.ID, f.Name, f.State)
	case len(t.s.RebalancesOf(f.ID)) > 0:
		return reject(errcode.RebalanceRunning, "slices of index %d (%s) are being moved; wait for the end "+
			"of that, or cancel it", f.ID, f.Name)
	case !c.countsUp(int(f.Replicas)):
		return reject(errcode.InvalidArgument, "index %d (%s) has %d replicas; dropping %d of them does not leave %d", f.ID,
			f.Name, f.Replicas, len(c.Drop), c.Replicas)
	}
	return c.admitDrop(f)
}

// admitDrop rejects dropping replicas that do not exist.
func (c *AlterIndex) admitDrop(f *index.Definition) *Rejection {
	for i, r := range c.Drop {
		if uint8(r) > f.Replicas || i > 0 && r <= c.Drop[i-1] {
			return reject(errcode.InvalidArgument, "index %d (%s) has the replicas 0 to %d; %v cannot be dropped", f.ID, f.Name,
				f.Replicas, c.Drop)
		}
	}
	return nil
}

// without returns the copies after the dropped replicas have left. If the index waits for BUILD INDEX, their copies
// are removed at once: no host has received the definition.
func (c *AlterIndex) without(x *Index) []partition.Copy {
	kept := make([]partition.Copy, 0, len(x.Topology.Copies))
	for _, o := range x.Topology.Copies {
		at, gone := slices.BinarySearch(c.Drop, o.Replica)
		switch {
		case !gone:
			o.Replica -= partition.Replica(at)
		case x.Waits():
			continue
		default:
			o.State = partition.Leaving
		}
		kept = append(kept, o)
	}
	return kept
}

// keeps rejects a drop that would leave a slice without an allocated copy. The coordinator checks that one of them is
// whole.
func (c *AlterIndex) keeps(x *Index) *Rejection {
	if len(c.Drop) == 0 || x.Waits() {
		return nil
	}
	made := make([]bool, x.Topology.Layout.Partitions)
	for _, o := range x.Topology.Copies {
		if o.State == partition.Allocated {
			made[o.Slice] = true
		}
	}
	if at := slices.Index(made, false); at >= 0 {
		return reject(errcode.StateMismatch, "index %d (%s) would be left without an allocated copy of slice %d; wait "+
			"until the other replicas are allocated", x.Definition.ID, x.Definition.Name, at)
	}
	return nil
}
