package indexer

import (
	"slices"
	"testing"

	"tidemark/wire"
)

// TestRefusedAcknowledgementsAreSentAgain checks that an acknowledgement in a report that the leader refused, because
// it does not have the report on which the changes are based, is repeated in the next one.
func TestRefusedAcknowledgementsAreSentAgain(t *testing.T) {
	w := newWorld(t)
	w.write(docs(0, 50, 1)...)
	w.serve(10)
	var refused wire.Ack
	w.locked(func() {
		w.forgets = func(r *wire.IndexerReport) bool {
			for _, c := range r.Changes {
				if refused.Number == 0 && !c.Whole && len(c.Acks) > 0 {
					refused = c.Acks[len(c.Acks)-1]
					return true
				}
			}
			return false
		}
	})
	for lost := false; !lost; { // one may come in a full report
		w.write(docs(50, 60, 2)...)
		s := w.promote(t.Context())
		w.until("it is acknowledged", func() bool {
			lost = refused.Number > 0
			return lost || slices.ContainsFunc(w.acks, func(a wire.Ack) bool { return a.Number == s.Number })
		})
	}
	w.until("what was refused is acknowledged", func() bool {
		return slices.ContainsFunc(w.acks, func(a wire.Ack) bool { return a.StabilityRef == refused.StabilityRef })
	})
}
