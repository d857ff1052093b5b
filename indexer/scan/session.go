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

// Reasons why something that a session has seen no longer exists. What remains of it, KV has now.
const (
	lostCluster  = "the session's state is of another cluster"
	lostEpoch    = "the cluster was since restored, or recovered without a majority"
	lostBucket   = "the bucket was since created again, or restored"
	lostRollback = "the bucket was since rolled back: a failover of KV has undone writes"
)

// lostWait bounds the wait for KV and the leader to provide everything that exists, when the request itself would
// accept less had nothing been lost. The answer contains lostUnasked if they did not reply.
const (
	lostWait    = 2 * time.Second
	lostUnasked = "; KV or the leader did not report all present writes, so some of them may be missing here"
)

// floor evaluates a session's tokens for the view's bucket. floor is the oldest timestamp that may be shown (nil:
// any), lost is why something seen cannot be compared with the present state ("" if it can). It returns an error if
// this indexer has not received yet what the session has seen.
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
			err = Errorf(errcode.Unavailable, "the session has read timestamp %d of bucket %q after rollback %d in "+
				"generation %d (epoch %d of the cluster), which this indexer does not have yet", s.At.Number, v.Bucket.Name,
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

// session is the state of a scan with respect to its client's session.
type session struct {
	era     Era
	bucket  string
	floor   *wire.StabilityRef // oldest timestamp that may be shown; nil: any
	shown   *scanport.Seen     // without stability: what earlier pages have shown
	keeps   bool               // the session remains unchanged
	lost    string             // why some of what it had seen no longer exists
	unasked bool               // and KV did not provide what remains
}

// take evaluates what the session has seen, and what earlier pages of this scan have shown. A scan of a timestamp
// that the caller has named uses it, however old: then nothing is required of what was lost, and the session remains
// unchanged. It returns an error if this indexer has not received yet what the session has seen.
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
	if lost != "" || s.shown == nil { // what was lost before an earlier page is reported with the end
		s.lost = lost
	}
	return err
}

// explanation returns what is lost, for the caller, "" if nothing is.
func (s *session) explanation() string {
	if s.unasked {
		return s.lost + lostUnasked
	}
	return s.lost
}

// seen returns what the session has seen once it has rows of a timestamp.
func (s *session) seen(spec *Spec, at timestamp.Ref) scanport.Seen {
	if s.keeps {
		return newestOf(spec.Seen, s.era.Cluster)
	}
	if s.floor != nil && s.floor.Compare(at) > 0 {
		at = s.floor.Ref
	}
	return s.at(at)
}

// at returns a timestamp of the scan's bucket in the form of session tokens.
func (s *session) at(ref timestamp.Ref) scanport.Seen {
	return scanport.Seen{Cluster: s.era.Cluster, Epoch: s.era.Epoch, Bucket: s.bucket, At: ref}
}

// named reports whether the caller, or its cursor, has named the timestamp, rather than the earlier rows of a
// continued answer.
func (s *Spec) named() bool { return s.At != nil && (s.Resume == nil || s.Resume.named) }

// wireRef returns the timestamp of a token.
func wireRef(s *scanport.Seen) wire.StabilityRef {
	return wire.StabilityRef{Bucket: s.Bucket, Ref: s.At}
}

// newestOf returns the newest of the tokens, at least one of which must exist. Tokens of this cluster take precedence
// over those of others.
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
