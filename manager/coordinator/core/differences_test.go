package core

import (
	"testing"

	"tidemark/index"
	"tidemark/wire"
)

// TestSilent checks that a full list implies nothing about copies beyond its last entry.
func TestSilent(t *testing.T) {
	var d differing
	if !d.silent(1) {
		t.Error("an empty list")
	}
	for i := range wire.MaxDifferingCopies {
		d = append(d, wire.CopyDifference{Copy: index.CopyID(2 * (i + 1))})
	}
	last := index.CopyID(2 * wire.MaxDifferingCopies)
	if d.silent(2) || !d.silent(3) || d.silent(last) || d.silent(last+1) {
		t.Error("a full list")
	}
}
