package expression_test

import (
	"strings"
	"testing"

	"tidemark/expression"
)

// TestHintsAreTold: each hint that is ignored has its notice, and is no part of the canonical text.
func TestHintsAreTold(t *testing.T) {
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
