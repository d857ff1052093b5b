package core

import (
	"tidemark/partition"
	"tidemark/rebalance"
	"tidemark/statecontext"
	"tidemark/wire"
)

// stepWeight is what a step counts in a rebalance's progress beside its bytes.
const stepWeight = 1 << 20

const (
	// stepSeconds is what a step takes beside its bytes, until it is known: its copy is made, joins, and is exact at a
	// timestamp.
	stepSeconds = 0.5
	// filesPart is how much of a step is done when its files are here: they are checked, and streams are caught up with.
	filesPart = 0.8
)

// MovedPerSecond is how many bytes of a copy are presumed to be done in a second: sent, and checked.
func MovedPerSecond(s *statecontext.State) int64 {
	if rate := s.Limits().TransferRate; rate > 0 {
		return max(int64(filesPart*float64(rate)), 1)
	}
	return rebalance.DefaultRate
}

// progress weighs what is done against what there is to do.
func (l *moves) progress() (p RebalanceProgress) {
	r := l.now.state.RebalanceUnderWay()
	if r == nil {
		return p
	}
	p.ID, p.Moving = r.ID, map[uint32]uint64{}
	var done, all float64
	var steps []rebalance.Work
	l.watch.Look(r.ID, l.nowMS)
	for y := range l.now.state.RebalanceSteps() {
		w := rebalance.Work{Src: y.Src.Node, Dst: y.Dst.Node, Bytes: float64(y.Bytes), Lost: l.awayFor(y.Src.Node) > 0,
			Begun: y.State != partition.RebalanceStart, Skipped: y.State == partition.RebalanceGivenUp}
		weight := float64(y.Bytes) + stepWeight
		all += weight
		switch n := l.components.indexers[y.Dst.Node]; {
		case y.State == partition.RebalanceDone:
			done += weight
			p.BytesDone += y.Bytes
			w.Part = 1
			l.watch.See(y.Step, &w, true)
		case y.State.Over():
			done += weight
		case w.Begun:
			if n != nil {
				w.Part = filesPart * filled(n.copies[y.New])
			}
			l.watch.See(y.Step, &w, false)
			done += weight * w.Part
			if y.State == partition.RebalanceCatchup {
				p.Moving[y.Step] = uint64(w.Part / filesPart * float64(y.Bytes))
				p.BytesDone += p.Moving[y.Step]
			}
		}
		steps = append(steps, w)
	}
	p.Part = done / max(all, 1)
	p.Left, p.LeftKnown = rebalance.Left(steps, rebalance.Bounds{Sends: int(r.Sends), Receives: int(r.Receives)},
		l.watch.Pace(rebalance.Pace{BytesPerSecond: float64(MovedPerSecond(l.now.state)), Overhead: stepSeconds}))
	return p
}

// filled is how much of a copy is here, 0 to 1: of the files that another indexer sends, or else of what side streams
// are to bring.
func filled(c wire.CopyReport) float64 {
	switch {
	case c.Expected > 0:
		return float64(min(c.Received, c.Expected)) / float64(c.Expected)
	case c.Total > 0:
		return float64(min(c.Done, c.Total)) / float64(c.Total)
	}
	return 0
}
