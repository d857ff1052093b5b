package wire

import (
	"tidemark/index"
	"tidemark/timestamp"
)

// at is the entry at a row; false when the columns are cut short there.
func (a *Accepted) at(row int) (s acceptedStream, ok bool) {
	if row >= len(a.VBuckets) || row >= len(a.Incarnations) || row >= len(a.Projectors) || row >= len(a.Open) {
		return s, false
	}
	return acceptedStream{incarnation: a.Incarnations[row], projector: a.Projectors[row], open: a.Open[row]}, true
}

func (a *Accepted) add(v uint16, s acceptedStream) {
	a.VBuckets, a.Incarnations = append(a.VBuckets, v), append(a.Incarnations, s.incarnation)
	a.Projectors, a.Open = append(a.Projectors, s.projector), append(a.Open, s.open)
}

type acceptedStream struct {
	incarnation index.Incarnation
	projector   index.ProjectorID
	open        bool
}

// packAccepted returns how now differs from base, both ascending by vbucket, in about two bytes for each difference;
// nil when it does not.
func packAccepted(base, now *Accepted) []byte {
	if sameColumns(base, now) {
		return nil
	}
	w := rowWriter[acceptedStream]{put: func(dst []byte, s acceptedStream) []byte {
		return appendFlag(appendIncarnation(appendText(dst, string(s.projector)), s.incarnation), s.open)
	}}
	i := 0
	for row, v := range now.VBuckets {
		s, ok := now.at(row)
		if !ok {
			break
		}
		for ; i < len(base.VBuckets) && base.VBuckets[i] < v; i++ {
			w.none(uint64(base.VBuckets[i]))
		}
		if i < len(base.VBuckets) && base.VBuckets[i] == v {
			was, ok := base.at(i)
			i++
			if ok && was == s {
				continue
			}
		}
		w.row(uint64(v), s)
	}
	for ; i < len(base.VBuckets); i++ {
		w.none(uint64(base.VBuckets[i]))
	}
	if w.b == nil {
		return nil
	}
	return w.packed()
}

// sameColumns reports whether both are the same memory: what nobody changed need not be compared.
func sameColumns(a, b *Accepted) bool {
	if len(a.VBuckets) != len(b.VBuckets) {
		return false
	}
	return len(a.VBuckets) == 0 || &a.VBuckets[0] == &b.VBuckets[0]
}

// unpackAccepted returns each difference that packAccepted wrote, ascending; of a vbucket of which nothing is accepted
// any more s is the zero value. Errors wrap ErrRows.
func unpackAccepted(src []byte, each func(v uint16, s acceptedStream)) error {
	t := rowReader[acceptedStream]{keys: timestamp.MaxVBuckets, gone: true, take: func(r *unpacker) acceptedStream {
		return acceptedStream{projector: index.ProjectorID(r.text()), incarnation: r.incarnation(), open: r.flag()}
	}}
	return t.read(src, func(v uint64, s *acceptedStream, _ [2]uint64) error {
		if s == nil {
			s = &acceptedStream{}
		}
		each(uint16(v), *s)
		return nil
	})
}

// acceptedTable keeps the accepted streams of one bucket at one indexer in two bytes for each vbucket: most have one of
// a few streams.
type acceptedTable struct {
	streams []acceptedStream          // open is false in all
	numbers map[acceptedStream]uint16 // of streams from fewStreams on
	at      []uint16                  // by vbucket: 0 none, else 1 + 2 × the stream's number, and 1 more when it is open
}

// maxTableStreams is how many different streams a table may name, those that are gone included.
const maxTableStreams = 1 << 14

func (t *acceptedTable) set(v uint16, s acceptedStream) {
	if int(v) >= len(t.at) {
		t.at = append(t.at, make([]uint16, int(v)+1-len(t.at))...)
	}
	if s == (acceptedStream{}) {
		t.at[v] = 0
		return
	}
	open := uint16(0)
	if s.open {
		open = 1
	}
	s.open = false
	number, known := t.number(s)
	if !known {
		if len(t.streams) >= maxTableStreams {
			t.compact()
		}
		if number = uint16(len(t.streams)); number >= fewStreams {
			if t.numbers == nil {
				t.numbers = map[acceptedStream]uint16{}
			}
			t.numbers[s] = number
		}
		t.streams = append(t.streams, s)
	}
	t.at[v] = 1 + 2*number + open
}

// fewStreams are looked through one by one, which is what most tables have; others are looked up.
const fewStreams = 16

// number finds a stream, of which open is false.
func (t *acceptedTable) number(s acceptedStream) (number uint16, known bool) {
	for i := range t.streams[:min(len(t.streams), fewStreams)] {
		if t.streams[i] == s {
			return uint16(i), true
		}
	}
	number, known = t.numbers[s]
	return number, known
}

// compact forgets streams that no vbucket has; there are not more than vbuckets then.
func (t *acceptedTable) compact() {
	old := *t
	*t = acceptedTable{at: make([]uint16, len(old.at))}
	for v := range old.at {
		if s, ok := old.get(v); ok {
			t.set(uint16(v), s)
		}
	}
}

func (t *acceptedTable) get(v int) (s acceptedStream, ok bool) {
	if v >= len(t.at) || t.at[v] == 0 {
		return s, false
	}
	s = t.streams[(t.at[v]-1)/2]
	s.open = (t.at[v]-1)%2 == 1
	return s, true
}

// all returns the table as columns.
func (t *acceptedTable) all() (a Accepted) {
	for v := range t.at {
		if s, ok := t.get(v); ok {
			a.add(uint16(v), s)
		}
	}
	return a
}
