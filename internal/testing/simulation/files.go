package simulation

import (
	"slices"

	"tidemark/index"
	"tidemark/ingest"
	"tidemark/partition"
)

// A new copy of a slice that another node has is filled with that one's files, as package indexer does it: the source
// pins what it holds at one moment; meanwhile the target takes what its stream brings and asks for no side stream; then
// it is removed, gets the files in the place of all that it held, and is added with their positions. Nothing here is
// chosen by chance, so that the other choices of a seed stay where they are.

const (
	// fileSteps is how many steps of side streams a transfer takes.
	fileSteps = 5
	// fileTries is how often a source is looked for before KV fills the copy.
	fileTries = 20
	// filesAnew is how often a copy is asked for again because of a rollback.
	filesAnew = 3
)

// files is a copy that is to be filled by files.
type files struct {
	tries, anew int
	from        *store // nil: nobody sends yet
	held        *content
	generation  uint64
	rollbackID  uint64
	steps       int // that are still to come
}

// wantsFiles tells whether new copies of this seed are filled by files, where others have them: two of three.
func (s *Sim) wantsFiles() bool { return s.opt.Seed%3 > 0 }

// fillStep goes on with the copies of a bucket that are to be filled.
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

// hasSource tells whether the slice of a copy is one of an index that is ready, with a copy elsewhere, by the node's
// list.
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

// pin lets a node that has the slice, on the same branch, write what it holds and keep it for this copy.
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

// mayBeSent tells whether a copy is not being put back, and most of it is here: KV is asked for what is missing.
func (h *hosted) mayBeSent(id index.CopyID) bool {
	empty := 0
	for v := range vbuckets {
		if p, ok := h.st.Position(id, v); !ok || p.Side == 0 && !p.Whole() {
			empty++
		}
	}
	return 2*empty <= vbuckets && h.st.RestoringOf(id) == 0
}

// installFiles makes a copy what was sent.
func (s *Sim) installFiles(n *node, h *hosted, id index.CopyID, st *store) {
	if n.full {
		return
	}
	h.remove(id)
	f := st.files
	st.live, st.snaps, st.ckpts, st.files, st.open, st.common = f.held.clone(), nil, nil, nil, false, nil
	if !s.on(pinned) { // what is said of the rows is of another moment
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

// deferred is called when a copy was added: one that is to be filled by files wants no side streams.
func (s *Sim) deferred(h *hosted, id index.CopyID, st *store) {
	if st.files == nil {
		return
	}
	if st.ready || slices.ContainsFunc(st.live.pos[:], func(p ingest.Position) bool { return p.Side > 0 }) {
		st.files = nil // it has something of what was before
		return
	}
	st.files = &files{}
	h.st.Defer(id, true)
}

// replaced are the copies of a list that another one is to take the place of.
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
