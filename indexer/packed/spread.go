package packed

import (
	"cmp"
	"encoding/binary"
	"iter"
	"slices"
	"sync"

	"tidemark/index"
	"tidemark/ingest"
	"tidemark/keyversion"
)

// Share is which events of a batch concern one copy, so that each copy of a bucket with many slices does not look
// through the events of all, nor through the statements of others. Nil: all of them have to be looked through.
//
// Those that name the copy are its own; those that concern it by their Rest only are found by it, since most copies
// need no look at them: see whole.
type Share struct {
	events   []int32 // numbers of events in their segment, segment by segment
	at       []int32 // of each: where in it the copy's statement stands
	segments []int32 // those that have any, ascending
	from     []int32 // of these: where its numbers begin
	Stating  int     // events that state keys
	rests    []*Share
	all      *Share // of whole, kept for the next batch
}

// maxShare is how many events a share keeps room for, for the next batch.
const maxShare = 1 << 16

// everywhere is the place of the statement in an event that states for all copies that they have nothing of the
// document.
const everywhere = 0

// add notes an event of a segment; events come in order. Of several statements for the copy the first counts.
func (s *Share) add(segment, number, at int32, keys bool) {
	if n := len(s.segments); n == 0 || s.segments[n-1] != segment {
		s.segments, s.from = append(s.segments, segment), append(s.from, int32(len(s.events)))
	} else if s.events[len(s.events)-1] == number {
		return
	}
	if keys {
		s.Stating++
	}
	s.events, s.at = append(s.events, number), append(s.at, at)
}

func (s *Share) reset() {
	s.events, s.at, s.segments, s.from, s.Stating = s.events[:0], s.at[:0], s.segments[:0], s.from[:0], 0
	clear(s.rests)
	s.rests = s.rests[:0]
	if cap(s.events) > maxShare {
		s.events, s.at = nil, nil
	}
}

// Whole returns the share with what concerns the copy by Rests. A statement goes before a Rest.
func (s *Share) Whole() *Share {
	if s == nil || len(s.rests) == 0 {
		return s
	}
	if s.all == nil {
		s.all = &Share{}
	}
	s.all.reset()
	cursors := make([]shareCursor, 0, 1+len(s.rests))
	for _, of := range append([]*Share{s}, s.rests...) {
		if len(of.events) > 0 {
			cursors = append(cursors, shareCursor{of: of})
		}
	}
	for len(cursors) > 0 {
		first := 0 // of those that stand at the same event the statement, which is in the first
		for i := 1; i < len(cursors); i++ {
			if cursors[i].before(cursors[first]) {
				first = i
			}
		}
		c := &cursors[first]
		s.all.add(c.of.segments[c.segment], c.of.events[c.event], c.of.at[c.event], false)
		if !c.next() {
			cursors = slices.Delete(cursors, first, first+1)
		}
	}
	s.all.Stating = s.Stating
	return s.all
}

// shareCursor stands at an event of a share.
type shareCursor struct {
	of             *Share
	segment, event int
}

func (c shareCursor) before(o shareCursor) bool {
	a, b := c.of.segments[c.segment], o.of.segments[o.segment]
	return a < b || a == b && c.of.events[c.event] < o.of.events[o.event]
}

// next goes on; false at the end.
func (c *shareCursor) next() bool {
	c.event++
	if c.segment+1 < len(c.of.from) && c.event == int(c.of.from[c.segment+1]) {
		c.segment++
	}
	return c.event < len(c.of.events)
}

// of returns the numbers of the events of a segment that the copy has to look at, and where its statements stand; all:
// each of them.
func (s *Share) of(segment int) (numbers, at []int32, all bool) {
	if s == nil {
		return nil, nil, true
	}
	i, found := slices.BinarySearch(s.segments, int32(segment))
	if !found {
		return nil, nil, false
	}
	end := len(s.events)
	if i+1 < len(s.from) {
		end = int(s.from[i+1])
	}
	return s.events[s.from[i]:end], s.at[s.from[i]:end], false
}

// count is how many events of a segment of n the copy has to look at.
func (s *Share) count(segment, n int) int {
	numbers, _, all := s.of(segment)
	if all {
		return n
	}
	return len(numbers)
}

// Each returns those events of a segment, and what unpacker.update takes for the place of the statement.
func (s *Share) Each(segment int, events []ingest.Entry) iter.Seq2[*ingest.Entry, int] {
	numbers, at, all := s.of(segment)
	return func(yield func(*ingest.Entry, int) bool) {
		if all {
			for i := range events {
				if !yield(&events[i], Unknown) {
					return
				}
			}
			return
		}
		for i, n := range numbers {
			if !yield(&events[n], int(at[i])) {
				return
			}
		}
	}
}

