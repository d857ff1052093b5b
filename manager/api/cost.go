package api

import (
	"fmt"
	"strings"

	"tidemark/index"
	"tidemark/manager/api/v1"
	"tidemark/manager/coordinator/core"
	"tidemark/partition"
	"tidemark/statecontext"
)

// costing estimates the cost of a dry run's statements from the indexers' reports of existing indexes.
type costing struct {
	real     *statecontext.State // without the statements
	reported map[index.ID]core.Progress
}

// of returns the cost of a statement that takes an index from one state to another; nil if it changes nothing.
func (c *costing) of(before, after *statecontext.State, id index.ID) *v1.StatementCost {
	was, is := before.Index(id), after.Index(id)
	switch {
	case is == nil || is.Definition.State == index.Dropping:
		if was == nil || was.Definition.State == index.Dropping {
			return nil
		}
		return c.dropped(was)
	case was == nil, was.Definition.State != is.Definition.State, was.Definition.Deferred != is.Definition.Deferred:
		return c.built(is)
	}
	return c.altered(was, is, after)
}

func (c *costing) dropped(x *statecontext.Index) *v1.StatementCost {
	cost := &v1.StatementCost{}
	if t, has := c.reported[x.Definition.ID]; has {
		cost.Frees = &v1.Estimate{Value: t.Bytes, Bound: v1.About, Source: "size of its copies"}
	} else {
		cost.Unknown = append(cost.Unknown, "what it frees: no indexer has reported the size of its copies")
	}
	return cost
}

// built returns the cost of building all copies.
func (c *costing) built(x *statecontext.Index) *v1.StatementCost {
	cost := &v1.StatementCost{Copies: len(x.Topology.Copies)}
	d := &x.Definition
	if cost.Documents = c.documents(d); cost.Documents == nil {
		cost.Unknown = append(cost.Unknown, fmt.Sprintf("how many documents %s has: no ready index gives the number; a "+
			"primary index would", d.Keyspace()))
	}
	like := c.like(d)
	if cost.Entries = c.entries(d, like, cost.Documents); cost.Entries == nil {
		cost.Unknown = append(cost.Unknown, "how many entries it will have: no ready index has the same first "+
			"component and condition")
	}
	if cost.Bytes = c.bytes(d, like, cost.Entries); cost.Bytes == nil {
		cost.Unknown = append(cost.Unknown, "how many bytes it will occupy")
	}
	return cost
}

// changedCopies counts copies that are new, and copies that are gone.
func changedCopies(was, is *partition.Topology) (fresh, gone int) {
	had := map[index.CopyID]bool{}
	for _, o := range was.Copies {
		if o.State != partition.Leaving {
			had[o.ID] = true
			gone++
		}
	}
	for _, o := range is.Copies {
		switch {
		case o.State == partition.Leaving:
		case had[o.ID]:
			gone--
		default:
			fresh++
		}
	}
	return fresh, gone
}

// altered returns the cost of copies that are new or move.
func (c *costing) altered(was, is *statecontext.Index, after *statecontext.State) *v1.StatementCost {
	cost := &v1.StatementCost{}
	fresh, gone := changedCopies(&was.Topology, &is.Topology)
	for _, y := range after.RebalancesOf(is.Definition.ID) {
		cost.Copies++
		cost.Bytes = plus(cost.Bytes, y.Bytes, "size of the copies that move; they are sent as files, or rebuilt from KV "+
			"where files cannot be sent")
	}
	if cost.Copies += fresh; cost.Copies+gone == 0 {
		return nil
	}
	t, has := c.reported[was.Definition.ID]
	switch {
	case !has || t.Copies == 0:
		cost.Unknown = append(cost.Unknown, "bytes: no indexer has reported the size of its copies")
	default:
		if fresh > 0 {
			cost.Bytes = plus(cost.Bytes, t.Bytes/uint64(t.Copies)*uint64(fresh), "average size of its copies; new "+
				"copies are made of files of these, or from KV where files cannot be sent")
		}
		if gone > 0 {
			cost.Frees = &v1.Estimate{Value: t.Bytes / uint64(t.Copies) * uint64(gone), Bound: v1.About,
				Source: "average size of its copies"}
		}
	}
	return cost
}

