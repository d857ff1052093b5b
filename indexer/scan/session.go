package scan

import (
	"cmp"
	"slices"
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

// session takes over what the session has seen, and what pages of this very scan have shown. A timestamp that the
// caller has named is what it wants to see, however old: then nothing is asked of what was lost, and the session stays
// as it is.
func (r *run) session(view *View) error {
	r.era, r.bucket = view.Era, view.Bucket.Name
	seen := r.spec.Seen
	if r.shown != nil {
		seen = append(slices.Clip(seen), *r.shown)
	}
	floor, lost, err := view.floor(seen)
	r.floor = floor
	if r.spec.named() {
		r.keeps = lost != "" || err != nil
		return nil
	}
	if lost != "" || r.shown == nil { // what a page before was told of is told with the end
		r.lost = lost
	}
	return err
}

// named reports whether the caller, or its cursor, has named the timestamp, and not only the rows before of an answer
// that is gone on with.
func (s *Spec) named() bool { return s.At != nil && (s.Resume == nil || s.Resume.named) }

// tellLost has the result say what is lost.
func (r *run) tellLost() {
	if r.result.SessionLost = r.lost; r.unasked {
		r.result.SessionLost += lostUnasked
	}
}

// wireRef is the timestamp that was seen.
func wireRef(s *scanport.Seen) wire.StabilityRef {
	return wire.StabilityRef{Bucket: s.Bucket, Ref: s.At}
}

// seen is what the session has seen when it gets rows of the chosen timestamp.
func (r *run) seen() scanport.Seen {
	if r.keeps {
		return newestOf(r.spec.Seen, r.era.Cluster)
	}
	s := r.chosen()
	if r.floor != nil && r.floor.Compare(s.At) > 0 {
		s.At = r.floor.Ref
	}
	return s
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

// chosen is the chosen timestamp, as sessions know it.
func (r *run) chosen() scanport.Seen {
	return scanport.Seen{Cluster: r.era.Cluster, Epoch: r.era.Epoch, Bucket: r.bucket, At: r.plan.ref.Ref}
}

// maxLagging is how many scans may wait at a time for copies that lag behind what their sessions have seen: an index
// that lags must not take the places of all scans, nor a user those of others. Others wait no longer than lagHurry, in
// which what was promoted just now is there: then they are refused.
const (
	maxLagging = 32
	lagHurry   = 100 * time.Millisecond
)

// lag counts a scan that has to wait for copies that lag behind its session, or for this indexer to hear of what it has
// seen, until caughtUp.
func (r *run) lag() {
	now := time.Now()
	if r.lagSince.IsZero() {
		r.lagSince = now
	}
	if r.lags {
		return
	}
	if r.lags = r.c.lagging.Enter(r.user) == nil; r.lags {
		r.hurry = time.Time{}
		return
	}
	if r.hurry.IsZero() && !r.given {
		r.hurry = now.Add(lagHurry)
	}
}

// crowded refuses a scan that has found no place among those that wait for copies, and has waited long enough for one
// that finds none. why is what it waits for.
func (r *run) crowded(why error) error {
	if r.hurry.IsZero() || time.Now().Before(r.hurry) {
		return nil
	}
	return Errorf(errcode.Busy, "index %s lags behind what the session has seen, and %d scans wait for it or others "+
		"already, %d at most and fewer of one user: try again: %w", r.spec.Index, r.c.lagging.Taken(), maxLagging, why)
}

// caughtUp gives the place of lag back: the copies are open, or are waited for no more. What was waited for them is
// counted.
func (r *run) caughtUp() {
	if r.lags {
		r.lags = false
		r.c.lagging.Leave(r.user)
	}
	if !r.lagSince.IsZero() {
		r.result.Waited += time.Since(r.lagSince)
		r.lagSince, r.hurry = time.Time{}, time.Time{}
	}
}
