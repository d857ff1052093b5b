package rebalance

import (
	"fmt"

	"tidemark/index"
	"tidemark/partition"
)

// Seen is what is known of a step of a rebalance that is under way.
type Seen struct {
	partition.Rebalance
	// Wanted: the index exists and is not being dropped, and the new copy, where the step has placed one, is still in its
	// topology, on a node that is not being removed.
	Wanted bool
	// Lacks says why the step cannot begin, where that will not pass by itself; "" when it can.
	Lacks string
	// Allocated: the host of the new copy has made it, and the state says so.
	Allocated bool
	// Whole: the new copy is, on a node that is active, exact at a stability timestamp of the bucket's present generation
	// and rollback; or the index has nothing that could be missing in it, as it is not built.
	Whole bool
	// Away is for how long the node that it goes to has not been heard, in milliseconds, 0 when it lives.
	Away int64
	// Lost: the node that it comes from is away, or is being removed, and sends nothing.
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

// Advance decides which steps move on. It is a function of what is seen, which comes anew each time: a lost message or
// a new leader loses nothing. seen are in the order in which they are to be taken; those that are over may be left out.
func Advance(seen []Seen, b Bounds, cancelling bool) (next []Transition) {
	sends, receives := map[index.NodeID]int{}, map[index.NodeID]int{}
	for i := range seen {
		if y := &seen[i]; y.State == partition.RebalancePending || y.State == partition.RebalanceCatchup {
			y.counts(sends, receives)
		}
	}
	for i := range seen {
		if len(next) == b.AtOnce {
			break
		}
		y := &seen[i]
		to, reason := y.goesOn(&b, cancelling)
		if to == 0 || to == partition.RebalancePending && (!y.Lost && sends[y.Src.Node] >= b.Sends ||
			receives[y.Dst.Node] >= b.Receives) {
			continue
		}
		if to == partition.RebalancePending {
			y.counts(sends, receives)
		}
		next = append(next, Transition{Step: y.Step, From: y.State, To: to, Reason: reason})
	}
	return next
}

// counts counts a step that is under way at the nodes that it gives work.
func (y *Seen) counts(sends, receives map[index.NodeID]int) {
	if !y.Lost {
		sends[y.Src.Node]++
	}
	receives[y.Dst.Node]++
}

// goesOn returns the state that follows, 0 for none now. What is whole is not given up: to go on is the shorter way.
func (y *Seen) goesOn(b *Bounds, cancelling bool) (to partition.RebalanceState, reason string) {
	switch {
	case y.State.Over():
		return 0, ""
	case !y.Wanted:
		return partition.RebalanceGivenUp, y.unwanted()
	case y.State == partition.RebalanceCatchup && y.Allocated && y.Whole && y.Away == 0:
		return partition.RebalanceDone, ""
	case cancelling:
		return partition.RebalanceGivenUp, "cancelled"
	case y.Away > b.Patience:
		return partition.RebalanceGivenUp, fmt.Sprintf("node %d has been away for %d s", y.Dst.Node, y.Away/1000)
	case y.State == partition.RebalancePending && y.Allocated:
		return partition.RebalanceCatchup, ""
	case y.State == partition.RebalanceStart:
		return y.begins()
	}
	return 0, ""
}

// begins: a step that has not begun does so when its node answers, unless that node lacks something.
func (y *Seen) begins() (to partition.RebalanceState, reason string) {
	switch {
	case y.Lacks != "":
		return partition.RebalanceGivenUp, y.Lacks
	case y.Away == 0:
		return partition.RebalancePending, ""
	}
	return 0, ""
}

func (y *Seen) unwanted() string {
	if y.State == partition.RebalanceStart {
		return "the index was dropped, or a split has replaced it"
	}
	return "the index was dropped, or a split has replaced it, or the node that the copy was to go to is removed"
}
