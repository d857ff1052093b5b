package stop

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestWithin checks that the bound begins with the stop, and that a run that ends before it is waited for.
func TestWithin(t *testing.T) {
	failed := errors.New("failed")
	for _, c := range []struct {
		name string
		runs time.Duration // from the start
		late bool
	}{
		{"ends before the stop", time.Hour - 1, false},
		{"ends in time", time.Hour + time.Minute - 1, false},
		{"hangs", 2 * time.Hour, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			stopping := make(chan struct{})
			time.AfterFunc(time.Hour, func() { close(stopping) })
			began := time.Now()
			late, err := Within(stopping, time.Minute, func() error {
				time.Sleep(c.runs)
				return failed
			})
			took := min(c.runs, time.Hour+time.Minute)
			if late != c.late || errors.Is(err, failed) == c.late || time.Since(began) != took {
				t.Errorf("%s: late %v, %v after %v", c.name, late, err, time.Since(began))
			}
			time.Sleep(2 * time.Hour) // run has ended
		})
	}
}
