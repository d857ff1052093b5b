package streams

import (
	"slices"

	"tidemark/index"
)

// dealParts is which part of the vbuckets may move at a time, at least one.
const dealParts = 32

// move is a vbucket's move to another projector at the same KV node.
type move struct {
	to     index.ProjectorID // "": it does not move
	tries  int               // moves in a row that went elsewhere
	restMS int64             // there is no other one before this time
}

// ended takes the projector at which its stream has begun. It reports whether that is another one than was meant.
func (m *move) ended(at index.ProjectorID) (elsewhere bool) {
	to := m.to
	m.to = ""
	switch to {
	case "":
		return false
	case at:
		m.tries = 0
		return false
	}
	m.tries++
	return true
}

// deal moves some vbuckets from a projector that streams many to one at the same KV node that streams few: after one
// has returned, or has come. A few at a time, and only while nothing else is under way: a move costs its vbuckets as
// long as a repair lasts, and what indexers with full queues have not received yet would be sent to all of them again.
// It ends when no move makes the shares more equal, so that nothing goes to and fro.
func (l *Ledger) deal(nowMS int64) {
	if len(l.kv.shared) == 0 || nowMS < l.dealMS || l.repair != nil || l.counts[Begun] < len(l.vbs) {
		return
	}
	l.dealMS = nowMS + l.cfg.DealEvery.Milliseconds()
	if l.takers.full(nowMS - l.cfg.MismatchWait.Milliseconds()) {
		return
	}
	load := map[index.ProjectorID]int{}
	for v := range l.vbs {
		load[l.vbs[v].Owner]++
	}
	room := max(1, len(l.vbs)/dealParts)
	for v := 0; v < len(l.vbs) && room > 0; v++ {
		e := &l.vbs[v]
		to := l.idlest(v, load)
		if nowMS < e.move.restMS || load[e.Owner]-load[to] < 2 {
			continue
		}
		load[e.Owner]--
		load[to]++
		room--
		e.move.to = to
		l.set(v, nowMS, Lost, "it moves to projector "+string(to)+", which streams less")
	}
}

// idlest is the live projector that streams least of a vbucket's owner and those beside it.
func (l *Ledger) idlest(v int, load map[index.ProjectorID]int) index.ProjectorID {
	owner := l.vbs[v].Owner
	least := owner
	for _, p := range l.kv.shared[v] {
		if load[p] < load[least] && l.kv.beside(v, owner, p) && slices.Contains(l.projectors, p) {
			least = p
		}
	}
	return least
}

// settleDeal ends a move: one that went elsewhere is not tried again soon, and later each time.
func (l *Ledger) settleDeal(v int, nowMS int64) {
	if e := &l.vbs[v]; e.move.ended(e.Owner) {
		e.move.restMS = nowMS + l.patience(dealRest*l.cfg.DealEvery, e.move.tries-1)
	}
}

// dealRest is for how many turns a vbucket rests whose move has failed; it doubles.
const dealRest = 10
