package keyversion

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/cespare/xxhash/v2"

	"tidemark/index"
)

// Sum is the number of keys that a side stream has for one slice of an index, and the sum of their hashes, which does
// not depend on their order. The projector computes it from what it evaluates, before routing; the receiver of the
// stream computes it from what arrives. If the two differ, keys were lost, duplicated or modified on the way.
type Sum struct {
	Index index.ID
	Slice index.SliceID
	Keys  uint64
	Hash  uint64
}

// Sums are the sums of a stream, ascending by index and slice, each with at least one key. The zero value is empty.
type Sums []Sum

// Add adds a key of a document with its seqno.
func (s *Sums) Add(id index.ID, slice index.SliceID, docID []byte, seqno uint64, key []byte) {
	i := s.find(id, slice)
	if i == len(*s) || (*s)[i].Index != id || (*s)[i].Slice != slice {
		*s = slices.Insert(*s, i, Sum{Index: id, Slice: slice})
	}
	(*s)[i].Keys++
	(*s)[i].Hash += hashOf(docID, seqno, key)
}

// AddEvent adds the keys of a data event.
func (s *Sums) AddEvent(ev *Event) {
	for i := range ev.Statements {
		st := &ev.Statements[i]
		for _, key := range st.Keys {
			s.Add(st.Index, st.Slice, ev.DocID, ev.Seqno, key)
		}
	}
}

// Of returns the sum of a slice; it has 0 keys if there is none.
func (s Sums) Of(id index.ID, slice index.SliceID) Sum {
	if i := s.find(id, slice); i < len(s) && s[i].Index == id && s[i].Slice == slice {
		return s[i]
	}
	return Sum{Index: id, Slice: slice}
}

func (s Sums) find(id index.ID, slice index.SliceID) int {
	i, _ := slices.BinarySearchFunc(s, Sum{Index: id, Slice: slice}, func(a, b Sum) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.Slice, b.Slice))
	})
	return i
}

// hashOf returns the summand of one key. The product mixes the two hashes, so that the sum changes if two documents
// swap their keys.
func hashOf(docID []byte, seqno uint64, key []byte) uint64 {
	const odd = 0x9e3779b97f4a7c15
	high, low := bits.Mul64(xxhash.Sum64(docID)+seqno*odd|1, xxhash.Sum64(key)^odd)
	return high ^ low
}
