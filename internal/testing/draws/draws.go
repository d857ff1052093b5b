// Package draws makes random tests repeatable: every run draws the same, so that the verdict on a change does not
// depend on chance. Another seed searches further.
//
// A package whose tests use rapid imports this package for its side effect, which internal/layers enforces.
// RAPID_SEED=7 in the environment sets the seed of all packages, -rapid.seed 7 that of one, and -rapid.seed 0 takes a
// new one in each run.
package draws

import (
	"flag"
	"math/rand/v2"
	"strconv"
	"testing"

	_ "pgregory.net/rapid" // defines the flag
)

// usual is the default seed.
const usual = 1

// The initializer sets the flag before the command line is parsed, so the command line overrides it.
var _ = fix()

func fix() error {
	f := flag.Lookup("rapid.seed")
	if f.Value.String() != "0" { // set from the environment
		return nil
	}
	return f.Value.Set(strconv.Itoa(usual))
}

// Seed returns the seed of the run, and logs it.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed, err := strconv.ParseUint(flag.Lookup("rapid.seed").Value.String(), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	for seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-rapid.seed %d", seed)
	return seed
}
