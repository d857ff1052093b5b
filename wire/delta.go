package wire

import (
	"errors"
	"fmt"
)

// A delta encodes a state as its difference from another state, its base, which the receiver has acknowledged. A
// number identifies a state: the sequence of a report, or the revision of definitions. Number 0 is the empty state: a
// delta against it has everything. The columns of a delta are packed rows (rows.go) or vectors
// (timestamp.Vector.AppendDelta). A receiver that does not have the base refuses the delta and gets the full state
// instead, so that correctness depends on no single message or answer.

// ErrBase is wrapped if the receiver does not have the base of a delta. The sender has to send the full state.
var ErrBase = errors.New("a change to an unknown report")

// onBase refuses a delta whose base is not the state that the receiver has; have is 0 if it has none.
func onBase(want, have uint64) error {
	if want != have || have == 0 {
		return fmt.Errorf("%w: it is based on number %d, the stored one is %d", ErrBase, want, have)
	}
	return nil
}

// Acked tracks the newest state that the receiver of reports has acknowledged. The zero value has none.
type Acked[S any] struct {
	number uint64 // of the report; 0: the next report has to be a full one
	state  S
}

// Known returns the state that the receiver has, and its number, which is the base of the next report. If base is 0
// the next report has to be a full one.
func (t *Acked[S]) Known() (state S, base uint64) { return t.state, t.number }

// Answered records the answer to the report that carried the state. The next report is a full one if the answer asks
// for it, or comes from a leader that does not know the sender.
func (t *Acked[S]) Answered(number uint64, state S, a *ReportReply) {
	if !a.Known || a.Full {
		t.Lost()
		return
	}
	t.number, t.state = number, state
}

// Lost discards the base, because it is unknown whether the newest report arrived, or because a full report is due.
// The next one is a full report.
func (t *Acked[S]) Lost() { *t = Acked[S]{} }

// Newest tracks the order of the reports that a receiver has taken. The zero value has taken none.
type Newest struct {
	base uint64 // newest report taken, which may be the base of later ones; 0 for none
	seen uint64 // highest number received
}

// Overtaken reports whether a later report was received before.
func (n *Newest) Overtaken(number uint64) bool { return number > 0 && number <= n.seen }

// Take records a report whose base is base; 0 stands for the empty state. A report whose own number is 0 is outside
// the order, and so is one that was overtaken: neither can be a base. Errors wrap ErrBase; after one, deltas are
// refused until a full report is taken.
func (n *Newest) Take(base, number uint64) error {
	var err error
	if base != 0 {
		err = onBase(base, n.base)
	}
	if n.Overtaken(number) {
		number = 0
	}
	n.base, n.seen = number, max(n.seen, number)
	if err != nil {
		n.Forget()
	}
	return err
}

// Whole reports whether the receiver has the complete state as of the newest report.
func (n *Newest) Whole() bool { return n.base > 0 }

// Is reports whether the report of that number is the newest one taken, and therefore a valid base.
func (n *Newest) Is(number uint64) bool { return number > 0 && number == n.base }

// Forget makes Take refuse deltas until a full report is taken.
func (n *Newest) Forget() { n.base = 0 }
