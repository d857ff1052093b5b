package ingest

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"tidemark/internal/testing/planted"
)

var off = flag.String("off", "", "comma-separated rules to switch off")

func TestMain(m *testing.M) {
	flag.Parse()
	if *off != "" {
		if err := planted.Switch(strings.Split(*off, ",")...); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// TestRulesAreNeeded checks that for each rule some script or table of this package fails without it. The exception
// is a rule whose effect only internal/testing/simulation shows. Each rule is tested in a process of its own, of a
// program in which rules can be disabled.
func TestRulesAreNeeded(t *testing.T) {
	if planted.Built {
		t.Skip("this is the program whose rules can be switched off")
	}
	program := planted.Build(t)
	if out, err := planted.Run(t, program); err != nil {
		t.Fatalf("with all rules: %v\n%s", err, out)
	}
	for _, rule := range planted.In("ingest") {
		if rule == "shared" {
			continue
		}
		out, err := planted.Run(t, program, "-off="+rule)
		if err == nil {
			t.Errorf("without %s nothing fails", rule)
		} else if !strings.Contains(out, "--- FAIL: ") {
			t.Errorf("without %s: %v\n%s", rule, err, out)
		}
	}
}
