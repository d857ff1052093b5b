package expression_test

import (
	"os"
	"strings"
	"testing"
)

// TestMatchesN1QL compares values with recorded results of Couchbase's evaluator: testdata/n1ql.txt.
func TestMatchesN1QL(t *testing.T) {
	text, err := os.ReadFile("testdata/n1ql.txt")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		expr, want, found := strings.Cut(strings.TrimSpace(line), " ⇒ ")
		if strings.HasPrefix(line, "#") || !found {
			continue
		}
		want, _, _ = strings.Cut(want, " ⇏ ")
		n++
		if got := valueOf(t, expr, exampleDoc); got != want && (want != "error" || !strings.HasPrefix(got, "error: ")) {
			t.Errorf("%s = %s, want %s", expr, got, want)
		}
	}
	if n < 500 {
		t.Errorf("%d lines", n)
	}
}
