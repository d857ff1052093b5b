package ingest

import (
	"slices"

	"tidemark/index"
	"tidemark/keyversion"
)

// sideStream is the side stream of a vbucket: a backfill or a catchup for one or more copies. There is at most one.
type sideStream struct {
	id     uint64
	from   uint64 // seqno after which it was requested to start
	to     uint64 // highest A of its copies at that time: events above it are skipped
	copies []index.CopyID
	conn   uint64
	begun  bool
	purge  uint64 // from its BEGIN
	lost   bool   // its connection is lost: it resumes with a BEGIN over another one
	over   bool   // nothing more comes
	ended  bool   // it reached its end, and reported how far it read
	taken  uint64 // TakeSide has handed out everything up to here
	at     uint64 // everything up to here has arrived; never above to (sideEnd)
	read   uint64 // highest end of a window from which it read, which may lie beyond to
	queue  []Entry
	parts  parts // of an event of which some parts have arrived
	bytes  int
}

// Want is a side stream that copies of this node need: everything in (From, To] of one vbucket.
type Want struct {
	VBucket int
	From    uint64
	VBUUID  uint64 // branch of From
	// Previous is the branch before VBUUID if VBUUID began exactly at From, else 0.
	Previous uint64
	To       uint64 // highest A of the copies
	Branch   uint64 // newest vbuuid that the producer must have
	Build    bool   // the copies have never been exact: a backfill; else a catchup
	Copies   []index.CopyID
}

// Wants returns the side streams that are needed and not open, by vbucket. Copies that serve scans come first; a copy
// that is being built waits for them.
func (b *Bucket) Wants() []Want {
	var ws []Want
	for vb, lacks := range b.lacking() {
		if v := &b.vbs[vb]; !lacks || v.side != nil || !v.begun {
			continue
		}
		if w, ok := b.want(vb); ok {
			ws = append(ws, w)
		}
	}
	return ws
}

// lacks reports whether the copy needs a side stream.
func (p *part) lacks() bool { return p.sub && !p.restoring && p.pos.Side < p.pos.A }

// lacking returns, by vbucket, whether some copy lacks something. It is called many times a second, and most often
// nothing is lacking: sharing copies are examined once, each other one from its first vbucket to its last.
func (b *Bucket) lacking() []bool {
	if b.lack == nil {
		b.lack = make([]bool, len(b.vbs))
	}
	clear(b.lack)
	for _, c := range b.distinct() {
		for vb := range c.parts {
			if c.parts[vb].lacks() {
				b.lack[vb] = true
			}
		}
	}
	return b.lack
}

// Joining reports whether a copy that lacks something will be fed by streams that have not begun: it will lack more
// then.
func (b *Bucket) Joining() bool {
	for _, c := range b.distinct() {
		lacks, joins := false, false
		for vb := range c.parts {
			p := &c.parts[vb]
			lacks, joins = lacks || p.lacks(), joins || !p.sub
			if lacks && joins {
				return true
			}
		}
	}
	return false
}

func (b *Bucket) want(vb int) (Want, bool) {
	v := &b.vbs[vb]
	w := Want{VBucket: vb, Branch: v.log.Newest(), Build: true}
	for _, c := range b.copies {
		p := &c.parts[vb]
		if c.later || !p.lacks() || w.To > 0 && !w.Build && !c.ready {
			continue
		}
		if w.To == 0 || w.Build && c.ready {
			w.From, w.To, w.Copies, w.Build = p.pos.Side, p.pos.A, w.Copies[:0], !c.ready
		}
		w.From, w.To = min(w.From, p.pos.Side), max(w.To, p.pos.A)
		w.Copies = append(w.Copies, c.id)
	}
	w.VBUUID = v.log.Covering(w.From)
	w.Previous, _ = v.log.Previous(w.From)
	return w, len(w.Copies) > 0
}

// Defer suspends side streams for a copy while it is to be filled in another way. Afterwards it is removed, and added
// again with what its store holds.
func (b *Bucket) Defer(id index.CopyID, yes bool) {
	if sl := b.find(id); sl != nil {
		sl.later = yes
	}
}

// Deferred reports whether side streams are suspended for a copy.
func (b *Bucket) Deferred(id index.CopyID) bool {
	sl := b.find(id)
	return sl != nil && sl.later
}

// OpenSide records that a side stream was requested under an id, which must be unique in a run.
func (b *Bucket) OpenSide(w Want, id uint64) {
	if v := &b.vbs[w.VBucket]; v.side == nil {
		v.side = &sideStream{id: id, from: w.From, to: w.To, copies: w.Copies, taken: w.From, at: w.From}
		for _, c := range b.copies {
			if c.parts[w.VBucket].lent != 0 {
				b.part(c, w.VBucket).lent = 0
			}
		}
	}
}

