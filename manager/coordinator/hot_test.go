package coordinator

import (
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/rebalance"
)

// TestHotRangesAreCutWhereTheyAreHot checks that a range that is read too often is cut where it is read, and all
// others stay as they are. If one key gets most of the reads, or if there are too few to decide, nothing is begun, and
// the reason is shown.
func TestHotRangesAreCutWhereTheyAreHot(t *testing.T) {
	inWorld(t, func(w *world) {
		w.settings.SplitAboveRate, w.settings.SplitAfter = 100, splitAfter
		var cut atomic.Pointer[partition.Cuts]
		var asked atomic.Pointer[[]rebalance.Hot]
		w.loads = func(hot []rebalance.Hot) ([]partition.Cuts, error) {
			asked.Store(&hot)
			return []partition.Cuts{*cut.Load()}, nil
		}
		w.depose()
		w.lead()
		w.components(2)
		for name, most := range map[string]uint64{"i1": 40, "i2": 250} { // scans prefer one of two copies
			n := w.indexers["http://"+name]
			n.mu.Lock()
			n.rate = func(_ index.ID, c partition.Copy) uint64 { return most * uint64(c.Slice) }
			n.mu.Unlock()
		}
		cut.Store(&partition.Cuts{Largest: 0.97, Of: 5000, Values: []json.RawMessage{json.RawMessage(`"x"`)}})
		o, err := w.leader().CreateIndex(w.ctx, CreateRequest{Definition: index.Definition{Name: "r", Bucket: "world",
			Replicas: 1, Keys: []index.KeyExpr{{Expr: "name"}}, PartitionBy: index.PartitionBy{Scheme: index.PartitionRange,
				Exprs: []string{"name"}, Values: []json.RawMessage{json.RawMessage(`"m"`)}}}})
		if err != nil {
			t.Fatal(err)
		}
		w.until("one key is hot", 20*splitAfter, func() bool {
			return strings.Contains(w.waits(o.ID), "slice 1: 97 % of the writes and reads have one leading key")
		})
		cut.Store(&partition.Cuts{Largest: 0.3, Of: 10, Values: []json.RawMessage{json.RawMessage(`"x"`)}})
		w.until("too little is known", 20*splitAfter, func() bool { return strings.Contains(w.waits(o.ID), "are needed") })
		if n := w.log.counted("*statecontext.SplitIndex"); n != 0 {
			t.Errorf("%d splits", n)
		}
		proposed := w.splits()
		cut.Store(&partition.Cuts{Largest: 0.3, Of: 5000,
			Values: []json.RawMessage{json.RawMessage(`"p"`), json.RawMessage(`"x"`)}})
		w.until("it is split", 20*splitAfter, func() bool { return proposed() != nil })
		if c := proposed(); strings.Join(c.Values, " ") != `"m" "p" "x"` || c.Partitions != 4 || !strings.Contains(c.Cause,
			"slice 1 of 2 has 250 entries written and read per second, more than the 100 of --split-above-rate") {
			t.Errorf("%+v", c)
		}
		if hot := *asked.Load(); len(hot) != 1 || hot[0].Slice != 1 || hot[0].Rate != 250 || hot[0].Parts != 6 {
			t.Errorf("%+v", hot)
		}
	})
}
