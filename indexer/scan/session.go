package scan

import (
	"cmp"
	"time"

	"tidemark/errcode"
	"tidemark/indexer/scanport"
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

// session takes over what the session has seen. A timestamp that the caller has named is what it wants to see, however
// old: then nothing is asked of what was lost, and the session stays as it is.
func (r *run) session(view *View) error {
	var err error
	r.era, r.bucket = view.Era, view.Bucket.Name
	r.floor, r.result.SessionLost, err = view.floor(r.spec.Seen)
	if r.spec.At != nil {
		r.keeps, r.result.SessionLost = r.result.SessionLost != "" || err != nil, ""
		return nil
	}
	return err
}

// wireRef is the timestamp that was seen.
func wireRef(s *scanport.Seen) wire.StabilityRef {
	return wire.StabilityRef{Bucket: s.Bucket, Ref: s.At}
}

// seen is what the session has seen when it gets rows of the chosen timestamp.
func (r *run) seen() scanport.Seen {
	if r.keeps {
		return r.spec.Seen[len(r.spec.Seen)-1]
	}
	s := scanport.Seen{Cluster: r.era.Cluster, Epoch: r.era.Epoch, Bucket: r.bucket, At: r.plan.ref.Ref}
	if r.floor != nil && r.floor.Compare(s.At) > 0 {
		s.At = r.floor.Ref
	}
	return s
}

// maxLagging is how many scans may wait at a time for copies that lag behind what their sessions have seen: an index
// that lags must not take the places of all scans.
const maxLagging = 32

// lag counts a scan that has to wait for copies that lag behind its session, or refuses it.
func (r *run) lag() error {
	if !r.plan.behind || r.floor == nil || r.least != r.floor {
		return nil
	}
	if n := r.c.lagging.Add(1); n > maxLagging {
		r.c.lagging.Add(-1)
		return Errorf(errcode.Busy, "index %s lags behind timestamp %d, which the session has seen, and %d scans wait for "+
			"it or others already, the most that may: try again", r.spec.Index, r.floor.Number, maxLagging)
	}
	r.lags = true
	return nil
}

// caughtUp gives the place of lag back: the copies are open, or cannot be.
func (r *run) caughtUp() {
	if r.lags {
		r.lags = false
		r.c.lagging.Add(-1)
	}
}
