package scanserver

import (
	"testing"
	"time"

	"tidemark/indexer/scan"
)

// TestSlowFrom checks that the newest limit decides which scans are slow, also for scans that began before it was
// set. 0 is the default of the process. What was recorded before stays.
func TestSlowFrom(t *testing.T) {
	now := time.UnixMilli(0)
	s := &Server{running: newRunning("i1", time.Second, func() time.Time { return now }, nil)}
	for i, step := range []struct {
		set, takes time.Duration
		kept       int
	}{
		{0, 999 * time.Millisecond, 0},
		{0, time.Second, 1},
		{100 * time.Millisecond, 100 * time.Millisecond, 2},
		{100 * time.Millisecond, 99 * time.Millisecond, 2},
		{-1, time.Hour, 2},
		{0, 999 * time.Millisecond, 2},
		{0, time.Second, 3},
	} {
		_, a := s.running.begin(t.Context(), "scan", &scan.Request{}, &scan.Spec{})
		s.SetSlow(step.set)
		now = now.Add(step.takes)
		s.running.end(a, nil)
		if got := s.Running(0, 10); got.SlowKept != step.kept {
			t.Errorf("step %d: %d are remembered, want %d", i, got.SlowKept, step.kept)
		}
	}
	if got := s.Running(0, 0).SlowMS; got != 1000 {
		t.Errorf("slow from %v ms, want 1000", got)
	}
}
