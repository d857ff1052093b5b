package api

import (
	"fmt"
	"time"

	"tidemark/index"
	"tidemark/liveness"
	"tidemark/manager/api/v1"
	"tidemark/manager/coordinator/core"
	"tidemark/partition"
	"tidemark/statecontext"
	"tidemark/wire"
)

// projectorTroubles returns, for each projector, why it may not stream a bucket.
func projectorTroubles(bucket string, now *core.Status) (all []string) {
	for i := range now.Projectors {
		p := &now.Projectors[i]
		if p.Life != liveness.Active {
			all = append(all, fmt.Sprintf("projector %s at %s is %v", p.ID, p.Admin, p.Life))
			continue
		}
		for _, t := range p.KV {
			if t.Bucket == bucket {
				all = append(all, kvTrouble(p.ID, t))
			}
		}
	}
	return all
}

// waitsOf returns what prevents an index from becoming ready, or from being kept up to date, as seen by this leader;
// nil if it proceeds. What else a ready index lacks is its availability; it uses no backfill port, and a port that
// refuses the streams of one bucket serves those of others.
func waitsOf(x *statecontext.Index, now *core.Status) (all []string) {
	d := &x.Definition
	switch {
	case d.State == index.Maintenance:
		return fewOf(unreachedHosts(x, now, func(u *core.UnreachedPort) bool { return u.Port != "backfill" && !u.Refused }))
	case d.State != index.Backfill && (d.State != index.Pending || d.Deferred):
		return nil
	}
	all = fewOf(projectorTroubles(d.Bucket, now))
	for i := range now.Buckets {
		if b := &now.Buckets[i]; b.Name == d.Bucket {
			all = append(all, bucketTroubles(b)...)
		}
	}
	all = append(all, absentHosts(x, now)...)
	return append(all, fewOf(unreachedHosts(x, now, func(*core.UnreachedPort) bool { return true }))...)
}

// bucketTroubles returns why streams of a bucket are missing.
func bucketTroubles(b *core.BucketStatus) (all []string) {
	if missing := b.VBuckets - b.Streams.Begun; b.Wanted && missing > 0 && len(b.Streams.Stuck) > 0 {
		all = append(all, missingStreams(b.Name, missing, b.VBuckets, stuck(b.Streams.Stuck)))
	}
	if b.Rollback != "" {
		all = append(all, rollingBack(b.Name, b.Rollback, b.RollbackForMS))
	}
	return all
}

// hostsOf returns the indexers that are to have copies of an index.
func hostsOf(x *statecontext.Index) map[index.NodeID]bool {
	hosts := map[index.NodeID]bool{}
	for _, c := range x.Topology.Copies {
		hosts[c.Node] = c.State != partition.Leaving || hosts[c.Node]
	}
	return hosts
}

// unreachedHosts returns, for each projector, which live indexers with copies of an index get nothing from it, because
// it cannot reach a port that counts. Only the texts that fewOf keeps are made: a leader may know of thousands of
// ports, for each index of a listing.
func unreachedHosts(x *statecontext.Index, now *core.Status, counts func(*core.UnreachedPort) bool) (all []string) {
	var hosts map[index.NodeID]bool // made for the first port: most often there is none
	for i := range now.Projectors {
		p := &now.Projectors[i]
		if p.Life != liveness.Active {
			continue
		}
		for k := range p.Unreached {
			if hosts == nil {
				hosts = hostsOf(x)
			}
			switch port := &p.Unreached[k]; {
			case !hosts[port.Node] || !counts(port):
			case len(all) < namedTroubles:
				u := unreachedPort(port)
				all = append(all, cannotReach(p.ID, &u))
			default:
				all = append(all, "") // fewOf only counts it
			}
		}
	}
	return all
}

// unreachedPort returns the API's form of a port.
func unreachedPort(u *core.UnreachedPort) v1.UnreachedPort {
	return v1.UnreachedPort{Indexer: u.Indexer, Node: u.Node, Port: u.Port, Address: u.Address, Error: u.Error,
		Refused: u.Refused, SinceMS: u.SinceMS}
}

// absentHosts returns the indexers that should have copies of an index and are away, or report a problem.
func absentHosts(x *statecontext.Index, now *core.Status) (all []string) {
	hosts := hostsOf(x)
	for i := range now.Indexers {
		n := &now.Indexers[i]
		switch {
		case !hosts[n.Node]:
		case n.Seen() != liveness.Active:
			all = append(all, fmt.Sprintf("indexer %s at %s is %v", n.Name, n.Admin, n.Seen()))
		case n.Health != "":
			all = append(all, fmt.Sprintf("indexer %s: %s", n.Name, n.Health))
		}
	}
	return fewOf(all)
}

// fewOf returns some of many texts, and the number of the others.
func fewOf(all []string) []string {
	if len(all) <= namedTroubles {
		return all
	}
	return append(all[:namedTroubles:namedTroubles], fmt.Sprintf("and %d more; see tidemark cluster "+
		"status", len(all)-namedTroubles))
}

// The texts of troubles, as in the reasons of a status.

func kvTrouble(projector index.ProjectorID, t wire.KVTrouble) string {
	return fmt.Sprintf("projector %s cannot ask KV node %s about bucket %s, since %s: %s", projector, t.Node, t.Bucket,
		time.UnixMilli(t.SinceMS).UTC().Format(time.RFC3339), t.Error)
}

func cannotReach(projector index.ProjectorID, u *v1.UnreachedPort) string {
	what, why := "cannot reach", u.Error
	if u.Refused {
		what = "is refused at"
	}
	if why == "" {
		why = "the projector's log has the reason"
	}
	return fmt.Sprintf("projector %s %s the %s port of indexer %s at %s, since %s: %s", projector, what, u.Port, u.Indexer,
		u.Address, time.UnixMilli(u.SinceMS).UTC().Format(time.RFC3339), why)
}

func missingStreams(bucket string, missing, of int, stuck []v1.StuckVBucket) string {
	text := fmt.Sprintf("bucket %s: %d of %d vbuckets are not streamed", bucket, missing, of)
	if len(stuck) > 0 {
		text += fmt.Sprintf("; vbucket %d for %v: %s", stuck[0].VBucket, rounded(stuck[0].ForMS, time.Second),
			stuck[0].Reason)
	}
	return text
}

func rollingBack(bucket, step string, forMS int64) string {
	text := fmt.Sprintf("bucket %s is being rolled back: %s", bucket, step)
	if forMS > 0 {
		text += fmt.Sprintf(", for %v", rounded(forMS, 100*time.Millisecond))
	}
	return text
}
