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
	if l.rests(l.backfillMS, backfillEvery) {
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
		if b := all[(first+i)%len(all)]; l.proposeBackfill(b, builds[b.name]) {
			l.backfilled = b.name
		}
	}
}

// proposeBackfill proposes a bucket's backfill timestamp where it has changed. It is false where it proposes nothing.
func (l *lives) proposeBackfill(b *bucket, builds []*statecontext.Index) bool {
	s, key := l.stateOf(b), "backfill/"+b.name
	if s == nil || s.Gone || s.Rollback != nil || !l.mayPropose(key) {
		return false
	}
	v, known := l.backfillOf(s, builds)
	return known && !v.Equal(s.BackfillTimestamp) &&
		l.propose(key, &statecontext.SetBackfillTimestamp{Bucket: b.name, Generation: b.generation, Vector: v}, nil)
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
func (l *lives) backfillOf(s *statecontext.Bucket, builds []*statecontext.Index) (v timestamp.Vector, known bool) {
	var asked []index.NodeID
	for _, x := range builds {
		for _, c := range x.Topology.Copies {
			if c.State == partition.Leaving {
				continue
			}
			n := l.components.indexers[c.Node]
			if n == nil || n.acked < x.Definition.ModifiedCAS {
				return v, false
			}
			if slices.Contains(asked, c.Node) {
				continue
			}
			asked = append(asked, c.Node)
			told, known := n.backfillOf(s)
			if !known {
				return v, false
			}
			if v.Len() == 0 {
				v = told.Clone()
			} else if err := v.Min(told); err != nil {
				return v, false
			}
		}
	}
	return v, true
}

// backfillOf returns what an indexer has reported of its builds; it is not known when that was on another branch of the
// bucket than the present one.
func (n *indexer) backfillOf(s *statecontext.Bucket) (v timestamp.Vector, known bool) {
	r := n.reports.Buckets[s.Name]
	if r == nil || !isPresent(s, r.Told.Generation, r.Told.RollbackID) || r.Told.Backfill.Len() != s.VBuckets {
		return v, false
	}
	return r.Told.Backfill, true
}
