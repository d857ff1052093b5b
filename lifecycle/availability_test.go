package lifecycle

import (
	"testing"

	"tidemark/index"
)

func TestAssess(t *testing.T) {
	copies := func(faults ...string) (all []Serving) { // two of each slice
		for i, f := range faults {
			all = append(all, Serving{Slice: index.SliceID(i / 2), Fault: f})
		}
		return all
	}
	for name, c := range map[string]struct {
		slices, asked int
		copies        []Serving
		want          Availability
		why           string
	}{
		"whole":            {2, 2, copies("", "", "", ""), Available, ""},
		"one copy is away": {2, 2, copies("", "i2 is offline", "", ""), Degraded, "slice 0 has 1 of 2 copies (i2 is offline)"},
		"most missing comes first": {2, 2, copies("", "i2 is offline", "i1 is filling it", "i2 is offline"), Unavailable,
			"slice 1 has 0 of 2 copies (i1 is filling it, i2 is offline); slice 0 has 1 of 2 copies (i2 is offline)"},
		"never placed":                 {1, 2, copies(""), Degraded, "slice 0 has 1 of 2 copies"},
		"nothing placed":               {1, 1, nil, Unavailable, "slice 0 has 0 of 1 copies"},
		"a move has more than enough":  {1, 1, copies("", "i2 is filling it"), Available, ""},
		"a slice that was merged away": {1, 1, copies("", "", "i1 is offline"), Available, ""},
		"many": {5, 1, nil, Unavailable, "slice 0 has 0 of 1 copies; slice 1 has 0 of 1 copies; slice 2 has 0 of 1 " +
			"copies; 2 more slices"},
	} {
		t.Run(name, func(t *testing.T) {
			if got, why := Assess(c.slices, c.asked, c.copies); got != c.want || why != c.why {
				t.Errorf("got %v, %q, want %v, %q", got, why, c.want, c.why)
			}
		})
	}
}