// SideFailed records that a side stream will deliver nothing more: refused, timed out, or broken. What has arrived
// counts.
func (b *Bucket) SideFailed(vb int, id uint64) {
	if s := b.sideOf(vb, id); s != nil && !s.over {
		s.over = true
		b.abandoned = append(b.abandoned, id)
	}
}

// SideRefused records that KV answered ROLLBACK to the start of a side stream although its branch is ours: KV has
// purged deletions that the copies lack (purgeSide). Their range is deleted, and they want it from 0 then.
func (b *Bucket) SideRefused(vb int, id uint64, purge uint64) {
	s := b.sideOf(vb, id)
	if s == nil {
		return
	}
	b.dropSide(vb)
	for _, c := range b.copies {
		p := &c.parts[vb]
		if listed(s.copies, c.id) && p.pos.Side < p.pos.A && p.pos.Side > 0 && (p.pos.Side <= s.from || p.pos.Side < purge) {
			b.dropRange(c, vb)
		}
	}
}

// Retake makes a copy read a vbucket again: its rows are deleted, and it wants all of it from 0, as after a purge.
// The other copies are not affected. It returns false, and does nothing, if the vbucket is being restored or no
// stream feeds it.
func (b *Bucket) Retake(id index.CopyID, vb int) bool {
	sl := b.find(id)
	if sl == nil || vb < 0 || vb >= len(b.vbs) || sl.parts[vb].restoring || !sl.parts[vb].sub {
		return false
	}
	b.dropRange(sl, vb)
	b.blocked.ok = false
	return true
}

func (b *Bucket) sideOf(vb int, id uint64) *sideStream {
	if vb < 0 || vb >= len(b.vbs) {
		return nil
	}
	if s := b.vbs[vb].side; s != nil && s.id == id {
		return s
	}
	return nil
}

// dropSide drops a side stream with everything that was not handed out.
func (b *Bucket) dropSide(vb int) {
	v := &b.vbs[vb]
	if s := v.side; s != nil {
		b.sideHeld -= s.bytes
		v.side = nil
		if !s.over {
			b.abandoned = append(b.abandoned, s.id)
		}
	}
}

// leaveSide removes a copy from a side stream. A stream without copies is dropped.
func (b *Bucket) leaveSide(vb int, id index.CopyID) {
	s := b.vbs[vb].side
	if s == nil || !listed(s.copies, id) {
		return
	}
	s.copies = slices.DeleteFunc(slices.Clone(s.copies), func(c index.CopyID) bool { return c == id })
	if len(s.copies) == 0 {
		b.dropSide(vb)
	}
}

// Abandoned returns, once, the ids of side streams that are ignored in some vbucket although they may still run.
func (b *Bucket) Abandoned() []uint64 {
	ids := b.abandoned
	b.abandoned = nil
	return ids
}

// SideProgress is the progress of an open side stream.
type SideProgress struct {
	VBucket  int
	ID       uint64
	Begun    bool
	Lost     bool // its connection is lost; it resumes when the router opens another one
	At, To   uint64
	Finished bool // everything has arrived, or nothing more will
}

// SideStreams returns the open side streams, by vbucket.
func (b *Bucket) SideStreams() []SideProgress {
	var all []SideProgress
	for vb := range b.vbs {
		if s := b.vbs[vb].side; s != nil {
			all = append(all, SideProgress{VBucket: vb, ID: s.id, Begun: s.begun, Lost: s.lost, At: s.at, To: s.to,
				Finished: s.over})
		}
	}
	return all
}

// AcceptSide processes one event of a side stream. Incarnation.Counter is the id under which it was requested. The
// caller may reuse the event afterwards.
func (b *Bucket) AcceptSide(src Source, e *keyversion.Event) Verdict {
	if int(e.VBucket) >= len(b.vbs) {
		return Malformed
	}
	s := b.sideOf(int(e.VBucket), e.Incarnation.Counter)
	if s == nil || s.over {
		return NotOwner
	}
	if e.Kind == keyversion.StreamBegin {
		return b.beginSide(src, e, s)
	}
	if !s.begun || s.lost || s.conn != src.Connection {
		return NotOwner
	}
	switch e.Kind {
	case keyversion.Insert, keyversion.Delete, keyversion.UpsertDeletion:
		return b.sideData(s, e)
	case keyversion.Sync, keyversion.DSync:
		b.arrived(s, e.Seqno, 0)
	case keyversion.StreamEnd:
		b.arrived(s, e.Seqno, e.Window.End)
		s.over, s.ended = true, true
	case keyversion.DropData:
		s.over = true
	default:
		return Malformed
	}
	return Taken
}

