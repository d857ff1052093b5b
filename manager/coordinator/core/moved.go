package core

import (
	"tidemark/partition"
	"tidemark/rebalance"
	"tidemark/statecontext"
	"tidemark/wire"
)

// stepWeight is the weight of a step in a rebalance's progress in addition to its bytes.
const stepWeight = 1 << 20

const (
	// stepSeconds is the presumed duration of a step apart from its bytes, until it is measured: the copy is made, joins
	// and becomes exact at a timestamp.
	stepSeconds = 0.5
	// filesPart is the part of a step that is done when its files have arrived: they are checked, and the streams catch
	// up.
	filesPart = 0.8
)

// MovedPerSecond returns the presumed rate at which a copy is sent and checked, in bytes per second.
func MovedPerSecond(s *statecontext.State) int64 {
	if rate := s.Limits().TransferRate; rate > 0 {
		return max(int64(filesPart*float64(rate)), 1)
	}
	return rebalance.DefaultRate
}

// progress computes the progress of the running rebalance.
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

// filled returns how much of a copy has arrived, 0 to 1: of the files sent by another indexer, else of the data of
// side streams.
func filled(c wire.CopyReport) float64 {
	switch {
	case c.Expected > 0:
		return float64(min(c.Received, c.Expected)) / float64(c.Expected)
	case c.Total > 0:
		return float64(min(c.Done, c.Total)) / float64(c.Total)
	}
	return 0
}
