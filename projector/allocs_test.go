//go:build !race

package projector

import (
	"math"
	"testing"
)

// The race detector makes pools drop items at random, so this is for builds without it.

// In the steady state a document causes no allocation on its way from the DCP event into the queues.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	t.Run("hash(docid)", func(t *testing.T) { steadyState(t, false) })
	t.Run("hash(key)", func(t *testing.T) { steadyState(t, true) })
}

func steadyState(t *testing.T, keyed bool) {
	p, s := benchPump(t, 5, keyed)
	events := benchEvents(64)
	n := uint64(0)
	run := func() {
		for range 20 * benchWindow {
			n++
			if err := pumpOne(t.Context(), p, s, &events[n%64], n); err != nil {
				t.Fatal(err)
			}
		}
		// A queue that the connection cannot keep up with allocates; this is not tested here.
		if err := p.topic.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	run()
	for i, keys := range p.keys {
		if len(keys) != 1 {
			t.Fatalf("%d keys in index %d", len(keys), i)
		}
	}
	least := math.Inf(1)
	for range 20 {
		least = min(least, testing.AllocsPerRun(1, run)/(20*benchWindow))
	}
	if least > 0.1 { // a batch now and then may
		t.Errorf("%.2f allocations for each document", least)
	}
}
