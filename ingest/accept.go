package ingest

import (
	"slices"

	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/timestamp"
)

// Source identifies the connection over which an event arrived. Connection numbers rise with every opened connection
// and are never reused in a run.
type Source struct {
	Projector  index.ProjectorID
	Connection uint64
}

// Verdict is the outcome of an event.
type Verdict uint8

// The verdicts.
const (
	Taken            Verdict = iota // the event counts
	Covered                         // every copy has everything in it already
	StaleIncarnation                // of an older incarnation than one seen, or than the last poll permits
	NotOwner                        // no BEGIN of this connection and incarnation is current
	StaleLog                        // the producer has an older vbucket map and does not know our branch
	Dropped                         // between DropData and BEGIN
	Malformed                       // vbucket out of range, or a field is missing
)

// String returns the name used in metrics and logs.
func (v Verdict) String() string {
	names := [...]string{"taken", "covered", "stale_incarnation", "not_owner", "stale_log", "dropped", "malformed"}
	if int(v) < len(names) {
		return names[v]
	}
	return "verdict"
}

// Accept processes one event of a maintenance stream. The caller may reuse the event afterwards.
func (b *Bucket) Accept(src Source, e *keyversion.Event) Verdict {
	if int(e.VBucket) >= len(b.vbs) {
		return Malformed
	}
	v := &b.vbs[e.VBucket]
	if e.Kind == keyversion.StreamBegin {
		if e.Begin == nil {
			return Malformed
		}
		return b.begin(src, e)
	}
	if verdict := b.admit(v, src, e); verdict != Taken {
		return verdict
	}
	vb := int(e.VBucket)
	switch e.Kind {
	case keyversion.Insert, keyversion.Delete, keyversion.UpsertDeletion:
		return b.data(vb, e)
	case keyversion.Sync, keyversion.DSync:
		v.recv = max(v.recv, e.Seqno)
	case keyversion.Activate:
		b.activateAll(vb, e)
	case keyversion.Deactivate:
		b.deactivateAll(vb, e)
	case keyversion.DropData:
		v.cur.dropping, v.parts = true, parts{}
	case keyversion.StreamEnd:
		v.cur.open, v.parts = false, parts{}
	default:
		return Malformed
	}
	return Taken
}

// admit accepts only events that belong to the current BEGIN.
func (b *Bucket) admit(v *vbucket, src Source, e *keyversion.Event) Verdict {
	switch {
	case e.Incarnation.Compare(v.min) < 0:
		return StaleIncarnation
	case !v.cur.open || e.Incarnation != v.cur.inc:
		return NotOwner
	case src.Connection != v.cur.conn || src.Projector != v.cur.projector:
		return NotOwner
	}
	if v.cur.dropping {
		return Dropped
	}
	return Taken
}

// data queues an event once for the node, unless every copy that the stream feeds has it already. An event that comes
// in parts is queued when its last part arrives (wholeParts).
func (b *Bucket) data(vb int, e *keyversion.Event) Verdict {
	v := &b.vbs[vb]
	if e.More || e.Part > 0 || len(v.parts.entries) > 0 {
		held, broken := v.parts.judge(e)
		switch {
		case broken:
			v.parts, v.cur.open = parts{}, false
			return Malformed
		case held:
			v.parts.hold(e, b.newEntry(e, v.epoch))
			return Taken
		}
	}
	wanted := false
	for _, c := range b.distinct() {
		p := &c.parts[vb]
		if p.sub && e.Seqno > b.received(p, vb) {
			wanted = true
			break
		}
	}
	v.recv = max(v.recv, e.Seqno)
	if !wanted {
		v.parts = parts{}
		return Covered
	}
	if len(v.parts.entries) == 0 {
		b.enqueue(v, b.newEntry(e, v.epoch))
		return Taken
	}
	for _, en := range v.parts.take(b.newEntry(e, v.epoch), v.epoch) {
		b.enqueue(v, en)
	}
	return Taken
}

func (b *Bucket) enqueue(v *vbucket, en Entry) {
	v.queue = append(v.queue, en)
	v.bytes += en.size()
	b.queued += en.size()
}

// begin processes the start, or restart, of a stream.
func (b *Bucket) begin(src Source, e *keyversion.Event) Verdict {
	vb := int(e.VBucket)
	v, g := &b.vbs[vb], e.Begin
	log := g.Log.Clone()
	if verdict := b.admitBegin(src, e, log); verdict != Taken {
		return verdict
	}
	b.foldStream(vb)
	v.min = e.Incarnation
	v.cur = owner{inc: e.Incarnation, projector: src.Projector, conn: src.Connection, open: true}
	if v.log.Newest() != log.Newest() {
		b.dropSide(vb) // it was on another branch; on the same branch it goes on
	}
	top := v.top()
	for _, c := range b.copies {
		b.checkBranch(c, vb, log, top)
	}
	v.log, v.begun, v.purge = log, true, g.Purge
	v.recv, v.activated, v.parts = g.Start, 0, parts{}
	if g.Revision.Compare(v.rev) > 0 {
		v.rev = g.Revision
	}
	b.joinListed(vb, g)
	b.judgeAgain()
	b.blocked.ok = false
	return Taken
}

