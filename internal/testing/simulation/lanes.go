package simulation

import (
	"slices"

	"tidemark/index"
	"tidemark/indexer/core"
	"tidemark/ingest"
	"tidemark/timestamp"
)

// A batch that core hands out is written to each copy in its order, and no copy waits for another. In most seeds at
// most one batch at a stability timestamp is in flight, waiting for copies that are being built. In seeds with
// slowCopies any number of batches of all kinds are in flight, and the copies write them in any order.

// underway is a batch in flight: some copy has not written it yet.
type underway struct {
	*core.Handed
	left   []index.CopyID // copies that have not written it yet
	served bool           // core has been notified that all copies that serve scans have it
	ended  bool           // core has been notified that all copies have it
	shown  bool           // and the bucket's state has recorded that the serving copies have it
}

// begin records that core has handed out a batch.
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

// serves reports whether some copy that serves scans has not written the batch yet.
func (u *underway) serves() bool {
	return slices.ContainsFunc(u.Batch.Copies, func(c ingest.CopyBatch) bool {
		return c.Serves && slices.Contains(u.left, c.ID)
	})
}

// dropUnder discards a copy's batches in flight, after it was removed or rolled back.
func (h *hosted) dropUnder(id index.CopyID) {
	for _, u := range h.under {
		u.left = slices.DeleteFunc(u.left, func(c index.CopyID) bool { return c == id })
	}
}

// writesBefore writes some of the batches in flight. It reports whether that was the whole step.
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

// writeMore finishes a batch in flight when core hands out nothing.
func (s *Sim) writeMore(n *node, h *hosted) {
	if !s.mix[slowCopies] && len(h.under) > 0 {
		s.finish(n, h, h.under[0])
	}
}

// writeOut writes a batch that core has handed out. One batch at a stability timestamp may wait for copies that are
// being built; a later batch for one of these copies first finishes that one and is then written at once.
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
		s.markServed(n, h, u)
		if s.dice.node.Intn(3) > 0 && len(u.left) > 0 {
			return
		}
	}
	s.finish(n, h, u)
}

// before reports whether some copy must write this batch before t.
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

// finish writes a batch to the copies that are left, and notifies core.
func (s *Sim) finish(n *node, h *hosted, u *underway) {
	for len(u.left) > 0 {
		s.writeCopy(n, u, u.left[0])
	}
	u.ended = true
	s.takeCompletions(n, h, h.work.Ended(u.Handed))
}

// writeSome makes random copies write their next batches, and notifies core of each batch that is complete.
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
				s.markServed(n, h, u)
			}
			if len(u.left) == 0 && !u.ended {
				s.finish(n, h, u)
			}
		}
	}
}

// markServed notifies core that the copies that serve scans have a batch.
func (s *Sim) markServed(n *node, h *hosted, u *underway) {
	u.served = true
	s.takeCompletions(n, h, h.work.Served(u.Handed))
}

// takeCompletions applies completions. Stability timestamps are acknowledged in their order, when the copies that
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

// checkAcked checks that a stability timestamp is acknowledged only after all earlier ones are shown.
func (s *Sim) checkAcked(n *node, h *hosted, ref timestamp.Ref) {
	for _, u := range h.under {
		if u.atStability() && !u.shown && u.Batch.Ref.Compare(ref) < 0 {
			s.fail("n%d acknowledges S%d of %s before S%d is shown", n.num, ref.Number, h.name, u.Batch.Ref.Number)
		}
	}
}
