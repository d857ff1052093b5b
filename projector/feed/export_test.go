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
