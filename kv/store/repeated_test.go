package store

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
)

// TestRepeated checks what the log has of failures that repeat.
func TestRepeated(t *testing.T) {
	full := fmt.Errorf("%w: %w", ErrTemporary, syscall.ENOSPC)
	var row Repeated
	for i, step := range []struct {
		what string
		err  error
		want bool
	}{
		{"", nil, false},
		{"", fmt.Errorf("vbucket 5: %w", full), true},
		{"", fmt.Errorf("vbucket 6: %w", full), false}, // the same disk
		{"map 2 ", full, true},
		{"map 2 ", full, false},
		{"", fmt.Errorf("vbucket 5: %w", ErrSealed), true}, // not the disk
		{"", fmt.Errorf("vbucket 6: %w", ErrSealed), true},
		{"", full, true},
		{"", errors.New("a"), true},
		{"", errors.New("a"), false},
		{"", errors.New("b"), true},
		{"", full, true},
		{"", nil, false},
		{"", full, true}, // after a success
	} {
		if got := row.First(step.what, step.err); got != step.want {
			t.Errorf("step %d, %v: %v", i, step.err, got)
		}
	}
}
