package wire

import (
	"cmp"
	"errors"
	"slices"

	"tidemark/timestamp"
)

// pollKind is the part of a position that many vbuckets share.
type pollKind struct {
	participant bool
	revision    timestamp.MapRevision
	log         string // packed
}

// nothing reports whether a position is equal to one that is left out.
func (p *PollPosition) nothing() bool {
	return !p.Participant && p.Revision == (timestamp.MapRevision{}) && p.HW == 0 && p.Reach == 0 && len(p.Log) == 0
}

// AnswerPoll encodes positions as an answer, one for each vbucket; duplicates are dropped. Positions of vbuckets in
// which the indexer does not participate and of which it has nothing are left out.
func AnswerPoll(all []PollPosition) *PollReply {
	w := rowWriter[pollKind]{put: func(dst []byte, k pollKind) []byte {
		dst = appendNumbers(appendFlag(dst, k.participant), k.revision.Epoch, k.revision.Rev)
		return append(dst, k.log...)
	}}
	var log []byte
	sorted := slices.SortedStableFunc(slices.Values(all), func(a, b PollPosition) int {
		return cmp.Compare(a.VBucket, b.VBucket)
	})
	for i := range sorted {
		p := &sorted[i]
		if p.nothing() || i > 0 && p.VBucket == sorted[i-1].VBucket {
			continue
		}
		log = timestamp.AppendLog(log[:0], p.Log)
		w.row(uint64(p.VBucket), pollKind{p.Participant, p.Revision, string(log)}, p.HW, p.Reach-p.HW)
	}
	return &PollReply{Packed: w.packed()}
}

// Positions decodes the positions of an answer, by vbucket. Their logs may share memory; the caller must not modify
// them. Errors wrap ErrRows.
func (a *PollReply) Positions() (all []PollPosition, err error) {
	t := rowReader[PollPosition]{keys: timestamp.MaxVBuckets, values: 2, take: func(r *unpacker) PollPosition {
		return PollPosition{Participant: r.flag(),
			Revision: timestamp.MapRevision{Epoch: r.uvarint(), Rev: r.uvarint()}, Log: r.log()}
	}}
	err = t.read(a.Packed, func(vb uint64, kind *PollPosition, values [2]uint64) error {
		p := *kind
		p.VBucket, p.HW, p.Reach = uint16(vb), values[0], values[0]+values[1]
		if p.nothing() {
			return errors.New("an empty position")
		}
		all = append(all, p)
		return nil
	})
	return all, err
}

func (r *unpacker) log() timestamp.FailoverLog {
	l, rest, err := timestamp.DecodeLog(r.b)
	r.b, r.bad = rest, r.bad || err != nil
	return l
}
