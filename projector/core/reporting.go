package core

import "tidemark/wire"

// Reporting is what a projector remembers of its reports, so that it tells only what is news. K is what the coordinator
// knows when it has taken one. The zero value has told nothing.
type Reporting[K any] struct {
	base  uint64 // sequence of the newest report that was answered; 0: all is to be told
	known K      // by that one
}

// Known is what the coordinator knows, and by which report; without one all is to be told.
func (t *Reporting[K]) Known() (known K, base uint64) {
	if t.base == 0 {
		var nothing K
		return nothing, 0
	}
	return t.known, t.base
}

// Answered takes the answer to a report that made something known. The next one is of everything where the answer asks
// for that, or comes from a leader that does not know the projector.
func (t *Reporting[K]) Answered(sequence uint64, known K, a *wire.ReportReply) {
	if !a.Known || a.Full {
		t.Lost()
		return
	}
	t.base, t.known = sequence, known
}

// Lost takes over that nobody knows whether the newest report came, or that it is time to tell all: the next one is of
// everything.
func (t *Reporting[K]) Lost() {
	var nothing K
	t.base, t.known = 0, nothing
}
