package statecontext

import (
	"slices"

	"tidemark/index"
	"tidemark/partition"
)

// EvictIndexer removes an indexer that will not come back, in one update with everything that it held: its copies are
// forgotten, others are placed instead, and its uuid stays as a tombstone. It names every index that has copies on the
// node and is not being dropped.
type EvictIndexer struct {
	Node     index.NodeID
	UUID     string // guards against a number that was given away meanwhile
	Revision uint64 // definitions revision on which it was decided; no other
	Indexes  []Eviction
}

// Eviction is what is placed instead of an index's copies on the node: one copy for each.
type Eviction struct {
	ID  index.ID
	Add []Placement
}

func (*EvictIndexer) kind() kind { return kindEvictIndexer }

func (c *EvictIndexer) append(dst []byte) []byte {
	dst = appendString(append(dst, byte(c.Node)), c.UUID)
	dst = appendUint(appendUint(dst, c.Revision), uint64(len(c.Indexes)))
	for i := range c.Indexes {
		dst = appendPlacements(appendUint(dst, uint64(c.Indexes[i].ID)), c.Indexes[i].Add)
	}
	return dst
}

func decodeEvictIndexer(d *decoder) *EvictIndexer {
	c := &EvictIndexer{Node: index.NodeID(d.byte()), UUID: d.string(), Revision: d.uint()}
	for n := d.count(); n > 0 && d.err == nil; n-- {
		c.Indexes = append(c.Indexes, Eviction{ID: index.ID(d.uint()), Add: d.placements()})
	}
	return c
}

func (c *EvictIndexer) apply(t *tx) *Rejection {
	i := t.s.Indexer(c.Node)
	switch {
	case i == nil || i.UUID != c.UUID:
		return reject(UnknownNode, "no indexer %d with uuid %q", c.Node, c.UUID)
	case c.Revision != t.s.revision:
		return reject(StaleRevision, "indexer %d (%s) was to be removed at definitions revision %d, it is %d; decide again", c.Node, i.Name, c.Revision, t.s.revision)
	}
	instead := make(map[index.ID][]Placement, len(c.Indexes))
	for _, e := range c.Indexes {
		instead[e.ID] = e.Add
	}
	own(&t.s.indexers, &t.owned.indexers).Delete(c.Node)
	own(&t.s.nodes, &t.owned.nodes).Delete(c.UUID)
	own(&t.s.removed, &t.owned.removed).Set(c.UUID, t.cas)
	var held []index.ID
	for x := range t.s.Indexes() {
		if slices.ContainsFunc(x.Topology.Copies, c.has) {
			held = append(held, x.Definition.ID)
		}
	}
	for _, id := range held {
		if rejection := t.evict(c, *t.s.Index(id), instead[id]); rejection != nil {
			return rejection
		}
	}
	t.changedDefinitions()
	t.emit(Event{Kind: EventIndexer, Name: c.UUID, Node: c.Node, Removed: true})
	return nil
}

func (c *EvictIndexer) has(o partition.Copy) bool { return o.Node == c.Node }

// evict takes an index's copies off the node.
func (t *tx) evict(c *EvictIndexer, x Index, add []Placement) *Rejection {
	f := &x.Definition
	x.Topology.Copies = slices.DeleteFunc(slices.Clone(x.Topology.Copies), c.has)
	if f.State != index.Dropping {
		x.Topology.Copies = t.placeCopies(x.Topology.Copies, add)
		if rejection := t.s.checkPlacement(x.Topology.Layout, f.Replicas, x.Topology.Copies); rejection != nil {
			return reject(rejection.Code, "index %d (%s): %s", f.ID, f.Name, rejection.Message)
		}
		if len(add) > 0 {
			x.PlacedCAS = t.cas
		}
	}
	t.setIndex(x, false, true)
	return nil
}
