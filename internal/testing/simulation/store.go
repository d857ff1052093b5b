package simulation

import (
	"cmp"
	"slices"

	"tidemark/index"
	"tidemark/indexer/core"
	"tidemark/ingest"
	"tidemark/timestamp"
)

// This file models the store of an indexer: an ordered map per copy, memtables that a crash loses, snapshots in
// memory, and checkpoints, of which a crash may tear the newest.

type row struct {
	seqno uint64
	key   int // 0: a tombstone, or nothing when seqno is 0
}

type content struct {
	rows   [docs]row
	pos    [vbuckets]ingest.Position
	logs   [vbuckets]timestamp.FailoverLog
	ref    timestamp.Ref // of a snapshot
	exact  bool          // at ref
	number uint64        // ascends over the kept states of a copy
	parted bool          // some vbucket has left its branch: usable for restores only
	batch  uint64        // identifies the rows: no two batches of a run share a number
	stored standing      // the positions of that batch; pos and logs may be newer without new rows
}

// standing is the positions of a copy.
type standing struct {
	pos  [vbuckets]ingest.Position
	logs [vbuckets]timestamp.FailoverLog
}

func (c *content) dropVB(v int) {
	for d := range c.rows {
		if d%vbuckets == v {
			c.rows[d] = row{}
		}
	}
}

func (c *content) clone() *content { n := *c; return &n }

type store struct {
	place
	live, dur    *content
	snaps, ckpts []*content // newest last
	ready, open  bool
	states       uint64 // states kept so far
	files        *files // nil: no files will fill it
	common       *common
}

// common is a copy's entry in the node's common file: its positions beyond those stored with the rows of one batch.
type common struct {
	batch uint64
	standing
}

const (
	keepSnaps = 3
	keepCkpts = 3
)

func newStore(p place) *store { return &store{place: p, live: &content{}, dur: &content{}} }

// crash loses what was in memory.
func (st *store) crash(s *Sim) {
	if len(st.ckpts) > 0 && s.chance(tornCheckpoints, 3) {
		st.ckpts = st.ckpts[:len(st.ckpts)-1]
	}
	st.live, st.snaps, st.open = st.dur.clone(), nil, false
	at := st.live.stored
	if c := st.common; c != nil && (c.batch == st.live.batch || !s.on(keptRows)) {
		at = c.standing
	}
	st.live.pos, st.live.logs = at.pos, at.logs
	st.dur = st.live.clone()
}

// wrote records that a batch was stored with the copy's positions.
func (s *Sim) wrote(c *content) {
	s.batches++
	c.batch, c.stored = s.batches, standing{c.pos, c.logs}
}

// keepCommon writes the node's common file: the positions of copies whose rows are durable.
func (s *Sim) keepCommon(n *node) {
	for _, st := range n.stores {
		switch {
		case st.dur.batch == st.live.batch || !s.on(keptRows):
			st.common = &common{st.live.batch, standing{st.live.pos, st.live.logs}}
			s.Report.Kept++
		case st.common != nil && st.common.batch != st.dur.batch:
			st.common = nil
		}
	}
}

// older returns the states that a vbucket could be restored to, newest first: snapshots in memory and checkpoints.
func (st *store) older() []*content {
	all := append(slices.Clone(st.ckpts), st.snaps...)
	slices.SortFunc(all, func(a, b *content) int { return cmp.Compare(b.number, a.number) })
	return all
}

// keep returns a clone of the live state, numbered after the states kept so far.
func (st *store) keep() *content {
	st.states++
	c := st.live.clone()
	c.number = st.states
	return c
}

func (n *node) heldStates(id index.CopyID, v int) (held []ingest.Held) {
	if st := n.stores[id]; st != nil {
		for _, c := range st.older() {
			held = append(held, ingest.Held{Position: c.pos[v], Log: ingest.History(c.pos[v].VBUUID, c.logs[v])})
		}
	}
	return held
}

func (s *Sim) writeBatch(n *node, t *ingest.Batch, c *ingest.CopyBatch, st *store) {
	before := st.live.rows
	for i := range c.Parts {
		p := &c.Parts[i]
		if p.DeleteRange {
			st.live.dropVB(p.VBucket)
			s.Report.Ranges++
		}
		if p.Segment >= 0 {
			s.apply(t.Segments[p.Segment].Events, p, st)
		}
		st.live.pos[p.VBucket] = p.Position
		if p.Log != nil {
			st.live.logs[p.VBucket] = p.Log
		}
	}
	if c.Common != nil {
		s.Report.Together++
	}
	if c.Common == nil || st.live.rows != before || !s.mix[commonFiles] { // otherwise nothing needs to be stored
		s.wrote(st.live)
	}
	if t.Kind == ingest.AtStability {
		s.keepFlushed(n, t, c, st)
	} else {
		s.ev("n%d copy %d batch kind %d: %v", n.num, c.ID, t.Kind, st.live.pos)
	}
	flush, point := s.dice.node.Intn(3) == 0, s.dice.node.Intn(6) == 0
	if point {
		s.checkpoint(st)
	} else if flush { // a memtable reaches the disk
		st.dur = st.live.clone()
	}
	if s.mix[commonFiles] && s.dice.node.Intn(4) == 0 {
		s.keepCommon(n)
	}
}

