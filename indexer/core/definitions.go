package core

import (
	"cmp"
	"slices"

	"tidemark/index"
	"tidemark/wire"
)

// Defines reports whether an index is defined. The definitions are ascending by id.
func Defines(d *wire.Definitions, id index.ID) bool {
	_, ok := slices.BinarySearchFunc(d.Indexes, id,
		func(d index.Definition, id index.ID) int { return cmp.Compare(d.ID, id) })
	return ok
}
