package scan

import (
	"cmp"
	"slices"
	"time"

	"tidemark/errcode"
	"tidemark/indexer/scanport"
	"tidemark/timestamp"
	"tidemark/wire"
)

// Why something that a session has seen is there no more. What of it is still there, KV has now.
const (
	lostCluster  = "what was seen is of another cluster"
	lostEpoch    = "the cluster was restored, or recovered without a majority, since"
	lostBucket   = "the bucket was made anew, or restored, since"
	lostRollback = "the bucket was rolled back since: a failover of KV has undone writes"
)

// lostPatience is for how long KV and the leader are asked for all that is there, where the caller would be content
// with less if nothing had been lost; lostUnasked is told when they did not answer.
const (
	lostPatience = 2 * time.Second
	lostUnasked  = "; KV or the leader could not be asked for all that is there, so that some of it may be missing here"
)

// floor says what a session's tokens mean for the view's bucket: no timestamp before floor may be shown (nil: any may),
// or why what was seen cannot be compared with what is there ("" otherwise). An error tells that this indexer has not
// heard yet of what the session has seen.
func (v *View) floor(seen []scanport.Seen) (floor *wire.StabilityRef, lost string, err error) {
	for i := range seen {
		s := &seen[i]
		if s.Cluster != v.Era.Cluster {
			lost = lostCluster
			continue
		}
		order := cmp.Or(cmp.Compare(s.Epoch, v.Era.Epoch), cmp.Compare(s.At.Generation, v.Bucket.Generation),
			cmp.Compare(s.At.RollbackID, v.Bucket.RollbackID))
		switch {
		case order > 0:
			err = Errorf(errcode.Unavailable, "the session has seen timestamp %d of bucket %q after rollback %d in "+
				"generation %d (epoch %d of the cluster), of which this indexer has not heard yet", s.At.Number, v.Bucket.Name,
				s.At.RollbackID,
				s.At.Generation, s.Epoch)
		case s.Epoch != v.Era.Epoch:
			lost = lostEpoch
		case s.At.Generation != v.Bucket.Generation:
			lost = lostBucket
		case order < 0:
			lost = lostRollback
		case floor == nil || floor.Compare(s.At) < 0:
			at := wireRef(s)
			floor = &at
		}
	}
	return floor, lost, err
}

// session is what a scan owes the session that it belongs to.
type session struct {
	era     Era
	bucket  string
	floor   *wire.StabilityRef // no timestamp before it may be shown; nil: any may
	shown   *scanport.Seen     // what the pages before have shown, without stability
	keeps   bool               // the session stays as it is
	lost    string             // why some of what it had seen is there no more
	unasked bool               // and KV could not be asked for what is left
}

// take takes over what the session has seen, and what pages of this very scan have shown. A timestamp that the caller
// has named is what it wants to see, however old: then nothing is asked of what was lost, and the session stays as it
// is. An error tells that this indexer has not heard yet of what the session has seen.
func (s *session) take(spec *Spec, view *View) error {
	s.era, s.bucket = view.Era, view.Bucket.Name
	seen := spec.Seen
	if s.shown != nil {
		seen = append(slices.Clip(seen), *s.shown)
	}
	floor, lost, err := view.floor(seen)
	s.floor = floor
	if spec.named() {
		s.keeps = lost != "" || err != nil
		return nil
	}
	if lost != "" || s.shown == nil { // what a page before was told of is told with the end
		s.lost = lost
	}
	return err
}

// told is what the caller is told of what is lost; "" for nothing.
func (s *session) told() string {
	if s.unasked {
		return s.lost + lostUnasked
	}
	return s.lost
}

// seen is what the session has seen when it gets rows of a timestamp.
func (s *session) seen(spec *Spec, at timestamp.Ref) scanport.Seen {
	if s.keeps {
		return newestOf(spec.Seen, s.era.Cluster)
	}
	if s.floor != nil && s.floor.Compare(at) > 0 {
		at = s.floor.Ref
	}
	return s.at(at)
}

// at is a timestamp of the scan's bucket, as sessions know it.
func (s *session) at(ref timestamp.Ref) scanport.Seen {
	return scanport.Seen{Cluster: s.era.Cluster, Epoch: s.era.Epoch, Bucket: s.bucket, At: ref}
}

// named reports whether the caller, or its cursor, has named the timestamp, and not only the rows before of an answer
// that is gone on with.
func (s *Spec) named() bool { return s.At != nil && (s.Resume == nil || s.Resume.named) }

// wireRef is the timestamp that was seen.
func wireRef(s *scanport.Seen) wire.StabilityRef {
	return wire.StabilityRef{Bucket: s.Bucket, Ref: s.At}
}

// newestOf returns the one of some tokens, at least one, that has what this cluster's others stand for in it.
func newestOf(seen []scanport.Seen, cluster uint64) scanport.Seen {
	return slices.MaxFunc(seen, func(a, b scanport.Seen) int {
		switch own, other := a.Cluster == cluster, b.Cluster == cluster; {
		case own && other:
			return a.Compare(&b)
		case own:
			return 1
		case other:
			return -1
		}
		return 0
	})
}
