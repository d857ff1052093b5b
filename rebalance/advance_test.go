package rebalance

import (
	"testing"

	"pgregory.net/rapid"

	"tidemark/index"
	_ "tidemark/internal/testing/draws"
	"tidemark/partition"
)

func TestAdvance(t *testing.T) {
	const start, pending, catchup, done, gone = partition.RebalanceStart, partition.RebalancePending,
		partition.RebalanceCatchup, partition.RebalanceDone, partition.RebalanceGivenUp
	for name, tc := range map[string]struct {
		seen   Seen
		cancel bool
		want   partition.RebalanceState
	}{
		"begins": {Seen{Rebalance: partition.Rebalance{State: start}, Wanted: true}, false,
			pending},
		"waits for its host": {Seen{Rebalance: partition.Rebalance{State: start}, Wanted: true, Away: 1},
			false, 0},
		"patience is over": {Seen{Rebalance: partition.Rebalance{State: start}, Wanted: true, Away: 101},
			false, gone},
		"cannot begin": {Seen{Rebalance: partition.Rebalance{State: start}, Wanted: true, Lacks: "why"},
			false, gone},
		"cancelled":     {Seen{Rebalance: partition.Rebalance{State: start}, Wanted: true}, true, gone},
		"is being made": {Seen{Rebalance: partition.Rebalance{State: pending}, Wanted: true}, false, 0},
		"made": {Seen{Rebalance: partition.Rebalance{State: pending}, Wanted: true,
			Allocated: true}, false, catchup},
		"whole before it is in": {Seen{Rebalance: partition.Rebalance{State: pending}, Wanted: true,
			Whole: true}, false, 0},
		"is filled": {Seen{Rebalance: partition.Rebalance{State: catchup}, Wanted: true,
			Allocated: true}, false, 0},
		"whole": {Seen{Rebalance: partition.Rebalance{State: catchup}, Wanted: true,
			Allocated: true, Whole: true}, false, done},
		"whole as it is cancelled": {Seen{Rebalance: partition.Rebalance{State: catchup}, Wanted: true,
			Allocated: true, Whole: true}, true, done},
		"whole, as told by one that is away": {Seen{Rebalance: partition.Rebalance{State: catchup}, Wanted: true,
			Allocated: true, Whole: true, Away: 1}, false, 0},
		"dropped": {Seen{Rebalance: partition.Rebalance{State: catchup}, Allocated: true,
			Whole: true}, false, gone},
		"over": {Seen{Rebalance: partition.Rebalance{State: done}, Wanted: true,
			Allocated: true, Whole: true}, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got := Advance([]Seen{tc.seen}, Bounds{Sends: 1, Receives: 1, Patience: 100, AtOnce: 9}, tc.cancel)
			if tc.want == 0 && len(got) > 0 || tc.want != 0 && (len(got) != 1 || got[0].To != tc.want ||
				got[0].From != tc.seen.State || (tc.want == gone) != (got[0].Reason != "")) {
				t.Errorf("%+v, want %s", got, tc.want)
			}
		})
	}
}

// A node that is lost sends nothing: as many copies of it are made anew at a time as the others receive.
func TestWhatIsLostSendsNothing(t *testing.T) {
	var seen []Seen
	for i := range 6 {
		seen = append(seen, Seen{Rebalance: partition.Rebalance{Step: uint32(i + 1), State: partition.RebalanceStart,
			Src: partition.Shard{Node: 9}, Dst: partition.Shard{Node: index.NodeID(i % 3)}}, Wanted: true})
	}
	b := Bounds{Sends: 1, Receives: 1, Patience: 100, AtOnce: 9}
	if got := Advance(seen, b, false); len(got) != 1 {
		t.Errorf("of a node that lives: %+v", got)
	}
	for i := range seen {
		seen[i].Lost = true
	}
	if got := Advance(seen, b, false); len(got) != 3 {
		t.Errorf("of a node that is lost: %+v", got)
	}
	seen[0].State = partition.RebalanceCatchup
	if got := Advance(seen, b, false); len(got) != 2 {
		t.Errorf("while one is under way: %+v", got)
	}
}

// However steps go on: no node has more in work than it may, and all come to an end.
func TestAdvanceKeepsToBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := Bounds{Sends: rapid.IntRange(1, 2).Draw(t, "sends"), Receives: rapid.IntRange(1, 2).Draw(t, "receives"),
			Patience: 100, AtOnce: rapid.IntRange(1, 4).Draw(t, "at once")}
		seen := make([]Seen, rapid.IntRange(1, 12).Draw(t, "steps"))
		node := rapid.IntRange(0, 3)
		for i := range seen {
			seen[i] = Seen{Rebalance: partition.Rebalance{Step: uint32(i + 1), State: partition.RebalanceStart,
				Src: partition.Shard{Node: index.NodeID(node.Draw(t, "src"))},
				Dst: partition.Shard{Node: index.NodeID(node.Draw(t, "dst"))}}, Wanted: true}
		}
		for round := 0; ; round++ {
			next := Advance(seen, b, false)
			if len(next) > b.AtOnce {
				t.Fatalf("%d at once", len(next))
			}
			for _, n := range next {
				y := &seen[n.Step-1]
				y.State = n.To
				y.Allocated = n.To == partition.RebalancePending
				if n.To == partition.RebalanceCatchup {
					y.Allocated, y.Whole = true, true
				}
			}
			sends, receives, over := map[index.NodeID]int{}, map[index.NodeID]int{}, 0
			for _, y := range seen {
				switch {
				case y.State.Over():
					over++
				case y.State != partition.RebalanceStart:
					sends[y.Src.Node]++
					receives[y.Dst.Node]++
				}
			}
			for n := range index.NodeID(4) {
				if sends[n] > b.Sends || receives[n] > b.Receives {
					t.Fatalf("node %d sends %d and receives %d", n, sends[n], receives[n])
				}
			}
			if over == len(seen) {
				return
			}
			if len(next) == 0 || round > 100 {
				t.Fatalf("it stands still: %+v", seen)
			}
		}
	})
}
