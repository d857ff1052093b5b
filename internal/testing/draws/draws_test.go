package draws

import (
	"flag"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestDrawsAreRepeatable checks that two runs of a property draw the same values, unless a new seed per run was
// requested.
func TestDrawsAreRepeatable(t *testing.T) {
	if flag.Lookup("rapid.seed").Value.String() == "0" {
		t.Skip("-rapid.seed 0")
	}
	var runs [2][]uint64
	for i := range runs {
		rapid.Check(t, func(t *rapid.T) { runs[i] = append(runs[i], rapid.Uint64().Draw(t, "n")) })
	}
	if len(runs[0]) == 0 || !slices.Equal(runs[0], runs[1]) || Seed(t) == 0 {
		t.Fatalf("drawn %v, then %v", runs[0], runs[1])
	}
}
