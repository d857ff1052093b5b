package stability

import (
	"slices"

	"tidemark/index"
	"tidemark/timestamp"
)

// Participant is the state of an indexer in a bucket's promotion, for status.
type Participant struct {
	Node   index.NodeID
	Acked  uint64 // number of the newest promotion that it has made or skipped
	Behind uint64 // number of promotions that it has not acknowledged
	// SinceMS is when it last made progress, unix milliseconds.
	SinceMS int64
	// Holds is set if the next promotion waits for it.
	Holds bool
	// Ignored is why it is not waited for: rollback (it is in another one), silent, recovering (it does not receive a
	// running stream), dropped (a projector drops a stream's data instead of waiting for it), late (it was one of these,
	// and has not caught up yet) or stalled; "" if it counts.
	Ignored string
}

// Participants returns the indexers that host the bucket, ascending.
func (b *Bucket) Participants(nowMS int64) []Participant {
	held, lagging := b.heldBy(nowMS), b.Lagging(nowMS)
	all := make([]Participant, 0, len(b.nodes))
	for id, p := range b.nodes {
		if !p.report.Active {
			continue
		}
		x := Participant{Node: id, Acked: p.acked, Behind: b.behind(p), SinceMS: p.movedMS, Holds: slices.Contains(held, id)}
		switch {
		case p.report.RollbackID != b.last.RollbackID:
			x.Ignored = "rollback"
		case nowMS-p.seenMS > b.cfg.SilentAfter.Milliseconds():
			x.Ignored = "silent"
		default:
			x.Ignored = b.behindBy(p, &x, lagging)
		}
		all = append(all, x)
	}
	slices.SortFunc(all, func(x, y Participant) int { return int(x.Node) - int(y.Node) })
	return all
}

// behindBy returns why an indexer that reports does not count because it is behind; "" if it counts.
func (b *Bucket) behindBy(p *participant, x *Participant, lagging []index.NodeID) string {
	switch {
	case b.recovers(p) && b.leftOut[x.Node] != nil:
		return "dropped"
	case b.recovers(p):
		return "recovering"
	case p.late && !x.Holds && x.Behind >= uint64(b.cfg.MaxOutstanding):
		return "late"
	case slices.Contains(lagging, x.Node):
		return "stalled"
	}
	return ""
}

// Current returns the newest complete position of every vbucket that may be promoted, 0 if none is known.
func (b *Bucket) Current() timestamp.Vector { return b.cand.Clone() }
