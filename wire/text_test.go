package wire_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"tidemark/wire"
)

// TestCut checks that a text never exceeds the limit, is never cut within a character, and is marked if it was cut.
func TestCut(t *testing.T) {
	for _, c := range []struct {
		text string
		most int
		want string
	}{
		{"", 10, ""}, {"whole", 5, "whole"}, {"longer", 5, "lo…"}, {"éé", 4, "éé"}, {"ééé", 4, "…"}, {"ééé", 5, "é…"},
		{"a\xc3b", 10, "a\ufffdb"}, {"é", 1, ""},
	} {
		if got := wire.Cut(c.text, c.most); got != c.want {
			t.Errorf("%q of %d bytes: %q, want %q", c.text, c.most, got, c.want)
		}
	}
	for most := range 20 {
		got := wire.Cut(strings.Repeat("é\xff", 20), most)
		if len(got) > most || !utf8.ValidString(got) {
			t.Errorf("of %d bytes: %q", most, got)
		}
	}
}
