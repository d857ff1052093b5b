package simulation

import (
	"slices"

	"tidemark/index"
	"tidemark/indexer/core"
	"tidemark/ingest"
	"tidemark/timestamp"
)

// What is handed out to a node is written to each copy in its order, and no copy waits for another. In most seeds one
// batch at a stability timestamp at most is under way, which copies that are being built have still to write; in seeds
// with slowCopies there are as many as may be, of all kinds, and the copies write theirs in any order.

// underway is a batch that was handed out and is not written to all copies.
type underway struct {
	*core.Handed
	left   []index.CopyID // that it is still to be written to
	served bool           // it was said that it is written to the copies that serve scans
	ended  bool           // and that it is to all
	shown  bool           // the state has been told of the former, in its turn
}

// begin notes that a batch was handed out.
func (h *hosted) begin(t *core.Handed) *underway {
	u := &underway{Handed: t}
	for i := range t.Batch.Copies {
		u.left = append(u.left, t.Batch.Copies[i].ID)
	}
	h.under = append(h.under, u)
	return u
}

// atStability reports whether a snapshot of each copy is made after the batch.
func (u *underway) atStability() bool { return u.Batch.Kind == ingest.AtStability }

// serves reports whether scans may wait for some copy that the batch is still to be written to.
func (u *underway) serves() bool {
	return slices.ContainsFunc(u.Batch.Copies, func(c ingest.CopyBatch) bool {
		return c.Serves && slices.Contains(u.left, c.ID)
	})
}

// dropUnder forgets what is under way for a copy that has gone, or has gone back.
func (h *hosted) dropUnder(id index.CopyID) {
	for _, u := range h.under {
		u.left = slices.DeleteFunc(u.left, func(c index.CopyID) bool { return c == id })
	}
}

// writesBefore writes something of what is under way. It reports whether that is all for this step.
func (s *Sim) writesBefore(n *node, h *hosted) bool {
	if s.mix[slowCopies] {
		s.writeSome(n, h)
		return false
	}
	if len(h.under) > 0 && s.dice.node.Intn(4) == 0 {
		s.finish(n, h, h.under[0])
		return true
	}
	return false
}

// writeMore is what is done when nothing is handed out.
func (s *Sim) writeMore(n *node, h *hosted) {
	if !s.mix[slowCopies] && len(h.under) > 0 {
		s.finish(n, h, h.under[0])
	}
}

// writeOut takes what was handed out. One batch at a stability timestamp may wait for copies that are being built; what
// else comes for one of these waits for that, and is written at once.
func (s *Sim) writeOut(n *node, h *hosted, t *core.Handed) {
	if s.mix[slowCopies] {
		h.begin(t)
		s.writeSome(n, h)
		return
	}
	if len(h.under) > 0 && h.under[0].before(t.Batch) {
		s.finish(n, h, h.under[0])
	}
	alone := len(h.under) == 0
	u := h.begin(t)
	s.writeServing(n, u)
	if alone && u.atStability() {
		s.tellServed(n, h, u)
		if s.dice.node.Intn(3) > 0 && len(u.left) > 0 {
			return
		}
	}
	s.finish(n, h, u)
}

// before reports whether some copy has to write this batch before another one.
func (u *underway) before(t *ingest.Batch) bool {
	return slices.ContainsFunc(t.Copies, func(c ingest.CopyBatch) bool { return slices.Contains(u.left, c.ID) })
}

// writeServing writes a batch to its copies that serve scans.
func (s *Sim) writeServing(n *node, u *underway) {
	for i := range u.Batch.Copies {
		if c := &u.Batch.Copies[i]; c.Serves {
			s.writeCopy(n, u, c.ID)
		}
	}
}

// writeCopy writes a batch to one of its copies.
func (s *Sim) writeCopy(n *node, u *underway, id index.CopyID) {
	u.left = slices.DeleteFunc(u.left, func(c index.CopyID) bool { return c == id })
	for i := range u.Batch.Copies {
		c := &u.Batch.Copies[i]
		if st := n.stores[id]; c.ID == id && st != nil && st.open {
			s.writeBatch(n, u.Batch, c, st)
		}
	}
}

// finish writes what is left of a batch, and tells of it.
func (s *Sim) finish(n *node, h *hosted, u *underway) {
	for len(u.left) > 0 {
		s.writeCopy(n, u, u.left[0])
	}
	u.ended = true
	s.takeCompletions(n, h, h.work.Ended(u.Handed))
}

// writeSome lets copies write what each of them has to write next, and tells of what is written.
func (s *Sim) writeSome(n *node, h *hosted) {
	for range 1 + s.dice.node.Intn(2*len(n.stores)+1) {
		var first []*underway
		var ids []index.CopyID
		for _, u := range h.under {
			for _, id := range u.left {
				if !slices.Contains(ids, id) {
					first, ids = append(first, u), append(ids, id)
				}
			}
		}
		if len(ids) > 0 {
			k := s.dice.node.Intn(len(ids))
			s.writeCopy(n, first[k], ids[k])
		}
		for _, u := range slices.Clone(h.under) {
			if u.atStability() && !u.served && !u.serves() {
				s.tellServed(n, h, u)
			}
			if len(u.left) == 0 && !u.ended {
				s.finish(n, h, u)
			}
		}
	}
}

// tellServed tells that a batch is written to the copies that serve scans.
func (s *Sim) tellServed(n *node, h *hosted, u *underway) {
	u.served = true
	s.takeCompletions(n, h, h.work.Served(u.Handed))
}

// takeCompletions takes over what the state was told: timestamps are acknowledged in their order, when the copies that
// scans wait for have them.
func (s *Sim) takeCompletions(n *node, h *hosted, all []core.Completion) {
	for _, t := range all {
		i := slices.IndexFunc(h.under, func(u *underway) bool { return u.Batch == t.Batch })
		if t.Acked {
			s.checkAcked(n, h, t.Batch.Ref)
		}
		if h.under[i].shown = true; !t.Shown {
			h.under = slices.Delete(h.under, i, i+1)
		}
	}
}

// checkAcked: to acknowledge a stability timestamp says that those before it are shown.
func (s *Sim) checkAcked(n *node, h *hosted, ref timestamp.Ref) {
	for _, u := range h.under {
		if u.atStability() && !u.shown && u.Batch.Ref.Compare(ref) < 0 {
			s.fail("n%d acknowledges S%d of %s before S%d is shown", n.num, ref.Number, h.name, u.Batch.Ref.Number)
		}
	}
}
