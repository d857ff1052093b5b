package verify

import (
	"fmt"
	"testing"
)

// TestPagesHaveHalves checks that each document of a page is in exactly one of its halves.
func TestPagesHaveHalves(t *testing.T) {
	for _, p := range []page{{}, {1, 2}, {5, 8}} {
		had := 0
		for i := range 1000 {
			id := fmt.Appendf(nil, "d%d", i)
			n := 0
			for _, h := range p.halves() {
				if h.has(id) {
					n++
				}
			}
			if p.has(id) != (n == 1) || n > 1 {
				t.Fatalf("%s is in %d halves of %+v, which has it: %v", id, n, p, p.has(id))
			}
			had += n
		}
		if had == 0 {
			t.Errorf("%+v has no document", p)
		}
	}
}
