// Package draws makes what tests draw by chance the same in each run: whether a change is good must not hang on what
// happened to be drawn beside it. Whoever looks for more gives another seed.
//
// A package whose tests use rapid imports it for that alone; internal/layers holds them to it. RAPID_SEED=7 in the
// environment gives all packages another seed, -rapid.seed 7 one of them, -rapid.seed 0 a new one in each run.
package draws

import (
	"flag"
	"math/rand/v2"
	"strconv"
	"testing"

	_ "pgregory.net/rapid" // has the flag
)

// usual is the seed where nobody asks for one.
const usual = 1

// The flag stands before the command line is read, so that it has the last word.
var _ = fix()

func fix() error {
	f := flag.Lookup("rapid.seed")
	if f.Value.String() != "0" { // from the environment
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
