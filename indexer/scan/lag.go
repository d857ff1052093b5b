package scan

import (
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/internal/rpc"
)

// maxLagging is how many scans may wait at a time for copies that lag behind what their sessions have seen: an index
// that lags must not take the places of all scans, nor a user those of others. Others wait no longer than lagHurry, in
// which what was promoted just now is there: then they are refused.
const (
	maxLagging = 32
	lagHurry   = 100 * time.Millisecond
)

// lag is whether a scan waits for copies that lag behind its session, or for this indexer to hear of what that has
// seen.
type lag struct {
	places *rpc.Places
	user   string
	placed bool      // it has one of the places
	since  time.Time // zero: it does not wait
	hurry  time.Time // until when it waits without a place; zero: it has one, or does not wait
}

// begin counts a scan that has to wait, until end. given: the sink has been given rows, and the scan goes on whatever
// it takes.
func (l *lag) begin(given bool) {
	now := time.Now()
	if l.since.IsZero() {
		l.since = now
	}
	if l.placed {
		return
	}
	if l.placed = l.places.Enter(l.user) == nil; l.placed {
		l.hurry = time.Time{}
		return
	}
	if l.hurry.IsZero() && !given {
		l.hurry = now.Add(lagHurry)
	}
}

// crowded refuses a scan that has found no place among those that wait for copies, and has waited long enough for one
// that finds none. why is what it waits for.
func (l *lag) crowded(of index.ID, why error) error {
	if l.hurry.IsZero() || time.Now().Before(l.hurry) {
		return nil
	}
	return Errorf(errcode.Busy, "index %s lags behind what the session has seen, and %d scans wait for it or others "+
		"already, %d at most and fewer of one user: try again: %w", of, l.places.Taken(), maxLagging, why)
}

// until is until when nodes may wait for the timestamp, by a scan that waits until its deadline.
func (l *lag) until(deadline time.Time) time.Time {
	if !l.hurry.IsZero() && l.hurry.Before(deadline) {
		return l.hurry
	}
	return deadline
}

// end gives the place back: the copies are open, or are waited for no more. It returns how long they were waited for.
func (l *lag) end() (waited time.Duration) {
	if l.placed {
		l.placed = false
		l.places.Leave(l.user)
	}
	if !l.since.IsZero() {
		waited = time.Since(l.since)
		l.since, l.hurry = time.Time{}, time.Time{}
	}
	return waited
}
