package core

import (
	"slices"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/wire"
)

// Fed is an index whose keys a stream carries, and where its copies are.
type Fed struct {
	Index    *index.Definition
	Topology *partition.Topology
}

// FedBy returns the indexes of a bucket whose keys a stream carries, by these definitions. only limits a side stream to
// those of these copies; nil: every active index that is placed.
func FedBy(d *wire.Definitions, bucket string, only []index.CopyID) (all []Fed) {
	places := make(map[index.ID]*partition.Topology, len(d.Topologies))
	for i := range d.Topologies {
		places[d.Topologies[i].Index] = &d.Topologies[i]
	}
	for i := range d.Indexes {
		def := &d.Indexes[i]
		place := places[def.ID]
		if def.Bucket != bucket || !def.State.Active() || place == nil {
			continue
		}
		if only == nil || slices.ContainsFunc(place.Copies, func(c partition.Copy) bool { return Feeds(&c, only) }) {
			all = append(all, Fed{def, place})
		}
	}
	return all
}

// Feeds reports whether a stream feeds a copy of an index that it carries: one that its host has. A side stream feeds
// the copies that it is limited to, in whatever state they are: their host has asked for it.
func Feeds(c *partition.Copy, only []index.CopyID) bool {
	if only != nil {
		return slices.Contains(only, c.ID)
	}
	return c.State == partition.Allocated
}

// Knows reports whether definitions tell what somebody means who goes by a revision.
func Knows(d *wire.Definitions, revision uint64) bool { return d != nil && d.Revision >= revision }

// SideFeed returns the definitions that a side stream works by, from those that are here, and the copies that it is
// limited to: of an indexer those it names, of a subscriber each of its indexes whole.
func SideFeed(d *wire.Definitions, t *wire.SideTarget) (*wire.Definitions, []index.CopyID) {
	if len(t.Indexes) > 0 {
		return subscriber(d, t.Indexes, t.Node)
	}
	return d, t.Copies
}

// subscriber gives definitions that place each of these indexes whole, as one slice, at a node: for a subscriber that
// is no indexer (RT-9). The copies are named after the indexes.
func subscriber(d *wire.Definitions, ids []index.ID, node index.NodeID) (*wire.Definitions, []index.CopyID) {
	own := *d
	own.Topologies = make([]partition.Topology, len(ids))
	copies := make([]index.CopyID, len(ids))
	for i, id := range ids {
		copies[i] = index.CopyID(id)
		own.Topologies[i] = partition.Topology{Index: id, Layout: partition.Layout{Scheme: partition.HashDocID,
			Partitions: 1},
			Copies: []partition.Copy{{ID: copies[i], Node: node, State: partition.Allocated}}}
	}
	return &own, copies
}
