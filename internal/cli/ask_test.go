package cli

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"tidemark/client"
	"tidemark/errcode"
)

// TestInterrupted checks that the error of a command ended by a signal reports that, with the rest of its text, and
// that other errors and timeouts are unchanged.
func TestInterrupted(t *testing.T) {
	ctx, end := context.WithCancelCause(t.Context())
	late := fmt.Errorf("%w: %w while waiting for drop w/i; the last attempt was at m", client.ErrUnavailable,
		context.Canceled)
	if got := interrupted(ctx, late); !errors.Is(got, late) || got.Error() != late.Error() {
		t.Errorf("before the signal: %v", got)
	}
	end(fmt.Errorf("interrupt %w", context.Canceled))
	for _, tc := range []struct {
		err  error
		want string
	}{
		{ctx.Err(), "interrupted"},
		{context.Cause(ctx), "interrupted"},
		{late, "interrupted while waiting for drop w/i; the last attempt was at m"},
		{fmt.Errorf("no map: %w", context.Cause(ctx)), "interrupted: no map"},
		{fmt.Errorf("1 of 2 are ready: %w; the build goes on", ctx.Err()), "interrupted: 1 of 2 are ready; the build goes on"},
	} {
		if got := interrupted(ctx, tc.err); got.Error() != tc.want || exitCode(got) != errcode.ExitFailed {
			t.Errorf("%v: %v (%d), want %s", tc.err, got, exitCode(got), tc.want)
		}
	}
	for _, err := range []error{nil, errors.New("wrong"), context.DeadlineExceeded} {
		if got := interrupted(ctx, err); !errors.Is(got, err) {
			t.Errorf("%v: %v", err, got)
		}
	}
}