// keepFlushed keeps the snapshot at a stability timestamp that a copy has reached.
func (s *Sim) keepFlushed(n *node, t *ingest.Batch, c *ingest.CopyBatch, st *store) {
	s.ev("n%d copy %d flushes S%d %v exact %v: %v", n.num, c.ID, t.Ref.Number, t.Vector.Seqnos, c.Exact, st.live.pos)
	snap := st.keep()
	if snap.ref, snap.exact = t.Ref, c.Exact; c.Exact {
		st.ready = true
		s.Report.Exact++
		s.checkFlushed(n, c.ID, st, t)
	}
	if st.snaps = append(st.snaps, snap); len(st.snaps) > keepSnaps {
		st.snaps = st.snaps[1:]
	}
}

// dropTombstones removes the tombstones of some of the first vbuckets, and returns their number: by turns one, two and
// so on.
func (s *Sim) dropTombstones(n *node, h *hosted, p core.Purge) (done int) {
	st := n.stores[p.Copy]
	if st == nil || !st.open {
		return -1
	}
	done = 1 + s.Report.Purges%len(p.VBuckets)
	s.Report.Purges++
	s.ev("n%d copy %d %s/%d drops tombstones", n.num, p.Copy, h.name, p.VBuckets[:done])
	for d, r := range st.live.rows {
		if slices.Contains(p.VBuckets[:done], uint16(d%vbuckets)) && r.key == 0 {
			st.live.rows[d] = row{}
		}
	}
	return done
}

// checkpoint flushes memtables first, because a checkpoint excludes the log and would lack them.
func (s *Sim) checkpoint(st *store) {
	c := st.keep()
	if s.on(memtables) {
		st.dur = st.live.clone()
	} else {
		c.rows = st.dur.rows
	}
	if st.ckpts = append(st.ckpts, c); len(st.ckpts) > keepCkpts {
		st.ckpts = st.ckpts[1:]
	}
}

// apply stores the newest version of each document in the segment, unless a newer one is stored.
func (s *Sim) apply(events []ingest.Entry, p *ingest.Part, st *store) {
	var newest [docs]*ingest.Entry
	var keys [docs]int
	for i := range events {
		e := &events[i]
		if !p.Selects(e) {
			continue
		}
		d := int(e.Data[0])
		key, named := keyIn(e.Data, st)
		if named && (newest[d] == nil || e.Seqno > newest[d].Seqno) {
			newest[d], keys[d] = e, key
		}
	}
	for d, e := range newest {
		if e == nil {
			continue
		}
		if r := st.live.rows[d]; r.seqno >= e.Seqno && s.on(seqCheck) {
			continue
		}
		if keys[d] != 0 || p.KeepTombstones {
			st.live.rows[d] = row{e.Seqno, keys[d]}
		} else {
			st.live.rows[d] = row{}
		}
	}
}

// keyIn returns the key that an event has for a copy's slice; false if the event does not name the slice.
func keyIn(data []byte, st *store) (int, bool) {
	for i := 1; i+2 < len(data); i += 3 {
		if data[i] == byte(st.index) && index.SliceID(data[i+1]) == st.no {
			return int(data[i+2]), true
		}
	}
	return 0, false
}

// restore restores a vbucket to its newest valid older state, or empties it.
func (s *Sim) restore(n *node, h *hosted, r ingest.Restore) {
	st := n.stores[r.Copy]
	if st == nil || !st.open {
		return
	}
	s.Report.Restores++
	s.checkScoped(n, h, st, r)
	older := st.older()
	held := n.heldStates(r.Copy, r.VBucket)
	i := ingest.Choose(held, r.Log)
	st.live.dropVB(r.VBucket)
	var back ingest.Held
	var log timestamp.FailoverLog
	if i >= 0 {
		back, log = held[i], older[i].logs[r.VBucket]
		for d, o := range older[i].rows {
			if d%vbuckets == r.VBucket {
				st.live.rows[d] = o
			}
		}
	}
	st.live.pos[r.VBucket], st.live.logs[r.VBucket] = back.Position, log
	s.wrote(st.live)
	s.ev("n%d copy %d %s/%d restores %v, %d of %d states", n.num, r.Copy, h.name, r.VBucket, back.Position, i, len(held))
	invalid := func(c *content) bool {
		return c.pos[r.VBucket].Content() > ingest.History(c.pos[r.VBucket].VBUUID, c.logs[r.VBucket]).Common(r.Log)
	}
	for _, c := range st.snaps {
		c.parted = c.parted || invalid(c)
	}
	st.ckpts = slices.DeleteFunc(st.ckpts, invalid)
	st.dur = st.live.clone()
	h.st.Restored(r, back.Position, back.Log)
	if h.st.Restoring() == 0 {
		for _, st := range n.stores {
			if st.bucket == h.name {
				st.snaps = slices.DeleteFunc(st.snaps, func(c *content) bool { return c.parted })
			}
		}
	}
}
