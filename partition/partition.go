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

// HashDocID places a document's entries by a hash of its id: the same slice for ever, one endpoint per replica.
// hash(key) and range(key) follow with the data-plane work.
const HashDocID Scheme = 1

// String gives the name used in DDL and JSON.
func (s Scheme) String() string {
	if s == HashDocID {
		return "hash(docid)"
	}
	return fmt.Sprintf("scheme(%d)", s)
}

// MaxPartitions is the most slices an index may have.
const MaxPartitions = 1024

// ErrLayout is wrapped when a layout cannot be used.
var ErrLayout = errors.New("bad partition layout")

// Layout is the concrete, replicated type behind a TopologyProvider.
type Layout struct {
	Scheme     Scheme `json:"scheme"`
	Partitions uint16 `json:"partitions"`
}

// Check gives an error wrapping ErrLayout when the layout is not one this version knows.
func (l Layout) Check() error {
	if l.Scheme != HashDocID {
		return fmt.Errorf("%w: scheme %d, known: %d (hash(docid))", ErrLayout, l.Scheme, HashDocID)
	}
	if l.Partitions == 0 || l.Partitions > MaxPartitions {
		return fmt.Errorf("%w: %d partitions, want 1 to %d", ErrLayout, l.Partitions, MaxPartitions)
	}
	return nil
}

// SliceOf gives the slice that holds every entry of this document under hash(docid).
func (l Layout) SliceOf(docID []byte) index.SliceID {
	return index.SliceID(hash64(docID) % uint64(l.Partitions))
}

// Partition is a logical partition of the key space; under hash(docid) it is one slice.
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

// TopologyProvider is the seed's interface (S3): the partition algorithm together with its placement.
type TopologyProvider interface {
	// Partition gives the logical partition in which the key is located.
	Partition(kv KeyVersion) Partition
	// Replicas lists the replicas of every partition.
	Replicas() []Replica
	// Locate gives the shard and slice of the key in one replica; false when that replica of it has no place now.
	Locate(r Replica, kv KeyVersion) (Shard, index.SliceID, bool)
}

// CopyState tells how far a copy has come.
type CopyState uint8

// The states of a copy.
const (
	Placed    CopyState = iota + 1 // chosen; its host has not reported it allocated: not in the routers' topology
	Allocated                      // its host has it: routers feed it
	Leaving                        // to be removed from its host; routers do not feed it
)

// String gives the word used in JSON.
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

// Topology is where an index lives (S3 IndexTopology).
type Topology struct {
	Index  index.ID `json:"index"`
	Layout Layout   `json:"layout"`
	Copies []Copy   `json:"copies"` // ascending by ID
}

// Partition implements TopologyProvider.
func (t *Topology) Partition(kv KeyVersion) Partition { return Partition(t.Layout.SliceOf(kv.DocID)) }

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
	slice := t.Layout.SliceOf(kv.DocID)
	for _, c := range t.Copies {
		if c.Slice == slice && c.Replica == r && c.State != Leaving {
			return Shard{Node: c.Node}, slice, true
		}
	}
	return Shard{}, slice, false
}

// Servers lists the nodes that hold a copy, ascending, each once (S3 `servers`).
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

// hash64 is FNV-1a with a final mix, so that the low bits of short, similar ids spread. It is part of the stored format.
func hash64(b []byte) uint64 {
	h := uint64(0xcbf29ce484222325)
	for _, c := range b {
		h = (h ^ uint64(c)) * 0x100000001b3
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
