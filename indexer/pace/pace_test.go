package pace

import (
	"context"
	"testing"
	"time"
)

// TestPaceKeepsToItsShare checks that the pace follows the time that the work took, not only the number of things.
func TestPaceKeepsToItsShare(t *testing.T) {
	now := time.Unix(1000, 0)
	gone, cancel := context.WithCancel(t.Context()) // Wait returns at once; p.next shows how long it would wait
	cancel()
	for _, c := range []struct {
		share float64
		work  time.Duration
		n     int
		want  time.Duration
	}{
		{0, time.Second, 500, time.Second},
		{0.05, 0, 500, time.Second},
		{0.05, 20 * time.Millisecond, 500, time.Second}, // less than the rate allows
		{0.05, time.Second, 500, 19 * time.Second},
		{0.5, time.Second, 1, time.Second},
	} {
		p := New(500, c.share, func() time.Time { return now })
		p.Worked(c.work)
		_ = p.Wait(gone, c.n)
		if got := p.next.Sub(now); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
		if p.next = now; p.Wait(gone, 0) == nil || !p.next.Equal(now) {
			t.Errorf("%+v: counted twice", c)
		}
	}
}
