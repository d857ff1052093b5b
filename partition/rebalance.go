package partition

import (
	"fmt"

	"tidemark/index"
)

// RebalanceState is how far the move of a slice has come (IM-18).
type RebalanceState uint8

// The states, in the order in which they follow each other. GivenUp may follow each but Done.
const (
	RebalanceStart   RebalanceState = iota + 1 // decided; nothing has been done
	RebalancePending                           // the new copy has a place, and is being made there
	RebalanceCatchup                           // it is in the routers' topology, and is filled up to where the stream is
	RebalanceDone                              // it is whole, and the old copy is out of the topology
	RebalanceGivenUp                           // it did not come to that: the old copy has stayed
)

// String gives the word used in JSON.
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

// Over tells that nothing more will happen.
func (s RebalanceState) Over() bool { return s == RebalanceDone || s == RebalanceGivenUp }

// MarshalText makes the JSON form the word.
func (s RebalanceState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (s *RebalanceState) UnmarshalText(b []byte) error {
	for c := RebalanceStart; c <= RebalanceGivenUp; c++ {
		if c.String() == string(b) {
			*s = c
			return nil
		}
	}
	return fmt.Errorf("%w: rebalance state %q", ErrLayout, b)
}

// Rebalance is one slice's change of place: a copy of it is made on Dst, and takes the place of one on Src, if there is
// one (IM-18).
type Rebalance struct {
	Step    uint32         `json:"step"` // number within the rebalance that it belongs to, from 1
	State   RebalanceState `json:"state"`
	Index   index.ID       `json:"index"`
	Slice   index.SliceID  `json:"slice"`
	Replica Replica        `json:"replica"`
	Old     index.CopyID   `json:"old,omitempty"` // the copy on Src, 0: none
	Src     Shard          `json:"src"`
	Dst     Shard          `json:"dst"`
	New     index.CopyID   `json:"new,omitempty"` // the copy on Dst, from pending on
	// Timestamp is the number of the stability timestamp of the index's bucket at which it became pending.
	Timestamp uint64 `json:"rebalance_timestamp,omitempty"`
	Bytes     uint64 `json:"bytes"` // that the copy is expected to take
	Reason    string `json:"reason,omitempty"`
}
