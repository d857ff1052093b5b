package coordinator

import (
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/partition"
	"tidemark/statecontext"
)

// splitAfter is the SplitAfter of a bounded world. Other times of splitting are multiples of it; the shorter it is,
// the fewer reports a test simulates.
const splitAfter = 20 * time.Second

// bounded runs a test in a world whose leaders split an index automatically once a slice has had more than 100 bytes
// for splitAfter. The size of the copies of slice 0 is set through zero.
func bounded(t *testing.T, test func(w *world, zero *atomic.Uint64)) {
	inWorld(t, func(w *world) {
		w.settings.SplitAbove, w.settings.SplitAfter = 100, splitAfter
		w.depose()
		w.lead()
		w.components(2)
		zero := &atomic.Uint64{}
		for _, name := range []string{"i1", "i2"} {
			n := w.indexers["http://"+name]
			n.mu.Lock()
			n.size = func(_ index.ID, c partition.Copy) uint64 {
				if c.Slice == 0 {
					return zero.Load()
				}
				return 40
			}
			n.mu.Unlock()
		}
		test(w, zero)
	})
}

// waits returns why an index is not split automatically.
func (w *world) waits(id index.ID) string {
	s, _ := w.leader().Status()
	return s.Progress[id].SplitWaits
}

// splits returns a function that returns the first split proposed from now on.
func (w *world) splits() func() *statecontext.SplitIndex {
	var first atomic.Pointer[statecontext.SplitIndex]
	w.log.mu.Lock()
	w.log.refuse = func(c statecontext.Command) error {
		if d, ok := c.Body.(*statecontext.SplitIndex); ok {
			first.CompareAndSwap(nil, d)
		}
		return nil
	}
	w.log.mu.Unlock()
	return first.Load
}

