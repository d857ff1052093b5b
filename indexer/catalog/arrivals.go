package catalog

import (
	"time"

	"tidemark/timestamp"
)

// mostArrivals bounds the timestamps of a bucket whose arrival times are kept: those of the last minute, or of a few
// seconds when session scans hurry promotions. They take 14 KiB per bucket.
const mostArrivals = 256

// arrivals is a ring of the arrival times of a bucket's newest timestamps.
type arrivals struct {
	refs []timestamp.Ref
	at   []time.Time
	next int
}

func (h *arrivals) note(ref timestamp.Ref, at time.Time) {
	if len(h.refs) < mostArrivals {
		h.refs, h.at = append(h.refs, ref), append(h.at, at)
		return
	}
	h.refs[h.next], h.at[h.next] = ref, at
	h.next = (h.next + 1) % mostArrivals
}

func (h *arrivals) of(ref timestamp.Ref) (time.Time, bool) {
	for i := range h.refs {
		if h.refs[i].Compare(ref) == 0 {
			return h.at[i], true
		}
	}
	return time.Time{}, false
}