// sideData queues an event of a side stream if it is between what has arrived and the requested end. An event that
// comes in parts is queued when its last part arrives.
func (b *Bucket) sideData(s *sideStream, e *keyversion.Event) Verdict {
	if e.Seqno <= s.at {
		return Covered
	}
	if e.Seqno > s.to {
		b.arrived(s, e.Seqno, e.Window.End)
		return Covered
	}
	if held, broken := s.parts.judge(e); broken {
		b.SideFailed(int(e.VBucket), s.id)
		return Malformed
	} else if held {
		s.parts.hold(e, b.newEntry(e, 0))
		return Taken
	}
	b.arrived(s, e.Seqno, e.Window.End)
	for _, en := range s.parts.take(b.newEntry(e, 0), 0) {
		s.queue = append(s.queue, en)
		s.bytes += en.size()
		b.sideHeld += en.size()
	}
	return Taken
}

// arrived records how far a side stream has come, and how far it has read.
//
// KV ends a finite stream with the snapshot that contains its end, so a stream requested up to `to` may go on for
// thousands of seqnos. Events above `to` are skipped: the copies get them from the maintenance stream, because A of
// each of them was at or below `to` when the side stream was requested. But A may rise while a side stream runs: to
// the current position, if a maintenance stream has passed a copy by (join), or to what it has applied, if the range
// is deleted (dropRange). Then (to, A] comes on neither stream, and what has arrived must not be recorded beyond
// `to`: side stops there, stays below A, and another side stream is wanted for the rest. How far was read counts in
// full, for the floor.
func (b *Bucket) arrived(s *sideStream, seqno, windowEnd uint64) {
	s.at, s.read = max(s.at, s.counted(seqno)), max(s.read, seqno, windowEnd)
}

// counted returns the part of a side stream's progress that counts (sideEnd).
func (s *sideStream) counted(seqno uint64) uint64 { return min(seqno, s.to) }

// beginSide processes the start of the stream, or its resumption over a new connection. A stream that has read beyond
// its end resumes there: nothing that counts is left out then. Before any other event, BEGIN may be repeated with a
// higher purge seqno.
func (b *Bucket) beginSide(src Source, e *keyversion.Event, s *sideStream) Verdict {
	vb := int(e.VBucket)
	v, g := &b.vbs[vb], e.Begin
	if g == nil {
		return Malformed
	}
	if s.begun && src.Connection < s.conn {
		return NotOwner
	}
	start := s.counted(g.Start)
	if g.Log.Newest() != v.log.Newest() || start > s.at {
		s.over = true // another branch, or a gap: it has to be requested again
		b.abandoned = append(b.abandoned, s.id)
		return StaleLog
	}
	if !b.carries(vb, s, g.Copies) {
		return NotOwner
	}
	first := !s.begun
	s.begun, s.lost, s.conn, s.parts = true, false, src.Connection, parts{}
	if first {
		s.at, s.taken = start, min(s.taken, start)
	} else if g.Purge <= s.purge {
		return Taken
	}
	s.purge = g.Purge
	if g.Start >= g.Purge {
		return Taken
	}
	for _, c := range b.copies {
		p := &c.parts[vb]
		if listed(s.copies, c.id) && p.pos.Side < p.pos.A && p.pos.Side < g.Purge && p.pos.Content() > 0 {
			b.dropRange(c, vb)
		}
	}
	return Taken
}

// carries restricts a side stream to the copies that its BEGIN lists: a projector leaves out those whose index it
// cannot evaluate, or that newer definitions do not have, and sends nothing for them. They want another stream. It
// returns false if no copy is left, and the stream is dropped.
func (b *Bucket) carries(vb int, s *sideStream, ids []index.CopyID) bool {
	left := func(c index.CopyID) bool {
		_, named := slices.BinarySearch(ids, c)
		return !named
	}
	if !slices.ContainsFunc(s.copies, left) {
		return true
	}
	s.copies = slices.DeleteFunc(slices.Clone(s.copies), left)
	if len(s.copies) == 0 {
		b.dropSide(vb)
		return false
	}
	return true
}

