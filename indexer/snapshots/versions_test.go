package snapshots

import (
	"strconv"
	"testing"
)

// TestVersions checks that a bucket's version changes when it or all versions are raised, but not when another
// bucket's is. No version comes twice, even after a bucket was dropped because there were too many.
func TestVersions(t *testing.T) {
	var v Versions
	seen := map[string]map[uint64]bool{"a": {}, "b": {}}
	check := func(what string, do func(), raised ...string) {
		t.Helper()
		was := map[string]uint64{"a": v.At("a"), "b": v.At("b")}
		do()
		for _, name := range raised {
			seen[name][was[name]] = true
			if now := v.At(name); seen[name][now] {
				t.Errorf("%s: %s is at %d, where it was before", what, name, now)
			}
			delete(was, name)
		}
		for name, n := range was {
			if v.At(name) != n {
				t.Errorf("%s: %s went from %d to %d", what, name, n, v.At(name))
			}
		}
	}
	for range 3 {
		check("a alone", func() { v.Raise("a") }, "a")
		check("b twice", func() { v.Raise("b"); v.Raise("b") }, "b")
		check("all", v.RaiseAll, "a", "b")
		check("a behind all", func() { v.Raise("a") }, "a")
		check("very many others", func() {
			for n := range mostVersions {
				v.Raise(strconv.Itoa(n))
			}
		}, "a", "b")
		if len(v.of) > mostVersions {
			t.Fatalf("%d buckets are known", len(v.of))
		}
	}
}
