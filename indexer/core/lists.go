package core

import (
	"cmp"
	"reflect"
	"slices"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/wire"
)

// Wanted is a copy that the definitions place on this node.
type Wanted struct {
	Copy   partition.Copy
	Index  *index.Definition
	Bucket *wire.Bucket
	Others []index.NodeID // nodes that also have this slice, if the index is ready
}

// Placed returns the copies that the definitions place on a node. It leaves out copies whose index or bucket is not
// in the definitions.
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

// Others returns the other nodes that have the slice of an index's copy, as in Wanted. d must be sorted.
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

// others returns the holders of a slice without node, or nil if the index is not ready.
func others(def *index.Definition, holders []index.NodeID, node index.NodeID) []index.NodeID {
	if def.State != index.Maintenance {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(holders), func(n index.NodeID) bool { return n == node })
}

// holdersHere returns, for each slice of the index that has a copy on node, the nodes that have an allocated copy of
// it.
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

// Lists tracks the lists of definitions that a node has received. The zero value belongs to a node that has received
// none.
type Lists struct {
	InForce wire.Definitions
	// Obeyed is the revision of the newest list that was ever in force, also in an earlier run. InForce.Revision, in
	// contrast, is 0 until the leader has sent a list to this process.
	Obeyed uint64
}

// Resume puts the list of an earlier run in force, with revision 0, so that the leader's list is taken over even if
// it is the same.
func (l *Lists) Resume(d *wire.Definitions) {
	l.Obeyed = d.Revision
	l.InForce = *d
	l.InForce.Revision = 0
}

// Judgement is how a list relates to the one in force.
type Judgement uint8

// Results of Judge.
const (
	Older Judgement = iota // than the one in force: the node refuses it
	Known                  // it is already in force
	Newer                  // the node takes it over
)

// Judge compares a list with the one in force. have is the revision that it was compared with.
func (l *Lists) Judge(d *wire.Definitions) (j Judgement, have uint64) {
	have = l.InForce.Revision
	if l.InForce.Fence.Epoch < d.Fence.Epoch { // revisions of different epochs cannot be compared
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

// Sort sorts a list as Definition, Topology and Others require.
func Sort(d *wire.Definitions) {
	slices.SortFunc(d.Indexes, func(a, b index.Definition) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(d.Topologies, func(a, b partition.Topology) int { return cmp.Compare(a.Index, b.Index) })
}

// NothingNew reports whether d differs from the list in force only in its revision and fence: DDL on indexes that
// this node's list leaves out also raises the revision. If so, NothingNew takes over both, and there is nothing else
// to do.
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

// Follows reports whether d is a later list of the same epoch and cluster as the list in force. If so, a commit
// removed each copy that d lacks, and the node drops it. Otherwise the node cannot know why d lacks a copy.
func (l *Lists) Follows(d *wire.Definitions) bool {
	was := &l.InForce
	return was.Fence.ClusterID == d.Fence.ClusterID && was.Fence.Epoch == d.Fence.Epoch && d.Revision > l.Obeyed
}

// RevisionFor returns the revision to report to the leader of an epoch: 0 if the list in force is of another epoch,
// whose revisions mean nothing to that leader.
func (l *Lists) RevisionFor(epoch uint64) uint64 {
	if l.InForce.Fence.Epoch != epoch {
		return 0
	}
	return l.InForce.Revision
}
