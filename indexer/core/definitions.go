package core

import (
	"cmp"
	"slices"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/wire"
)

// Definition returns the definition of an index, or nil. d.Indexes is sorted by id.
func Definition(d *wire.Definitions, id index.ID) *index.Definition {
	i, ok := slices.BinarySearchFunc(d.Indexes, id,
		func(d index.Definition, id index.ID) int { return cmp.Compare(d.ID, id) })
	if !ok {
		return nil
	}
	return &d.Indexes[i]
}

// Defines reports whether an index is defined.
func Defines(d *wire.Definitions, id index.ID) bool { return Definition(d, id) != nil }

// Topology returns the topology of an index, or nil. d.Topologies is sorted by index.
func Topology(d *wire.Definitions, id index.ID) *partition.Topology {
	i, ok := slices.BinarySearchFunc(d.Topologies, id,
		func(t partition.Topology, id index.ID) int { return cmp.Compare(t.Index, id) })
	if !ok {
		return nil
	}
	return &d.Topologies[i]
}
