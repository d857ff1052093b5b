package expression_test

import (
	"strings"
	"testing"

	"tidemark/expression"
)

// TestHintsAreReported: each ignored hint has a notice, and is not part of the canonical text.
func TestHintsAreReported(t *testing.T) {
	for with, want := range map[string]string{
		"": "", ` WITH {"num_replica":1}`: "", ` WITH {"arrSize":10}`: "arrSize", ` WITH {"docKeySize":1, "num_replica":1, "secKeySize":"2"}`: "docKeySize secKeySize",
	} {
		all, err := expression.Parse("CREATE INDEX i ON b(x)" + with)
		if err != nil {
			t.Fatal(err)
		}
		var told []string
		for _, n := range all[0].(*expression.CreateIndex).Notices() {
			option, _, _ := strings.Cut(n, " ")
			told = append(told, option)
		}
		if got := strings.Join(told, " "); got != want || strings.Contains(all[0].String(), "Size") {
			t.Errorf("%s: %q, want %q; %s", with, got, want, all[0])
		}
	}
}

// TestAddedKeysAreReported: an expression that is partitioned by and is no key expression becomes one, with a notice.
func TestAddedKeysAreReported(t *testing.T) {
	all, err := expression.Parse("CREATE INDEX i ON b(x) PARTITION BY HASH(x, LOWER(y), META().id)")
	if err != nil {
		t.Fatal(err)
	}
	s := all[0].(*expression.CreateIndex)
	told := s.Notices()
	if len(told) != 2 || !strings.HasPrefix(told[0], "LOWER(y) is ") || !strings.HasPrefix(told[1], "META().id is ") {
		t.Errorf("%q", told)
	}
	if again, err := expression.Parse(s.String()); err != nil || len(again[0].(*expression.CreateIndex).Notices()) > 0 {
		t.Errorf("%s: %v, %v", s, again, err)
	}
}
