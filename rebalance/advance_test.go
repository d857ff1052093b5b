package rebalance

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"tidemark/index"
	_ "tidemark/internal/testing/draws"
	"tidemark/partition"
)

// world is the work in progress as tests define it: steps, and the observations of each step and node.
type world struct {
	steps  []partition.Rebalance
	seen   []Seen // by step
	nodes  map[index.NodeID]SeenNode
	looked int // how often a step was examined
}

func (w *world) add(y partition.Rebalance, s Seen) {
	y.Step = uint32(len(w.steps) + 1)
	w.steps, w.seen = append(w.steps, y), append(w.seen, s)
}

func (w *world) advance(b Bounds, cancelled string) []Transition {
	all := func(yield func(*partition.Rebalance) bool) {
		for i := range w.steps {
			if !yield(&w.steps[i]) {
				return
			}
		}
	}
	return Advance(all, func(y *partition.Rebalance) Seen { w.looked++; return w.seen[y.Step-1] },
		func(n index.NodeID) SeenNode { return w.nodes[n] }, b, cancelled)
}

func TestAdvance(t *testing.T) {
	const start, pending, catchup, done, gone = partition.RebalanceStart, partition.RebalancePending,
		partition.RebalanceCatchup, partition.RebalanceDone, partition.RebalanceGivenUp
	for name, tc := range map[string]struct {
		state  partition.RebalanceState
		seen   Seen
		away   int64
		cancel string
		want   partition.RebalanceState
		reason string
	}{
		"begins":                 {start, Seen{}, 0, "", pending, ""},
		"waits for its host":     {start, Seen{}, 1, "", 0, ""},
		"patience is over":       {start, Seen{}, 12_001, "", gone, "node 0 has been offline for 12 s"},
		"cannot begin":           {start, Seen{Lacks: "why"}, 0, "", gone, "why"},
		"has nothing to do":      {start, Seen{Gone: "it was dropped"}, 0, "", gone, "it was dropped"},
		"cancelled":              {start, Seen{}, 0, "others come first", gone, "others come first"},
		"cancelled under way":    {pending, Seen{}, 0, "others come first", gone, "others come first"},
		"is being made":          {pending, Seen{}, 0, "", 0, ""},
		"made":                   {pending, Seen{Allocated: true}, 0, "", catchup, ""},
		"whole before it is in":  {pending, Seen{Whole: true}, 0, "", 0, ""},
		"is filled":              {catchup, Seen{Allocated: true}, 0, "", 0, ""},
		"whole":                  {catchup, Seen{Allocated: true, Whole: true}, 0, "", done, ""},
		"whole as it's given up": {catchup, Seen{Allocated: true, Whole: true}, 0, "why", done, ""},
		"whole, as reported by an offline node": {catchup, Seen{Allocated: true, Whole: true}, 1, "",
			0, ""},
		"dropped": {catchup, Seen{Allocated: true, Whole: true, Gone: "dropped"}, 0, "", gone, "dropped"},
		"over":    {done, Seen{Allocated: true, Whole: true}, 0, "why", 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{nodes: map[index.NodeID]SeenNode{0: {Away: tc.away}}}
			w.add(partition.Rebalance{State: tc.state, Src: partition.Shard{Node: 1}}, tc.seen)
			var want []Transition
			if tc.want != 0 {
				want = []Transition{{Step: 1, From: tc.state, To: tc.want, Reason: tc.reason}}
			}
			got := w.advance(Bounds{Sends: 1, Receives: 1, Patience: 12_000, Unbegun: 12_000, AtOnce: 9}, tc.cancel)
			if !slices.Equal(got, want) {
				t.Errorf("%+v, want %+v", got, want)
			}
		})
	}
}

// A lost node sends nothing: the number of its copies made anew at a time is limited only by the receivers.
func TestLostNodeSendsNothing(t *testing.T) {
	w := &world{nodes: map[index.NodeID]SeenNode{}}
	for i := range 6 {
		w.add(partition.Rebalance{State: partition.RebalanceStart, Src: partition.Shard{Node: 9},
			Dst: partition.Shard{Node: index.NodeID(i % 3)}}, Seen{})
	}
	b := Bounds{Sends: 1, Receives: 1, Patience: 100, Unbegun: 100, AtOnce: 9}
	if got := w.advance(b, ""); len(got) != 1 {
		t.Errorf("of a node that lives: %+v", got)
	}
	w.nodes[9] = SeenNode{Lost: true}
	if got := w.advance(b, ""); len(got) != 3 {
		t.Errorf("of a node that is lost: %+v", got)
	}
	w.steps[0].State = partition.RebalanceCatchup
	if got := w.advance(b, ""); len(got) != 2 {
		t.Errorf("while one is under way: %+v", got)
	}
}

// A rebalance with very many steps costs as much as the few in progress: steps that wait for capacity, or whose node
// is away, are not examined.
func TestWaitingStepsAreNotExamined(t *testing.T) {
	w := &world{nodes: map[index.NodeID]SeenNode{2: {Away: 1}}}
	for i := range MaxBegun {
		w.add(partition.Rebalance{State: partition.RebalanceStart, Dst: partition.Shard{Node: index.NodeID(1 + i%2)}}, Seen{})
	}
	b := Bounds{Sends: 2, Receives: 2, Patience: 100, Unbegun: 100, AtOnce: 16}
	for _, n := range w.advance(b, "") {
		w.steps[n.Step-1].State = n.To
	}
	if w.looked != 2 {
		t.Errorf("looked at %d steps to begin with two", w.looked)
	}
	if w.looked = 0; len(w.advance(b, "")) != 0 || w.looked != 2 {
		t.Errorf("looked at %d steps, of which two are under way", w.looked)
	}
}

// In any course of events no node has more steps in progress than allowed, and all steps end.
func TestAdvanceKeepsToBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := Bounds{Sends: rapid.IntRange(1, 2).Draw(t, "sends"), Receives: rapid.IntRange(1, 2).Draw(t, "receives"),
			Patience: 100, Unbegun: 100, AtOnce: rapid.IntRange(1, 4).Draw(t, "at once")}
		w := &world{}
		node := rapid.IntRange(0, 3)
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			w.add(partition.Rebalance{State: partition.RebalanceStart,
				Src: partition.Shard{Node: index.NodeID(node.Draw(t, "src"))},
				Dst: partition.Shard{Node: index.NodeID(node.Draw(t, "dst"))}}, Seen{})
		}
		for round := 0; ; round++ {
			next := w.advance(b, "")
			if len(next) > b.AtOnce {
				t.Fatalf("%d at once", len(next))
			}
			for _, n := range next {
				w.steps[n.Step-1].State = n.To
				w.seen[n.Step-1] = Seen{Allocated: true, Whole: n.To == partition.RebalanceCatchup}
			}
			sends, receives, over := map[index.NodeID]int{}, map[index.NodeID]int{}, 0
			for _, y := range w.steps {
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
			if over == len(w.steps) {
				return
			}
			if len(next) == 0 || round > 100 {
				t.Fatalf("it stands still: %+v", w.steps)
			}
		}
	})
}
