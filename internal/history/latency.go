package history

import (
	"math"
	"time"

	"tidemark/wire"
)

// Durations are counted in intervals whose bounds grow by a factor of 2^¼, so that a percentile is at most 19 % off.
const (
	firstBound = 100 * time.Microsecond
	bounds     = 89 // the last one is 419 s; longer durations count there, too
)

// bound returns the upper bound of an interval.
func bound(i int) float64 { return float64(firstBound) * math.Exp2(float64(i)/4) }

// boundOf returns the interval that contains a duration.
func boundOf(took time.Duration) int {
	if took <= firstBound {
		return 0
	}
	return min(int(math.Ceil(4*math.Log2(float64(took)/float64(firstBound)))), bounds-1)
}

// Latencies holds counts of durations, and their sum.
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

// Add adds the counts that another process has reported.
func (l *Latencies) Add(w *wire.LatencyPast) {
	for i, n := range w.Counts {
		if at := w.First + i; at >= 0 && at < bounds {
			l.counts[at] += n
		}
	}
	l.nanos += w.Nanos
}

// Count returns the number of durations.
func (l *Latencies) Count() (n uint64) {
	for _, c := range l.counts {
		n += c
	}
	return n
}

// Mean returns the mean duration; 0 if there are none.
func (l *Latencies) Mean() time.Duration {
	return time.Duration(l.nanos / max(l.Count(), 1))
}

// Percentile returns the duration below which the given share of durations lies; 0 if there are none.
func (l *Latencies) Percentile(share float64) time.Duration {
	want := share * float64(l.Count())
	if want <= 0 {
		return 0
	}
	below := 0.0
	for i, n := range l.counts {
		if n > 0 && below+float64(n) >= want {
			// Durations are assumed to be spread evenly between two bounds on their logarithmic scale.
			return time.Duration(bound(i) * math.Exp2(((want-below)/float64(n)-1)/4))
		}
		below += float64(n)
	}
	return time.Duration(bound(bounds - 1))
}

// past returns the encoded counts; false if there are none.
func (l *Latencies) past(of string, at int) (wire.LatencyPast, bool) {
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
