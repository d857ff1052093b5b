package router

import (
	"slices"

	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/partition"
)

// scratch is the working memory for routing one document.
type scratch struct {
	event      keyversion.Event
	slices     []index.SliceID          // per layout
	statements [][]keyversion.Statement // per endpoint
	touched    []uint16                 // endpoints that get an event
	rests      *rests                   // nil: every empty set is a statement of its own
	covered    []int                    // per endpoint: places of its rest that statements cover

	// Of the index being routed by key.
	keyed  []keyed
	sorted [][]byte // its keys by slice; statements refer to parts of it, so it only grows until the event is sent
	stated []int    // per endpoint: slices that have a statement
}

// keyed is a key and its slice.
type keyed struct {
	slice index.SliceID
	key   []byte
}

// route fills in the statements for every endpoint that holds a slice in which the document has, or may have had,
// keys. keys is nil for a deletion. If the view has rests, empty sets become part of the rest instead of statements.
func (s *scratch) route(v *View, docID []byte, keys [][][]byte) {
	for _, e := range s.touched {
		s.statements[e], s.covered[e] = s.statements[e][:0], 0
	}
	s.touched, s.slices, s.sorted = s.touched[:0], s.slices[:0], s.sorted[:0]
	for _, l := range v.layouts {
		s.slices = append(s.slices, l.provider.Slice(partition.KeyVersion{DocID: docID}))
	}
	for len(s.statements) < len(v.endpoints) {
		s.statements = append(s.statements, nil)
		s.stated, s.covered = append(s.stated, 0), append(s.covered, 0)
	}
	if s.rests = v.restsOf(s.slices); s.rests != nil {
		s.touched = append(s.touched, s.rests.touched...)
		if keys == nil {
			return
		}
	}
	for i := range v.sources {
		src := &v.sources[i]
		var set [][]byte
		if keys != nil {
			set = keys[i]
		}
		if len(set) == 0 && s.rests != nil {
			continue
		}
		if src.byKey != nil {
			s.routeByKey(src, docID, set)
			continue
		}
		slice := s.slices[src.layout]
		for _, e := range src.hosts[slice] {
			s.state(e, keyversion.Statement{Index: src.id, Slice: slice, Keys: set})
			s.covered[e]++
		}
	}
}

// rest returns the places of an endpoint's event in which the document has no keys, beside its statements.
func (s *scratch) rest(e uint16) *keyversion.Places {
	if s.rests == nil {
		return nil
	}
	if all := s.rests.of[e]; s.covered[e] < len(all.All()) {
		return all
	}
	return nil
}

func (s *scratch) state(e uint16, st keyversion.Statement) {
	if s.rests == nil && len(s.statements[e]) == 0 {
		s.touched = append(s.touched, e)
	}
	s.statements[e] = append(s.statements[e], st)
}

// routeByKey states the keys of one index to the endpoints that hold their slices, and to every endpoint of the index
// that its other slices have none (RT-10). An older version of the document may lie in any of them: the router does
// not know in which, and KV may have de-duplicated that version. So this statement is never left out.
func (s *scratch) routeByKey(src *source, docID []byte, keys [][]byte) {
	for _, h := range src.at {
		s.stated[h.endpoint] = 0
	}
	switch len(keys) {
	case 0:
	case 1:
		s.stateSlice(src, src.byKey.Slice(partition.KeyVersion{DocID: docID, Key: keys[0]}), keys)
	default:
		s.stateSlices(src, docID, keys)
	}
	for _, h := range src.at {
		switch {
		case s.stated[h.endpoint] == h.slices:
			s.covered[h.endpoint]++
		case s.rests == nil:
			s.state(h.endpoint, keyversion.Statement{Index: src.id, Slice: index.AllSlices})
		}
	}
}

func (s *scratch) stateSlice(src *source, slice index.SliceID, keys [][]byte) {
	for _, e := range src.hosts[slice] {
		s.stated[e]++
		s.state(e, keyversion.Statement{Index: src.id, Slice: slice, Keys: keys})
	}
}

// stateSlices states keys that may lie in several slices.
func (s *scratch) stateSlices(src *source, docID []byte, keys [][]byte) {
	s.keyed = s.keyed[:0]
	together := true
	for _, k := range keys {
		slice := src.byKey.Slice(partition.KeyVersion{DocID: docID, Key: k})
		s.keyed = append(s.keyed, keyed{slice, k})
		together = together && slice == s.keyed[0].slice
	}
	if together {
		s.stateSlice(src, s.keyed[0].slice, keys)
		return
	}
	slices.SortStableFunc(s.keyed, func(a, b keyed) int { return int(a.slice) - int(b.slice) })
	for i := 0; i < len(s.keyed); {
		slice, from := s.keyed[i].slice, len(s.sorted)
		for ; i < len(s.keyed) && s.keyed[i].slice == slice; i++ {
			s.sorted = append(s.sorted, s.keyed[i].key)
		}
		s.stateSlice(src, slice, s.sorted[from:len(s.sorted):len(s.sorted)])
	}
}

// elsewhere reports whether an endpoint's event only states that the document's keys are not there: it is an
// UpsertDeletion then. Its meaning is the same under either kind.
func (s *scratch) elsewhere(e uint16) bool {
	for i := range s.statements[e] {
		if st := &s.statements[e][i]; st.Slice != index.AllSlices {
			return false
		}
	}
	return s.rests == nil || s.rests.keyed[e]
}
