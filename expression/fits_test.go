package expression

import (
	"bytes"
	"errors"
	"regexp"
	"strings"
	"testing"

	"tidemark/internal/testing/raced"
)

// TestMatchLimits checks that a search for matches stops at the budget, and that exceeding it is an error.
func TestMatchLimits(t *testing.T) {
	r, text := regexp.MustCompile("a"), bytes.Repeat([]byte("a"), 1000)
	const groups = 90
	grouped := regexp.MustCompile(strings.Repeat("(", groups) + "a" + strings.Repeat(")", groups))
	long := bytes.Repeat([]byte("a"), maxTemp/(64+16*groups)+1)
	for _, c := range []struct {
		r     *regexp.Regexp
		text  []byte
		steps int
		times int64
		want  int // -1: too many
	}{
		{r, text, 1000, -1, 1000}, {r, text, 999, -1, -1}, {r, text, 999, 1000, -1}, {r, text, 999, 999, 999},
		{r, text, 10, 10, 10}, {r, text, 10, 0, 0}, {r, text, 0, 0, 0}, {r, text, 0, -1, -1},
		{r, text, maxSteps, 2000, 1000}, {r, text, maxSteps, -1, 1000}, {r, text, 5, 1 << 62, -1},
		{r, long, maxSteps, -1, len(long)}, {grouped, long[1:], maxSteps, -1, len(long) - 1},
		{grouped, long, maxSteps, -1, -1}, // each match keeps the positions of its groups
	} {
		s := Scratch{steps: c.steps}
		fits, ok := s.fits("REGEXP_MATCHES", c.r, c.text, c.times)
		if ok != (c.want >= 0) || ok != (s.err == nil) || !ok && !errors.Is(s.err, ErrWork) || len(fits) != max(0, c.want) {
			t.Errorf("%d groups, %d bytes, %d steps, %d times: %d fits, %v, want %d", c.r.NumSubexp(), len(c.text), c.steps,
				c.times, len(fits), s.err, c.want)
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
