package expression_test

import (
	"strings"
	"testing"

	"tidemark/expression"
)

// TestHintsAreReported checks that each ignored hint has a notice, and is not part of the canonical text.
func TestHintsAreReported(t *testing.T) {
	for with, want := range map[string]string{
		"": "", ` WITH {"num_replica":1}`: "", ` WITH {"arrSize":10}`: "arrSize", ` WITH {"docKeySize":1, "num_replica":1, "secKeySize":"2"}`: "docKeySize secKeySize",
	} {
		all, err := expression.Parse("CREATE INDEX i ON b(x)" + with)
		if err != nil {
			t.Fatal(err)
		}
		var notices []string
		for _, n := range all[0].(*expression.CreateIndex).Notices() {
			option, _, _ := strings.Cut(n, " ")
			notices = append(notices, option)
		}
		if got := strings.Join(notices, " "); got != want || strings.Contains(all[0].String(), "Size") {
			t.Errorf("%s: %q, want %q; %s", with, got, want, all[0])
		}
	}
}

// TestAddedKeysAreReported checks that an expression of PARTITION BY that is not a key expression becomes one, with a
// notice.
func TestAddedKeysAreReported(t *testing.T) {
	all, err := expression.Parse("CREATE INDEX i ON b(x) PARTITION BY HASH(x, LOWER(y), META().id)")
	if err != nil {
		t.Fatal(err)
	}
	s := all[0].(*expression.CreateIndex)
	notices := s.Notices()
	if len(notices) != 2 || !strings.HasPrefix(notices[0], "LOWER(y) was added ") ||
		!strings.HasPrefix(notices[1], "META().id was added ") {
		t.Errorf("%q", notices)
	}
	if again, err := expression.Parse(s.String()); err != nil || len(again[0].(*expression.CreateIndex).Notices()) > 0 {
		t.Errorf("%s: %v, %v", s, again, err)
	}
}
