package simulation

import (
	"strings"
	"testing"

	"tidemark/internal/testing/planted"
)

// TestSameSeed checks that a seed gives the same run every time; otherwise no failure could be reproduced.
func TestSameSeed(t *testing.T) {
	for n := int64(1); n <= 12; n++ {
		a, whyA := run(t, Options{Seed: n, Trace: true})
		b, whyB := run(t, Options{Seed: n, Trace: true})
		if whyA != whyB || a.Report != b.Report {
			t.Errorf("seed %d: %q %+v, then %q %+v", n, whyA, a.Report, whyB, b.Report)
		}
		sameLegend(t, n, a, b)
	}
}

// sameLegend fails at the first line in which two runs of a seed differ.
func sameLegend(t *testing.T, seed int64, a, b *Sim) {
	t.Helper()
	for i := range max(len(a.Legend), len(b.Legend)) {
		if x, y := line(a, i), line(b, i); x != y {
			t.Fatalf("seed %d: line %d is %q, then %q", seed, i, x, y)
		}
	}
}

func line(s *Sim, i int) string {
	if i < len(s.Legend) {
		return s.Legend[i]
	}
	return "(ended)"
}

// sharing is a rule that changes no behaviour.
const sharing = "shared"

// TestSharedPositionsEqualOwnLists checks that copies that share one list of positions receive and do the same as
// with lists of their own. It leaves out seeds in which the store writes less for copies that share.
func TestSharedPositionsEqualOwnLists(t *testing.T) {
	if !planted.Built {
		if out, err := planted.Run(t, program(t), "-test.run=^TestSharedPositionsEqualOwnLists$"); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	together := 0
	for n := int64(1); n <= usual()/10; n++ {
		if keepsCommon(n) {
			continue
		}
		shared, why := run(t, Options{Seed: n, Trace: true})
		alone, whyAlone := run(t, Options{Seed: n, Trace: true, Without: []string{sharing}})
		if together += shared.Report.Together; alone.Report.Together > 0 || why != whyAlone {
			t.Errorf("seed %d: %q, and without sharing %q, with %d batches of copies that share", n, why, whyAlone,
				alone.Report.Together)
		}
		sameLegend(t, n, shared, alone)
	}
	if together == 0 {
		t.Error("no copies shared")
	}
}

// TestLeaderChangesRestartNothing checks that every new leader takes over the running streams.
func TestLeaderChangesRestartNothing(t *testing.T) {
	leaders := 0
	for n := int64(1); n <= min(60, usual()/5); n++ {
		s, why := run(t, Options{Seed: n, Trace: true, Faults: []string{"leaderChanges"}, Rate: 20, Patient: true})
		if why != "" {
			t.Errorf("seed %d: %s", n, why)
		}
		leaders += s.Report.Leaders
		begun := map[string]int{}
		for _, l := range s.Legend {
			if _, stream, ok := strings.Cut(l, " BEGIN "); ok {
				vb, _, _ := strings.Cut(stream, " ")
				if begun[vb]++; begun[vb] == 2 {
					t.Errorf("seed %d: a second stream: %s", n, l)
				}
			}
		}
	}
	t.Logf("%d leaders", leaders)
}
