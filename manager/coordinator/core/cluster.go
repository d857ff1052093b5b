package core

import (
	"slices"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/rebalance"
	"tidemark/statecontext"
)

// BucketGone reports whether the bucket of an index was deleted: its hosts hold nothing of it then, and fill nothing.
func BucketGone(s *statecontext.State, d *index.Definition) bool {
	b := s.Bucket(d.Bucket)
	return b != nil && b.Gone
}

// cluster returns the input for planning from state s, or from the newest state if s is nil. For a copy that is
// moving, the old place counts. Indexes of deleted buckets are included and stay where they are.
func (l *scene) cluster(s *statecontext.State) *rebalance.Cluster {
	if s == nil {
		s = l.now.newest
	}
	r := &rebalance.Cluster{Revision: s.DefinitionsRevision()}
	for i := range s.Indexers() {
		n := rebalance.Node{ID: i.Node, UUID: i.UUID, Name: i.Name, Zone: i.Zone, Capacity: i.Capacity,
			Role: l.role(s, i.Node)}
		if c := l.components.indexers[i.Node]; c != nil {
			n.Excluded, n.Free = c.health, c.room
		}
		r.Nodes = append(r.Nodes, n)
	}
	for x := range s.Indexes() {
		if x.Definition.State != index.Dropping && !BucketGone(s, &x.Definition) {
			r.Indexes = append(r.Indexes, l.placedIndex(r.Nodes, x))
		}
	}
	return r
}

func (l *scene) placedIndex(nodes []rebalance.Node, x *statecontext.Index) rebalance.Index {
	d := &x.Definition
	p := rebalance.Index{ID: d.ID, Bucket: d.Bucket, Name: d.Name, Slices: int(x.Topology.Layout.Partitions),
		Replicas: int(d.Replicas), Nodes: Named(nodes, d.Nodes)}
	each := p.Replicas + 1
	placed := make([]bool, p.Slices*each)
	for _, c := range x.Topology.Copies {
		if c.State == partition.Leaving {
			continue
		}
		at := &placed[int(c.Slice)*each+int(c.Replica)]
		if *at {
			continue
		}
		*at = true
		o := rebalance.Copy{ID: c.ID, Slice: c.Slice, Replica: c.Replica, Node: c.Node}
		if n := l.components.indexers[c.Node]; n != nil {
			o.Bytes = int64(n.copies[c.ID].Bytes)
		}
		p.Copies = append(p.Copies, o)
	}
	return p
}

// Named returns the nodes of a list of names or UUIDs. The result is empty, which means all nodes, if none of them
// exists any more.
func Named(nodes []rebalance.Node, wanted []string) (ids []index.NodeID) {
	for _, n := range nodes {
		if slices.Contains(wanted, n.Name) || slices.Contains(wanted, n.UUID) {
			ids = append(ids, n.ID)
		}
	}
	return ids
}
