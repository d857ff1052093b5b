package core

import (
	"tidemark/partition"
	"tidemark/rebalance"
	"tidemark/wire"
)

// stepWeight is what a step counts in a rebalance's progress beside its bytes.
const stepWeight = 1 << 20

const (
	// presumedRate is how many bytes a second come where no rate is set for the cluster.
	presumedRate = 64 << 20
	// stepSeconds is what a step takes beside its bytes: its copy is made, joins, and is exact at a timestamp.
	stepSeconds = 0.5
	// filesPart is how much of a step is done when its files are here: they are checked, and streams are caught up with.
	filesPart = 0.8
)

// progress weighs what is done against what there is to do.
func (l *moves) progress() (p RebalanceProgress) {
	r := l.now.state.RebalanceUnderWay()
	if r == nil {
		return p
	}
	p.ID, p.Moving = r.ID, map[uint32]uint64{}
	var done, all float64
	var steps []rebalance.Work
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
		case y.State.Over():
			done += weight
		case y.State == partition.RebalanceCatchup && n != nil:
			part := l.come.most(r.ID, y.Step, filled(n.copies[y.New]))
			w.Part = filesPart * part
			done += filesPart * weight * part
			p.Moving[y.Step] = uint64(part * float64(y.Bytes))
			p.BytesDone += p.Moving[y.Step]
		}
		steps = append(steps, w)
	}
	p.Part = done / max(all, 1)
	rate := l.now.state.Limits().TransferRate
	if rate == 0 {
		rate = presumedRate
	}
	p.Left, p.LeftKnown = rebalance.Left(steps, rebalance.Bounds{Sends: int(r.Sends), Receives: int(r.Receives)},
		stepSeconds*float64(rate))
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