// Sums returns how many events of the parts the copy has to look at, and in which vbuckets tombstones stay.
func (s *Share) Sums(t *ingest.Batch, parts []ingest.Part) (events int, keep map[uint16]bool) {
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

// Parts returns those parts of a copy that may have rows for it, the others only where they have to be written.
func (s *Share) Parts(t *ingest.Batch, c *ingest.CopyBatch) []ingest.Part {
	if s == nil || c.Common == nil {
		return c.Parts
	}
	some := make([]ingest.Part, 0, len(s.segments))
	for _, n := range s.segments {
		vb := t.Segments[n].VBucket
		i, found := slices.BinarySearchFunc(c.Parts, vb, func(p ingest.Part, vb int) int {
			return cmp.Compare(p.VBucket,
				vb)
		})
		if found {
			some = append(some, c.Parts[i])
		}
	}
	return some
}

// maxFree is how many spreaders are kept: one for each stability timestamp that may be under way.
const maxFree = 4

// Spreaders are those that no batch uses.
type Spreaders struct {
	mu   sync.Mutex
	free []*Spreader
}

// Take gives one for a batch.
func (p *Spreaders) Take() *Spreader {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.free)
	if n == 0 {
		return &Spreader{}
	}
	s := p.free[n-1]
	p.free = p.free[:n-1]
	return s
}

// Give keeps one for another batch; nil is none.
func (p *Spreaders) Give(s *Spreader) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s != nil && len(p.free) < maxFree {
		p.free = append(p.free, s)
	}
}

// Spreader makes the shares of a batch in one pass over its events. What it gives is good until the next batch.
type Spreader struct {
	shares []Share
	hosts  map[index.ID]*hosts
	// guess has the hosts of the index that the statement of that number in an event is of: most often it is the same in
	// all.
	guess []*hosts
	rests map[*keyversion.Places]*Share // the events that have it
	last  *keyversion.Places            // and whose share that is
	of    *Share
	free  []*Share
}

// hosts are the copies of an index in a batch.
type hosts struct {
	index  index.ID
	slices []index.SliceID
	copies []int32 // their numbers in the batch
}

// Spread returns the share of each copy; nil where there is one copy only.
func (s *Spreader) Spread(t *ingest.Batch) []Share {
	if len(t.Copies) < 2 {
		return nil
	}
	for len(s.shares) < len(t.Copies) {
		s.shares = append(s.shares, Share{})
	}
	s.hosts, s.guess = make(map[index.ID]*hosts, len(t.Copies)), s.guess[:0]
	for i := range t.Copies {
		c := &t.Copies[i]
		s.shares[i].reset()
		h := s.hosts[c.Index]
		if h == nil {
			h = &hosts{index: c.Index}
			s.hosts[c.Index] = h
		}
		h.slices, h.copies = append(h.slices, c.Slice), append(h.copies, int32(i))
	}
	shares := s.shares[:len(t.Copies)]
	for _, r := range s.rests {
		s.free = append(s.free, r)
	}
	clear(s.rests)
	s.last, s.of = nil, nil
	for n := range t.Segments {
		events := t.Segments[n].Events
		for i := range events {
			s.event(shares, events[i].Data, int32(n), int32(i))
			if rest := events[i].Rest; rest != nil {
				s.restOf(shares, rest).add(int32(n), int32(i), inRest, false)
			}
		}
	}
	return shares
}

// restOf returns the events that have a Rest, and lets the copies that it covers know them.
func (s *Spreader) restOf(shares []Share, rest *keyversion.Places) *Share {
	if rest == s.last {
		return s.of
	}
	r := s.rests[rest]
	if r == nil {
		if n := len(s.free); n > 0 {
			r, s.free = s.free[n-1], s.free[:n-1]
			r.reset()
		} else {
			r = &Share{}
		}
		if s.rests == nil {
			s.rests = make(map[*keyversion.Places]*Share)
		}
		s.rests[rest] = r
		for _, at := range rest.All() {
			s.concerns(shares, at, r)
		}
	}
	s.last, s.of = rest, r
	return r
}

// concerns adds events to what the copies at a place know of Rests.
func (s *Spreader) concerns(shares []Share, at keyversion.Place, events *Share) {
	h := s.hosts[at.Index]
	if h == nil {
		return
	}
	for i, hosted := range h.slices {
		if at.Slice != hosted && at.Slice != index.AllSlices {
			continue
		}
		mine := &shares[h.copies[i]]
		if n := len(mine.rests); n == 0 || mine.rests[n-1] != events { // the last ones, where a list names it twice
			mine.rests = append(mine.rests, events)
		}
	}
}

// event adds an event to the shares of the copies that it names.
func (s *Spreader) event(shares []Share, b []byte, segment, number int32) {
	if b[0] == packEverywhere {
		for i := range shares {
			shares[i].add(segment, number, everywhere, false)
		}
		return
	}
	n, k := binary.Uvarint(b[1:])
	at := 1 + k + int(n)
	for nth := 0; len(b)-at >= statementHead; nth++ {
		head := b[at:]
		no := index.SliceID(binary.LittleEndian.Uint16(head[8:]))
		keys := head[statementHead] != 0 // their number
		if h := s.hostsOf(nth, index.ID(binary.LittleEndian.Uint64(head))); h != nil {
			for i, hosted := range h.slices {
				if no == hosted || no == index.AllSlices {
					shares[h.copies[i]].add(segment, number, int32(at), keys)
				}
			}
		}
		at += statementHead + int(binary.LittleEndian.Uint32(head[10:]))
	}
}

// hostsOf returns the copies of the index that the nth statement of an event is of, nil when there are none.
func (s *Spreader) hostsOf(nth int, id index.ID) *hosts {
	if nth < len(s.guess) && s.guess[nth] != nil && s.guess[nth].index == id {
		return s.guess[nth]
	}
	h := s.hosts[id]
	for nth >= len(s.guess) {
		s.guess = append(s.guess, nil)
	}
	s.guess[nth] = h
	return h
}