// admitBegin accepts a BEGIN of the newest incarnation, from its owner, on a branch that has not been left.
func (b *Bucket) admitBegin(src Source, e *keyversion.Event, log timestamp.FailoverLog) Verdict {
	v := &b.vbs[e.VBucket]
	if e.Incarnation.Compare(v.min) < 0 || e.Incarnation.Compare(v.cur.inc) < 0 {
		return StaleIncarnation
	}
	if e.Incarnation == v.cur.inc && (src.Projector != v.cur.projector || src.Connection < v.cur.conn) {
		return NotOwner // it belongs to another projector, or to a later connection of this one
	}
	if b.outdated(int(e.VBucket), log, e.Begin.Revision) {
		return StaleLog
	}
	return Taken
}

// joinListed joins the copies that a BEGIN lists to its stream, and detaches all others. Listed copies that are not
// on this node yet are recorded as awaited.
func (b *Bucket) joinListed(vb int, g *keyversion.Begin) {
	v := &b.vbs[vb]
	v.awaited = nil
	for _, id := range g.Copies {
		if b.find(id) == nil {
			v.awaited = append(v.awaited, id)
		}
	}
	for _, c := range b.copies {
		p := b.part(c, vb)
		if !listed(g.Copies, c.id) {
			if p.rejoin = false; p.sub {
				b.reset(c, vb)
			}
		} else if p.restoring {
			p.rejoin, p.rejoinLow = true, g.Purge
		} else {
			b.join(c, vb, g.Start, g.Purge)
		}
	}
}

// outdated reports whether the current branch of a producer is one that was left according to our log, or whether the
// producer has an older map than one seen and does not know our branch. A producer that knows our branch is no stale
// owner, whatever happened to its map revisions.
func (b *Bucket) outdated(vb int, log timestamp.FailoverLog, rev timestamp.MapRevision) bool {
	v := &b.vbs[vb]
	if v.begun {
		return left(v.log, log) || rev.Compare(v.rev) < 0 && len(v.log) > 0 && log.ValidUpTo(v.log.Newest()) == 0
	}
	for _, c := range b.distinct() {
		if left(c.parts[vb].log, log) {
			return true
		}
	}
	return false
}

// left reports whether the newest branch of log is an older branch in ours.
func left(ours, log timestamp.FailoverLog) bool {
	newest := log.Newest()
	return newest != 0 && ours.Newest() != newest && ours.ValidUpTo(newest) > 0
}

// foldStream adds to the base of each copy what the ending stream has delivered to it.
func (b *Bucket) foldStream(vb int) {
	v := &b.vbs[vb]
	for _, c := range b.distinct() {
		if p := &c.parts[vb]; p.sub {
			p.base = max(p.base, v.recv)
		}
	}
}

// activateAll joins the copies that an ACTIVATE lists at its seqno. Those that are not on this node yet are recorded
// as awaited.
func (b *Bucket) activateAll(vb int, e *keyversion.Event) {
	v := &b.vbs[vb]
	v.activated = max(v.activated, e.Seqno)
	for _, id := range e.Copies {
		if sl := b.find(id); sl != nil {
			b.activate(sl, vb, e.Seqno)
		} else if !listed(v.awaited, id) {
			v.awaited = append(v.awaited, id)
		}
	}
}

// deactivateAll detaches the copies that a DEACTIVATE lists from the stream.
func (b *Bucket) deactivateAll(vb int, e *keyversion.Event) {
	v := &b.vbs[vb]
	for _, id := range e.Copies {
		if sl := b.find(id); sl != nil {
			sl.out = true
			b.reset(sl, vb)
		}
	}
	v.awaited = slices.DeleteFunc(v.awaited, func(id index.CopyID) bool { return listed(e.Copies, id) })
}

// activate joins a copy to the running stream at A, between two mutations.
func (b *Bucket) activate(sl *slice, vb int, a uint64) {
	if sl.parts[vb].sub {
		return
	}
	v, p := &b.vbs[vb], b.part(sl, vb)
	if p.restoring {
		p.rejoin, p.rejoinLow = true, 0
		return
	}
	if b.checkBranch(sl, vb, v.log, 0); p.restoring {
		p.rejoin, p.rejoinLow = true, 0
		return
	}
	b.join(sl, vb, a, 0)
}

// ConnectionLost records that a connection is closed. Until a BEGIN arrives over another one, no events are accepted
// for the vbuckets that it owned. A side stream waits for a BEGIN too: its router keeps what was not acknowledged,
// and resumes there. SideFailed gives it up.
func (b *Bucket) ConnectionLost(conn uint64) {
	for vb := range b.vbs {
		v := &b.vbs[vb]
		if v.cur.conn == conn {
			v.cur.open, v.parts = false, parts{}
		}
		if v.side != nil && v.side.conn == conn && v.side.begun {
			v.side.lost = true
		}
	}
}

// present returns the seqno at which a copy joins that the stream feeds already: the stream delivers everything above
// it.
func (v *vbucket) present() uint64 { return max(v.recv, v.activated) }

// top returns the highest seqno or window end in the queue.
func (v *vbucket) top() uint64 {
	var t uint64
	for i := range v.queue {
		t = max(t, v.queue[i].Seqno, v.queue[i].Window.End)
	}
	return t
}

func listed(ids []index.CopyID, id index.CopyID) bool {
	for _, i := range ids {
		if i == id {
			return true
		}
	}
	return false
}
