package feed

import "time"

// EndlessCalm rests for an hour where others rest for milliseconds.
func EndlessCalm() *Calm {
	k := NewCalm()
	k.least = time.Hour
	return k
}

// RestOf is how long the reader rests when it reads so many bytes so long after a rest.
func RestOf(at time.Time, after time.Duration, bytes int) time.Duration {
	var r restful
	r.begin(at)
	return r.read(bytes, at.Add(after))
}

// ReadsOf is how often the reader reads in ten seconds in which documents of so many bytes come, so many a second.
func ReadsOf(rate, bytes int) (reads int) {
	const aRead = 5 * time.Microsecond
	start := time.Unix(1_700_000_000, 0)
	gap, now := time.Second/time.Duration(rate), start
	next := now.Add(gap)
	var r restful
	r.begin(now)
	for ; now.Sub(start) < 10*time.Second; reads++ {
		if next.After(now) {
			now = next
		}
		n := 0
		for ; !next.After(now); next = next.Add(gap) {
			n += bytes
		}
		now = now.Add(aRead)
		now = now.Add(r.read(n, now))
	}
	return reads
}
