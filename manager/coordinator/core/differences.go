package core

import (
	"errors"
	"fmt"
	"slices"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/statecontext"
)

// differEvery is the interval at which the reported differing copies are compared with the committed ones.
const differEvery = 1000 // ms

// differAtOnce limits the proposals of one comparison, so that other duties have room. differRest is the longest
// pause before a rejected proposal is repeated.
const (
	differAtOnce = MaxProposals / 2
	differRest   = 5 * 60 * 1000 // ms
)

// refused tracks the copies whose difference the state has rejected.
type refused map[index.CopyID]refusal

type refusal struct{ pause, nextMS int64 }

// again records a rejection and schedules the next attempt, with exponential backoff.
func (r refused) again(id index.CopyID, nowMS int64) {
	pause := min(max(2*r[id].pause, differEvery), differRest)
	r[id] = refusal{pause, nowMS + pause}
}

// differences commits which copies differ from the KV data.
type differences struct {
	*scene
	atMS    int64
	refused refused
	out     bool // more copies differ than the state has room for
}

// step commits which copies differ from the KV data, as their indexers report, so that watchers are notified when a
// copy is wrong and when it is right again.
func (l *differences) step() {
	if l.nowMS-l.atMS < differEvery {
		return
	}
	l.atMS = l.nowMS
	left, keep := differAtOnce, refused{}
	propose := func(c *statecontext.NoteDifference) {
		r, was := l.refused[c.Copy]
		if was {
			keep[c.Copy] = r
		}
		if left > 0 && l.nowMS >= r.nextMS && l.propose(differenceKey(c.Copy), c, l.noted(c)) {
			left--
		}
	}
	// Copies that are right again come first: room in the state and the number of proposals are both limited.
	known := l.noteRight(propose)
	out := l.noteWrong(known, propose)
	l.refused = keep // rejections of other copies no longer matter
	if out > 0 != l.out {
		if l.out = out > 0; out > 0 {
			l.log.Warn("more copies differ from the KV data than are remembered: watchers get no events of the others until "+
				"some of these agree again", "known", known, "others", out)
		}
	}
}

// noteRight proposes to remove differences that are over, and returns how many copies are known to differ.
func (l *differences) noteRight(propose func(*statecontext.NoteDifference)) (known int) {
	s := l.now.state
	for d := range s.Differences() {
		known++
		n := l.components.indexers[d.Node]
		if !hosts(s, d.Index, d.Copy, d.Node) || n != nil && n.reported && n.copies[d.Copy].Compared &&
			n.differing.silent(d.Copy) {
			propose(&statecontext.NoteDifference{Index: d.Index, Copy: d.Copy, Node: d.Node})
		}
	}
	return known
}

// noteWrong proposes to record new or changed differences, and returns for how many the state has no room.
func (l *differences) noteWrong(known int, propose func(*statecontext.NoteDifference)) (out int) {
	s := l.now.state
	for i := range s.Indexers() {
		n := l.components.indexers[i.Node]
		if n == nil {
			continue
		}
		for _, x := range n.differing {
			c := &statecontext.NoteDifference{Index: x.Index, Copy: x.Copy, Node: n.node, Documents: max(x.Documents, 1),
				Kind: string(x.Kind), TakenAnew: x.TakenAnew}
			d := s.Difference(x.Copy)
			switch {
			case d != nil && c.Matches(d) || !hosts(s, x.Index, x.Copy, n.node):
			case d == nil && known >= statecontext.MaxDifferences:
				out++ // it would be rejected until one of the others is right
			default:
				propose(c)
			}
		}
	}
	return out
}

// noted schedules another attempt if the state rejects a difference.
func (l *differences) noted(c *statecontext.NoteDifference) outcomeDuty {
	return func(_ statecontext.Result, err error) {
		var rejected *statecontext.Rejection
		if errors.As(err, &rejected) {
			l.refused.again(c.Copy, l.nowMS)
			l.log.Warn("copy differs from the KV data, which cannot be stored; trying again at growing intervals", "index",
				c.Index, "copy", c.Copy, "node", c.Node, "error", rejected, "pause_ms", l.refused[c.Copy].pause)
		}
	}
}

func differenceKey(id index.CopyID) string { return fmt.Sprint("difference/", id) }

// hosts reports whether a node has a copy of an index that is not leaving.
func hosts(s *statecontext.State, id index.ID, copy index.CopyID, node index.NodeID) bool {
	x := s.Index(id)
	return x != nil && slices.ContainsFunc(x.Topology.Copies, func(c partition.Copy) bool {
		return c.ID == copy && c.Node == node && c.State != partition.Leaving
	})
}
