package indexer

import (
	"encoding/binary"

	"tidemark/index"
	"tidemark/ingest"
)

// share is which events of a batch concern one copy, so that each copy of a bucket with many slices does not look through the
// events of all. Nil: all of them have to be looked through.
type share struct {
	events []int32 // numbers of events in their segment, segment by segment
	from   []int32 // by segment: where its numbers begin
}

// count is how many events of a segment of n the copy has to look at, and event the i-th of them.
func (s *share) count(segment, n int) int {
	if s == nil {
		return n
	}
	end := len(s.events)
	if segment+1 < len(s.from) {
		end = int(s.from[segment+1])
	}
	return end - int(s.from[segment])
}

func (s *share) event(segment, i int) int {
	if s == nil {
		return i
	}
	return int(s.events[int(s.from[segment])+i])
}

// spreader makes the shares of a batch in one pass over its events. What it gives is good until the next batch.
type spreader struct {
	shares []share
	hosted map[hosted][]int32 // copies by what a statement names
}

// hosted is a slice of an index, or all of them (index.AllSlices).
type hosted struct {
	index index.ID
	slice index.SliceID
}

// spread gives the share of each copy; nil where there is one copy only.
func (s *spreader) spread(t *ingest.Batch) []share {
	if len(t.Copies) < 2 {
		return nil
	}
	for len(s.shares) < len(t.Copies) {
		s.shares = append(s.shares, share{})
	}
	s.hosted = make(map[hosted][]int32, 2*len(t.Copies))
	for i := range t.Copies {
		c := &t.Copies[i]
		s.shares[i].events, s.shares[i].from = s.shares[i].events[:0], s.shares[i].from[:0]
		for _, slice := range [...]index.SliceID{c.Slice, index.AllSlices} {
			at := hosted{c.Index, slice}
			s.hosted[at] = append(s.hosted[at], int32(i))
		}
	}
	shares := s.shares[:len(t.Copies)]
	for n := range t.Segments {
		for i := range shares {
			shares[i].from = append(shares[i].from, int32(len(shares[i].events)))
		}
		events := t.Segments[n].Events
		for i := range events {
			s.event(shares, events[i].Data, int32(i))
		}
	}
	return shares
}

// event adds an event to the shares of the copies that it names.
func (s *spreader) event(shares []share, b []byte, number int32) {
	n, k := binary.Uvarint(b[1:])
	if b[0] == packEverywhere {
		for i := range shares {
			shares[i].events = append(shares[i].events, number)
		}
		return
	}
	for b = b[1+k+int(n):]; len(b) >= statementHead; {
		at := hosted{index.ID(binary.LittleEndian.Uint64(b)), index.SliceID(binary.LittleEndian.Uint16(b[8:]))}
		for _, i := range s.hosted[at] {
			c := &shares[i]
			if last := len(c.events); last == int(c.from[len(c.from)-1]) || c.events[last-1] != number {
				c.events = append(c.events, number)
			}
		}
		b = b[statementHead+int(binary.LittleEndian.Uint32(b[10:])):]
	}
}
