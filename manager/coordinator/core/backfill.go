package core

import (
	"slices"
	"strings"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/statecontext"
	"tidemark/timestamp"
)

// backfillEvery is the least time between two backfill timestamps of a bucket.
const backfillEvery = 1_000 // ms

// stepBackfill replicates how far the builds of each bucket have come (IM-1): per vbucket the smallest side position of
// the copies of its indexes that are being built, and nothing once there are none. It is for those who look: a build
// itself resumes from what its copies hold. Where there are more than may be on their way, the next ones are those of
// the buckets behind the last one.
func (l *lives) stepBackfill() {
	if l.nowMS-l.backfillMS < backfillEvery && l.nowMS >= l.backfillMS {
		return
	}
	l.backfillMS = l.nowMS
	builds, all := l.building(), l.buckets.ordered
	first, found := slices.BinarySearchFunc(all, l.backfilled, func(b *bucket, name string) int {
		return strings.Compare(b.name, name)
	})
	if found {
		first++
	}
	for i := range all {
		b := all[(first+i)%len(all)]
		s, key := l.now.state.Bucket(b.name), "backfill/"+b.name
		if s == nil || s.Gone || s.Generation != b.generation || s.Rollback != nil || !l.mayPropose(key) {
			continue
		}
		v, known := l.backfillOf(b, s, builds[b.name])
		if known && !v.Equal(s.BackfillTimestamp) && l.propose(key, &statecontext.SetBackfillTimestamp{Bucket: b.name,
			Generation: b.generation, Vector: v}, nil) {
			l.backfilled = b.name
		}
	}
}

// building lists the indexes that are being built, by bucket.
func (l *lives) building() map[string][]*statecontext.Index {
	builds := map[string][]*statecontext.Index{}
	for _, id := range l.indexes.ids {
		if x := l.now.state.Index(id); x != nil && x.Definition.State == index.Backfill {
			builds[x.Definition.Bucket] = append(builds[x.Definition.Bucket], x)
		}
	}
	return builds
}

// backfillOf returns the least of what the hosts of a bucket's builds report; it is not known until all of them have
// reported under definitions that name the builds and on the bucket's present branch.
func (l *lives) backfillOf(b *bucket, s *statecontext.Bucket, builds []*statecontext.Index) (v timestamp.Vector,
	known bool) {
	var asked []index.NodeID
	for _, x := range builds {
		for _, c := range x.Topology.Copies {
			n := l.components.indexers[c.Node]
			if c.State == partition.Leaving || slices.Contains(asked, c.Node) && n.acked >= x.Definition.ModifiedCAS {
				continue
			}
			if n == nil || n.acked < x.Definition.ModifiedCAS {
				return v, false
			}
			asked = append(asked, c.Node)
			r := n.reports.Buckets[b.name]
			if r == nil || r.Told.Generation != b.generation || r.Told.RollbackID != s.Stability.RollbackID ||
				r.Told.Backfill.Len() != s.VBuckets {
				return v, false
			}
			if v.Len() == 0 {
				v = r.Told.Backfill.Clone()
			} else if err := v.Min(r.Told.Backfill); err != nil {
				return v, false
			}
		}
	}
	return v, true
}
