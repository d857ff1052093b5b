package indexer

import (
	"cmp"
	"encoding/binary"
	"iter"
	"slices"

	"tidemark/index"
	"tidemark/ingest"
)

// share is which events of a batch concern one copy, so that each copy of a bucket with many slices does not look through the
// events of all. Nil: all of them have to be looked through.
type share struct {
	events   []int32 // numbers of events in their segment, segment by segment
	segments []int32 // those that have any, ascending
	from     []int32 // of these: where its numbers begin
}

// add notes an event of a segment; events come in order.
func (s *share) add(segment, number int32) {
	if n := len(s.segments); n == 0 || s.segments[n-1] != segment {
		s.segments, s.from = append(s.segments, segment), append(s.from, int32(len(s.events)))
	} else if s.events[len(s.events)-1] == number {
		return
	}
	s.events = append(s.events, number)
}

func (s *share) reset() { s.events, s.segments, s.from = s.events[:0], s.segments[:0], s.from[:0] }

// of gives the numbers of the events of a segment that the copy has to look at; all: each of them.
func (s *share) of(segment int) (numbers []int32, all bool) {
	if s == nil {
		return nil, true
	}
	i, found := slices.BinarySearch(s.segments, int32(segment))
	if !found {
		return nil, false
	}
	end := len(s.events)
	if i+1 < len(s.from) {
		end = int(s.from[i+1])
	}
	return s.events[s.from[i]:end], false
}

// count is how many events of a segment of n the copy has to look at.
func (s *share) count(segment, n int) int {
	numbers, all := s.of(segment)
	if all {
		return n
	}
	return len(numbers)
}

// each gives those events of a segment.
func (s *share) each(segment int, events []ingest.Entry) iter.Seq[*ingest.Entry] {
	numbers, all := s.of(segment)
	return func(yield func(*ingest.Entry) bool) {
		for i := range events {
			if !all && i >= len(numbers) {
				return
			}
			e := &events[i]
			if !all {
				e = &events[numbers[i]]
			}
			if !yield(e) {
				return
			}
		}
	}
}

// sums gives how many events of the parts the copy has to look at, and in which vbuckets tombstones stay.
func (s *share) sums(t *ingest.Batch, parts []ingest.Part) (events int, keep map[uint16]bool) {
	keep = map[uint16]bool{}
	for i := range parts {
		p := &parts[i]
		if p.Segment < 0 {
			continue
		}
		events += s.count(p.Segment, len(t.Segments[p.Segment].Events))
		if p.KeepTombstones {
			keep[uint16(p.VBucket)] = true
		}
	}
	return events, keep
}

// parts gives those parts of a copy that may have rows for it, the others only where they have to be written.
func (s *share) parts(t *ingest.Batch, c *ingest.CopyBatch) []ingest.Part {
	if s == nil || c.Common == nil {
		return c.Parts
	}
	some := make([]ingest.Part, 0, len(s.segments))
	for _, n := range s.segments {
		vb := t.Segments[n].VBucket
		i, found := slices.BinarySearchFunc(c.Parts, vb, func(p ingest.Part, vb int) int { return cmp.Compare(p.VBucket, vb) })
		if found {
			some = append(some, c.Parts[i])
		}
	}
	return some
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
		s.shares[i].reset()
		for _, slice := range [...]index.SliceID{c.Slice, index.AllSlices} {
			at := hosted{c.Index, slice}
			s.hosted[at] = append(s.hosted[at], int32(i))
		}
	}
	shares := s.shares[:len(t.Copies)]
	for n := range t.Segments {
		events := t.Segments[n].Events
		for i := range events {
			s.event(shares, events[i].Data, int32(n), int32(i))
		}
	}
	return shares
}

// event adds an event to the shares of the copies that it names.
func (s *spreader) event(shares []share, b []byte, segment, number int32) {
	n, k := binary.Uvarint(b[1:])
	if b[0] == packEverywhere {
		for i := range shares {
			shares[i].add(segment, number)
		}
		return
	}
	for b = b[1+k+int(n):]; len(b) >= statementHead; {
		at := hosted{index.ID(binary.LittleEndian.Uint64(b)), index.SliceID(binary.LittleEndian.Uint16(b[8:]))}
		for _, i := range s.hosted[at] {
			shares[i].add(segment, number)
		}
		b = b[statementHead+int(binary.LittleEndian.Uint32(b[10:])):]
	}
}
