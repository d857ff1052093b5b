package ingest

import (
	"tidemark/index"
	"tidemark/timestamp"
)

// Progress is the node's progress in one vbucket (IM-21). Participant is false if no stream feeds it: it recovers by
// the gap rule.
type Progress struct {
	VBucket     int
	Participant bool
	HW          uint64 // smallest position of its copies, queue included
	Reach       uint64 // highest seqno, window end or floor that they may reflect
	Log         timestamp.FailoverLog
	Revision    timestamp.MapRevision
}

// Poll refuses incarnations below inc for the vbuckets from now on (fencePoll) and returns the node's progress
// (IM-21). The node does not participate in a vbucket without a fed copy: it recovers by the gap rule.
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

// HW returns, per vbucket, the smallest position of the fed copies, queue included, or, if none is fed, the smallest
// of what the copies hold.
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

// Backfill returns, per vbucket, the smallest side position of the copies of indexes that are being built. The result
// has length 0 if there are none.
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

// Accepted returns the accepted stream of every vbucket for which a BEGIN was accepted.
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

// Minimum returns, by vbucket, the incarnation below which streams are refused.
func (b *Bucket) Minimum() []index.Incarnation {
	m := make([]index.Incarnation, len(b.vbs))
	for vb := range b.vbs {
		m[vb] = b.vbs[vb].min
	}
	return m
}

// CopyState is the state of a copy for reports; storage adds its size.
type CopyState struct {
	ID        index.CopyID
	Index     index.ID
	Slice     index.SliceID
	Ready     bool // has been exact, and the snapshot was taken
	Held      timestamp.Ref
	Done      uint64 // seqnos covered by side streams and written, sum over vbuckets
	Total     uint64 // activation timestamps, summed over vbuckets
	Joined    int    // vbuckets that a stream feeds
	Catching  int    // vbuckets with side < A
	Restoring int
}

// States returns the states of the copies, ascending by id.
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
		s.ID, s.Index, s.Slice, s.Ready, s.Held = c.id, c.index, c.no, c.confirmed, timestamp.Ref{}
		if c.has {
			s.Held = c.held
		}
		out[i] = s
	}
	return out
}

// sums returns the sums over a copy's vbuckets.
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

// Backlog is what a copy lacks of KV's data, in seqnos summed over vbuckets: about the number of documents, minus
// those that were overwritten meanwhile.
type Backlog struct {
	Copy    index.CopyID
	Pending uint64 // not received: above what was received, and below A what side streams still have to deliver
	Queued  uint64 // received and not applied
}

// Backlogs returns the backlogs of the copies against KV's high seqnos (0 where unknown), ascending by id. stored
// returns the stored positions of a copy, one per vbucket, so that batches that are handed out and not done count as
// queued. If it returns nil the positions are unknown, and those batches count as done.
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

// Tombstones reports whether a vbucket of the copy may hold tombstones that are still needed, or waits to be
// restored.
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

// HoldsTombstones records that a copy has tombstones in a vbucket that it still needs. A flush that leaves it whole
// requests their removal (Part.PurgeTombstones).
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

// LastAck returns the newest acknowledgement of a stability timestamp up to which all batches are done, including
// those of copies that are being built. Every report repeats it.
func (b *Bucket) LastAck() (Ack, bool) { return b.stability.ack, b.stability.haveAck }

// Generation returns the bucket generation of valid stability timestamps.
func (b *Bucket) Generation() uint64 { return b.opt.Generation }

// RollbackID returns the highest rollback id seen.
func (b *Bucket) RollbackID() uint64 { return b.rollbackID }

// VBuckets returns the number of vbuckets.
func (b *Bucket) VBuckets() int { return len(b.vbs) }

// Owner returns the projector whose stream of a vbucket is accepted, "" for none. It is asked for side streams first.
func (b *Bucket) Owner(vb int) index.ProjectorID {
	if v := &b.vbs[vb]; v.cur.open {
		return v.cur.projector
	}
	return ""
}
