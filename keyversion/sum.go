package keyversion

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/cespare/xxhash/v2"

	"tidemark/index"
)

// Sum is what a side stream had for one slice of an index: how many keys, and their hashes added up, which is the same
// in whatever order they come. The projector sums up what it evaluates, before anything is routed; who receives the
// stream sums up what arrives. Where the two differ, something was lost, doubled or changed between.
type Sum struct {
	Index index.ID
	Slice index.SliceID
	Keys  uint64
	Hash  uint64
}

// Sums are those of a stream, ascending by index and slice, each with a key at least. The zero value is of nothing.
type Sums []Sum

// Add adds a key of a document as of a seqno.
func (s *Sums) Add(id index.ID, slice index.SliceID, docID []byte, seqno uint64, key []byte) {
	i := s.find(id, slice)
	if i == len(*s) || (*s)[i].Index != id || (*s)[i].Slice != slice {
		*s = slices.Insert(*s, i, Sum{Index: id, Slice: slice})
	}
	(*s)[i].Keys++
	(*s)[i].Hash += hashOf(docID, seqno, key)
}

// AddEvent adds what a data event states.
func (s *Sums) AddEvent(ev *Event) {
	for i := range ev.Statements {
		st := &ev.Statements[i]
		for _, key := range st.Keys {
			s.Add(st.Index, st.Slice, ev.DocID, ev.Seqno, key)
		}
	}
}

// Of gives the sum of a slice, with no keys when it has none.
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

// hashOf is one key's part. The product mixes the two hashes, so that keys which two documents exchange leave another
// sum.
func hashOf(docID []byte, seqno uint64, key []byte) uint64 {
	const odd = 0x9e3779b97f4a7c15
	high, low := bits.Mul64(xxhash.Sum64(docID)+seqno*odd|1, xxhash.Sum64(key)^odd)
	return high ^ low
}
