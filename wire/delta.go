package wire

import (
	"errors"
	"fmt"
)

// A delta tells a state by what has changed since another one, its base, which the receiver has acknowledged. A state
// is named by a number: the sequence of a report, the revision of definitions. 0 is nothing: a delta of it tells
// everything. The columns of a delta are packed rows (rows.go) or vectors (timestamp.Vector.AppendDelta). Who does not
// have the base refuses the delta, and is told everything: nothing depends on a message or an answer arriving.

// ErrBase is wrapped when a delta changes a state that is not here: everything has to be told.
var ErrBase = errors.New("a change of what is not here")

// onBase refuses a delta of what is not here; have is 0 where nothing is.
func onBase(want, have uint64) error {
	if want != have || have == 0 {
		return fmt.Errorf("%w: number %d is wanted, %d is here", ErrBase, want, have)
	}
	return nil
}

// Acked is what a sender of reports remembers: the newest state that was acknowledged. The zero value has told nothing.
type Acked[S any] struct {
	number uint64 // of the report; 0: all is to be told
	state  S
}

// Known is the state that the receiver knows, and its number: the base of the next report. Without one all is to be
// told.
func (t *Acked[S]) Known() (state S, base uint64) { return t.state, t.number }

// Answered takes the answer to a report that made a state known. The next one is of everything where the answer asks
// for that, or comes from a leader that does not know the sender.
func (t *Acked[S]) Answered(number uint64, state S, a *ReportReply) {
	if !a.Known || a.Full {
		t.Lost()
		return
	}
	t.number, t.state = number, state
}

// Lost takes over that nobody knows whether the newest report came, or that it is time to tell all: the next one is of
// everything.
func (t *Acked[S]) Lost() { *t = Acked[S]{} }

// Newest is what a receiver of reports remembers of their order. The zero value has taken none.
type Newest struct {
	base uint64 // newest that was taken, which may be the base of others; 0 none
	seen uint64 // highest that was seen
}

// Overtaken reports whether a later report was seen.
func (n *Newest) Overtaken(number uint64) bool { return number > 0 && number <= n.seen }

// Take takes a report that is a delta of base, 0 of nothing. One whose own number is 0 stands outside the order: none
// is a delta of it; nor of one that was overtaken. Errors wrap ErrBase: then no delta is taken before everything was
// told.
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

// Whole reports whether all is known that was told.
func (n *Newest) Whole() bool { return n.base > 0 }

// Is reports whether the report of that number is the newest that was taken, of which others may be deltas.
func (n *Newest) Is(number uint64) bool { return number > 0 && number == n.base }

// Forget lets no delta be taken before everything was told.
func (n *Newest) Forget() { n.base = 0 }
