package core

import (
	"slices"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/wire"
)

// Fed is an index whose keys a stream carries, and its topology.
type Fed struct {
	Index    *index.Definition
	Topology *partition.Topology
}

// FedBy returns the indexes of a bucket whose keys a stream carries, according to d. only limits a side stream to the
// indexes of these copies; with nil, all active indexes that are placed are returned.
func FedBy(d *wire.Definitions, bucket string, only []index.CopyID) (all []Fed) {
	at := map[index.ID]int{} // position in all; this bucket's indexes only
	for i := range d.Indexes {
		if def := &d.Indexes[i]; def.Bucket == bucket && def.State.Active() {
			at[def.ID] = len(all)
			all = append(all, Fed{Index: def})
		}
	}
	for i := range d.Topologies {
		if n, is := at[d.Topologies[i].Index]; is {
			all[n].Topology = &d.Topologies[i]
		}
	}
	return slices.DeleteFunc(all, func(f Fed) bool {
		return f.Topology == nil || only != nil &&
			!slices.ContainsFunc(f.Topology.Copies, func(c partition.Copy) bool { return Feeds(&c, only) })
	})
}

// Feeds reports whether a stream feeds copy c of an index that it carries. The maintenance stream feeds allocated
// copies. A side stream feeds the copies it is limited to, whatever their state: their host has requested it.
func Feeds(c *partition.Copy, only []index.CopyID) bool {
	if only != nil {
		return slices.Contains(only, c.ID)
	}
	return c.State == partition.Allocated
}

// HasRevision reports whether definitions are at least as new as the revision that a request is based on.
func HasRevision(d *wire.Definitions, revision uint64) bool {
	return d != nil && d.Revision >= revision
}

// SideFeed returns the definitions that a side stream to t works by, derived from d, and the copies that it is
// limited to: an indexer's stream feeds the copies it names, a subscriber's stream feeds each of its indexes whole.
func SideFeed(d *wire.Definitions, t *wire.SideTarget) (*wire.Definitions, []index.CopyID) {
	if len(t.Indexes) > 0 {
		return subscriber(d, t.Indexes, t.Node)
	}
	return d, t.Copies
}

// subscriber returns definitions that place each of these indexes whole, as one slice, at a node: for a subscriber
// that is not an indexer (RT-9). Indexes and copies carry the index's first id, so that a split changes nothing for
// the subscriber.
func subscriber(d *wire.Definitions, ids []index.ID, node index.NodeID) (*wire.Definitions, []index.CopyID) {
	own := *d
	own.Indexes, own.Topologies = make([]index.Definition, 0, len(ids)), make([]partition.Topology, 0, len(ids))
	copies := make([]index.CopyID, 0, len(ids))
	for i := range d.Indexes {
		def := d.Indexes[i]
		if def.ID = def.First(); def.Replaces != 0 || !def.State.Active() || !slices.Contains(ids, def.ID) {
			continue
		}
		c := partition.Copy{ID: index.CopyID(def.ID), Node: node, State: partition.Allocated}
		own.Indexes, copies = append(own.Indexes, def), append(copies, c.ID)
		own.Topologies = append(own.Topologies, partition.Topology{Index: def.ID, Layout: partition.Layout{
			Scheme: partition.HashDocID, Partitions: 1}, Copies: []partition.Copy{c}})
	}
	return &own, copies
}
