package wire

import (
	"encoding/binary"
	"errors"
	"fmt"

	"tidemark/index"
	"tidemark/timestamp"
)

// ErrAccepted is wrapped when bytes are no packed changes of accepted streams.
var ErrAccepted = errors.New("packed changes of accepted streams")

const (
	acceptedFormat = 1
	// maxAcceptedKinds bounds the projectors and the incarnations that one message names: each vbucket has one of each.
	maxAcceptedKinds = timestamp.MaxVBuckets
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

// acceptedChanges collects what packAccepted writes.
type acceptedChanges struct {
	projectors   map[index.ProjectorID]uint64
	incarnations map[index.Incarnation]uint64
	names, incs  []byte // the same, as they are written
	rows         []acceptedRow
}

type acceptedRow struct {
	vb                     uint16
	none, open             bool
	projector, incarnation uint64
}

func (c *acceptedChanges) set(v uint16, s acceptedStream) {
	p, known := c.projectors[s.projector]
	if !known {
		p = uint64(len(c.projectors))
		c.projectors[s.projector] = p
		c.names = append(binary.AppendUvarint(c.names, uint64(len(s.projector))), s.projector...)
	}
	i, known := c.incarnations[s.incarnation]
	if !known {
		i = uint64(len(c.incarnations))
		c.incarnations[s.incarnation] = i
		for _, u := range []uint64{s.incarnation.Epoch, s.incarnation.Term, s.incarnation.Counter} {
			c.incs = binary.AppendUvarint(c.incs, u)
		}
	}
	c.rows = append(c.rows, acceptedRow{vb: v, open: s.open, projector: p, incarnation: i})
}

// packAccepted returns how now differs from base, both ascending by vbucket, in about three bytes for each difference;
// nil when it does not.
func packAccepted(base, now *Accepted) []byte {
	if sameColumns(base, now) {
		return nil
	}
	c := acceptedChanges{projectors: map[index.ProjectorID]uint64{}, incarnations: map[index.Incarnation]uint64{}}
	i := 0
	for row, v := range now.VBuckets {
		s, ok := now.at(row)
		if !ok {
			break
		}
		for ; i < len(base.VBuckets) && base.VBuckets[i] < v; i++ {
			c.rows = append(c.rows, acceptedRow{vb: base.VBuckets[i], none: true})
		}
		if i < len(base.VBuckets) && base.VBuckets[i] == v {
			was, ok := base.at(i)
			i++
			if ok && was == s {
				continue
			}
		}
		c.set(v, s)
	}
	for ; i < len(base.VBuckets); i++ {
		c.rows = append(c.rows, acceptedRow{vb: base.VBuckets[i], none: true})
	}
	if len(c.rows) == 0 {
		return nil
	}
	dst := binary.AppendUvarint([]byte{acceptedFormat}, uint64(len(c.projectors)))
	dst = append(dst, c.names...)
	dst = binary.AppendUvarint(dst, uint64(len(c.incarnations)))
	dst = append(dst, c.incs...)
	dst = binary.AppendUvarint(dst, uint64(len(c.rows)))
	last := uint16(0)
	for _, r := range c.rows {
		dst = binary.AppendUvarint(dst, uint64(r.vb-last))
		last = r.vb
		switch ref := r.projector*uint64(len(c.incarnations)) + r.incarnation; {
		case r.none:
			dst = append(dst, 0)
		case r.open:
			dst = binary.AppendUvarint(dst, 2*ref+2)
		default:
			dst = binary.AppendUvarint(dst, 2*ref+1)
		}
	}
	return dst
}

// sameColumns reports whether both are the same memory: what nobody changed need not be compared.
func sameColumns(a, b *Accepted) bool {
	if len(a.VBuckets) != len(b.VBuckets) {
		return false
	}
	return len(a.VBuckets) == 0 || &a.VBuckets[0] == &b.VBuckets[0]
}

// unpackAccepted returns each difference that packAccepted wrote, ascending; a vbucket of which nothing is accepted any
// more has s.projector "" and the zero incarnation. Errors wrap ErrAccepted.
func unpackAccepted(src []byte, each func(v uint16, s acceptedStream)) error {
	r := unpacker{b: src}
	if f := r.byte(); f != acceptedFormat {
		return fmt.Errorf("%w: format %d, want %d", ErrAccepted, f, acceptedFormat)
	}
	kinds, err := r.acceptedKinds()
	if err != nil {
		return err
	}
	rows := r.uvarint()
	if rows > timestamp.MaxVBuckets || rows > uint64(len(r.b)) {
		return fmt.Errorf("%w: %d vbuckets in %d bytes", ErrAccepted, rows, len(r.b))
	}
	v := uint64(0)
	for i := range rows {
		gap, ref := r.uvarint(), r.uvarint()
		v += gap
		if r.bad || gap >= timestamp.MaxVBuckets || v >= timestamp.MaxVBuckets || i > 0 && gap == 0 {
			return fmt.Errorf("%w: vbucket %d after %d others", ErrAccepted, v, i)
		}
		if ref == 0 {
			each(uint16(v), acceptedStream{})
			continue
		}
		s, ok := kinds.stream(ref)
		if !ok {
			return fmt.Errorf("%w: vbucket %d names stream %d of %d", ErrAccepted, v, (ref-1)/2,
				len(kinds.projectors)*len(kinds.incarnations))
		}
		each(uint16(v), s)
	}
	if r.bad || len(r.b) > 0 {
		return fmt.Errorf("%w: cut short or too long", ErrAccepted)
	}
	return nil
}

// acceptedKinds are the projectors and incarnations that the rows refer to: each pair of them has a number.
type acceptedKinds struct {
	projectors   []index.ProjectorID
	incarnations []index.Incarnation
}

func (r *unpacker) acceptedKinds() (k acceptedKinds, err error) {
	n := r.uvarint()
	if n > maxAcceptedKinds || n > uint64(len(r.b)) {
		return k, fmt.Errorf("%w: %d projectors in %d bytes", ErrAccepted, n, len(r.b))
	}
	k.projectors = make([]index.ProjectorID, n)
	for i := range k.projectors {
		k.projectors[i] = index.ProjectorID(r.take(r.uvarint()))
	}
	n = r.uvarint()
	if n > maxAcceptedKinds || n > uint64(len(r.b)) {
		return k, fmt.Errorf("%w: %d incarnations in %d bytes", ErrAccepted, n, len(r.b))
	}
	k.incarnations = make([]index.Incarnation, n)
	for i := range k.incarnations {
		k.incarnations[i] = index.Incarnation{Epoch: r.uvarint(), Term: r.uvarint(), Counter: r.uvarint()}
	}
	return k, nil
}

// stream is the one that a reference, which is not 0, means; false when there is none.
func (k acceptedKinds) stream(ref uint64) (s acceptedStream, ok bool) {
	kind, n := (ref-1)/2, uint64(len(k.incarnations))
	if kind >= uint64(len(k.projectors))*n {
		return s, false
	}
	return acceptedStream{projector: k.projectors[kind/n], incarnation: k.incarnations[kind%n], open: ref%2 == 0}, true
}

// acceptedTable keeps the accepted streams of one bucket at one indexer in two bytes for each vbucket: most have one of
// a few streams.
type acceptedTable struct {
	streams []acceptedStream // open is false in all
	at      []uint16         // by vbucket: 0 none, else 1 + 2 × the stream's number, and 1 more when it is open
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
	number := -1
	for i := range t.streams {
		if t.streams[i] == s {
			number = i
			break
		}
	}
	if number < 0 {
		if len(t.streams) >= maxTableStreams {
			t.compact()
		}
		number = len(t.streams)
		t.streams = append(t.streams, s)
	}
	t.at[v] = 1 + 2*uint16(number) + open
}

// compact forgets streams that no vbucket has; there are not more than vbuckets then.
func (t *acceptedTable) compact() {
	old := *t
	t.streams, t.at = nil, make([]uint16, len(old.at))
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
