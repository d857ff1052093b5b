// Package partition decides where a secondary key is stored: it has the TopologyProvider (IM-5), its kinds
// (hash(docid), hash(key), range(key); each a file that registers itself), and the placement of an index's slices on
// indexer nodes (IM-4).
//
// A location is a function of the layout and the key alone, the same on every router, indexer and manager,
// permanently: the layout is replicated with the topology, and a change of layout is a new placement.
package partition

import (
	"cmp"
	"fmt"
	"iter"
	"slices"

	"tidemark/index"
)

// Replica is the number of one of the equal copies of all partitions, 0 to num_replica.
type Replica uint8

// Shard is the part of a replica on one node.
type Shard struct {
	Node index.NodeID `json:"node"`
}

// CopyState is the state of a copy.
type CopyState uint8

// The states of a copy.
const (
	Placed    CopyState = iota + 1 // assigned; not yet allocated according to its host, and not in the routers' topology
	Allocated                      // its host has it: routers feed it
	Leaving                        // to be removed from its host; routers do not feed it
)

// String returns the word in JSON.
func (s CopyState) String() string {
	switch s {
	case Placed:
		return "placed"
	case Allocated:
		return "allocated"
	case Leaving:
		return "leaving"
	}
	return fmt.Sprintf("copy state(%d)", s)
}

// MarshalText encodes the state as its word.
func (s CopyState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText decodes what MarshalText returned.
func (s *CopyState) UnmarshalText(b []byte) error {
	for _, c := range []CopyState{Placed, Allocated, Leaving} {
		if c.String() == string(b) {
			*s = c
			return nil
		}
	}
	return fmt.Errorf("%w: copy state %q", ErrLayout, b)
}

// Copy is one placement of one slice.
type Copy struct {
	ID      index.CopyID  `json:"id"`
	Slice   index.SliceID `json:"slice"`
	Replica Replica       `json:"replica"`
	Node    index.NodeID  `json:"node"`
	State   CopyState     `json:"state"`
}

// Topology is the location of an index: the copies of its slices, each on an indexer (IM-4).
type Topology struct {
	Index  index.ID `json:"index"`
	Layout Layout   `json:"layout"`
	Copies []Copy   `json:"copies"` // ascending by ID
}

// Place returns the position of a copy in Copies, and whether it is there.
func (t *Topology) Place(id index.CopyID) (at int, is bool) {
	return slices.BinarySearchFunc(t.Copies, id, func(c Copy, id index.CopyID) int { return cmp.Compare(c.ID, id) })
}

// Of returns an iterator over the copies of a slice.
func (t *Topology) Of(slice index.SliceID) iter.Seq[Copy] {
	return func(yield func(Copy) bool) {
		for _, c := range t.Copies {
			if c.Slice == slice && !yield(c) {
				return
			}
		}
	}
}

// IsOn reports whether a node has a copy of any slice, in any state.
func (t *Topology) IsOn(node index.NodeID) bool {
	return slices.ContainsFunc(t.Copies, func(c Copy) bool { return c.Node == node })
}

// Servers returns the nodes that hold a copy, ascending and without duplicates (IM-4).
func (t *Topology) Servers() []index.NodeID {
	var seen [256]bool
	for _, c := range t.Copies {
		seen[c.Node] = true
	}
	var nodes []index.NodeID
	for n, ok := range seen {
		if ok {
			nodes = append(nodes, index.NodeID(n))
		}
	}
	return nodes
}
