package coordinator

import (
	"slices"
	"testing"
	"time"

	"tidemark/index"
	"tidemark/statecontext"
	"tidemark/wire"
)

// TestHeldListIsSentOnce checks that an indexer gets the list of held timestamps only if it does not have it.
func TestHeldListIsSentOnce(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(1)
		o := w.create("by_name", "", 2, 0)
		w.until("READY", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		n := w.indexers["http://i1"]
		n.kill() // it no longer reports by itself
		time.Sleep(2 * time.Second)
		report := func(hash uint64) *wire.ReportReply {
			r := n.report()
			r.HeldHash = hash
			reply, err := w.leader().HandleIndexerReport(w.ctx, r)
			if err != nil {
				t.Fatal(err)
			}
			return reply
		}
		if _, err := w.log.Propose(w.ctx, statecontext.Command{Body: &statecontext.SetLimits{
			Limits: statecontext.Limits{TransferRate: 2 << 20}}}); err != nil {
			t.Fatal(err)
		}
		w.until("it gets the rate", 10*time.Second, func() bool { return report(0).TransferRate == 2<<20 })
		report(0) // reports what it holds now, as the others then see it
		first := report(0)
		held, err := wire.UnpackHeld(first.HeldPacked)
		if err != nil || len(held) == 0 || first.HeldHash != wire.HeldHash(first.HeldPacked) {
			t.Fatalf("%v, %v, hash %x", held, err, first.HeldHash)
		}
		if again := report(first.HeldHash); len(again.HeldPacked) != 0 || again.HeldHash != first.HeldHash {
			t.Errorf("a known list is sent again: %+v", again)
		}
		if other := report(first.HeldHash + 1); !slices.Equal(other.HeldPacked, first.HeldPacked) {
			t.Error("another list was taken for the newest")
		}
	})
}
