package consensus

import (
	"testing"
	"testing/synctest"
	"time"

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

// TestARefusalsPauseEndsWithTheNode: who waits after many refusals goes on when the pause is over, or at once when the
// node stops.
func TestARefusalsPauseEndsWithTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		r := &refusals{stop: stop, row: map[raft.ServerID]int{"m2": refusalsInARow}}
		rests := func() time.Duration {
			began := time.Now()
			r.rest("m2", false)
			return time.Since(began)
		}
		if took := rests(); took != refusalPause {
			t.Errorf("it waits %s, want %s", took, refusalPause)
		}
		go func() {
			time.Sleep(refusalPause / 2)
			close(stop)
		}()
		if took := rests(); took != refusalPause/2 {
			t.Errorf("it waits %s, though the node stops after %s", took, refusalPause/2)
		}
		if took := rests(); took != 0 {
			t.Errorf("it waits %s in a node that stops", took)
		}
	})
}
