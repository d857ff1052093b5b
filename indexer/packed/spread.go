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

// Share holds which events of a batch concern one copy, so that a copy of a bucket with many slices need not search
// the events or statements of others. If nil, all events must be searched.
//
// Events with a statement for the copy are in the share itself; those that concern it only by their Rest are in
// rests, because most copies do not need them: see Whole.
type Share struct {
	events   []int32 // event numbers within their segment, segment by segment
	at       []int32 // parallel to events: place of the copy's statement
	segments []int32 // segments with events, ascending
	from     []int32 // parallel to segments: index of their first event in events
	Stating  int     // number of events that state keys
	rests    []*Share
	all      *Share // result of Whole, kept for reuse
}

// maxShare bounds the events for which a share keeps memory for reuse.
const maxShare = 1 << 16

// everywhere is the place of the statement in an event which states for all copies that they have nothing of the
// document.
const everywhere = 0

// add adds an event of a segment. Events must be added in order. Of several statements for the copy, the first
// counts.
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

// Whole returns the share including the events that concern the copy by their Rest. A statement takes precedence over
// a Rest.
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
		first := 0 // for equal events, the first cursor, which has the statement
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

// shareCursor is a position in a share.
type shareCursor struct {
	of             *Share
	segment, event int
}

func (c shareCursor) before(o shareCursor) bool {
	a, b := c.of.segments[c.segment], o.of.segments[o.segment]
	return a < b || a == b && c.of.events[c.event] < o.of.events[o.event]
}

// next advances; it returns false at the end.
func (c *shareCursor) next() bool {
	c.event++
	if c.segment+1 < len(c.of.from) && c.event == int(c.of.from[c.segment+1]) {
		c.segment++
	}
	return c.event < len(c.of.events)
}

// of returns the numbers of the events of a segment that concern the copy, and the places of its statements. all
// means that every event must be searched.
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

// count returns how many events of a segment with n events the copy has to process.
func (s *Share) count(segment, n int) int {
	numbers, _, all := s.of(segment)
	if all {
		return n
	}
	return len(numbers)
}

// Each returns the events of a segment that concern the copy, with the place of its statement for Unpacker.Update.
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

// Sums returns how many events of the parts the copy has to process, and in which vbuckets it keeps tombstones.
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

// Parts returns the parts of a copy that may have rows for it, or all parts if their positions have to be written.
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

// maxFree bounds the spreaders that are kept: one for each stability timestamp that may be in flight.
const maxFree = 4

// Spreaders holds unused spreaders.
type Spreaders struct {
	mu   sync.Mutex
	free []*Spreader
}

// Take returns a spreader for a batch.
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

// Give returns a spreader for reuse; nil is ignored.
func (p *Spreaders) Give(s *Spreader) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s != nil && len(p.free) < maxFree {
		p.free = append(p.free, s)
	}
}

// Spreader computes the shares of a batch in one pass over its events. Its results are valid until the next batch.
type Spreader struct {
	shares []Share
	hosts  map[index.ID]*hosts
	// guess holds, by number of a statement within its event, the hosts of the index that it was for last; most often
	// that is the same in all events.
	guess []*hosts
	rests map[*keyversion.Places]*Share // the events with each Rest
	last  *keyversion.Places            // the last Rest; of is its share
	of    *Share
	free  []*Share
}

// hosts holds the copies of an index in a batch.
type hosts struct {
	index  index.ID
	slices []index.SliceID
	copies []int32 // their numbers in the batch
}

// Spread returns the share of each copy, or nil if there is only one copy.
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

// restOf returns the share of the events with a Rest, and adds it to the copies that the Rest covers.
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

// concerns adds the events of a Rest to the copies at a place.
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
		if n := len(mine.rests); n == 0 || mine.rests[n-1] != events { // not twice if the list names the place twice
			mine.rests = append(mine.rests, events)
		}
	}
}

// event adds an event to the shares of the copies that it has statements for.
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
		keys := head[statementHead] != 0 // their number is not 0
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

// hostsOf returns the copies of the index that the nth statement of an event is for, or nil.
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
