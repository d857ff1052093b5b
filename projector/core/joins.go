package core

import (
	"slices"

	"tidemark/index"
	"tidemark/timestamp"
	"tidemark/wire"
)

// maxJoins is how many joins of a bucket are kept; the oldest are dropped first.
const maxJoins = 16

// Joins tracks the activation timestamps of a bucket's indexes. Indexes that appear in the same revision of the
// definitions join together: per vbucket, one seqno above which all of them are evaluated.
type Joins struct {
	vbuckets int
	indexes  []index.ID // of the newest plan
	all      []join     // oldest first
	newest   uint64     // number of the newest join there was
}

// join is the join of the indexes of one revision. Numbers are assigned by this projector and keep rising across
// epochs.
type join struct {
	number   uint64
	revision uint64
	indexes  []index.ID
	seqnos   []uint64 // by vbucket; timestamp.Infinity if not activated yet
}

// NewJoins returns the Joins of a bucket for which no index is evaluated yet.
func NewJoins(vbuckets int) *Joins { return &Joins{vbuckets: vbuckets} }

// Plan records the indexes that are evaluated from a revision of the definitions on. New indexes form a new join; a
// join none of whose indexes is left is removed. The returned number names this plan for Activate: it is that of the
// newest join so far.
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

// Activate records that a vbucket's stream evaluates everything above seqno by plan number plan. Only the first call
// per join and vbucket counts: a stream that begins again elsewhere does not change where side streams end.
func (j *Joins) Activate(plan uint64, vb uint16, seqno uint64) {
	for i := range j.all {
		if o := &j.all[i]; o.number <= plan && o.seqnos[vb] == timestamp.Infinity {
			o.seqnos[vb] = seqno
		}
	}
}

// Activations returns the joins, oldest first, each with the vbuckets in which it is activated.
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
