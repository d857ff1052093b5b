package simulation

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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

// TestRulesStayOn: nothing but simulations switches rules of the protocol off.
func TestRulesStayOn(t *testing.T) {
	sets := regexp.MustCompile(`\b(Without|AnyMap)( =|:) |\.NewWithout\(`)
	looked := 0
	err := filepath.WalkDir("../../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "../../../internal/testing/simulation") {
			return err
		}
		text, err := os.ReadFile(path)
		looked++
		for _, l := range strings.Split(string(text), "\n") {
			if strings.HasPrefix(strings.TrimSpace(l), "//") {
				continue
			}
			if sets.MatchString(l) && !slices.Contains(allowed, strings.TrimSpace(l)) {
				t.Errorf("%s: %s", path, l)
			}
		}
		return err
	})
	if err != nil || looked < 100 {
		t.Errorf("%d files, %v", looked, err)
	}
}

// allowed hands a setting on that only simulations set.
var allowed = []string{
	"Stability: rollback.Stability{Vector: s.Stability.Vector, Logs: s.Stability.Logs}, AnyMap: !l.on(NewestMap)},",
}