// TestAutomaticSplit checks that an index with a slice that has been too large for a while is split, the reason is
// shown, and the successor takes its name; then it rests for a while.
func TestAutomaticSplit(t *testing.T) {
	bounded(t, func(w *world, zero *atomic.Uint64) {
		o := w.create("x", "", 2, 1)
		w.until("READY", 20*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		zero.Store(100)
		time.Sleep(10 * splitAfter)
		if n := w.log.counted("*statecontext.SplitIndex"); n != 0 || w.waits(o.ID) != "" {
			t.Fatalf("%d splits, %q, of slices that are not too large", n, w.waits(o.ID))
		}
		proposed := w.splits()
		zero.Store(150)
		w.until("it is shown", time.Minute, func() bool {
			return strings.Contains(w.waits(o.ID), "slice 0 of 2 has 150 bytes")
		})
		took := w.until("it is split", 3*splitAfter, func() bool { return proposed() != nil })
		if took < splitAfter*3/4 {
			t.Errorf("after %v", took)
		}
		if c := proposed(); !strings.Contains(c.Cause, "slice 0 of 2 has 150 bytes, more than the 100 of --split-above") ||
			c.Partitions != 4 || c.ID != o.ID {
			t.Errorf("%+v", c)
		}
		w.until("the successor has the name", time.Minute, func() bool {
			d := w.log.State().IndexByName("world", "x").Definition
			return d.ID != o.ID && d.Partitions == 4 && d.SplitCause == ""
		})
		w.until("the first is gone", time.Minute, func() bool { return w.log.State().Index(o.ID) == nil })
		next := w.log.State().IndexByName("world", "x").Definition.ID
		w.until("it is left alone", 2*splitAfter, func() bool {
			return strings.Contains(w.waits(next), "less than 2m0s ago")
		})
		w.until("it is split again", 10*splitAfter, func() bool {
			return w.log.State().IndexByName("world", "x").Definition.Partitions == 8
		})
	})
}

// TestAutomaticSplitsWait checks that no automatic split begins beside a rebalance or another split, and that a
// cancelled or failed one is not begun again for a while, also by the next leader.
func TestAutomaticSplitsWait(t *testing.T) {
	bounded(t, func(w *world, zero *atomic.Uint64) {
		x, y := w.create("x", "", 2, 0), w.create("y", "", 2, 0)
		w.until("READY", 20*time.Second, func() bool {
			return w.state(x.ID) == index.Maintenance && w.state(y.ID) == index.Maintenance
		})
		time.Sleep(6 * splitAfter) // both are new
		w.log.mu.Lock()
		w.log.refuse = func(c statecontext.Command) error {
			if d, ok := c.Body.(*statecontext.SetIndexState); ok && d.To == index.Maintenance {
				return errHeld // no split completes
			}
			return nil
		}
		w.log.mu.Unlock()
		zero.Store(150)
		w.until("one is split", 3*splitAfter, func() bool {
			return w.log.State().Successor(w.log.State().Definition(x.ID)) != nil
		})
		w.until("the other waits", time.Minute, func() bool {
			return strings.Contains(w.waits(y.ID), "index 1 (x) is being split")
		})
		if _, err := w.leader().CancelSplit(w.ctx, SplitRequest{ID: x.ID}); err != nil {
			t.Fatal(err)
		}
		w.until("the other one is split", 3*splitAfter, func() bool {
			return w.log.State().Successor(w.log.State().Definition(y.ID)) != nil
		})
		w.until("the first one rests", time.Minute, func() bool {
			return strings.Contains(w.waits(x.ID), "failed; the next one")
		})
		if _, err := w.leader().CancelSplit(w.ctx, SplitRequest{ID: y.ID}); err != nil {
			t.Fatal(err)
		}
		w.depose() // the next leader has this from the state
		w.lead()
		time.Sleep(3 * splitAfter)
		if n := w.log.counted("*statecontext.SplitIndex"); n != 2 {
			t.Errorf("%d splits", n)
		}
		w.until("it is tried again", 5*splitAfter, func() bool { return w.log.counted("*statecontext.SplitIndex") > 2 })
	})
}

// TestAutomaticSplitsOfRanges checks that a range is cut where its entries require it. If one leading key has most of
// them, or if they cannot be read, nothing is begun, the reason is shown, and it is tried again later.
func TestAutomaticSplitsOfRanges(t *testing.T) {
	bounded(t, func(w *world, zero *atomic.Uint64) {
		var cuts atomic.Pointer[partition.Cuts]
		var asked atomic.Int64
		w.quantiles = func(n int) (partition.Cuts, error) {
			asked.Store(int64(n))
			if c := cuts.Load(); c != nil {
				return *c, nil
			}
			return partition.Cuts{}, errcode.Timeout
		}
		w.depose()
		w.lead()
		o, err := w.leader().CreateIndex(w.ctx, CreateRequest{Definition: index.Definition{Name: "r", Bucket: "world",
			Keys: []index.KeyExpr{{Expr: "name"}}, PartitionBy: index.PartitionBy{Scheme: index.PartitionRange,
				Exprs: []string{"name"}, Values: []json.RawMessage{json.RawMessage(`"m"`)}}}})
		if err != nil {
			t.Fatal(err)
		}
		w.until("READY", 20*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		zero.Store(400)
		w.until("it cannot be read", 10*splitAfter, func() bool { return strings.Contains(w.waits(o.ID), "TIMEOUT") })
		cuts.Store(&partition.Cuts{Values: []json.RawMessage{json.RawMessage(`"a"`), json.RawMessage(`"b"`)}, Largest: 0.9})
		w.until("it does not help", 10*splitAfter, func() bool {
			return strings.Contains(w.waits(o.ID), "90 % of the entries, because so many have one leading key")
		})
		if n := w.log.counted("*statecontext.SplitIndex"); n != 0 || asked.Load() != 9 {
			t.Errorf("%d splits, into %d", n, asked.Load())
		}
		cuts.Store(&partition.Cuts{Values: []json.RawMessage{json.RawMessage(`"a"`), json.RawMessage(`"b"`)}, Largest: 0.4})
		w.until("it is split", 10*splitAfter, func() bool {
			return w.log.State().IndexByName("world", "r").Definition.Partitions == 3
		})
	})
}

// TestAutomaticSplitsLoseRaces checks that Apply refuses a split that was decided before, and would be committed
// after, another operation began.
func TestAutomaticSplitsLoseRaces(t *testing.T) {
	bounded(t, func(w *world, zero *atomic.Uint64) {
		x, y := w.create("x", "", 2, 0), w.create("y", "", 2, 0)
		w.until("READY", 20*time.Second, func() bool {
			return w.state(x.ID) == index.Maintenance && w.state(y.ID) == index.Maintenance
		})
		time.Sleep(6 * splitAfter)
		var raced atomic.Bool
		w.log.mu.Lock()
		w.log.refuse = func(c statecontext.Command) error {
			if d, ok := c.Body.(*statecontext.SplitIndex); ok && d.Cause != "" && !raced.Swap(true) {
				return &statecontext.Rejection{Code: errcode.RebalanceRunning, Message: "rebalance 1 began meanwhile"}
			}
			return nil
		}
		w.log.mu.Unlock()
		zero.Store(150)
		w.until("it has lost", 3*splitAfter, func() bool {
			return strings.Contains(w.waits(x.ID)+w.waits(y.ID), "rebalance 1 began meanwhile")
		})
		w.until("the other one is split", 3*splitAfter, func() bool {
			return w.log.counted("*statecontext.SplitIndex") == 1
		})
		w.until("the one that lost is split soon after", 4*splitAfter, func() bool {
			four := func(name string) bool {
				return w.log.State().IndexByName("world", name).Definition.Partitions == 4
			}
			return four("x") && four("y")
		})
	})
}

// mergeWaits returns why slices of an index are not merged automatically.
func (w *world) mergeWaits(id index.ID) string {
	s, _ := w.leader().Status()
	return s.Progress[id].MergeWaits
}

// named returns the definition of the index with a name on world.
func (w *world) named(name string) index.Definition {
	return w.log.State().IndexByName("world", name).Definition
}

// TestAutomaticMerge checks that an index that was split automatically gets the requested number of slices back when
// they have been small for long, like by any split; not while its auto_split is false, which is shown, and no sooner
// than the calm period is over. An index that was created with as many slices is left as it is.
func TestAutomaticMerge(t *testing.T) {
	bounded(t, func(w *world, zero *atomic.Uint64) {
		for _, name := range []string{"i1", "i2"} {
			n := w.indexers["http://"+name]
			n.mu.Lock()
			n.size = func(id index.ID, c partition.Copy) uint64 {
				if c.Slice == 0 && w.log.State().Definition(id).Name == "x" {
					return zero.Load()
				}
				return 5
			}
			n.mu.Unlock()
		}
		x, asked := w.create("x", "", 2, 1), w.create("asked", "", 4, 0)
		zero.Store(150)
		w.until("it is split", 10*splitAfter, func() bool { return w.named("x").Partitions == 4 })
		w.until("the first is gone", time.Minute, func() bool { return w.log.State().Index(x.ID) == nil })
		id := w.named("x").ID
		if d := w.named("x"); d.RequestedPartitions != 2 {
			t.Errorf("%+v", d)
		}
		zero.Store(5)
		if _, err := w.leader().SetAutoSplit(w.ctx, SplitRequest{ID: id}, false); err != nil {
			t.Fatal(err)
		}
		w.until("it is shown that it may not", 10*splitAfter, func() bool {
			return strings.Contains(w.mergeWaits(id), "its auto_split is false")
		})
		zero.Store(150)
		w.until("it is shown that it may not be split", 10*splitAfter, func() bool {
			return strings.Contains(w.waits(id), "its auto_split is false")
		})
		if d := w.named("x"); d.ID != id || w.log.counted("*statecontext.SplitIndex") != 1 {
			t.Fatalf("%+v", d)
		}
		proposed := w.splits()
		zero.Store(5)
		o, err := w.leader().SetAutoSplit(w.ctx, SplitRequest{Name: statecontext.IndexName{Keyspace: index.InBucket("world"),
			Name: "x"}}, true)
		if err != nil || o.Existed || o.ID != id {
			t.Fatalf("%+v, %v", o, err)
		}
		if o, err = w.leader().SetAutoSplit(w.ctx, SplitRequest{ID: id}, true); err != nil || !o.Existed {
			t.Fatalf("what is so already: %+v, %v", o, err)
		}
		if took := w.until("it is merged", 8*splitAfter, func() bool { return proposed() != nil }); took < 5*splitAfter {
			t.Errorf("after %v", took)
		}
		if c := proposed(); c.ID != id || c.Partitions != 2 || !strings.Contains(c.Cause,
			"2 slices are enough instead of 4") {
			t.Errorf("%+v", c)
		}
		w.until("the merged one has the name", time.Minute, func() bool {
			d := w.named("x")
			return d.Partitions == 2 && d.RequestedPartitions == 0 && d.SplitCause == "" && d.State == index.Maintenance
		})
		w.until("the one of before is gone", time.Minute, func() bool { return w.log.State().Index(id) == nil })
		time.Sleep(30 * splitAfter)
		if n := w.log.counted("*statecontext.SplitIndex"); n != 2 || w.named("asked").ID != asked.ID {
			t.Errorf("%d splits and merges", n)
		}
	})
}

// TestAutomaticMergesOfRanges checks that ranges are joined where the leader has found that they fit, also of
// descending keys.
func TestAutomaticMergesOfRanges(t *testing.T) {
	bounded(t, func(w *world, zero *atomic.Uint64) {
		cuts := &partition.Cuts{Largest: 0.2, Values: []json.RawMessage{json.RawMessage(`"c"`), json.RawMessage(`"m"`),
			json.RawMessage(`"t"`), json.RawMessage(`"x"`)}}
		w.quantiles = func(int) (partition.Cuts, error) { return *cuts, nil }
		w.depose()
		w.lead()
		o, err := w.leader().CreateIndex(w.ctx, CreateRequest{Definition: index.Definition{Name: "r", Bucket: "world",
			Keys: []index.KeyExpr{{Expr: "name", Desc: true}}, PartitionBy: index.PartitionBy{Scheme: index.PartitionRange,
				Exprs: []string{"name"}, Values: []json.RawMessage{json.RawMessage(`"m"`)}}}})
		if err != nil {
			t.Fatal(err)
		}
		y := w.create("y", "", 2, 0)
		w.until("READY", 20*time.Second, func() bool {
			return w.state(o.ID) == index.Maintenance && w.state(y.ID) == index.Maintenance
		})
		zero.Store(250)
		w.until("it is split", 20*splitAfter, func() bool { return w.named("r").Partitions == 5 })
		id := w.named("r").ID
		for _, name := range []string{"i1", "i2"} { // slices 3 and 4 fit into one, and hold the lowest values
			n := w.indexers["http://"+name]
			n.mu.Lock()
			n.size = func(_ index.ID, c partition.Copy) uint64 { return []uint64{30, 30, 30, 5, 5}[c.Slice] }
			n.mu.Unlock()
		}
		time.Sleep(20 * splitAfter)
		if d := w.named("r"); d.ID != id {
			t.Fatalf("merged for one slice of five: %+v", d)
		}
		for _, name := range []string{"i1", "i2"} {
			n := w.indexers["http://"+name]
			n.mu.Lock()
			n.size = func(_ index.ID, c partition.Copy) uint64 { return []uint64{5, 30, 5, 5, 5}[c.Slice] }
			n.mu.Unlock()
		}
		proposed := w.splits()
		w.until("it is merged", 20*splitAfter, func() bool { return proposed() != nil })
		if c := proposed(); c.ID != id || strings.Join(c.Values, " ") != `"t" "x"` || c.Partitions != 3 {
			t.Errorf("%+v", c)
		}
	})
}
