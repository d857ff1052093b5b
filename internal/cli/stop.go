package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"tidemark/internal/stop"
)

// stopMost bounds how long a role may take to stop. It is more than a role takes that waits for its disk (15 s), and
// less than a node waits before it kills the process.
const stopMost = 18 * time.Second

var errStopHangs = fmt.Errorf("it has been told to stop, and has not stopped within %v, which happens if a disk hangs "+
	"while its files are opened", stopMost)

// boundStop makes a role end within stopMost after it has been told to stop, whatever hangs: nothing else bounds that
// until the role runs.
func boundStop(cmd *cobra.Command) {
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := endsInTime(cmd.Context(), func() error { return run(cmd, args) })
		if !errors.Is(err, errStopHangs) {
			return err
		}
		role := cmd.CommandPath()
		if data := cmd.Flag("data"); data != nil {
			role += " with --data " + data.Value.String()
		}
		return fmt.Errorf("%s: %w", role, err)
	}
}

// endsInTime returns run's error, or errStopHangs if run takes longer than stopMost after the end of ctx.
func endsInTime(ctx context.Context, run func() error) error {
	late, err := stop.Within(ctx.Done(), stopMost, run)
	if late {
		return errStopHangs
	}
	return err
}
