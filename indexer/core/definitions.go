package core

import (
	"cmp"
	"slices"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/wire"
)

// Definition returns that of an index, nil where there is none. The definitions are ascending by id.
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

// Topology returns that of an index, nil where there is none. The topologies are ascending by index.
func Topology(d *wire.Definitions, id index.ID) *partition.Topology {
	i, ok := slices.BinarySearchFunc(d.Topologies, id,
		func(t partition.Topology, id index.ID) int { return cmp.Compare(t.Index, id) })
	if !ok {
		return nil
	}
	return &d.Topologies[i]
}
