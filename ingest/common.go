package ingest

import (
	"slices"

	"tidemark/timestamp"
)

// Copies with the same state in every vbucket share one list of parts: a change to all of them happens once. Almost
// all copies of a node share it, since one stream feeds them. A copy gets a list of its own before it alone changes
// (own), and shares again when a flush leaves it exact and equal to the others (share).

// own gives a copy a list of its own, which may be modified without affecting the others.
func (b *Bucket) own(c *slice) {
	if !c.shares {
		return
	}
	b.leave(c)
	c.parts = slices.Clone(c.parts)
}

// leave removes a copy from the count of those that share.
func (b *Bucket) leave(c *slice) {
	if c.shares {
		c.shares, b.lists = false, nil
		b.sharing--
	}
}

// apart lets some copies change without the others: if they are not all of the sharing copies, each gets a list of
// its own.
func (b *Bucket) apart(some []*slice) {
	sharing := 0
	for _, c := range some {
		if c.shares {
			sharing++
		}
	}
	for _, c := range some {
		if sharing < b.sharing {
			b.own(c)
		}
	}
}

// part returns a copy's part of a vbucket for modification.
func (b *Bucket) part(c *slice, vb int) *part {
	b.own(c)
	return &c.parts[vb]
}

// distinct returns one of the sharing copies, and all others.
func (b *Bucket) distinct() []*slice {
	if b.lists != nil {
		return b.lists
	}
	b.lists = make([]*slice, 0, len(b.copies)-max(b.sharing-1, 0))
	first := true
	for _, c := range b.copies {
		if !c.shares || first {
			b.lists = append(b.lists, c)
			first = first && !c.shares
		}
	}
	return b.lists
}

// sharer returns one of the sharing copies, nil if there are none.
func (b *Bucket) sharer() *slice {
	for _, c := range b.distinct() {
		if c.shares {
			return c
		}
	}
	return nil
}

// share makes a copy that is exact, and therefore whole, share the list of the copies in the same state. The first
// one starts the shared list.
func (b *Bucket) share(c *slice) {
	if c.shares {
		return
	}
	with := b.sharer()
	for vb := range c.parts {
		p := &c.parts[vb]
		if !p.sub || p.restoring || p.tombs || p.taken != 0 || with != nil && !b.alike(vb, p, &with.parts[vb]) {
			return
		}
	}
	if with != nil {
		c.parts = with.parts
	}
	c.shares, b.lists = true, nil
	b.sharing++
}

// alike reports whether two parts of a vbucket, both fed and whole, have the same future.
func (b *Bucket) alike(vb int, p, q *part) bool {
	v := &b.vbs[vb]
	if p.pos.Main != q.pos.Main || p.pos.A != q.pos.A || p.pos.Side != q.pos.Side || p.pos.VBUUID != q.pos.VBUUID ||
		max(p.base, v.recv) != max(q.base, v.recv) || beyond(p.pos) != beyond(q.pos) || p.solid != q.solid || p.sub != q.sub {
		return false
	}
	if from := max(p.from, q.from); p.from != q.from {
		for i := range v.queue {
			if v.queue[i].epoch < from {
				return false // for one of them only
			}
		}
	}
	return p.log.Equal(q.log) && p.kept.Equal(q.kept)
}

// stands returns the positions of a copy in every vbucket.
func stands(c *slice) *Common {
	s := &Common{Positions: make([]Position, len(c.parts)), Logs: make([]timestamp.FailoverLog, len(c.parts))}
	for vb := range c.parts {
		s.Positions[vb], s.Logs[vb] = c.parts[vb].pos, c.parts[vb].log
	}
	return s
}

// beyond returns the floor and the window end where they are above main; below it they have no effect.
func beyond(p Position) (above [2]uint64) {
	if p.Floor > p.Main {
		above[0] = p.Floor
	}
	if p.WindowEnd > p.Main {
		above[1] = p.WindowEnd
	}
	return above
}
