package ingest

import (
	"tidemark/index"
	"tidemark/timestamp"
)

// Progress is how far the node is in one vbucket (IM-21). Participant is false where nothing feeds it: it recovers by
// the gap rule.
type Progress struct {
	VBucket     int
	Participant bool
	HW          uint64 // smallest position of its copies, queue included
	Reach       uint64 // highest seqno, window end or floor that they may reflect
	Log         timestamp.FailoverLog
	Revision    timestamp.MapRevision
}

// Poll refuses incarnations below inc for the vbuckets from now on (fencePoll) and says how far the node is (IM-21). A
// vbucket without a copy that a stream feeds takes no part: it recovers by the gap rule.
func (b *Bucket) Poll(vbuckets []uint16, inc index.Incarnation) []Progress {
	out := make([]Progress, 0, len(vbuckets))
	for _, n := range vbuckets {
		if int(n) >= len(b.vbs) {
			continue
		}
		if v := &b.vbs[n]; inc.Compare(v.min) > 0 {
			v.min = inc
		}
		pp := b.position(int(n))
		if pp.Participant {
			pp.Reach = max(pp.Reach, b.vbs[n].top())
		}
		out = append(out, pp)
	}
	return out
}

func (b *Bucket) position(vb int) Progress {
	v := &b.vbs[vb]
	pp := Progress{VBucket: vb, Log: v.log, Revision: v.rev}
	for _, c := range b.distinct() {
		p := &c.parts[vb]
		if !p.sub {
			continue
		}
		if r := b.received(p, vb); !pp.Participant || r < pp.HW {
			pp.HW = r
		}
		pp.Participant = true
		pp.Reach = max(pp.Reach, p.pos.Main, p.pos.Side, p.pos.Floor)
	}
	pp.Reach = max(pp.Reach, pp.HW)
	return pp
}

// HW gives, per vbucket, the smallest position of the copies that streams feed, queue included; where none is fed, what
// the copies hold.
func (b *Bucket) HW() timestamp.Vector {
	hw := timestamp.New(len(b.vbs))
	for vb := range b.vbs {
		pp := b.position(vb)
		if !pp.Participant {
			for i, c := range b.distinct() {
				if m := c.parts[vb].pos.Main; i == 0 || m < pp.HW {
					pp.HW, pp.Log = m, c.parts[vb].log
				}
			}
		}
		if pp.HW > 0 {
			hw.Set(vb, timestamp.Position{VBUUID: pp.Log.Covering(pp.HW), Seqno: pp.HW})
		}
	}
	return hw
}

// Backfill gives, per vbucket, how far side streams have brought the copies of the indexes that are being built, the
// least of them; without any such copy it has no vbuckets.
func (b *Bucket) Backfill(building func(index.ID) bool) timestamp.Vector {
	var least timestamp.Vector
	for _, c := range b.copies {
		if !building(c.index) {
			continue
		}
		first := least.Len() == 0
		if first {
			least = timestamp.New(len(b.vbs))
		}
		for vb := range c.parts {
			p := &c.parts[vb]
			if !first && p.pos.Side >= least.Seqnos[vb] {
				continue
			}
			at := timestamp.Position{Seqno: p.pos.Side}
			if at.Seqno > 0 {
				at.VBUUID = p.log.Covering(at.Seqno)
			}
			least.Set(vb, at)
		}
	}
	return least
}

// Accepted is the stream that is accepted for a vbucket.
type Accepted struct {
	VBucket     int
	Incarnation index.Incarnation
	Projector   index.ProjectorID
	Open        bool // false: nothing is accepted before the next BEGIN
}

// Accepted lists every vbucket that some BEGIN was accepted for.
func (b *Bucket) Accepted() []Accepted {
	all := make([]Accepted, 0, len(b.vbs))
	for vb := range b.vbs {
		if v := &b.vbs[vb]; v.begun {
			all = append(all, Accepted{VBucket: vb, Incarnation: v.cur.inc, Projector: v.cur.projector,
				Open: v.cur.open && !v.cur.dropping && v.cur.inc.Compare(v.min) >= 0})
		}
	}
	return all
}

// Minimum gives, by vbucket, the incarnation below which streams are refused.
func (b *Bucket) Minimum() []index.Incarnation {
	m := make([]index.Incarnation, len(b.vbs))
	for vb := range b.vbs {
		m[vb] = b.vbs[vb].min
	}
	return m
}

