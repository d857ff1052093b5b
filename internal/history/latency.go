package history

import (
	"math"
	"time"

	"tidemark/wire"
)

// Durations are counted by bounds that lie a factor of 2^¼ apart, so that a percentile is at most 19 % off.
const (
	firstBound = 100 * time.Microsecond
	bounds     = 89 // the last one is 419 s; what took longer counts there
)

// bound is the upper end of a count.
func bound(i int) float64 { return float64(firstBound) * math.Exp2(float64(i)/4) }

// boundOf is the first one that is not below a duration.
func boundOf(took time.Duration) int {
	if took <= firstBound {
		return 0
	}
	return min(int(math.Ceil(4*math.Log2(float64(took)/float64(firstBound)))), bounds-1)
}

// Latencies are counts of durations, and their sum.
type Latencies struct {
	counts [bounds]uint64
	nanos  uint64
}

// Note counts a duration.
func (l *Latencies) Note(took time.Duration) {
	l.counts[boundOf(took)]++
	l.nanos += uint64(max(took, 0))
}

func (l *Latencies) add(o *Latencies) {
	for i, n := range o.counts {
		l.counts[i] += n
	}
	l.nanos += o.nanos
}

// Add counts what another process has told.
func (l *Latencies) Add(w *wire.LatencyPast) {
	for i, n := range w.Counts {
		if at := w.First + i; at >= 0 && at < bounds {
			l.counts[at] += n
		}
	}
	l.nanos += w.Nanos
}

// Count is how many there are.
func (l *Latencies) Count() (n uint64) {
	for _, c := range l.counts {
		n += c
	}
	return n
}

// Mean is 0 where there are none.
func (l *Latencies) Mean() time.Duration {
	return time.Duration(l.nanos / max(l.Count(), 1))
}

// Percentile is the duration below which a share of them lies; 0 where there are none.
func (l *Latencies) Percentile(share float64) time.Duration {
	want := share * float64(l.Count())
	if want <= 0 {
		return 0
	}
	below := 0.0
	for i, n := range l.counts {
		if n > 0 && below+float64(n) >= want {
			// Between two bounds they are taken to lie evenly on the scale of the bounds.
			return time.Duration(bound(i) * math.Exp2(((want-below)/float64(n)-1)/4))
		}
		below += float64(n)
	}
	return time.Duration(bound(bounds - 1))
}

// told is how it travels; false where there are none.
func (l *Latencies) told(of string, at int) (wire.LatencyPast, bool) {
	first, last := -1, -1
	for i, n := range l.counts {
		if n == 0 {
			continue
		}
		if first < 0 {
			first = i
		}
		last = i
	}
	if first < 0 {
		return wire.LatencyPast{}, false
	}
	counts := make([]uint64, last-first+1)
	copy(counts, l.counts[first:])
	return wire.LatencyPast{Of: of, At: at, Nanos: l.nanos, First: first, Counts: counts}, true
}
