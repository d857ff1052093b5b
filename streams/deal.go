package streams

import (
	"slices"

	"tidemark/index"
	"tidemark/timestamp"
)

// dealParts is which part of the vbuckets may move at a time, at least one.
const dealParts = 32

// noteShared notes, at an audit, which vbuckets more than one projector could stream: those at one KV node show it
// under the same map. Also who streams nothing of the bucket, and therefore does not look at its node, answers audits.
func (l *Ledger) noteShared(logs map[index.ProjectorID][]Log) {
	newest := map[uint16]timestamp.MapRevision{}
	hosts := map[uint16][]index.ProjectorID{}
	for _, p := range sortedKeys(logs) {
		for _, g := range logs[p] {
			switch at, seen := newest[g.VBucket]; {
			case !seen || g.Revision.Compare(at) > 0:
				newest[g.VBucket], hosts[g.VBucket] = g.Revision, []index.ProjectorID{p}
			case g.Revision == at:
				hosts[g.VBucket] = append(hosts[g.VBucket], p)
			}
		}
	}
	l.shared = map[int][]index.ProjectorID{}
	for vb, all := range hosts {
		if len(all) > 1 && int(vb) < len(l.vbs) {
			l.shared[int(vb)] = all
		}
	}
}

// beside reports whether another projector could stream a vbucket in p's stead, at the same KV node.
func (l *Ledger) beside(v int, p, other index.ProjectorID) bool {
	all := l.shared[v]
	return p != other && slices.Contains(all, p) && slices.Contains(all, other)
}

// deal moves some vbuckets from a projector that streams many to one at the same KV node that streams few: after one
// has returned, or has come. A few at a time, and only while nothing else is under way: a move costs its vbuckets as
// long as a repair lasts, and what indexers with full queues have not received yet would be sent to all of them again.
// It ends when no move makes the shares more equal, so that nothing goes to and fro.
func (l *Ledger) deal(nowMS int64) {
	if len(l.shared) == 0 || nowMS < l.dealMS || l.repair != nil || l.counts[Begun] < len(l.vbs) {
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
		if nowMS < e.dealMS || load[e.Owner]-load[to] < 2 {
			continue
		}
		load[e.Owner]--
		load[to]++
		room--
		e.dealt = to
		l.set(v, nowMS, Lost, "it moves to projector "+string(to)+", which streams less")
	}
}

// idlest is the live projector that streams least of a vbucket's owner and those beside it.
func (l *Ledger) idlest(v int, load map[index.ProjectorID]int) index.ProjectorID {
	owner := l.vbs[v].Owner
	least := owner
	for _, p := range l.shared[v] {
		if load[p] < load[least] && l.beside(v, owner, p) && slices.Contains(l.projectors, p) {
			least = p
		}
	}
	return least
}

// settleDeal ends a move: one that went elsewhere is not tried again soon, and later each time.
func (l *Ledger) settleDeal(v int, nowMS int64) {
	e := &l.vbs[v]
	switch e.dealt {
	case "":
		return
	case e.Owner:
		e.dealTries = 0
	default:
		e.dealTries++
		e.dealMS = nowMS + l.patience(dealRest*l.cfg.DealEvery, e.dealTries-1)
	}
	e.dealt = ""
}

// dealRest is for how many turns a vbucket rests whose move has failed; it doubles.
const dealRest = 10
