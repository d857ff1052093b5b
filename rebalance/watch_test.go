package rebalance

import (
	"math"
	"testing"
)

// TestWatchUsesMeasurements: presumed values are replaced by the measurements of steps observed from beginning to
// end; a leader that takes over during a rebalance measures nothing of steps that had begun before.
func TestWatchUsesMeasurements(t *testing.T) {
	presumed := Pace{BytesPerSecond: 100, Overhead: 1}
	var w Watch
	run := func(step uint32, fromMS, bytes, seconds int64) { // the bytes come in the middle, for half of the time
		for ms := int64(0); ms <= seconds*1000; ms += 250 {
			w.Look(7, fromMS+ms)
			part := (float64(ms)/1000 - float64(seconds)/4) / float64(seconds) * 2
			y := Work{Begun: true, Bytes: float64(bytes), Part: min(max(part, 0), 0.999)}
			w.See(step, &y, ms == seconds*1000)
			if want := float64(ms) / 1000; y.Seconds != want {
				t.Fatalf("step %d is %g s old, want %g", step, y.Seconds, want)
			}
		}
	}
	if w.Pace(presumed) != presumed {
		t.Fatal(w.Pace(presumed))
	}
	run(1, 1000, 1000, 8) // in progress at the first observation: its beginning is unknown
	if p := w.Pace(presumed); p.Overhead != 1 || math.Abs(p.BytesPerSecond-250) > 1 {
		t.Fatalf("the first: %+v", p)
	}
	for i := range int64(40) {
		run(uint32(2+i), 10_000*(i+1), 1000, 8)
	}
	if p := w.Pace(presumed); math.Abs(p.Overhead-4) > 0.2 || math.Abs(p.BytesPerSecond-250) > 1 {
		t.Fatalf("the rest: %+v", p)
	}
	w.Look(8, 999_000) // another rebalance
	if w.Pace(presumed) != presumed {
		t.Fatal(w.Pace(presumed))
	}
}

// TestWatchKeepsTheLargestFraction: the largest observed fraction of a step counts, because bytes from files and what
// follows them are counted one after the other.
func TestWatchKeepsTheLargestFraction(t *testing.T) {
	var w Watch
	for i, c := range []struct{ is, counts float64 }{{0.2, 0.2}, {0.7, 0.7}, {0.1, 0.7}, {0.8, 0.8}} {
		w.Look(1, int64(100*(i+1)))
		y := Work{Begun: true, Bytes: 1, Part: c.is}
		if w.See(1, &y, false); y.Part != c.counts {
			t.Errorf("%g counts as %g, want %g", c.is, y.Part, c.counts)
		}
	}
}

// TestWatchOfUnknownSizes: copies of unknown size are not used to measure the transfer rate.
func TestWatchOfUnknownSizes(t *testing.T) {
	var w Watch
	presumed := Pace{BytesPerSecond: 100, Overhead: 0.5}
	for look := range 40 {
		w.Look(1, int64(look)*100)
		w.See(1, &Work{Begun: true, Part: float64(look) / 40}, false)
	}
	if p := w.Pace(presumed); p != presumed {
		t.Errorf("%+v", p)
	}
}
