package core

import (
	"fmt"
	"iter"
	"slices"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/stability"
	"tidemark/statecontext"
	"tidemark/streams"
	"tidemark/wire"
)

// View returns the view of a bucket; nil if there is no such bucket.
func (l *scene) View(bucket string) *BucketView {
	b := l.buckets.byName[bucket]
	if b == nil {
		return nil
	}
	v := &BucketView{Name: b.name, Generation: b.generation, Wanted: b.wanted,
		Entries: make([]streams.Entry, b.ledger.Len()),
		Summary: b.ledger.Summary(l.nowMS), Current: b.stab.Current(), AgeMS: l.stableAge(b),
		Participants: l.Participants(bucket),
		Source:       b.stab.Source(), Waiting: len(b.waiters)}
	for i, e := range l.Entries(bucket) {
		v.Entries[i] = e
	}
	if d, bad := b.ledger.Diverged(); bad {
		v.Diverged = fmt.Sprintf("vbucket %d: %s", d.VBucket, d.Reason)
	}
	return v
}

// Entries yields the ledger of a bucket by vbucket; nothing if there is no such bucket.
func (l *scene) Entries(bucket string) iter.Seq2[int, streams.Entry] {
	return func(yield func(int, streams.Entry) bool) {
		b := l.buckets.byName[bucket]
		for v := 0; b != nil && v < b.ledger.Len() && yield(v, b.ledger.At(v)); v++ {
		}
	}
}

// Participants returns the indexers that take part in a bucket's promotion; nil if there is no such bucket.
func (l *scene) Participants(bucket string) []stability.Participant {
	if b := l.buckets.byName[bucket]; b != nil {
		return b.stab.Participants(l.nowMS)
	}
	return nil
}

// reported returns the newest reports of copies.
func (l *scene) reported(all []partition.Copy) map[index.CopyID]wire.CopyReport {
	reports := make(map[index.CopyID]wire.CopyReport, len(all))
	for i := range all {
		if n := l.components.indexers[all[i].Node]; n != nil {
			if r, ok := n.copies[all[i].ID]; ok {
				reports[r.Copy] = r
			}
		}
	}
	return reports
}

// lackingWithout returns the slices of an index that would have no whole copy without some replicas.
func (l *scene) lackingWithout(x *statecontext.Index, drop []partition.Replica) (a Lacking) {
	stays := staying{}
	for _, o := range x.Topology.Copies {
		if o.State != partition.Allocated || slices.Contains(drop, o.Replica) ||
			l.isOffline(l.components.indexers[o.Node]) {
			continue
		}
		whole, known := l.wholeness(x, o)
		stays.add(o.Slice, whole, !known)
	}
	for s := range index.SliceID(x.Topology.Layout.Partitions) {
		switch {
		case stays[s].whole:
		case stays[s].unsure:
			a.Unsure = append(a.Unsure, s)
		default:
			a.Slices = append(a.Slices, s)
		}
	}
	return a
}

// others returns the copies on other nodes that do not count, of the ready indexes that have copies on this node.
func (l *scene) others(s *statecontext.State, node index.NodeID) Others {
	n := l.components.indexers[node]
	o := Others{filling: filling(s), unsure: map[index.CopyID]bool{}}
	o.Offline = l.isOffline(n)
	o.Silent = n == nil || !o.Offline && !n.reported && !n.hello
	for x := range s.Indexes() {
		if x.Definition.State == index.Maintenance && x.Topology.IsOn(node) {
			l.discount(&o, x, node)
		}
	}
	return o
}

// discount records which copies of an index on other nodes do not count.
func (l *scene) discount(o *Others, x *statecontext.Index, node index.NodeID) {
	for _, c := range x.Topology.Copies {
		if c.Node == node || o.filling[c.ID] {
			continue
		}
		if whole, known := l.wholeness(x, c); !known {
			o.unsure[c.ID] = true
		} else if !whole {
			o.filling[c.ID] = true
		}
	}
}
