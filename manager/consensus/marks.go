package consensus

import (
	"encoding/binary"
	"math/rand/v2"

	"github.com/cespare/xxhash/v2"
	"github.com/hashicorp/raft"
)

// mark tells a log up to one of its entries from any other. Index and term do that as long as a term has one leader; if
// managers have forgotten their votes, because they were started on older copies of their folders, a term may have two.
//
// The sum is over the contents of the entry and the sum of the one before it. Sums of one lineage began at the same
// entry, so that they differ only if the logs do. A lineage begins with the first entry of a log, or with a number
// chosen at random where the mark of the entry before is not known: that one was stored by a version without marks, or
// is only in a state snapshot. Marks of two lineages say nothing.
//
// The leader puts the mark into the extensions of each entry, and into its calls that of the entry before them.
type mark struct{ lineage, sum uint64 }

// markBytes is the length of an encoded mark.
const markBytes = 16

// encode returns the mark as it is in extensions, and in calls.
func (m mark) encode() []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, m.lineage), m.sum)
}

// decodeMark returns the mark in b. Its lineage is 0 if there is none.
func decodeMark(b []byte) mark {
	if len(b) != markBytes {
		return mark{}
	}
	return mark{lineage: binary.LittleEndian.Uint64(b), sum: binary.LittleEndian.Uint64(b[8:])}
}

// next returns the mark of an entry that follows the one with mark m; lineage 0: that is not known.
func (m mark) next(l *raft.Log) mark {
	h := xxhash.New()
	_, _ = h.Write(binary.LittleEndian.AppendUint64(nil, m.sum)) // never fails
	_, _ = h.Write(head(l))
	_, _ = h.Write(l.Data)
	own := mark{lineage: m.lineage, sum: h.Sum64()}
	switch {
	case l.Index == 1:
		own.lineage = own.sum | 1 // alike in all logs that begin alike
	case own.lineage == 0:
		own.lineage = rand.Uint64() | 1
	}
	return own
}

// differs reports whether the two are of different logs for certain.
func (m mark) differs(other mark) bool {
	return m.lineage != 0 && m.lineage == other.lineage && m.sum != other.sum
}

// markMagic begins a mark in a leader's call. The call has it in the deprecated field for the leader's address, which
// nobody reads beside the one that has replaced it; earlier versions have the address there.
const markMagic = "TMM1"

// toCall returns the mark as calls carry it.
func (m mark) toCall() []byte { return append([]byte(markMagic), m.encode()...) }

// markInCall returns the mark in that field of a call.
func markInCall(b []byte) mark {
	if len(b) < len(markMagic) || string(b[:len(markMagic)]) != markMagic {
		return mark{}
	}
	return decodeMark(b[len(markMagic):])
}

// markAt returns the mark of the entry of the log at p; its lineage is 0 if that is not known.
func (st *storage) markAt(p position) mark {
	var own raft.Log
	if p.index == 0 || st.logs.GetLog(p.index, &own) != nil || own.Term != p.term {
		return mark{}
	}
	return decodeMark(own.Extensions)
}

// forkedAt reports whether the log with this mark at p is another one than this for certain.
func (st *storage) forkedAt(p position, theirs mark) bool {
	return theirs.lineage != 0 && st.markAt(p).differs(theirs)
}

// tail is the entry at the end of what a recorder has stored.
type tail struct {
	index    uint64 // 0: none is known
	mark     mark
	removals uint64 // of the recorder, before the entry was stored
}

// markBefore returns the mark of the stored entry before an index; its lineage is 0 if that is not known. Nearly always
// that entry is the tail, and need not be read. Once anything has been removed it is read, so that the entries after
// those of a state snapshot get no mark of the log that the snapshot has replaced.
func (r *recorder) markBefore(index uint64) mark {
	if r.last.index == index-1 && r.last.removals == r.removals.Load() {
		return r.last.mark
	}
	var prior raft.Log
	if r.GetLog(index-1, &prior) != nil { // the log begins at the index
		return mark{}
	}
	return decodeMark(prior.Extensions)
}

// stamp gives entries that are about to be stored the marks that they have in this log, unless the leader from which
// they come has given them theirs. It returns the entry that shows that the leader's log is another one than this, nil
// if none does.
func (r *recorder) stamp(logs []*raft.Log) *raft.Log {
	before := r.markBefore(logs[0].Index)
	for _, l := range logs {
		own, theirs := before.next(l), decodeMark(l.Extensions)
		switch {
		case theirs.lineage == 0:
			l.Extensions = own.encode()
		case own.differs(theirs):
			return l
		default:
			own = theirs
		}
		before = own
	}
	return nil
}
