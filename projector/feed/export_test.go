package feed

import "time"

// EndlessCalm returns a Calm whose rests last an hour instead of milliseconds.
func EndlessCalm() *Calm {
	k := NewCalm()
	k.least = time.Hour
	return k
}

// RestOf returns how long the reader rests after a read of the given size, and the given time after the previous
// rest.
func RestOf(at time.Time, after time.Duration, bytes int) time.Duration {
	r := restful{most: restBytes}
	r.begin(at)
	return r.read(bytes, at.Add(after))
}

// ReadsOf returns the number of reads in ten seconds, at a rate of documents of the given size.
func ReadsOf(rate, bytes int) (reads int) {
	const aRead = 5 * time.Microsecond
	start := time.Unix(1_700_000_000, 0)
	gap, now := time.Second/time.Duration(rate), start
	next := now.Add(gap)
	r := restful{most: restBytes}
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
