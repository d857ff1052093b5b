package core

import (
	"cmp"
	"maps"
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
	Obeyed  uint64
	halfway bool // the last list was given up in the middle
	tried   tried
}

// tried is what lists place here that were begun since the one in force and given up in the middle: some of it may have
// been made.
type tried struct {
	fence    wire.Fence
	revision uint64 // of the newest
	copies   map[index.CopyID]Wanted
}

// Resume takes over the list of an earlier run. The leader's list counts, also when it is the same.
func (l *Lists) Resume(d *wire.Definitions) {
	l.Obeyed = d.Revision
	l.InForce = *d
	l.InForce.Revision, l.halfway, l.tried = 0, false, tried{}
}

// Judgement is what a list is to a node.
type Judgement uint8

// Judgements.
const (
	Older Judgement = iota // than the one in force: it is refused
	Known                  // all of it is done
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
	case d.Revision == have && have > 0 && !l.halfway:
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
	if l.halfway || was.Revision == 0 || was.Fence.Epoch != d.Fence.Epoch {
		return false
	}
	was.Fence, was.Revision = d.Fence, d.Revision
	if !reflect.DeepEqual(&was, d) {
		return false
	}
	l.InForce.Revision, l.InForce.Fence, l.Obeyed = d.Revision, d.Fence, d.Revision
	return true
}

// Begin notes that a list is being taken over: until Take says that all of it is done, the next one is compared with
// what is here.
func (l *Lists) Begin() { l.halfway = true }

// Take puts a list in force.
func (l *Lists) Take(d *wire.Definitions) {
	l.InForce, l.Obeyed, l.halfway, l.tried = *d, d.Revision, false, tried{}
}

// Make notes what a list that is being taken over places here. What earlier ones had placed is remembered as long as
// isHere has it.
func (l *Lists) Make(d *wire.Definitions, want map[index.CopyID]Wanted, isHere func(index.CopyID) bool) {
	t := &l.tried
	if t.copies == nil || t.fence.ClusterID != d.Fence.ClusterID || t.fence.Epoch != d.Fence.Epoch {
		*t = tried{copies: map[index.CopyID]Wanted{}}
	}
	for id := range t.copies {
		if !isHere(id) {
			delete(t.copies, id)
		}
	}
	for id, w := range want { // without the rest of the list, which would be kept with it
		t.copies[id] = Wanted{Index: &index.Definition{ID: w.Index.ID, CreatedMS: w.Index.CreatedMS},
			Bucket: &wire.Bucket{UUID: w.Bucket.UUID, VBuckets: w.Bucket.VBuckets}}
	}
	t.fence, t.revision = d.Fence, max(t.revision, d.Revision)
}

// Tried are the copies that lists have placed here which were given up in the middle, and which d follows in the same
// epoch of the same cluster: as of those of the list in force, what d lacks of them was taken away by a commit.
func (l *Lists) Tried(d *wire.Definitions) map[index.CopyID]Wanted {
	t := &l.tried
	if t.fence.ClusterID != d.Fence.ClusterID || t.fence.Epoch != d.Fence.Epoch || d.Revision < t.revision {
		return nil
	}
	return maps.Clone(t.copies)
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
