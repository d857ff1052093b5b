package snapshots

import (
	"strconv"
	"testing"
)

// TestMoves: the number of a bucket changes when it moves, or all do, and at no move of another one; none comes again,
// also of a bucket that was forgotten because there are so many.
func TestMoves(t *testing.T) {
	var m Moves
	seen := map[string]map[uint64]bool{"a": {}, "b": {}}
	check := func(what string, do func(), moved ...string) {
		t.Helper()
		was := map[string]uint64{"a": m.At("a"), "b": m.At("b")}
		do()
		for _, name := range moved {
			seen[name][was[name]] = true
			if now := m.At(name); seen[name][now] {
				t.Errorf("%s: %s is at %d, where it was before", what, name, now)
			}
			delete(was, name)
		}
		for name, n := range was {
			if m.At(name) != n {
				t.Errorf("%s: %s has moved from %d to %d", what, name, n, m.At(name))
			}
		}
	}
	for range 3 {
		check("a alone", func() { m.Note("a") }, "a")
		check("b twice", func() { m.Note("b"); m.Note("b") }, "b")
		check("all", m.NoteAll, "a", "b")
		check("a behind all", func() { m.Note("a") }, "a")
		check("very many others", func() {
			for n := range mostMoves {
				m.Note(strconv.Itoa(n))
			}
		}, "a", "b")
		if len(m.of) > mostMoves {
			t.Fatalf("%d buckets are known", len(m.of))
		}
	}
}
