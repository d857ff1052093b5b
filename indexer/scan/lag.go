package scan

import (
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/internal/rpc"
)

// maxLagging bounds the scans that wait concurrently for copies that lag behind what their sessions have seen: a
// lagging index must not occupy the places of all scans, nor one user those of others. Further scans wait at most
// lagWait, enough for a timestamp that was promoted just now to arrive, and are then refused.
const (
	maxLagging = 32
	lagWait    = 100 * time.Millisecond
)

// lag tracks whether a scan waits for copies that lag behind its session, or for this indexer to receive what the
// session has seen.
type lag struct {
	places  *rpc.Places
	user    string
	placed  bool      // it occupies a place
	since   time.Time // zero: it does not wait
	placeBy time.Time // end of its wait without a place; zero: it has one, or does not wait
}

// begin records that the scan has to wait, until end. given is set if rows have already been returned; such a scan
// continues even without a place.
func (l *lag) begin(given bool) {
	now := time.Now()
	if l.since.IsZero() {
		l.since = now
	}
	if l.placed {
		return
	}
	if l.placed = l.places.Enter(l.user) == nil; l.placed {
		l.placeBy = time.Time{}
		return
	}
	if l.placeBy.IsZero() && !given {
		l.placeBy = now.Add(lagWait)
	}
}

// crowded returns an error if the scan has no place and has waited for lagWait. why is what it waits for.
func (l *lag) crowded(of index.ID, why error) error {
	if l.placeBy.IsZero() || time.Now().Before(l.placeBy) {
		return nil
	}
	return Errorf(errcode.Busy, "index %s is behind the session's last timestamp, and %d scans already wait for this or "+
		"other indexes, the limit is %d and less per user: try again: %w", of, l.places.Taken(), maxLagging, why)
}

// until returns until when nodes may wait for the timestamp, at most deadline.
func (l *lag) until(deadline time.Time) time.Time {
	if !l.placeBy.IsZero() && l.placeBy.Before(deadline) {
		return l.placeBy
	}
	return deadline
}

// end releases the place, because the copies are open or the scan has given up. It returns how long the scan waited
// for them.
func (l *lag) end() (waited time.Duration) {
	if l.placed {
		l.placed = false
		l.places.Leave(l.user)
	}
	if !l.since.IsZero() {
		waited = time.Since(l.since)
		l.since, l.placeBy = time.Time{}, time.Time{}
	}
	return waited
}
