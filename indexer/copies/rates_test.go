package copies

import (
	"math"
	"testing"
	"time"
)

// TestRates: a rate approaches the real one, returns to 0 after a while, and is news only when it changes.
func TestRates(t *testing.T) {
	var r rate
	total, times := uint64(0), map[uint64]int{}
	for range 120 {
		total += 1000
		r = r.since(total, time.Second)
		times[r.rounded()]++
	}
	if got := float64(r.rounded()); math.Abs(got-1000) > 1000/16 {
		t.Errorf("%v a second, want 1000 or so", got)
	}
	if len(times) > 60 || times[r.rounded()] < 60 {
		t.Errorf("what goes on as before is news again and again: %v", times)
	}
	seconds := 0
	for ; r.rounded() > 0 && seconds < 1000; seconds++ {
		r = r.since(total, time.Second)
	}
	if seconds < 15 || seconds > 300 || r.since(total, time.Second) != (rate{total: total}) {
		t.Errorf("it is nothing %d s after the last one: %+v", seconds, r)
	}
	if r = r.since(3, time.Second); r.second != 0 || r.total != 3 {
		t.Errorf("a counter that begins anew: %+v", r)
	}
	for n := 1.0; n < 1e15; n *= 1.01 {
		if got := float64(rate{second: n}.rounded()); math.Abs(got-n) > max(n/16, 0.5) {
			t.Fatalf("%v is reported as %v", n, got)
		}
	}
}
