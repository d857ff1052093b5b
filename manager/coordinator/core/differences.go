package core

import (
	"errors"
	"fmt"
	"slices"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/statecontext"
)

// differEvery is how often the copies that differ are compared with what is committed of them.
const differEvery = 1000 // ms

// differAtOnce bounds the proposals of one look, so that other duties have room, and differRest is the longest pause
// before one that is refused is made again.
const (
	differAtOnce = MaxProposals / 2
	differRest   = 5 * 60 * 1000 // ms
)

// refused are the copies whose difference the state does not take.
type refused map[index.CopyID]refusal

type refusal struct{ pause, nextMS int64 }

// again notes a refusal, and when it is tried again.
func (r refused) again(id index.CopyID, nowMS int64) {
	pause := min(max(2*r[id].pause, differEvery), differRest)
	r[id] = refusal{pause, nowMS + pause}
}

// differences are copies that differ from the KV data, as is committed.
type differences struct {
	*scene
	atMS    int64
	refused refused
	out     bool // more are told of than there is room for
}

// step commits which copies differ from the KV data, as their indexers tell, so that whoever watches hears
// that one is wrong, and that it is right again.
func (l *differences) step() {
	if l.nowMS-l.atMS < differEvery {
		return
	}
	l.atMS = l.nowMS
	left, told := differAtOnce, refused{}
	propose := func(c *statecontext.NoteDifference) {
		r, was := l.refused[c.Copy]
		if was {
			told[c.Copy] = r
		}
		if left > 0 && l.nowMS >= r.nextMS && l.propose(differenceKey(c.Copy), c, l.noted(c)) {
			left--
		}
	}
	// What is right again goes first: there is room for so many copies only, and for so many proposals.
	known := l.noteRight(propose)
	out := l.noteWrong(known, propose)
	l.refused = told // of others nothing is to be noted any more
	if out > 0 != l.out {
		if l.out = out > 0; out > 0 {
			l.log.Warn("more copies differ from the KV data than are remembered: watchers do not hear of the others before "+
				"some of those are right", "known", known, "others", out)
		}
	}
}

// noteRight proposes to forget what differs no more, and returns how many are known to differ.
func (l *differences) noteRight(propose func(*statecontext.NoteDifference)) (known int) {
	s := l.now.state
	for d := range s.Differences() {
		known++
		n := l.components.indexers[d.Node]
		if !hosts(s, d.Index, d.Copy, d.Node) || n != nil && n.heard && n.copies[d.Copy].Compared &&
			n.differing.silent(d.Copy) {
			propose(&statecontext.NoteDifference{Index: d.Index, Copy: d.Copy, Node: d.Node})
		}
	}
	return known
}

// noteWrong proposes to note what differs, and returns for how many there is no room.
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
				out++ // it would be refused: others have to be right first
			default:
				propose(c)
			}
		}
	}
	return out
}

// noted rests before a difference that was refused is proposed again.
func (l *differences) noted(c *statecontext.NoteDifference) outcomeDuty {
	return func(_ statecontext.Result, err error) {
		var rejected *statecontext.Rejection
		if errors.As(err, &rejected) {
			l.refused.again(c.Copy, l.nowMS)
			l.log.Warn("a copy differs from the KV data, and that cannot be noted; it is tried again, ever more rarely", "index",
				c.Index, "copy", c.Copy, "node", c.Node, "error", rejected, "pause_ms", l.refused[c.Copy].pause)
		}
	}
}

func differenceKey(id index.CopyID) string { return fmt.Sprint("difference/", id) }

// hosts reports whether a node has a copy of an index.
func hosts(s *statecontext.State, id index.ID, copy index.CopyID, node index.NodeID) bool {
	x := s.Index(id)
	return x != nil && slices.ContainsFunc(x.Topology.Copies, func(c partition.Copy) bool {
		return c.ID == copy && c.Node == node && c.State != partition.Leaving
	})
}
