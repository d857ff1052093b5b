package core

import (
	"slices"

	"tidemark/index"
	"tidemark/timestamp"
	"tidemark/wire"
)

// maxJoins bounds the joins that are remembered of a bucket, the newest.
const maxJoins = 16

// Joins are the activation timestamps of a bucket's indexes. Indexes that came with one revision of the definitions
// join together: what is evaluated for them per vbucket is everything above it.
type Joins struct {
	vbuckets int
	indexes  []index.ID // of the newest plan
	all      []join     // oldest first
	newest   uint64     // number of the newest join there was
}

// join is one of them. Numbers are the projector's own: they rise over epochs.
type join struct {
	number   uint64
	revision uint64
	indexes  []index.ID
	seqnos   []uint64 // by vbucket; timestamp.Infinity: not yet
}

// NewJoins returns those of a bucket of which nothing is evaluated.
func NewJoins(vbuckets int) *Joins { return &Joins{vbuckets: vbuckets} }

// Plan takes over what is to be evaluated from a revision of the definitions on. The indexes that came are a new join;
// a join none of whose indexes is left is forgotten. The number tells Activate which joins there were by this plan.
func (j *Joins) Plan(revision uint64, indexes []index.ID) (number uint64) {
	if slices.Equal(indexes, j.indexes) {
		return j.newest
	}
	are, were := setOf(indexes), setOf(j.indexes)
	j.all = slices.DeleteFunc(j.all, func(o join) bool {
		return !slices.ContainsFunc(o.indexes, func(id index.ID) bool { return are[id] })
	})
	var came []index.ID
	for _, id := range indexes {
		if !were[id] {
			came = append(came, id)
		}
	}
	if len(came) > 0 {
		j.newest++
		j.all = append(j.all, join{number: j.newest, revision: revision, indexes: came,
			seqnos: slices.Repeat([]uint64{timestamp.Infinity}, j.vbuckets)})
		j.all = slices.Delete(j.all, 0, max(0, len(j.all)-maxJoins))
	}
	j.indexes = slices.Clone(indexes)
	return j.newest
}

func setOf(ids []index.ID) map[index.ID]bool {
	set := make(map[index.ID]bool, len(ids))
	for _, id := range ids {
		set[id] = true
	}
	return set
}

// Activate notes that a vbucket's stream evaluates everything above a seqno by the plan of that number. The first time
// counts: a stream that begins again lower or higher changes nothing of where the side streams end.
func (j *Joins) Activate(plan uint64, vb uint16, seqno uint64) {
	for i := range j.all {
		if o := &j.all[i]; o.number <= plan && o.seqnos[vb] == timestamp.Infinity {
			o.seqnos[vb] = seqno
		}
	}
}

// Activations returns what is remembered, newest last: of each join the vbuckets that have a stream.
func (j *Joins) Activations() (all []wire.Activation) {
	for i := range j.all {
		o := &j.all[i]
		a := wire.Activation{Revision: o.revision, Indexes: o.indexes, VBuckets: make([]uint16, 0, j.vbuckets),
			Seqnos: make([]uint64, 0, j.vbuckets)}
		for vb, seqno := range o.seqnos {
			if seqno != timestamp.Infinity {
				a.VBuckets, a.Seqnos = append(a.VBuckets, uint16(vb)), append(a.Seqnos, seqno)
			}
		}
		all = append(all, a)
	}
	return all
}
