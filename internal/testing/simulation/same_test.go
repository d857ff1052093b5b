package simulation

import (
	"strings"
	"testing"
)

// TestSameSeed: a seed gives the same run every time, or a failure could not be looked at again.
func TestSameSeed(t *testing.T) {
	for n := int64(1); n <= 12; n++ {
		a, whyA := run(t, Options{Seed: n, Trace: true})
		b, whyB := run(t, Options{Seed: n, Trace: true})
		if whyA != whyB || a.Report != b.Report {
			t.Errorf("seed %d: %q %+v, then %q %+v", n, whyA, a.Report, whyB, b.Report)
		}
		for i := range a.Legend {
			if i >= len(b.Legend) || a.Legend[i] != b.Legend[i] {
				t.Fatalf("seed %d: line %d is %q, then %q", n, i, a.Legend[i], b.Legend[min(i, len(b.Legend)-1)])
			}
		}
	}
}

// TestLeaderChangesRestartNothing: streams that run are taken over by every new leader.
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
