package cli

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"tidemark/internal/node"
)

// TestRoleEndsInTime checks that a role that hangs after it has been told to stop ends within stopMost, and before its
// node kills it; and that one that stops in time, or ends by itself, ends with its own error.
func TestRoleEndsInTime(t *testing.T) {
	if stopMost >= node.StopGrace {
		t.Errorf("a role ends after %v, and its node kills it after %v", stopMost, node.StopGrace)
	}
	own := errors.New("its own")
	for name, c := range map[string]struct {
		stops bool          // it is told to stop, after a minute
		takes time.Duration // until it has ended, from then on
		want  error
		after time.Duration
	}{
		"by itself": {takes: time.Hour, want: own, after: time.Minute + time.Hour},
		"in time":   {stops: true, takes: stopMost - 1, want: own, after: time.Minute + stopMost - 1},
		"hangs":     {stops: true, takes: time.Hour, want: errStopHangs, after: time.Minute + stopMost},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				if c.stops {
					time.AfterFunc(time.Minute, stop)
				}
				began := time.Now()
				err := endsInTime(ctx, func() error {
					time.Sleep(time.Minute + c.takes)
					return own
				})
				if took := time.Since(began); !errors.Is(err, c.want) || took != c.after {
					t.Errorf("%v after %v, want %v after %v", err, took, c.want, c.after)
				}
				time.Sleep(2 * time.Hour) // what hangs ends, too
			})
		})
	}
}
