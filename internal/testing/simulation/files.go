package simulation

import (
	"slices"

	"tidemark/index"
	"tidemark/ingest"
	"tidemark/partition"
)

// This file models filling a new copy of a slice with the files of another node's copy, as package indexer does. The
// source pins what it holds at one moment. Meanwhile the target takes what its stream delivers and requests no side
// stream. The target is then removed, gets the files in place of all that it held, and is added with their positions.
// Nothing in this file draws from the dice, so the other choices of a seed stay as they are.

const (
	// fileSteps is how many steps of side streams a transfer takes.
	fileSteps = 5
	// fileTries is how many times a source is looked for before KV fills the copy.
	fileTries = 20
	// filesAnew is how many times a transfer is repeated because of a rollback.
	filesAnew = 3
)

// files is the state of a transfer that fills a copy.
type files struct {
	tries, anew int
	from        *store // nil: no source yet
	held        *content
	generation  uint64
	rollbackID  uint64
	steps       int // steps left
}

// wantsFiles reports whether this seed fills new copies with files where other copies exist: two of three seeds do.
func (s *Sim) wantsFiles() bool { return s.opt.Seed%3 > 0 }

// fillStep advances the transfers of a bucket's copies.
func (s *Sim) fillStep(n *node, h *hosted) {
	for _, id := range sortedKeys(n.stores) {
		st := n.stores[id]
		if st.files == nil || !st.open || st.bucket != h.name {
			continue
		}
		switch f := st.files; {
		case st.ready || !s.hasSource(n, st) || f.tries > fileTries || f.anew > filesAnew:
			s.fromKV(h, id, st)
		case f.from == nil:
			f.tries++
			s.pin(n, h, id, st)
		case f.generation != h.st.Generation() || f.rollbackID != h.st.RollbackID():
			f.from, f.held = nil, nil
			f.anew++
		case f.steps > 0:
			f.steps--
		default:
			s.installFiles(n, h, id, st)
		}
	}
}

func (s *Sim) fromKV(h *hosted, id index.CopyID, st *store) {
	st.files = nil
	h.st.Defer(id, false)
}

// hasSource reports whether, by the node's list, the copy's index is ready and its slice has a copy elsewhere.
func (s *Sim) hasSource(n *node, st *store) bool {
	d := &n.lists.InForce
	for i := range d.Indexes {
		if d.Indexes[i].ID == st.index {
			return d.Indexes[i].State == index.Maintenance && slices.ContainsFunc(d.Topologies[i].Copies,
				func(c partition.Copy) bool {
					return c.Slice == st.no && int(c.Node) != n.id && c.State == partition.Allocated
				})
		}
	}
	return false
}

// pin makes a node that has the slice, on the same branch, write what it holds and keep it for this copy.
func (s *Sim) pin(n *node, h *hosted, id index.CopyID, st *store) {
	for _, m := range s.nodes {
		from := m.buckets[h.name]
		if m == n || !m.up || from == nil || m.full || from.st.Generation() != h.st.Generation() ||
			from.st.RollbackID() != h.st.RollbackID() {
			continue
		}
		for _, other := range sortedKeys(m.stores) {
			o := m.stores[other]
			if o.index != st.index || o.no != st.no || !o.open || !o.ready || !from.mayBeSent(other) {
				continue
			}
			o.dur = o.live.clone()
			st.files.from, st.files.held, st.files.steps = o, o.live.clone(), fileSteps
			st.files.generation, st.files.rollbackID = h.st.Generation(), h.st.RollbackID()
			s.ev("n%d sends copy %d to n%d copy %d, at %v", m.num, other, n.num, id, o.live.pos)
			return
		}
	}
}

// mayBeSent reports whether a copy is not being restored and holds most of its data; KV provides the rest.
func (h *hosted) mayBeSent(id index.CopyID) bool {
	empty := 0
	for v := range vbuckets {
		if p, ok := h.st.Position(id, v); !ok || p.Side == 0 && !p.Whole() {
			empty++
		}
	}
	return 2*empty <= vbuckets && h.st.RestoringOf(id) == 0
}

// installFiles replaces a copy's content by the transferred files.
func (s *Sim) installFiles(n *node, h *hosted, id index.CopyID, st *store) {
	if n.full {
		return
	}
	h.remove(id)
	f := st.files
	st.live, st.snaps, st.ckpts, st.files, st.open, st.common = f.held.clone(), nil, nil, nil, false, nil
	if !s.on(pinned) { // the positions are of another moment than the rows
		st.live.pos, st.live.logs = f.from.live.pos, f.from.live.logs
	}
	s.wrote(st.live)
	st.dur = st.live.clone()
	if last, ok := h.st.LastAck(); ok && !s.on(wholeFirst) {
		shown := st.keep()
		shown.ref, shown.exact = last.Ref, true
		st.snaps, st.ready = []*content{shown}, true
	}
	s.add(n, id, st)
	s.Report.Filled++
	s.ev("n%d copy %d has its files, at %v", n.num, id, st.live.pos)
}

// deferred is called after a copy was added. A copy that files will fill wants no side streams.
func (s *Sim) deferred(h *hosted, id index.CopyID, st *store) {
	if st.files == nil {
		return
	}
	if st.ready || slices.ContainsFunc(st.live.pos[:], func(p ingest.Position) bool { return p.Side > 0 }) {
		st.files = nil // it holds data from before
		return
	}
	st.files = &files{}
	h.st.Defer(id, true)
}

// replaced returns the copies of a list that other copies are to replace.
func replaced(all []partition.Copy) map[index.CopyID]bool {
	old := map[index.CopyID]bool{}
	for _, c := range all {
		for _, o := range all {
			if o.Slice == c.Slice && o.Replica == c.Replica && o.ID > c.ID && o.State == partition.Allocated {
				old[c.ID] = true
			}
		}
	}
	return old
}
