package cli

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"

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

// TestRoleThatHangsIsNamed checks that the error of a role that hangs says which role it is, and whose disk may hang.
func TestRoleThatHangsIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		stop()
		cmd := &cobra.Command{Use: "manager", RunE: func(*cobra.Command, []string) error {
			time.Sleep(time.Hour)
			return nil
		}, SilenceUsage: true, SilenceErrors: true}
		cmd.Flags().String("data", "", "")
		cmd.SetArgs([]string{"--data", "/var/lib/m1"})
		boundStop(cmd)
		err := cmd.ExecuteContext(ctx)
		if !errors.Is(err, errStopHangs) || !strings.HasPrefix(err.Error(), "manager with --data /var/lib/m1: ") {
			t.Errorf("%v, want %v with its name and folder", err, errStopHangs)
		}
		time.Sleep(2 * time.Hour) // what hangs ends, too
	})
}
