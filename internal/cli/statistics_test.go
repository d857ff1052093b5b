package cli

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestShortValue checks that a value is on one line of a table, in whatever form it arrives.
func TestShortValue(t *testing.T) {
	for value, want := range map[string]string{
		"":                                  "(long)",
		`"a b"`:                             `"a b"`,
		"[\n  1,\n  {\n \"a\": 2\n}\n]":     `[1,{"a":2}]`,
		`"` + strings.Repeat("é", 60) + `"`: `"` + strings.Repeat("é", 38) + "…",
	} {
		if got := shortValue(json.RawMessage(value)); got != want {
			t.Errorf("%s: %q, want %q", value, got, want)
		}
	}
}
