package partition

import (
	"fmt"

	"tidemark/index"
)

// RebalanceState is the progress of the move of a slice (IM-18).
type RebalanceState uint8

// The states, in their order. GivenUp may follow each but Done.
const (
	RebalanceStart   RebalanceState = iota + 1 // decided; nothing was done yet
	RebalancePending                           // the new copy is placed, and is being created there
	RebalanceCatchup                           // it is in the routers' topology, and catches up with the stream
	RebalanceDone                              // it is whole, and the old copy was removed from the topology
	RebalanceGivenUp                           // the move failed: the old copy has stayed
)

// String returns the word in JSON.
func (s RebalanceState) String() string {
	switch s {
	case RebalanceStart:
		return "start"
	case RebalancePending:
		return "pending"
	case RebalanceCatchup:
		return "catchup"
	case RebalanceDone:
		return "done"
	case RebalanceGivenUp:
		return "given up"
	}
	return fmt.Sprintf("rebalance state(%d)", s)
}

// Over reports whether the state is final.
func (s RebalanceState) Over() bool { return s == RebalanceDone || s == RebalanceGivenUp }

// MarshalText encodes the state as its word.
func (s RebalanceState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText decodes what MarshalText returned.
func (s *RebalanceState) UnmarshalText(b []byte) error {
	for c := RebalanceStart; c <= RebalanceGivenUp; c++ {
		if c.String() == string(b) {
			*s = c
			return nil
		}
	}
	return fmt.Errorf("%w: rebalance state %q", ErrLayout, b)
}

// Rebalance is the move of one slice: a copy is created on Dst, and replaces the copy on Src, if there is one
// (IM-18).
type Rebalance struct {
	Step    uint32         `json:"step"` // number within its rebalance, from 1
	State   RebalanceState `json:"state"`
	Index   index.ID       `json:"index"`
	Slice   index.SliceID  `json:"slice"`
	Replica Replica        `json:"replica"`
	Old     index.CopyID   `json:"old,omitempty"` // copy on Src, 0: none
	Src     Shard          `json:"src"`
	Dst     Shard          `json:"dst"`
	New     index.CopyID   `json:"new,omitempty"` // copy on Dst, from pending on
	// Timestamp is the number of the stability timestamp of the index's bucket at which it became pending.
	Timestamp uint64 `json:"rebalance_timestamp,omitempty"`
	Bytes     uint64 `json:"bytes"` // expected size of the copy
	Reason    string `json:"reason,omitempty"`
}
