package consensus

import (
	"testing"

	"github.com/hashicorp/raft"
)

// TestRefusalsHavePauses: many refusals in a row are a loop that must leave time to others; one that is taken ends it.
func TestRefusalsHavePauses(t *testing.T) {
	r := &refusals{row: map[raft.ServerID]int{}}
	for range 2 {
		for i := range refusalsInARow + 2 {
			if got := r.pause("m2", false); got > 0 != (i >= refusalsInARow) {
				t.Fatalf("after %d refusals it waits %s", i+1, got)
			}
		}
		if r.pause("m3", false) != 0 {
			t.Error("another server's refusals count")
		}
		if r.pause("m2", true) != 0 || len(r.row) != 1 {
			t.Error("it remembers what has ended")
		}
		r.pause("m3", true)
	}
}
