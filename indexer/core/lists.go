package core

import (
	"cmp"
	"reflect"
	"slices"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/wire"
)

// Wanted is a copy that definitions place on a node.
type Wanted struct {
	Copy   partition.Copy
	Index  *index.Definition
	Bucket *wire.Bucket
	Others []index.NodeID // that have the slice of an index that is ready
}

// Placed lists the copies that definitions place on a node. What belongs to an index or bucket that they do not have is
// left out.
func Placed(d *wire.Definitions, node index.NodeID) map[index.CopyID]Wanted {
	buckets := map[string]*wire.Bucket{}
	for i := range d.Buckets {
		buckets[d.Buckets[i].Name] = &d.Buckets[i]
	}
	defs := map[index.ID]*index.Definition{}
	for i := range d.Indexes {
		defs[d.Indexes[i].ID] = &d.Indexes[i]
	}
	all := map[index.CopyID]Wanted{}
	for _, t := range d.Topologies {
		def := defs[t.Index]
		if def == nil || buckets[def.Bucket] == nil {
			continue
		}
		holders := holdersHere(&t, node)
		for _, c := range t.Copies {
			if c.Node != node || c.State == partition.Leaving {
				continue
			}
			all[c.ID] = Wanted{Copy: c, Index: def, Bucket: buckets[def.Bucket], Others: others(def, holders[c.Slice], node)}
		}
	}
	return all
}

// Others lists the nodes that have the slice of an index's copy, as Wanted has them; d is sorted.
func Others(d *wire.Definitions, id index.ID, of index.CopyID) []index.NodeID {
	def, t := Definition(d, id), Topology(d, id)
	if def == nil || t == nil {
		return nil
	}
	i := slices.IndexFunc(t.Copies, func(c partition.Copy) bool { return c.ID == of })
	if i < 0 {
		return nil
	}
	c := t.Copies[i]
	return others(def, holdersHere(t, c.Node)[c.Slice], c.Node)
}

// others are the holders of a slice beside a node, once its index is ready.
func others(def *index.Definition, holders []index.NodeID, node index.NodeID) []index.NodeID {
	if def.State != index.Maintenance {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(holders), func(n index.NodeID) bool { return n == node })
}

// holdersHere lists the nodes that have each slice of an index of which a node has a copy.
func holdersHere(t *partition.Topology, node index.NodeID) map[index.SliceID][]index.NodeID {
	holders := map[index.SliceID][]index.NodeID{}
	for _, c := range t.Copies {
		if c.Node == node {
			holders[c.Slice] = nil
		}
	}
	for _, c := range t.Copies {
		if nodes, here := holders[c.Slice]; here && c.State == partition.Allocated {
			holders[c.Slice] = append(nodes, c.Node)
		}
	}
	return holders
}

// Lists is what a node knows of definitions. The zero value is of a node that has heard of none.
type Lists struct {
	InForce wire.Definitions
	// Obeyed is the revision of the newest list that was in force, also in an earlier run: that of InForce is 0 until the
	// leader has spoken.
	Obeyed uint64
}

// Resume takes over the list of an earlier run. The leader's list counts, also when it is the same.
func (l *Lists) Resume(d *wire.Definitions) {
	l.Obeyed = d.Revision
	l.InForce = *d
	l.InForce.Revision = 0
}

// Judgement is what a list is to a node.
type Judgement uint8

// Judgements.
const (
	Older Judgement = iota // than the one in force: it is refused
	Known                  // it is in force
	Newer                  // it is to be taken over
)

// Judge says what a list is; have is the revision that it is compared with.
func (l *Lists) Judge(d *wire.Definitions) (j Judgement, have uint64) {
	have = l.InForce.Revision
	if l.InForce.Fence.Epoch < d.Fence.Epoch { // those of another epoch are of another history
		have = 0
	}
	switch {
	case d.Revision < have:
		return Older, have
	case d.Revision == have && have > 0:
		return Known, have
	}
	return Newer, have
}

// Sort brings a list into the order that everybody relies on.
func Sort(d *wire.Definitions) {
	slices.SortFunc(d.Indexes, func(a, b index.Definition) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(d.Topologies, func(a, b partition.Topology) int { return cmp.Compare(a.Index, b.Index) })
}

// NothingNew reports whether a list says what the one before it said, under a newer revision: DDL on indexes that this
// list leaves out raises it. Then the revision is all there is to take over, which is done.
func (l *Lists) NothingNew(d *wire.Definitions) bool {
	was := l.InForce
	if was.Revision == 0 || was.Fence.Epoch != d.Fence.Epoch {
		return false
	}
	was.Fence, was.Revision = d.Fence, d.Revision
	if !reflect.DeepEqual(&was, d) {
		return false
	}
	l.InForce.Revision, l.InForce.Fence, l.Obeyed = d.Revision, d.Fence, d.Revision
	return true
}

// Take puts a list in force.
func (l *Lists) Take(d *wire.Definitions) {
	l.InForce, l.Obeyed = *d, d.Revision
}

// Follows reports whether d follows the list in force in the same epoch of the same cluster: what d lacks of its copies
// was taken away by a commit, and is dropped. Of any other copy nobody here knows why it is not in d.
func (l *Lists) Follows(d *wire.Definitions) bool {
	was := &l.InForce
	return was.Fence.ClusterID == d.Fence.ClusterID && was.Fence.Epoch == d.Fence.Epoch && d.Revision > l.Obeyed
}

// Told is the revision that the leader of an epoch is told: those of another one mean nothing to it.
func (l *Lists) Told(epoch uint64) uint64 {
	if l.InForce.Fence.Epoch != epoch {
		return 0
	}
	return l.InForce.Revision
}
