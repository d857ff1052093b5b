package ingest

import (
	"slices"

	"tidemark/index"
	"tidemark/keyversion"
)

// sideStream is the one side stream of a vbucket: a backfill or a catchup for one or more copies.
type sideStream struct {
	id     uint64
	from   uint64 // seqno after which it was asked to start
	to     uint64 // the highest A of its copies then: what lies above is passed over
	copies []index.CopyID
	conn   uint64
	begun  bool
	purge  uint64 // that its BEGIN told
	lost   bool   // its connection is: it goes on with a BEGIN over another one
	over   bool   // nothing more comes
	ended  bool   // it came to its end, and said how far it read
	taken  uint64 // what TakeSide has given out reaches up to here
	at     uint64 // everything up to here has arrived; never above to (sideEnd)
	read   uint64 // highest end of a window it read from, which may lie beyond to
	queue  []Entry
	parts  parts // of the event that is arriving in parts
	bytes  int
}

// Want is a side stream that copies of this node need: everything in (From, To] of one vbucket.
type Want struct {
	VBucket int
	From    uint64
	VBUUID  uint64 // branch of From
	// Previous is the branch before VBUUID when that one began exactly at From, else 0.
	Previous uint64
	To       uint64 // highest A of the copies
	Branch   uint64 // the newest vbuuid that the producer must have
	Build    bool   // the copies have never been exact: a backfill; else a catchup
	Copies   []index.CopyID
}

// Wants lists the side streams that are needed and not open, by vbucket. Copies that serve scans go first; a copy that
// is being built waits for them.
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

// lacks reports whether something of the copy is to come on a side stream.
func (p *part) lacks() bool { return p.sub && !p.restoring && p.pos.Side < p.pos.A }

// lacking says of which vbuckets some copy lacks something. It is asked many times a second, and most often of none:
// copies that stand together are looked at once, each other one from its first vbucket to its last.
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

// Joining reports whether a copy that lacks something is to be fed by streams that have not begun: it will lack more.
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

// Defer lets no side stream be wanted for a copy as long as it is to be filled in another way: it is removed then, and
// added again with what its store holds.
func (b *Bucket) Defer(id index.CopyID, yes bool) {
	if sl := b.find(id); sl != nil {
		sl.later = yes
	}
}

// Deferred reports whether a copy has been told to want no side streams for now.
func (b *Bucket) Deferred(id index.CopyID) bool {
	sl := b.find(id)
	return sl != nil && sl.later
}

// OpenSide notes that a side stream was asked for under an id that is not used twice in a run.
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

// SideFailed tells that a side stream will bring nothing more: refused, timed out, or broken. What has arrived counts.
func (b *Bucket) SideFailed(vb int, id uint64) {
	if s := b.sideOf(vb, id); s != nil && !s.over {
		s.over = true
		b.abandoned = append(b.abandoned, id)
	}
}

// SideRefused tells that KV answered ROLLBACK to the start of a side stream although its branch is ours: it has purged
// deletions that the copies lack (purgeSide). Their range is deleted; they want it from 0 then.
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

// Retake lets a copy take a vbucket anew: its rows go, and it wants all of it from 0, as after a purge. The other
// copies are not touched. False: it is being put back, or no stream feeds it, so that nothing is done.
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

// dropSide forgets a side stream with all that was not handed out.
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

// leaveSide lets a side stream bring nothing for a copy any more; one that nobody else wants is given up.
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

// Abandoned takes the ids of side streams that are not listened to any more in some vbucket although they may go on.
func (b *Bucket) Abandoned() []uint64 {
	ids := b.abandoned
	b.abandoned = nil
	return ids
}

// SideProgress is how far an open side stream has come.
type SideProgress struct {
	VBucket  int
	ID       uint64
	Begun    bool
	Lost     bool // its connection is; it goes on when the router opens another one
	At, To   uint64
	Finished bool // everything has arrived, or nothing more comes
}

// SideStreams lists the open side streams, by vbucket.
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

// AcceptSide takes one event of a side stream; Incarnation.Counter is the id it was asked for under. The event may be
// reused afterwards.
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

// sideData queues an event of a side stream, if it is between what has arrived and the end that was asked for. One that
// comes in parts is queued with the last of them.
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

// arrived notes how far a side stream has come, and how far it has read.
//
// KV ends a finite stream with the snapshot that its end lies in, so one that was asked for up to `to` may go on for
// thousands of seqnos. What lies above `to` is passed over: the copies get it from the maintenance stream, as it was
// above A of each of them when the side stream was asked for. But A may rise while a side stream runs: to the present,
// where a maintenance stream has passed a copy by (join), or to what it has applied, where the range is deleted
// (dropRange). Then (to, A] comes from neither, and what has arrived must not be told to reach beyond `to`: side stops
// there, stays below A, and the rest is wanted from another side stream. How far was read counts in full, for the
// floor.
func (b *Bucket) arrived(s *sideStream, seqno, windowEnd uint64) {
	s.at, s.read = max(s.at, s.counted(seqno)), max(s.read, seqno, windowEnd)
}

// counted is how much of what a side stream has come to counts (sideEnd).
func (s *sideStream) counted(seqno uint64) uint64 { return min(seqno, s.to) }

// beginSide: the stream starts, or goes on over a new connection. One that has read on beyond its end goes on there:
// nothing that counts is left out then. Before anything else comes, BEGIN may come again and tell a higher purge seqno.
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
		s.over = true // another branch, or a gap: ask again
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

// carries takes over which copies a side stream is for, by its BEGIN: a projector leaves out those whose index it
// cannot evaluate, or that newer definitions do not have, and nothing of them comes. They want another one. False: it
// is for none, and is given up.
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

// TakeSide returns a batch with what side streams have brought: of those that hold at least min bytes or are over, in
// turn, until it has most bytes (0: no bound), cut in the middle of a vbucket where it must. So what is written moves
// forward in small steps while much is arriving, and no batch is longer than one event makes it. nil when there is
// nothing, or Work must be taken first.
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
	b.underWay.add(t)
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

// takeSide gives out what a side stream has brought, at least one event, and no more than most bytes otherwise (0 or
// less: all).
func (b *Bucket) takeSide(t *Batch, vb int, s *sideStream, most int) {
	v := &b.vbs[vb]
	events, bytes := s.head(most)
	// Events come in the order of their seqnos: before one that stays lies nothing else.
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

// sidePart moves a copy forward to where a side stream's batch reaches, and says what the store has to do for it;
// false: nothing. ended: the batch has the stream's end.
func (b *Bucket) sidePart(c *slice, vb int, s *sideStream, at uint64, ended bool) (Part, bool) {
	p := &c.parts[vb]
	// A copy that was put back meanwhile has missed something: it takes nothing. Its position alone does not tell, since
	// side stays below A until the stream has ended, whatever was taken.
	missed := max(p.pos.Side, p.lent) < min(s.taken, p.pos.A)
	if !listed(s.copies, c.id) || !p.lacks() || missed || at <= p.pos.Side {
		return Part{}, false
	}
	p = b.part(c, vb)
	// A deletion of a side stream leaves no tombstone: what comes for the document after it is newer, since the stream
	// is in order and starts again at side, and the maintenance stream's part of the past is newer as a whole.
	pt := Part{VBucket: vb, after: p.pos.Side, upTo: p.pos.A}
	// How far de-duplication may have hidden something is known at the end only: before it, neither A nor the end is
	// reached.
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
