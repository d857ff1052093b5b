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

// stepBackfill replicates the progress of each bucket's builds (IM-1): per vbucket, the smallest side position over
// the copies of indexes in backfill, and an empty vector once there are none. The value is for observers only: a
// build itself resumes from what its copies hold. If there are more buckets than proposals in flight allow, the next
// call starts after the last bucket proposed.
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

// proposeBackfill proposes a bucket's backfill timestamp if it has changed, and reports whether it proposed one.
func (l *lives) proposeBackfill(b *bucket, builds []*statecontext.Index) bool {
	s, key := l.stateOf(b), "backfill/"+b.name
	if s == nil || s.Gone || s.Rollback != nil || !l.mayPropose(key) {
		return false
	}
	v, known := l.backfillOf(s, builds)
	return known && !v.Equal(s.BackfillTimestamp) &&
		l.propose(key, &statecontext.SetBackfillTimestamp{Bucket: b.name, Generation: b.generation, Vector: v}, nil)
}

// building returns the indexes in backfill, by bucket.
func (l *lives) building() map[string][]*statecontext.Index {
	builds := map[string][]*statecontext.Index{}
	for _, id := range l.indexes.ids {
		if x := l.now.state.Index(id); x != nil && x.Definition.State == index.Backfill {
			builds[x.Definition.Bucket] = append(builds[x.Definition.Bucket], x)
		}
	}
	return builds
}

// backfillOf returns the minimum of what the hosts of a bucket's builds report. known is false until every host has
// reported with definitions that contain the builds, and on the bucket's present branch.
func (l *lives) backfillOf(s *statecontext.Bucket, builds []*statecontext.Index) (v timestamp.Vector, known bool) {
	var queried []index.NodeID
	for _, x := range builds {
		for _, c := range x.Topology.Copies {
			if c.State == partition.Leaving {
				continue
			}
			n := l.components.indexers[c.Node]
			if n == nil || n.acked < x.Definition.ModifiedCAS {
				return v, false
			}
			if slices.Contains(queried, c.Node) {
				continue
			}
			queried = append(queried, c.Node)
			reported, known := n.backfillOf(s)
			if !known {
				return v, false
			}
			if v.Len() == 0 {
				v = reported.Clone()
			} else if err := v.Min(reported); err != nil {
				return v, false
			}
		}
	}
	return v, true
}

// backfillOf returns what an indexer has reported of its builds. known is false if the report was of another branch
// of the bucket than the present one.
func (n *indexer) backfillOf(s *statecontext.Bucket) (v timestamp.Vector, known bool) {
	r := n.reports.Buckets[s.Name]
	if r == nil || !isPresent(s, r.Report.Generation, r.Report.RollbackID) || r.Report.Backfill.Len() != s.VBuckets {
		return v, false
	}
	return r.Report.Backfill, true
}
