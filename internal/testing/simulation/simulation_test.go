package simulation

import (
	"flag"
	"fmt"
	"strings"
	"testing"

	"tidemark/internal/testing/planted"
	"tidemark/internal/testing/raced"
)

var (
	seeds = flag.Int64("seeds", 0, "seeds to run; 0: 1000, with the race detector 50")
	from  = flag.Int64("from", 1, "first seed")
	seed  = flag.Int64("seed", 0, "run this seed alone, with a line per event")
	offs  = flag.String("off", "", "comma-separated rules to switch off")
	only  = flag.String("faults", "", "comma-separated faults, the only ones; none: as the seed says")
	steps = flag.Int("steps", 0, "steps with faults, 0: as many as usual")
)

func names(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

func usual() int64 {
	if raced.On {
		return 50
	}
	return 1000
}

func run(t *testing.T, o Options) (*Sim, string) {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return s, s.Run()
}

// TestSimulation checks that, under all faults, every exact snapshot equals what KV held, and that in the end all
// indexes equal the oracle.
func TestSimulation(t *testing.T) {
	if _, product := split(names(*offs)); len(product) > 0 && !planted.Built {
		planted.Again(t)
		return
	}
	if *seed != 0 {
		s, why := run(t, Options{Seed: *seed, Without: names(*offs), Faults: names(*only), Trace: true, Steps: *steps})
		fmt.Println(strings.Join(s.Legend, "\n"))
		if why != "" {
			t.Errorf("seed %d step %d: %s", *seed, s.step, why)
		}
		return
	}
	var sum Report
	bad := 0
	many := *seeds
	if many == 0 {
		many = usual()
	}
	for n := *from; n < *from+many && bad < 5; n++ {
		s, why := run(t, Options{Seed: n, Without: names(*offs), Faults: names(*only), Steps: *steps})
		if sum.Add(s.Report); why != "" {
			bad++
			t.Errorf("seed %d step %d: %s", n, s.step, why)
		}
	}
	t.Logf("%+v", sum)
	if *only != "" || *seeds != 0 || raced.On {
		return
	}
	if sum.Exact == 0 || sum.Restores == 0 || sum.Rollbacks == 0 || sum.Ranges == 0 ||
		sum.Ahead == 0 || sum.Purges == 0 || sum.Scans == 0 || sum.Leaders == 0 || sum.Filled == 0 ||
		sum.Merges == 0 || sum.Alone == 0 || sum.Retakes == 0 || sum.Together == 0 || sum.Kept == 0 || sum.Asked == 0 ||
		sum.Cut == 0 || sum.Busy == 0 || sum.Late == 0 || sum.Partly == 0 || sum.Moved == 0 || sum.Stale == 0 ||
		sum.Evicted == 0 {
		t.Error("the simulation did not reach everything that it is for")
	}
}