// CopyState is what a copy has to report; storage adds its size.
type CopyState struct {
	ID        index.CopyID
	Index     index.ID
	Slice     index.SliceID
	Ready     bool // was exact once, and the snapshot was taken
	Held      timestamp.Ref
	Done      uint64 // seqnos covered by side streams and written, sum over vbuckets
	Total     uint64 // sum of the activation timestamps
	Joined    int    // vbuckets that a stream feeds
	Catching  int    // vbuckets with side < A
	Restoring int
}

// States lists the copies, ascending by id.
func (b *Bucket) States() []CopyState {
	out := make([]CopyState, len(b.copies))
	var shared *CopyState
	for i, c := range b.copies {
		s := CopyState{}
		if c.shares && shared != nil {
			s = *shared
		} else {
			s = c.sums()
		}
		if c.shares {
			shared = &out[i]
		}
		s.ID, s.Index, s.Slice, s.Ready, s.Held = c.id, c.index, c.no, c.told, timestamp.Ref{}
		if c.has {
			s.Held = c.held
		}
		out[i] = s
	}
	return out
}

// sums adds up a copy's vbuckets.
func (c *slice) sums() (s CopyState) {
	for vb := range c.parts {
		p := &c.parts[vb]
		done := min(p.pos.Side, p.pos.A)
		s.Done += done - min(done, p.taken)
		s.Total += p.pos.A
		if p.sub {
			s.Joined++
		}
		if p.pos.Side < p.pos.A {
			s.Catching++
		}
		if p.restoring {
			s.Restoring++
		}
	}
	return s
}

// Backlog is what a copy lacks of what KV has, in seqnos summed over vbuckets: about as many documents, less those that
// were overwritten meanwhile.
type Backlog struct {
	Copy    index.CopyID
	Pending uint64 // have not come: above what was received, and below A what side streams have still to bring
	Queued  uint64 // have come and are not applied
}

// Backlogs lists the copies' backlogs against KV's high seqnos (0 where unknown), ascending by id. stored gives what a
// copy has stored, one position per vbucket: batches that are handed out and not done are queued; nil: it is not known,
// and they are done.
func (b *Bucket) Backlogs(high []uint64, stored func(index.CopyID) []Position) []Backlog {
	out := make([]Backlog, len(b.copies))
	for i, c := range b.copies {
		g := Backlog{Copy: c.id}
		done := stored(c.id)
		for vb := range c.parts {
			p := &c.parts[vb]
			held, recv := p.pos, b.received(p, vb)
			if vb < len(done) {
				held = done[vb]
			}
			if vb < len(high) && high[vb] > recv {
				g.Pending += high[vb] - recv
			}
			side := min(p.pos.Side, p.pos.A)
			g.Pending += p.pos.A - side
			g.Queued += recv - min(held.Main, recv) + side - min(held.Side, side)
		}
		out[i] = g
	}
	return out
}

// Tombstones reports whether a vbucket of the copy may hold tombstones that are still of use, or waits to be restored.
func (b *Bucket) Tombstones(id index.CopyID) bool {
	c := b.find(id)
	if c == nil {
		return false
	}
	for vb := range c.parts {
		if c.parts[vb].tombs || c.parts[vb].restoring {
			return true
		}
	}
	return false
}

// HoldsTombstones tells that a copy has tombstones in a vbucket that it cannot do without yet: a flush that leaves it
// whole asks for their removal (Part.PurgeTombstones).
func (b *Bucket) HoldsTombstones(id index.CopyID, vb int) {
	if c := b.find(id); c != nil && vb >= 0 && vb < len(b.vbs) {
		b.part(c, vb).tombs = true
	}
}

// Position returns what a copy holds of a vbucket once all Work and batches handed out are done.
func (b *Bucket) Position(id index.CopyID, vb int) (Position, bool) {
	if c := b.find(id); c != nil && vb >= 0 && vb < len(b.vbs) {
		return c.parts[vb].pos, true
	}
	return Position{}, false
}

// LastAck returns the newest acknowledgement of a stability timestamp behind which nothing is under way, for copies
// that are being built either. It repeats in every report.
func (b *Bucket) LastAck() (Ack, bool) { return b.stability.ack, b.stability.haveAck }

// Generation and RollbackID say by what the bucket's stability timestamps are judged.
func (b *Bucket) Generation() uint64 { return b.opt.Generation }

// RollbackID is the highest one seen.
func (b *Bucket) RollbackID() uint64 { return b.rollbackID }

// VBuckets is the number of vbuckets.
func (b *Bucket) VBuckets() int { return len(b.vbs) }

// Owner returns the projector whose stream of a vbucket is accepted, "" for none: side streams are asked of it first.
func (b *Bucket) Owner(vb int) index.ProjectorID {
	if v := &b.vbs[vb]; v.cur.open {
		return v.cur.projector
	}
	return ""
}
