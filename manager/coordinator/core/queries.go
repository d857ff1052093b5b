package core

import (
	"fmt"
	"slices"
	"tidemark/index"
	"tidemark/liveness"
	"tidemark/partition"
	"tidemark/stability"
	"tidemark/streams"
	"tidemark/timestamp"
	"tidemark/wire"
)

// BucketView is what only the leader knows of a bucket: its streams, and what its next stability timestamp waits for.
type BucketView struct {
	Name       string
	Generation uint64
	Wanted     bool            // it has an index that needs its streams
	Entries    []streams.Entry // by vbucket
	Summary    streams.Summary
	// Current are the newest complete seqnos of the streams, 0 where none is known.
	Current timestamp.Vector
	// StableMS is when the newest stability timestamp was seen here, unix milliseconds; 0: before this leader's term.
	StableMS     int64
	Participants []stability.Participant
	Source       stability.Source
	Waiting      int    // scans that wait for a stability timestamp
	Diverged     string // why the bucket has to be rolled back, "" when it has not
}

func (q *ViewQuery) apply(l *Leader) { reply(l, q.Reply, l.View(q.Bucket)) }

// View returns what is known of a bucket; nil where there is no such bucket.
func (l *Leader) View(bucket string) *BucketView {
	b := l.buckets.byName[bucket]
	if b == nil {
		return nil
	}
	v := &BucketView{Name: b.name, Generation: b.generation, Wanted: b.wanted,
		Entries: make([]streams.Entry, b.ledger.Len()),
		Summary: b.ledger.Summary(l.nowMS), Current: b.stab.Current(), StableMS: b.stableMS,
		Participants: b.stab.Participants(l.nowMS),
		Source:       b.stab.Source(), Waiting: len(b.waiters)}
	for i := range v.Entries {
		v.Entries[i] = b.ledger.At(i)
	}
	if d, bad := b.ledger.Diverged(); bad {
		v.Diverged = fmt.Sprintf("vbucket %d: %s", d.VBucket, d.Reason)
	}
	return v
}

func (q *CopiesQuery) apply(l *Leader) {
	told := make(map[index.CopyID]wire.CopyReport, len(q.All))
	for i := range q.All {
		if n := l.components.indexers[q.All[i].Node]; n != nil {
			if r, ok := n.copies[q.All[i].ID]; ok {
				told[r.Copy] = r
			}
		}
	}
	reply(l, q.Reply, told)
}

func (q *LackingQuery) apply(l *Leader) {
	safe, maybe := map[index.SliceID]bool{}, map[index.SliceID]bool{}
	for _, o := range q.Index.Topology.Copies {
		n := l.components.indexers[o.Node]
		if o.State != partition.Allocated || slices.Contains(q.Drop, o.Replica) ||
			n != nil && l.life(&n.component) == liveness.Offline {
			continue
		}
		whole, known := l.wholeness(q.Index, o)
		safe[o.Slice] = safe[o.Slice] || whole
		maybe[o.Slice] = maybe[o.Slice] || !known
	}
	var a Lacking
	for s := range index.SliceID(q.Index.Topology.Layout.Partitions) {
		switch {
		case safe[s]:
		case maybe[s]:
			a.Unsure = append(a.Unsure, s)
		default:
			a.Slices = append(a.Slices, s)
		}
	}
	reply(l, q.Reply, a)
}

func (q *WholeQuery) apply(l *Leader) {
	n := l.components.indexers[q.Node]
	o := Others{filling: filling(q.State), unsure: map[index.CopyID]bool{}}
	o.Offline = n != nil && l.life(&n.component) == liveness.Offline
	o.Silent = n == nil || !o.Offline && !n.heard && !n.hello
	for x := range q.State.Indexes() {
		if x.Definition.State != index.Maintenance || !slices.ContainsFunc(x.Topology.Copies,
			func(c partition.Copy) bool { return c.Node == q.Node }) {
			continue
		}
		for _, c := range x.Topology.Copies {
			if c.Node == q.Node || o.filling[c.ID] {
				continue
			}
			if whole, known := l.wholeness(x, c); !known {
				o.unsure[c.ID] = true
			} else if !whole {
				o.filling[c.ID] = true
			}
		}
	}
	reply(l, q.Reply, o)
}

func (q *ClusterQuery) apply(l *Leader) { reply(l, q.Reply, l.cluster()) }
