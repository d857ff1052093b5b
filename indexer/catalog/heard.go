package catalog

import (
	"time"

	"tidemark/timestamp"
)

// mostHeard is of how many timestamps of a bucket is known when they came: those of the last minute, or seconds where
// session scans hurry them. They take 14 KiB of a bucket.
const mostHeard = 256

// heard is when the newest timestamps of a bucket came, the oldest overwritten first.
type heard struct {
	refs []timestamp.Ref
	at   []time.Time
	next int
}

func (h *heard) note(ref timestamp.Ref, at time.Time) {
	if len(h.refs) < mostHeard {
		h.refs, h.at = append(h.refs, ref), append(h.at, at)
		return
	}
	h.refs[h.next], h.at[h.next] = ref, at
	h.next = (h.next + 1) % mostHeard
}

func (h *heard) of(ref timestamp.Ref) (time.Time, bool) {
	for i := range h.refs {
		if h.refs[i].Compare(ref) == 0 {
			return h.at[i], true
		}
	}
	return time.Time{}, false
}
