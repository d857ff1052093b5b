// Package partition says where a secondary key lives: the TopologyProvider of the seed (IM-5), the layouts that
// implement it, and the placement of an index's slices on indexer nodes (IM-4).
//
// It promises that a location is a function of the layout and the key alone, the same on every router, indexer and
// manager, for ever: the layout is replicated with the topology, and a change of layout is a new placement.
package partition

import (
	"errors"
	"fmt"

	"tidemark/index"
)

// Scheme is a partition algorithm.
type Scheme uint8

// The schemes. Values are part of the stored format.
const (
	// HashDocID places a document's entries by a hash of its id: the same slice for ever, one endpoint per replica.
	HashDocID Scheme = 1
	// HashKey places an entry by a hash of components of its key.
	HashKey Scheme = 2
	// RangeKey places an entry by where its key stands between bounds, in the order of the index.
	RangeKey Scheme = 3
)

// String returns the name used in messages.
func (s Scheme) String() string {
	switch s {
	case HashDocID:
		return "hash(docid)"
	case HashKey:
		return "hash(key)"
	case RangeKey:
		return "range(key)"
	}
	return fmt.Sprintf("scheme(%d)", s)
}

// MaxPartitions is the most slices an index may have.
const MaxPartitions = 1024

// ErrLayout is wrapped when a layout cannot be used.
var ErrLayout = errors.New("bad partition layout")

// Partition is a logical partition of the key space: one slice.
type Partition index.SliceID

// Replica is one of the equal copies of all partitions, 0 to num_replica.
type Replica uint8

// Shard is the part of a replica that one node holds.
type Shard struct {
	Node index.NodeID `json:"node"`
}

// KeyVersion is what a provider looks at: the document id and, for layouts by key, the secondary key.
type KeyVersion struct {
	DocID []byte
	Key   []byte
}

// TopologyProvider is IM-5: the partition algorithm together with its placement.
type TopologyProvider interface {
	// Partition returns the logical partition in which the key is located.
	Partition(kv KeyVersion) Partition
	// Replicas lists the replicas of every partition.
	Replicas() []Replica
	// Locate returns the shard and slice of the key in one replica; false when that replica of it has no place now.
	Locate(r Replica, kv KeyVersion) (Shard, index.SliceID, bool)
}

// CopyState returns how far a copy has come.
type CopyState uint8

// The states of a copy.
const (
	Placed    CopyState = iota + 1 // chosen; its host has not reported it allocated: not in the routers' topology
	Allocated                      // its host has it: routers feed it
	Leaving                        // to be removed from its host; routers do not feed it
)

// String returns the word used in JSON.
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

// MarshalText makes the JSON form the word.
func (s CopyState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText wrote.
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

// Topology is where an index lives: the copies of its slices, each on an indexer (IM-4).
type Topology struct {
	Index  index.ID `json:"index"`
	Layout Layout   `json:"layout"`
	Copies []Copy   `json:"copies"` // ascending by ID
}

// Partition implements TopologyProvider.
func (t *Topology) Partition(kv KeyVersion) Partition { return Partition(t.Layout.Slice(kv)) }

// Replicas implements TopologyProvider.
func (t *Topology) Replicas() []Replica {
	var most Replica
	for _, c := range t.Copies {
		most = max(most, c.Replica)
	}
	all := make([]Replica, 0, int(most)+1)
	for r := range most + 1 {
		all = append(all, r)
	}
	return all
}

// Locate implements TopologyProvider. Copies that are leaving have no place.
func (t *Topology) Locate(r Replica, kv KeyVersion) (Shard, index.SliceID, bool) {
	slice := t.Layout.Slice(kv)
	for _, c := range t.Copies {
		if c.Slice == slice && c.Replica == r && c.State != Leaving {
			return Shard{Node: c.Node}, slice, true
		}
	}
	return Shard{}, slice, false
}

// Servers lists the nodes that hold a copy, ascending, each once (IM-4).
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

var _ TopologyProvider = (*Topology)(nil)
