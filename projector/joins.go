package projector

import (
	"slices"
	"sync/atomic"

	"tidemark/index"
	"tidemark/timestamp"
	"tidemark/wire"
)

// maxJoins bounds the activation timestamps that are remembered of a bucket, the newest.
const maxJoins = 16

// join is the activation timestamp of the indexes that came with one revision of the definitions: what is evaluated for
// them per vbucket is everything above it.
type join struct {
	revision uint64
	indexes  []index.ID
	seqnos   []atomic.Uint64 // by vbucket; timestamp.Infinity: not yet
}

func newJoin(revision uint64, indexes []index.ID, vbuckets int) *join {
	j := &join{revision: revision, indexes: indexes, seqnos: make([]atomic.Uint64, vbuckets)}
	for v := range j.seqnos {
		j.seqnos[v].Store(timestamp.Infinity)
	}
	return j
}

// joinsOf returns the joins of a plan that follows one with old joins and indexes had: those that came are a new join,
// those that left are named no more.
func joinsOf(old []*join, had []index.ID, now *plan, vbuckets int) []*join {
	var all []*join
	for _, j := range old {
		if slices.ContainsFunc(j.indexes, func(id index.ID) bool { return slices.Contains(now.ids, id) }) {
			all = append(all, j)
		}
	}
	var came []index.ID
	for _, id := range now.ids {
		if !slices.Contains(had, id) {
			came = append(came, id)
		}
	}
	if len(came) > 0 {
		all = append(all, newJoin(now.revision, came, vbuckets))
	}
	return all[max(0, len(all)-maxJoins):]
}

// activate notes that a vbucket's stream evaluates everything above seqno for the plan's indexes. The first time
// counts: a stream that begins again lower or higher changes nothing of where the side streams end.
func (pl *plan) activate(vb uint16, seqno uint64) {
	for _, j := range pl.joins {
		j.seqnos[vb].CompareAndSwap(timestamp.Infinity, seqno)
	}
}

// activations returns what is remembered, newest last.
func (b *bucket) activations() []wire.Activation {
	var all []wire.Activation
	for _, j := range b.plan.Load().joins {
		a := wire.Activation{Revision: j.revision, Indexes: j.indexes, VBuckets: make([]uint16, 0, len(j.seqnos)),
			Seqnos: make([]uint64, 0, len(j.seqnos))}
		for v := range j.seqnos {
			if s := j.seqnos[v].Load(); s != timestamp.Infinity {
				a.VBuckets, a.Seqnos = append(a.VBuckets, uint16(v)), append(a.Seqnos, s)
			}
		}
		all = append(all, a)
	}
	return all
}
