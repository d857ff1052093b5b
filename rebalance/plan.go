package rebalance

import (
	"errors"
	"fmt"

	"tidemark/index"
	"tidemark/partition"
)

// MoveState is how far the move of one copy has come (IM-18).
type MoveState uint8

// The states of a move; each transition is one Raft command.
const (
	Start   MoveState = iota + 1 // a snapshot of the source is being pinned at the rebalance timestamp
	Pending                      // the target copies it
	Catchup                      // the target has joined the running streams
	Done                         // it holds what the others hold: it takes the old copy's place
)

// ErrMove is wrapped when one state of a move may not follow another.
var ErrMove = errors.New("illegal rebalance step")

// String gives the seed's word.
func (s MoveState) String() string {
	switch s {
	case Start:
		return "start"
	case Pending:
		return "pending"
	case Catchup:
		return "catchup"
	case Done:
		return "done"
	}
	return fmt.Sprintf("move state(%d)", s)
}

// CheckNext gives an error wrapping ErrMove unless `to` may follow s: the next one, or start again before it joined.
func (s MoveState) CheckNext(to MoveState) error {
	if s >= Start && s < Done && to == s+1 || s == Pending && to == Start {
		return nil
	}
	return fmt.Errorf("%w: from %s to %s", ErrMove, s, to)
}

// Step is one idempotent part of a plan: copy From of a slice (0: built from KV) becomes a new copy on Target.
type Step struct {
	Index   index.ID          `json:"index"`
	Slice   index.SliceID     `json:"slice"`
	Replica partition.Replica `json:"replica"`
	From    index.CopyID      `json:"from,omitempty"`
	Source  index.NodeID      `json:"source"`
	Target  index.NodeID      `json:"target"`
	Bytes   uint64            `json:"bytes"`
	Round   int               `json:"round"` // steps of one round run side by side
	State   MoveState         `json:"-"`
}

// Plan is a reviewable list of steps with the definitions revision that it was made for.
type Plan struct {
	Revision uint64 `json:"revision"`
	Steps    []Step `json:"steps"`
}
