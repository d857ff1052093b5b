package rebalance

import (
	"cmp"
	"fmt"
	"iter"

	"tidemark/index"
	"tidemark/partition"
)

// Seen is what is known of a step of a rebalance that is under way.
type Seen struct {
	// Gone says why the step has nothing to do any more: its index is gone, or the new copy, where it has placed one, is
	// no longer in the topology, or its node is being removed; "" when it has.
	Gone string
	// Lacks says why a step that has not begun cannot, where that will not pass by itself; "" when it can.
	Lacks string
	// Allocated: the host of the new copy has made it, and the state says so.
	Allocated bool
	// Whole: the new copy is, on a node that is active, exact at a stability timestamp of the bucket's present generation
	// and rollback; or the index has nothing that could be missing in it, as it is not built.
	Whole bool
}

// SeenNode is what is known of a node that sends or receives.
type SeenNode struct {
	// Away is for how long it has not been heard, in milliseconds, 0 when it lives.
	Away int64
	// Lost: it is away, or is being removed, and sends nothing.
	Lost bool
}

// Bounds of a rebalance that is under way.
type Bounds struct {
	Sends, Receives int
	// Patience is how long a node that is to receive a copy may be away before its steps are given up, in milliseconds.
	Patience int64
	// AtOnce is the most transitions that are proposed at a time.
	AtOnce int
}

// Transition is a step's next state.
type Transition struct {
	Step     uint32
	From, To partition.RebalanceState
	Reason   string
}

// Advance decides which of the steps move on, of which those that are over may be left out. It is a function of what is
// seen, which comes anew each time: a lost message or a new leader loses nothing. Steps that are under way come first;
// of those that have not begun only such are looked at as there is room for, in their order, so that what it costs does
// not follow how many there are. cancelled says why nothing begins any more, "" when that is not so.
func Advance(steps iter.Seq[*partition.Rebalance], see func(*partition.Rebalance) Seen,
	node func(index.NodeID) SeenNode, b Bounds, cancelled string) []Transition {
	w := &work{see: see, node: node, bounds: b, cancelled: cancelled, seen: map[index.NodeID]SeenNode{},
		sends: map[index.NodeID]int{}, receives: map[index.NodeID]int{}}
	for y := range steps {
		if y.State == partition.RebalancePending || y.State == partition.RebalanceCatchup {
			w.counts(y)
			w.goes(y, w.goesOn)
		}
	}
	for y := range steps {
		if len(w.next) >= b.AtOnce {
			break
		}
		if y.State == partition.RebalanceStart {
			w.goes(y, w.begins)
		}
	}
	return w.next
}

// work is what goes on while steps are looked at.
type work struct {
	see             func(*partition.Rebalance) Seen
	node            func(index.NodeID) SeenNode
	bounds          Bounds
	cancelled       string
	seen            map[index.NodeID]SeenNode
	sends, receives map[index.NodeID]int
	next            []Transition
}

// of looks at each node once.
func (w *work) of(n index.NodeID) SeenNode {
	s, is := w.seen[n]
	if !is {
		s = w.node(n)
		w.seen[n] = s
	}
	return s
}

// counts counts a step that is under way at the nodes that it gives work.
func (w *work) counts(y *partition.Rebalance) {
	if !w.of(y.Src.Node).Lost {
		w.sends[y.Src.Node]++
	}
	w.receives[y.Dst.Node]++
}

// goes adds the step's transition, if there is one and there is room for it.
func (w *work) goes(y *partition.Rebalance, decide func(*partition.Rebalance) (partition.RebalanceState, string)) {
	if len(w.next) >= w.bounds.AtOnce {
		return
	}
	if to, reason := decide(y); to != 0 {
		w.next = append(w.next, Transition{Step: y.Step, From: y.State, To: to, Reason: reason})
	}
}

// goesOn returns the state that follows for a step that is under way, 0 for none now. What is whole is not given up: to
// go on is the shorter way.
func (w *work) goesOn(y *partition.Rebalance) (to partition.RebalanceState, reason string) {
	s, away := w.see(y), w.of(y.Dst.Node).Away
	switch {
	case s.Gone != "":
		return partition.RebalanceGivenUp, s.Gone
	case y.State == partition.RebalanceCatchup && s.Allocated && s.Whole && away == 0:
		return partition.RebalanceDone, ""
	case w.cancelled != "":
		return partition.RebalanceGivenUp, w.cancelled
	case away > w.bounds.Patience:
		return partition.RebalanceGivenUp, awayFor(y, away)
	case y.State == partition.RebalancePending && s.Allocated:
		return partition.RebalanceCatchup, ""
	}
	return 0, ""
}

func awayFor(y *partition.Rebalance, away int64) string {
	return fmt.Sprintf("node %d has been away for %d s", y.Dst.Node, away/1000)
}

// begins: a step that has not begun does so when its node answers and has room, unless something is lacking for good.
func (w *work) begins(y *partition.Rebalance) (to partition.RebalanceState, reason string) {
	from, away := w.of(y.Src.Node), w.of(y.Dst.Node).Away
	switch {
	case w.cancelled != "":
		return partition.RebalanceGivenUp, w.cancelled
	case away > w.bounds.Patience:
		return partition.RebalanceGivenUp, awayFor(y, away)
	case away > 0, !from.Lost && w.sends[y.Src.Node] >= w.bounds.Sends, w.receives[y.Dst.Node] >= w.bounds.Receives:
		return 0, ""
	}
	s := w.see(y)
	if reason = cmp.Or(s.Gone, s.Lacks); reason != "" {
		return partition.RebalanceGivenUp, reason
	}
	w.counts(y)
	return partition.RebalancePending, ""
}
