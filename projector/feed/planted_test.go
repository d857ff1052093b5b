package feed_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"tidemark/internal/testing/planted"
)

// kindEnv names the rule to switch off, for a program with planted rules.
const kindEnv = "TIDEMARK_TEST_KIND"

// switchedOff switches that rule off.
func switchedOff() {
	if rule := os.Getenv(kindEnv); rule != "" {
		if err := planted.Switch(rule); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
}

// A consumer that only works with well-behaved servers fails: for each rule that real engines require there is a
// test, with a node in the required moods, which fails without the rule.
func TestKindConsumers(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds a program")
	}
	kinds := map[string]string{
		"consumerCut":       "^TestTracker(Scripts|Property)$",
		"consumerInside":    "^TestScenarios$/^cursor-dropped$/^native$/^mild$",
		"consumerNoops":     "^TestScenarios$/^idle$/^native$/^nasty$",
		"consumerExists":    "^TestWithoutFlowControlLater$",
		"consumerTemporary": "^TestScenarios$/^idle$/^native$/^nasty$",
	}
	program := planted.Build(t)
	for _, rule := range planted.Names() {
		if !strings.HasPrefix(rule, "consumer") {
			continue
		}
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			if kinds[rule] == "" {
				t.Fatal("no test shows the need of it")
			}
			env := []string{kindEnv + "=" + rule}
			if out, err := planted.RunWith(t, env, program, "-test.run="+kinds[rule], "-rapid.nofailfile"); err == nil {
				t.Errorf("nothing was seen:\n%s", out)
			} else if !strings.Contains(out, "--- FAIL: ") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