// TakeSide returns a batch with what side streams have delivered: of those that hold at least min bytes or are over,
// in rotation, until it has most bytes (0: no limit), cut in the middle of a vbucket if necessary. So writes advance
// in small steps while much is arriving, and a batch exceeds the limit by one event at most. It returns nil if there
// is nothing, or if Work must be taken first.
func (b *Bucket) TakeSide(min, most int) *Batch {
	if len(b.work) > 0 || !b.sideOpen() {
		return nil
	}
	t := &Batch{Kind: FromSide, Copies: make([]CopyBatch, len(b.copies))}
	for i, c := range b.copies {
		t.Copies[i] = CopyBatch{ID: c.id, Index: c.index, Slice: c.no, Ready: c.ready}
	}
	first := b.nextSide
	if most == 0 {
		first = 0
	}
	for i := range b.vbs {
		vb := (first + i) % len(b.vbs)
		if s := b.vbs[vb].side; s != nil && (s.over || s.bytes > 0 && s.bytes >= min) {
			b.takeSide(t, vb, s, most-t.bytes)
		}
		if b.nextSide = vb + 1; most > 0 && t.bytes >= most {
			break
		}
	}
	t.Copies = slices.DeleteFunc(t.Copies, func(c CopyBatch) bool { return len(c.Parts) == 0 })
	if len(t.Copies) == 0 {
		return nil
	}
	b.inFlight.add(t)
	b.blocked.ok = false
	return t
}

// sideOpen reports whether there is any side stream.
func (b *Bucket) sideOpen() bool {
	for vb := range b.vbs {
		if b.vbs[vb].side != nil {
			return true
		}
	}
	return false
}

// takeSide hands out what a side stream has delivered: at least one event, otherwise at most most bytes (0 or less:
// everything).
func (b *Bucket) takeSide(t *Batch, vb int, s *sideStream, most int) {
	v := &b.vbs[vb]
	events, bytes := s.head(most)
	// Events come in the order of their seqnos: nothing else precedes one that stays.
	at, all := s.at, len(events) == len(s.queue)
	if !all {
		at = s.queue[len(events)].Seqno - 1
	}
	taken := -1
	if len(events) > 0 {
		taken = len(t.Segments)
		t.Segments = append(t.Segments, Segment{VBucket: vb, Events: events})
	}
	for i, c := range b.copies {
		if pt, ok := b.sidePart(c, vb, s, at, all && s.ended); ok {
			pt.Segment = taken
			t.Copies[i].Parts = append(t.Copies[i].Parts, pt)
		}
	}
	t.bytes += bytes
	b.sideHeld -= bytes
	s.queue, s.bytes, s.taken = behind(s.queue, len(events)), s.bytes-bytes, at
	if all && s.over {
		v.side = nil
	}
}

// head returns the first events, up to most bytes but at least one with all its parts, and their size.
func (s *sideStream) head(most int) (events []Entry, bytes int) {
	if most <= 0 || s.bytes <= most {
		return s.queue, s.bytes
	}
	n := 0
	for n < len(s.queue) && (n == 0 || bytes+s.queue[n].size() <= most || s.queue[n].Seqno == s.queue[n-1].Seqno) {
		bytes += s.queue[n].size()
		n++
	}
	return s.queue[:n:n], bytes
}

// sidePart advances a copy to the end of a side stream's batch, and returns the task of the store for it. ok is false
// if there is none. ended is set if the batch includes the end of the stream.
func (b *Bucket) sidePart(c *slice, vb int, s *sideStream, at uint64, ended bool) (Part, bool) {
	p := &c.parts[vb]
	// A copy that was restored meanwhile has missed something: it takes nothing. Its position alone does not show that,
	// since side stays below A until the stream has ended, whatever was taken.
	missed := max(p.pos.Side, p.lent) < min(s.taken, p.pos.A)
	if !listed(s.copies, c.id) || !p.lacks() || missed || at <= p.pos.Side {
		return Part{}, false
	}
	p = b.part(c, vb)
	// A deletion on a side stream leaves no tombstone. What arrives later for the document is newer: the side stream is
	// in order and resumes at side, and what the maintenance stream has delivered is newer as a whole.
	pt := Part{VBucket: vb, after: p.pos.Side, upTo: p.pos.A}
	// The effect of de-duplication is known only at the end of the stream: until then, neither A nor the end is reached.
	was := p.pos.Side
	p.pos.Side = min(at, p.pos.A)
	p.lent = p.pos.Side
	if !ended && p.pos.Side == min(s.to, p.pos.A) {
		p.pos.Side--
	}
	p.pos.Floor = max(p.pos.Floor, s.read)
	if p.pos.Side == p.pos.A {
		p.pos.Floor = max(p.pos.Floor, p.pos.A)
	}
	if p.pos.WindowEnd = unsure; ended {
		p.solid, p.pos.WindowEnd = p.pos.Side, p.reach()
	}
	p.taken += p.pos.Side - was
	p.pos.VBUUID = p.log.Newest()
	c.exact = false
	pt.Position, pt.Log = p.pos, p.newLog()
	return pt, true
}