func plus(e *v1.Estimate, n uint64, source string) *v1.Estimate {
	if e == nil {
		return &v1.Estimate{Value: n, Bound: v1.About, Source: source}
	}
	if e.Value += n; e.Source != source {
		e.Source += "; " + source
	}
	return e
}

// documents estimates the number of documents in the index's keyspace.
func (c *costing) documents(d *index.Definition) (best *v1.Estimate) {
	for x := range c.real.Indexes() {
		o := &x.Definition
		t := c.reported[o.ID]
		switch {
		case !c.isComparable(o, d):
		case o.IsPrimary && o.Where == "":
			return &v1.Estimate{Value: t.Items, Bound: v1.About,
				Source: fmt.Sprintf("entries of primary index %s", o.Name)}
		case !arrays(o) && (best == nil || t.Items > best.Value):
			best = &v1.Estimate{Value: t.Items, Bound: v1.AtLeast,
				Source: fmt.Sprintf("documents with entries in index %s", o.Name)}
		}
	}
	return best
}

// like returns an index with as many entries as the new one will have, preferably one with the same key; nil if there
// is none.
func (c *costing) like(d *index.Definition) (best *statecontext.Index) {
	for x := range c.real.Indexes() {
		o := &x.Definition
		if !c.isComparable(o, d) || o.Where != d.Where || o.IsPrimary != d.IsPrimary {
			continue
		}
		switch {
		case sameKey(o, d):
			return x
		case best == nil && !arrays(o) && !arrays(d) && o.Keys[0].Expr == d.Keys[0].Expr:
			best = x
		}
	}
	return best
}

func (c *costing) entries(d *index.Definition, like *statecontext.Index, documents *v1.Estimate) *v1.Estimate {
	switch {
	case like != nil:
		o := &like.Definition
		same := "first component"
		if sameKey(o, d) {
			same = "key"
		}
		return &v1.Estimate{Value: c.reported[o.ID].Items, Bound: v1.About,
			Source: fmt.Sprintf("entries of index %s, which has the same %s and condition", o.Name, same)}
	case documents == nil || arrays(d) || documents.Bound == v1.AtLeast:
		return nil
	case d.IsPrimary && d.Where == "":
		return &v1.Estimate{Value: documents.Value, Bound: v1.About, Source: "one entry per document: " + documents.Source}
	}
	return &v1.Estimate{Value: documents.Value, Bound: v1.AtMost, Source: "at most one entry per document: " +
		documents.Source}
}

// bytes estimates the disk space of all copies, from the entries of a similar index, or of all existing ones.
func (c *costing) bytes(d *index.Definition, like *statecontext.Index, entries *v1.Estimate) *v1.Estimate {
	if entries == nil {
		return nil
	}
	var items, bytes uint64
	of := "the indexes of " + d.Keyspace().String() + " take"
	for x := range c.real.Indexes() {
		o := &x.Definition
		if c.isComparable(o, d) && (like == nil || o.ID == like.Definition.ID) {
			t := c.reported[o.ID]
			items, bytes = items+t.Items*(uint64(o.Replicas)+1), bytes+t.Bytes
		}
	}
	if items == 0 || bytes == 0 {
		return nil
	}
	if like != nil {
		of = "index " + like.Definition.Name + " takes"
	}
	each := float64(bytes) / float64(items)
	return &v1.Estimate{Value: uint64(each * float64(entries.Value) * float64(d.Replicas+1)), Bound: entries.Bound,
		Source: fmt.Sprintf("%s %.0f bytes per entry and copy", of, each)}
}

// isComparable reports whether index o is whole, and has the same keyspace as d.
func (c *costing) isComparable(o, d *index.Definition) bool {
	return o.ID != d.ID && o.State == index.Maintenance && o.Keyspace() == d.Keyspace() && c.reported[o.ID].Ready > 0 &&
		c.reported[o.ID].Ready == c.reported[o.ID].Copies
}

func sameKey(a, b *index.Definition) bool {
	if len(a.Keys) != len(b.Keys) {
		return false
	}
	for i := range a.Keys {
		if a.Keys[i].Expr != b.Keys[i].Expr {
			return false
		}
	}
	return true
}

// arrays reports whether a document may have several entries.
func arrays(d *index.Definition) bool {
	for _, k := range d.Keys {
		if strings.HasPrefix(k.Expr, "ALL ") || strings.HasPrefix(k.Expr, "DISTINCT ") { // in the canonical form
			return true
		}
	}
	return false
}
