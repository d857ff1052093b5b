package wire

import (
	"cmp"
	"slices"

	"tidemark/timestamp"
)

// pollKind is what positions have in common.
type pollKind struct {
	participant bool
	revision    timestamp.MapRevision
	log         string // packed
}

// AnswerPoll makes the answer with these positions. Those of vbuckets in which the indexer takes no part, and of which
// it knows nothing, are left out.
func AnswerPoll(all []PollPosition) *PollReply {
	w := rowWriter[pollKind]{put: func(dst []byte, k pollKind) []byte {
		dst = appendNumbers(appendFlag(dst, k.participant), k.revision.Epoch, k.revision.Rev)
		return append(dst, k.log...)
	}}
	var log []byte
	for _, p := range slices.SortedStableFunc(slices.Values(all), func(a, b PollPosition) int {
		return cmp.Compare(a.VBucket, b.VBucket)
	}) {
		k := pollKind{participant: p.Participant, revision: p.Revision}
		if k != (pollKind{}) || p.HW != 0 || p.Reach != 0 || len(p.Log) > 0 {
			log = timestamp.AppendLog(log[:0], p.Log)
			k.log = string(log)
			w.row(uint64(p.VBucket), k, p.HW, p.Reach-p.HW)
		}
	}
	return &PollReply{Packed: w.packed()}
}

// Positions returns those of an answer, by vbucket. Their logs may share memory and must not be changed. Errors wrap
// ErrRows.
func (a *PollReply) Positions() (all []PollPosition, err error) {
	t := rowReader[PollPosition]{keys: timestamp.MaxVBuckets, values: 2, take: func(r *unpacker) PollPosition {
		return PollPosition{Participant: r.byte() != 0,
			Revision: timestamp.MapRevision{Epoch: r.uvarint(), Rev: r.uvarint()}, Log: r.log()}
	}}
	err = t.read(a.Packed, func(vb uint64, kind *PollPosition, values [2]uint64) {
		if kind != nil {
			p := *kind
			p.VBucket, p.HW, p.Reach = uint16(vb), values[0], values[0]+values[1]
			all = append(all, p)
		}
	})
	return all, err
}

func (r *unpacker) log() timestamp.FailoverLog {
	l, rest, err := timestamp.DecodeLog(r.b)
	r.b, r.bad = rest, r.bad || err != nil
	return l
}
