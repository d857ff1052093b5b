package ingest

import (
	"slices"

	"tidemark/timestamp"
)

// Copies that stand alike in every vbucket share one list of parts: what happens to all of them happens once. Almost
// all copies of a node do, since one stream feeds them. A copy gets a list of its own before anything happens to it
// alone (own), and shares again when a flush leaves it exact and standing as the others do (share).

// own returns a copy a list of its own, which may be changed without the others.
func (b *Bucket) own(c *slice) {
	if !c.shares {
		return
	}
	b.leave(c)
	c.parts = slices.Clone(c.parts)
}

// leave counts a copy out of those that share.
func (b *Bucket) leave(c *slice) {
	if c.shares {
		c.shares, b.lists = false, nil
		b.sharing--
	}
}

// apart lets some copies move without the others: where they are a part of those that share, each gets a list of its
// own.
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

// part returns a copy's part of a vbucket in order to change it.
func (b *Bucket) part(c *slice, vb int) *part {
	b.own(c)
	return &c.parts[vb]
}

// distinct returns one copy of those that share, and all others.
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

// sharer returns one of the copies that share, nil when none do.
func (b *Bucket) sharer() *slice {
	for _, c := range b.distinct() {
		if c.shares {
			return c
		}
	}
	return nil
}

// share lets a copy that is exact, and so whole, share the list of those that stand as it does. The first one begins.
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

// alike reports whether two parts of a vbucket, both fed and whole, are the same from here on.
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

// stands returns where a copy stands in every vbucket.
func stands(c *slice) *Common {
	s := &Common{Positions: make([]Position, len(c.parts)), Logs: make([]timestamp.FailoverLog, len(c.parts))}
	for vb := range c.parts {
		s.Positions[vb], s.Logs[vb] = c.parts[vb].pos, c.parts[vb].log
	}
	return s
}

// beyond returns the floor and the end of the window where they reach above main: below it they say nothing any more.
func beyond(p Position) (above [2]uint64) {
	if p.Floor > p.Main {
		above[0] = p.Floor
	}
	if p.WindowEnd > p.Main {
		above[1] = p.WindowEnd
	}
	return above
}
