package copies

import (
	"math"
	"time"
)

// smoothFor is the time over which rates are averaged, as an exponential mean.
const smoothFor = 15 * time.Second

// rate is a smoothed rate per second of a counter. The zero value has seen nothing.
type rate struct {
	total  uint64 // last value of the counter
	second float64
}

// since returns the rate after the counter has reached total, d after the last value. A counter that has gone down
// starts over.
func (r rate) since(total uint64, d time.Duration) rate {
	if total == r.total && r.second == 0 || d <= 0 {
		return rate{total, r.second}
	}
	now := 0.0
	if total > r.total {
		now = float64(total-r.total) / d.Seconds()
	}
	next := r.second + (now-r.second)*(1-math.Exp(-float64(d)/float64(smoothFor)))
	if next < 0.5 && now == 0 { // it would never reach 0
		next = 0
	}
	return rate{total, next}
}

// rounded returns the rate for reports, rounded to a sixteenth so that a steady rate causes no news.
func (r rate) rounded() uint64 {
	const steps = 16
	n := math.Round(r.second)
	if n < 2*steps {
		return uint64(n)
	}
	_, exp := math.Frexp(n) // 2^(exp-1) <= n < 2^exp
	step := math.Ldexp(1, exp-1) / steps
	return uint64(math.Round(n/step) * step)
}
