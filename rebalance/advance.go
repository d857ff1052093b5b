package rebalance

import (
	"cmp"
	"fmt"
	"iter"

	"tidemark/index"
	"tidemark/partition"
)

// Seen is the observed state of one step of a rebalance in progress.
type Seen struct {
	// Gone is why the step has nothing left to do: its index is gone, the new copy that it placed is no longer in the
	// topology, or the node of the new copy is being removed. It is "" if there is something left to do.
	Gone string
	// Lacks is why a step that has not begun cannot begin, if the reason will not pass by itself; "" if it can.
	Lacks string
	// Allocated reports whether the host of the new copy has made it and the state has recorded that.
	Allocated bool
	// Whole reports whether the new copy is on an active node and exact at a stability timestamp of the bucket's present
	// generation and rollback, or whether the index is not built, so that nothing can be missing in the copy.
	Whole bool
}

// SeenNode is the observed state of a node that sends or receives.
type SeenNode struct {
	// Away is how long the node has been silent, in milliseconds; 0 if it is active.
	Away int64
	// Lost reports whether the node is offline or being removed, so that it sends nothing.
	Lost bool
}

// Bounds limits the work of a rebalance in progress.
type Bounds struct {
	Sends, Receives int
	// Patience is how long a receiving node may be away before its steps are given up, in milliseconds; Unbegun is that
	// of steps that have not begun, with which nothing is lost.
	Patience, Unbegun int64
	// AtOnce is the maximum number of transitions to propose at a time.
	AtOnce int
}

// Transition is a step's next state, to be proposed.
type Transition struct {
	Step     uint32
	From, To partition.RebalanceState
	Reason   string
}

// Advance returns the transitions of steps that can advance; steps that are over may be left out. It depends only on
// the observations, which are made anew each time, so a lost message or a new leader loses nothing. Steps in progress
// come first. Of the steps that have not begun, it examines only as many as may begin, in order, so that its cost
// does not grow with their number. cancelled is why no step begins any more, "" if the rebalance is not cancelled.
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

// work holds the state of one call of Advance.
type work struct {
	see             func(*partition.Rebalance) Seen
	node            func(index.NodeID) SeenNode
	bounds          Bounds
	cancelled       string
	seen            map[index.NodeID]SeenNode
	sends, receives map[index.NodeID]int
	next            []Transition
}

// of observes each node once.
func (w *work) of(n index.NodeID) SeenNode {
	s, is := w.seen[n]
	if !is {
		s = w.node(n)
		w.seen[n] = s
	}
	return s
}

// counts adds a step in progress to the load of the nodes involved.
func (w *work) counts(y *partition.Rebalance) {
	if !w.of(y.Src.Node).Lost {
		w.sends[y.Src.Node]++
	}
	w.receives[y.Dst.Node]++
}

// goes adds the step's transition, if there is one and AtOnce allows it.
func (w *work) goes(y *partition.Rebalance, decide func(*partition.Rebalance) (partition.RebalanceState, string)) {
	if len(w.next) >= w.bounds.AtOnce {
		return
	}
	if to, reason := decide(y); to != 0 {
		w.next = append(w.next, Transition{Step: y.Step, From: y.State, To: to, Reason: reason})
	}
}

// goesOn returns the next state of a step in progress, 0 if it stays. A step whose copy is whole is completed even if
// it is to be given up, because completing it is quicker.
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
	return fmt.Sprintf("node %d has been offline for %d s", y.Dst.Node, away/1000)
}

// begins returns the next state of a step that has not begun: it begins when its nodes answer and have capacity, and
// is given up if something is permanently missing.
func (w *work) begins(y *partition.Rebalance) (to partition.RebalanceState, reason string) {
	from, away := w.of(y.Src.Node), w.of(y.Dst.Node).Away
	switch {
	case w.cancelled != "":
		return partition.RebalanceGivenUp, w.cancelled
	case away > w.bounds.Unbegun:
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
