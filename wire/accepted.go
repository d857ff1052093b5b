package wire

import (
	"tidemark/index"
	"tidemark/timestamp"
)

// at returns the entry of a row. ok is false if the row is beyond the end of a column.
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

// packAccepted returns the difference between base and now, both ascending by vbucket, in about two bytes for each
// difference. It returns nil if they are equal.
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

// sameColumns reports whether a and b share their memory. Columns that did not change are not copied between reports,
// so that they need no comparison.
func sameColumns(a, b *Accepted) bool {
	if len(a.VBuckets) != len(b.VBuckets) {
		return false
	}
	return len(a.VBuckets) == 0 || &a.VBuckets[0] == &b.VBuckets[0]
}

// unpackAccepted calls each for every difference that packAccepted wrote, ascending by vbucket. s is the zero value
// for a vbucket of which no stream is accepted any more. Errors wrap ErrRows.
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

// acceptedTable stores the accepted streams of one bucket at one indexer in two bytes per vbucket. Most vbuckets
// share a few different streams.
type acceptedTable struct {
	streams []acceptedStream          // open is false in all of them
	numbers map[acceptedStream]uint16 // of streams from index fewStreams on
	at      []uint16                  // by vbucket: 0 for none, else 1 + 2 × the stream's number, plus 1 if it is open
}

// maxTableStreams bounds the different streams in a table, including those that no vbucket uses any more.
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

// fewStreams is how many streams number searches linearly, which is all of them in most tables. The map has the
// others.
const fewStreams = 16

// number returns the number of a stream, of which open must be false.
func (t *acceptedTable) number(s acceptedStream) (number uint16, known bool) {
	for i := range t.streams[:min(len(t.streams), fewStreams)] {
		if t.streams[i] == s {
			return uint16(i), true
		}
	}
	number, known = t.numbers[s]
	return number, known
}

// compact removes the streams that no vbucket uses. At most one stream per vbucket is left.
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

// all returns the table in columns.
func (t *acceptedTable) all() (a Accepted) {
	for v := range t.at {
		if s, ok := t.get(v); ok {
			a.add(uint16(v), s)
		}
	}
	return a
}
