package streams

import (
	"cmp"
	"maps"
	"slices"

	"tidemark/index"
)

// dealParts is the fraction of the vbuckets (1/dealParts) that may move at a time, at least one.
const dealParts = 32

// move is the move of a vbucket to another projector at the same KV node.
type move struct {
	to     index.ProjectorID // "": no move
	tries  int               // consecutive moves that ended at another projector
	restMS int64             // no other move before this time
}

// ended ends the move of a vbucket whose stream has begun at a projector. It reports whether that is not the target.
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

// deal moves some vbuckets from a projector that streams many, or many changes, to one at the same KV node that
// streams less: after a projector has returned, or was added, or where busy vbuckets have accumulated. It moves a few
// at a time, the busiest first, and only while no repair is in progress. A move interrupts its vbuckets for the
// duration of a repair, and what indexers with full queues have not received yet would be sent to all of them again.
// It stops when no move is worth that, so that no vbucket oscillates.
func (l *Ledger) deal(nowMS int64) {
	if len(l.kv.shared) == 0 || nowMS < l.dealMS || l.repair != nil || l.counts[Begun] < len(l.vbs) {
		return
	}
	l.dealMS = nowMS + l.cfg.DealEvery.Milliseconds()
	if l.participants.full(nowMS - l.cfg.MismatchWait.Milliseconds()) {
		return
	}
	loads := l.loads()
	room := max(1, len(l.vbs)/dealParts)
	for _, v := range l.busiest() {
		e, weight := &l.vbs[v], l.kv.traffic.weight(v)
		to := l.idlest(v, loads)
		if nowMS < e.move.restMS || !loads[e.Owner].eased(loads[to], weight) {
			continue
		}
		loads[e.Owner], loads[to] = loads[e.Owner].with(-1, -weight), loads[to].with(1, weight)
		e.move.to = to
		l.set(v, nowMS, Lost, "it moves to projector "+string(to)+", which has fewer streams")
		if room--; room == 0 {
			return
		}
	}
}

// busiest returns the vbuckets that may move, those with the most changes first.
func (l *Ledger) busiest() []int {
	vbs := slices.Sorted(maps.Keys(l.kv.shared))
	slices.SortStableFunc(vbs, func(a, b int) int { return cmp.Compare(l.kv.traffic.rates[b], l.kv.traffic.rates[a]) })
	return vbs
}

// idlest returns the live projector that streams least, among a vbucket's owner and the others at its KV node.
func (l *Ledger) idlest(v int, loads map[index.ProjectorID]load) index.ProjectorID {
	owner := l.vbs[v].Owner
	least := owner
	for _, p := range l.kv.shared[v] {
		if loads[p].weight < loads[least].weight && l.kv.beside(v, owner, p) && slices.Contains(l.projectors, p) {
			least = p
		}
	}
	return least
}

// settleDeal ends a move. One that ended elsewhere is not retried for a while, which grows with each attempt.
func (l *Ledger) settleDeal(v int, nowMS int64) {
	if e := &l.vbs[v]; e.move.ended(e.Owner) {
		e.move.restMS = nowMS + l.patience(dealRest*l.cfg.DealEvery, e.move.tries-1)
	}
}

// dealRest is how many rounds a vbucket rests after a failed move; it doubles with each.
const dealRest = 10
