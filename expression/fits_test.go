package expression

import (
	"bytes"
	"errors"
	"regexp"
	"testing"

	"tidemark/internal/testing/raced"
)

// TestFits: of the fits of a pattern no more are looked for than there may be, and more are told.
func TestFits(t *testing.T) {
	r, text := regexp.MustCompile("a"), bytes.Repeat([]byte("a"), 1000)
	for _, c := range []struct {
		steps int
		times int64
		want  int // -1: too many
	}{
		{1000, -1, 1000}, {999, -1, -1}, {999, 1000, -1}, {999, 999, 999}, {10, 10, 10}, {10, 0, 0}, {0, 0, 0}, {0, -1, -1},
		{maxSteps, 2000, 1000}, {maxSteps, -1, 1000}, {5, 1 << 62, -1},
	} {
		s := Scratch{steps: c.steps}
		fits, ok := s.fits("REGEXP_MATCHES", r, text, c.times)
		if ok != (c.want >= 0) || ok != (s.err == nil) || !ok && !errors.Is(s.err, ErrWork) || len(fits) != max(0, c.want) {
			t.Errorf("%d steps, %d times: %d fits, %v, want %d", c.steps, c.times, len(fits), s.err, c.want)
		}
	}
	allocations := testing.AllocsPerRun(10, func() {
		s := Scratch{steps: 1}
		s.fits("REGEXP_MATCHES", r, text, -1)
	})
	if allocations > 50 && !raced.On {
		t.Errorf("%v allocations, of a text in which one fit was allowed", allocations)
	}
}
