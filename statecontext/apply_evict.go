package statecontext

import (
	"slices"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/partition"
)

// EvictIndexer begins to remove an indexer for good; it cannot be undone. From then on no copy is placed on the
// indexer. EvictCopies then removes its copies, and RemoveIndexer completes the removal. Repeating the command
// changes nothing. Rejections: UnknownNode, IndexChanged.
type EvictIndexer struct {
	Node     index.NodeID
	UUID     string // guards against a node id that was reassigned meanwhile
	Revision uint64 // definitions revision for which it was decided; the state must be at it
}

// EvictCopies removes all copies of some indexes from an indexer that is being removed, and places others instead.
// The proposer chooses which indexes and how many, since an indexer may hold more copies than fit in one command.
// Rejections: UnknownNode, StateMismatch (the indexer is not being removed), UnknownIndex, CASMismatch, UnknownCopy,
// PlacementInconsistent.
type EvictCopies struct {
	Node    index.NodeID
	UUID    string
	Indexes []Eviction
}

// Eviction names an index and the copies to place instead of its copies on the node: one for each copy that is not
// leaving, none if the index is being dropped.
type Eviction struct {
	ID         index.ID
	IfTopology uint64 // TopologyCAS for which it was decided; the index must be at it
	Add        []Placement
}

func (*EvictIndexer) kind() kind { return kindEvictIndexer }
func (*EvictCopies) kind() kind  { return kindEvictCopies }

func (c *EvictIndexer) append(dst []byte) []byte {
	return appendUint(appendString(append(dst, byte(c.Node)), c.UUID), c.Revision)
}

func decodeEvictIndexer(d *decoder) *EvictIndexer {
	return &EvictIndexer{Node: index.NodeID(d.byte()), UUID: d.string(), Revision: d.uint()}
}

func (c *EvictCopies) append(dst []byte) []byte {
	dst = appendUint(appendString(append(dst, byte(c.Node)), c.UUID), uint64(len(c.Indexes)))
	for i := range c.Indexes {
		dst = c.Indexes[i].append(dst)
	}
	return dst
}

func (e *Eviction) append(dst []byte) []byte {
	return appendPlacements(appendUint(appendUint(dst, uint64(e.ID)), e.IfTopology), e.Add)
}

// EncodedSize returns the number of bytes that the eviction adds to its command.
func (e *Eviction) EncodedSize() int { return len(e.append(nil)) }

func decodeEvictCopies(d *decoder) *EvictCopies {
	c := &EvictCopies{Node: index.NodeID(d.byte()), UUID: d.string()}
	for n := d.count(); n > 0 && d.err == nil; n-- {
		c.Indexes = append(c.Indexes, Eviction{ID: index.ID(d.uint()), IfTopology: d.uint(), Add: d.placements()})
	}
	return c
}

func (c *EvictIndexer) apply(t *tx) *Rejection {
	old := t.s.Indexer(c.Node)
	switch {
	case old == nil || old.UUID != c.UUID:
		return reject(errcode.UnknownNode, "there is no indexer %d with uuid %q", c.Node, c.UUID)
	case old.Evicting:
		return nil
	case c.Revision != t.s.revision:
		return reject(errcode.IndexChanged, "indexer %d (%s) was to be removed at definitions revision %d, it is %d; try "+
			"again", c.Node, old.Name, c.Revision, t.s.revision)
	}
	i := *old
	i.Evicting, i.ModifiedCAS = true, t.cas
	own(&t.s.indexers, &t.owned.indexers).Set(i.Node, &i)
	t.changedDefinitions()
	t.emitIndexer(&i)
	return nil
}

func (c *EvictCopies) apply(t *tx) *Rejection {
	switch i := t.s.Indexer(c.Node); {
	case i == nil || i.UUID != c.UUID:
		return reject(errcode.UnknownNode, "there is no indexer %d with uuid %q", c.Node, c.UUID)
	case !i.Evicting:
		return reject(errcode.StateMismatch, "indexer %d (%s) is not being removed", c.Node, i.Name)
	}
	for _, e := range c.Indexes {
		if rejection := t.evict(c.Node, e); rejection != nil {
			return rejection
		}
	}
	return nil
}

// evict removes an index's copies from the node.
func (t *tx) evict(node index.NodeID, e Eviction) *Rejection {
	p, rejection := t.index(e.ID)
	if rejection != nil {
		return rejection
	}
	x := *p
	f := &x.Definition
	if e.IfTopology != x.TopologyCAS {
		return reject(errcode.CASMismatch, "the topology of index %d (%s) was modified at cas %d, the command was "+
			"made for %d", f.ID, f.Name, x.TopologyCAS, e.IfTopology)
	}
	kept := slices.DeleteFunc(slices.Clone(x.Topology.Copies), func(o partition.Copy) bool { return o.Node == node })
	if len(kept) == len(x.Topology.Copies) {
		return reject(errcode.UnknownCopy, "index %d (%s) has no copy on node %d", f.ID, f.Name, node)
	}
	x.Topology.Copies = kept
	if f.State != index.Dropping {
		if rejection = t.s.checkNew(e.Add); rejection == nil {
			x.Topology.Copies = t.placeCopies(kept, e.Add)
			rejection = t.s.checkPlacement(x.Topology.Layout, f.Replicas, x.Topology.Copies)
		}
		if rejection != nil {
			return reject(rejection.Code, "index %d (%s): %s", f.ID, f.Name, rejection.Message)
		}
		if len(e.Add) > 0 {
			x.PlacedCAS = t.cas
		}
	}
	t.setIndex(x, false, true)
	return nil
}

// newPlan turns a rejection because of an indexer that is gone or being removed into IndexChanged, which is retried:
// the proposer chose that indexer for a user's request, and would now choose another one.
func newPlan(r *Rejection) *Rejection {
	if r != nil && r.Code == errcode.UnknownNode {
		return reject(errcode.IndexChanged, "%s", r.Message)
	}
	return r
}

// checkNew rejects new copies on an indexer that is being removed.
func (s *State) checkNew(add []Placement) *Rejection {
	for _, p := range add {
		if i := s.Indexer(p.Node); i != nil && i.Evicting {
			return reject(errcode.UnknownNode, "slice %d is placed on node %d (%s), which is being removed", p.Slice, p.Node,
				i.Name)
		}
	}
	return nil
}
