package ingest

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/timestamp"
)

// The indexer of the simulation: the real Bucket, and a store of maps that does its work late and in order.

type simRow struct {
	seqno uint64
	key   int // 0 = tombstone
}

type simState struct {
	rows map[int]simRow
	pos  [simVBs]Position
	logs [simVBs]timestamp.FailoverLog

	batch  uint64   // which rows these are: no two batches of a run have one number
	stored struct { // by that batch; pos and logs may have moved on without rows
		pos  [simVBs]Position
		logs [simVBs]timestamp.FailoverLog
	}
}

// simCommon is what a store keeps of where a copy stands beyond what the copy has stored.
type simCommon struct {
	batch uint64
	pos   [simVBs]Position
	logs  [simVBs]timestamp.FailoverLog
}

// ofBatch notes that a batch was written: with where the copy stands.
func (s *sim) ofBatch(st *simState) {
	s.batches++
	st.batch, st.stored.pos, st.stored.logs = s.batches, st.pos, st.logs
}

// keepCommon keeps where copies stand, of those whose rows are durable.
func (s *sim) keepCommon(n *simNode) {
	for id, st := range n.stores {
		switch k, ok := n.common[id]; {
		case st.dur.batch == st.live.batch || s.off["commonRows"]:
			n.common[id] = simCommon{st.live.batch, st.live.pos, st.live.logs}
			s.keptCommon++
		case ok && k.batch != st.dur.batch:
			delete(n.common, id)
		}
	}
}

// lose takes a copy back to what is durable of it.
func (s *sim) lose(n *simNode, id index.CopyID, st *simStore) {
	st.live = st.dur.clone()
	st.older = st.older[:st.ckpts]
	st.live.pos, st.live.logs = st.live.stored.pos, st.live.stored.logs
	if k, ok := n.common[id]; ok && (k.batch == st.live.batch || s.off["commonRows"]) {
		st.live.pos, st.live.logs = k.pos, k.logs
	}
	st.dur = st.live.clone()
}

func (st *simState) clone() *simState {
	c := *st
	c.rows = make(map[int]simRow, len(st.rows))
	for d, r := range st.rows {
		c.rows[d] = r
	}
	return &c
}

func (st *simState) dropVB(v int) {
	for d := range st.rows {
		if d%simVBs == v {
			delete(st.rows, d)
		}
	}
}

type simStore struct {
	index     index.ID
	no        index.SliceID
	live, dur *simState
	older     []*simState // snapshots and checkpoints, newest last
	ckpts     int         // how many of the first survive a crash
	ready     bool
}

// simSide is a side stream that a projector runs for a node.
type simSide struct {
	p, v int
	ks   simStream
	to   uint64
	read uint64
	last uint64             // highest one that was sent
	told bool               // BEGIN was sent
	on   bool               // it goes on to the end of the snapshot that its end lies in
	rest []keyversion.Event // parts of the present item that are still to come
	// copies are those it was asked for; a later topology does not change what it evaluates.
	copies []index.CopyID
}

type simNode struct {
	up, full bool
	b        *Bucket
	stores   map[index.CopyID]*simStore
	common   map[index.CopyID]simCommon
	ops      []Work
	under    []*simUnder // oldest first
	side     map[uint64]*simSide
	ack      uint64
	absent   []index.CopyID // copies whose folder was gone at the start; they are made anew a while after
}

// pack keeps doc, value, and the slices of this node that the event names.
func pack(e *keyversion.Event) []byte {
	d := append([]byte(nil), e.DocID...)
	for _, st := range e.Statements {
		d = append(d, byte(st.Index), byte(st.Slice))
	}
	return d
}

func (s *sim) newBucket(n *simNode) {
	b, err := New(Options{VBuckets: simVBs, Generation: 1, Pack: pack})
	if err != nil {
		s.fail("%v", err)
		return
	}
	b.alone = s.alone
	n.b = b
	n.ops, n.under, n.side = nil, nil, map[uint64]*simSide{}
}

// collect takes what the state wants done.
func (s *sim) collect(n *simNode) {
	n.ops = append(n.ops, n.b.Work()...)
}

// simUnder is a batch that was handed out and is not done.
type simUnder struct {
	t     *Batch
	left  []index.CopyID // that it is still to be written to
	shown bool
}

// simStability is how many batches at stability timestamps may be under way.
const simStability = 3

// ask takes what the store has to do next: Work in its order, restores when nothing else is under way; then what the
// state gives, one batch of a kind at a time but for stability timestamps.
func (s *sim) ask(ni int) {
	n := s.nodes[ni]
	if s.collect(n); n.full {
		return
	}
	if len(n.ops) > 0 {
		switch w := n.ops[0]; {
		case w.Batch != nil:
			n.ops = n.ops[1:]
			n.hand(w.Batch)
		case len(n.under) == 0:
			n.ops = n.ops[1:]
			s.restore(ni, *w.Restore)
		}
		return
	}
	under := n.kinds()
	r := Room{Stability: under[AtStability] < simStability, SideLeast: s.r.Intn(3) * 200, SideMost: 300,
		AheadFrom: math.MaxInt}
	if under[FromSide] > 0 {
		r.SideMost = 0
	}
	if s.bound > 0 && n.b.QueueBytes() > s.bound && s.r.Intn(3) == 0 && under[Ahead] == 0 {
		r.AheadFrom, r.AheadBytes = 0, s.bound/2
	}
	t, acks := n.b.Next(r)
	s.shared = max(s.shared, n.b.sharing)
	for _, a := range acks {
		for _, u := range n.under {
			if u.t.Kind == AtStability && !u.shown {
				s.fail("S%d is acknowledged before S%d is shown", a.Number, u.t.Ref.Number)
			}
		}
		n.ack = max(n.ack, a.Number)
	}
	if t == nil {
		return
	}
	if t.Kind == Ahead {
		s.ahead++
	}
	n.hand(t)
}

// kinds counts what is under way.
func (n *simNode) kinds() (count [DeleteRange + 1]int) {
	for _, u := range n.under {
		count[u.t.Kind]++
	}
	return count
}

func (n *simNode) hand(t *Batch) {
	u := &simUnder{t: t}
	for i := range t.Copies {
		u.left = append(u.left, t.Copies[i].ID)
	}
	n.under = append(n.under, u)
	if t.Kind == AtStability && u.served() {
		n.show(u)
	}
}

// show tells that the copies of a batch that serve scans have it.
func (n *simNode) show(u *simUnder) {
	u.shown = true
	if a, ok := n.b.Shown(u.t); ok {
		n.ack = max(n.ack, a.Number)
	}
}

// storeStep does some things of the store: each copy is written in its own order, and no copy waits for another.
func (s *sim) storeStep(ni int) {
	n := s.nodes[ni]
	s.ask(ni)
	for range 1 + s.r.Intn(2*len(n.stores)+1) {
		if n.full {
			break
		}
		s.writeOne(ni)
		s.done(n)
	}
	s.collect(n)
}

// writeOne writes what some copy has to write next.
func (s *sim) writeOne(ni int) {
	n := s.nodes[ni]
	var first []*simUnder
	var copies []index.CopyID
	for _, u := range n.under {
		for _, id := range u.left {
			if !slices.Contains(copies, id) {
				first, copies = append(first, u), append(copies, id)
			}
		}
	}
	if len(copies) == 0 {
		return
	}
	k := s.r.Intn(len(copies))
	u, id := first[k], copies[k]
	u.left = slices.DeleteFunc(u.left, func(c index.CopyID) bool { return c == id })
	for i := range u.t.Copies {
		if c := &u.t.Copies[i]; c.ID == id && n.stores[id] != nil {
			s.write1(ni, u.t, c, n.stores[id])
		}
	}
}

// done tells of what has been written: of batches at stability timestamps in their order, but for what they have still
// to write to copies that are being built.
func (s *sim) done(n *simNode) {
	waits := false
	n.under = slices.DeleteFunc(n.under, func(u *simUnder) bool {
		at := u.t.Kind == AtStability
		if at && !u.shown && !waits && u.served() {
			n.show(u)
		}
		if waits = waits || at && !u.shown; len(u.left) > 0 || at && waits {
			return false
		}
		if a, ok := n.b.Done(u.t); ok {
			n.ack = max(n.ack, a.Number)
		}
		return true
	})
}

// served: of the copies that serve scans none is left.
func (u *simUnder) served() bool {
	return !slices.ContainsFunc(u.t.Copies, func(c CopyBatch) bool { return c.Serves && slices.Contains(u.left, c.ID) })
}

// drop forgets what is under way for a copy.
func (n *simNode) drop(id index.CopyID) {
	for _, u := range n.under {
		u.left = slices.DeleteFunc(u.left, func(c index.CopyID) bool { return c == id })
		u.t.Copies = slices.DeleteFunc(slices.Clone(u.t.Copies), func(c CopyBatch) bool { return c.ID == id })
	}
	n.ops = slices.DeleteFunc(n.ops, func(w Work) bool { return w.Restore != nil && w.Restore.Copy == id })
	for k := range n.ops {
		if w := &n.ops[k]; w.Batch != nil {
			w.Batch.Copies = slices.DeleteFunc(slices.Clone(w.Batch.Copies), func(c CopyBatch) bool { return c.ID == id })
		}
	}
}

func (s *sim) write1(ni int, t *Batch, c *CopyBatch, st *simStore) {
	before := st.live.clone()
	for i := range c.Parts {
		p := &c.Parts[i]
		if p.DeleteRange {
			st.live.dropVB(p.VBucket)
			s.ranges++
		}
		if p.Segment >= 0 {
			s.apply(t.Segments[p.Segment].Events, p, st)
		}
		if p.PurgeTombstones {
			for d, r := range st.live.rows {
				if d%simVBs == p.VBucket && r.key == 0 {
					delete(st.live.rows, d)
				}
			}
		}
		st.live.pos[p.VBucket] = p.Position
		if p.Log != nil {
			st.live.logs[p.VBucket] = p.Log
		}
	}
	// runs that show what another rule is for keep their seeds
	if s.whole || s.off.others("commonRows") || c.Common == nil || !maps.Equal(before.rows, st.live.rows) {
		s.ofBatch(st.live)
	}
	if t.Kind == AtStability {
		s.ev("n%d copy %d flushed S%d %v exact %v: %+v", ni, c.ID, t.Ref.Number, t.Vector.Seqnos, c.Exact, st.live.pos)
		if c.Exact {
			st.ready = true
			s.exacts++
			s.compare("snapshot", ni, c.ID, st, t.Vector)
		}
		st.older = append(st.older, st.live.clone())
		if len(st.older) > st.ckpts+2 {
			st.older = slices.Delete(st.older, st.ckpts, st.ckpts+1)
		}
	} else {
		s.ev("n%d copy %d batch kind %d: %+v", ni, c.ID, t.Kind, st.live.pos)
	}
	if !s.off.others("commonRows") && s.tear.Intn(4) == 0 {
		s.keepCommon(s.nodes[ni])
	}
	if s.r.Intn(3) == 0 { // a memtable reaches the disk
		st.dur = st.live.clone()
	}
	if s.r.Intn(6) == 0 {
		st.dur = st.live.clone()
		st.older = append(st.older[:st.ckpts:st.ckpts], st.live.clone())
		if st.ckpts = len(st.older); st.ckpts > 3 {
			st.older, st.ckpts = st.older[1:], 3
		}
	}
}

// apply: the newest version of each document in the segment, unless a newer one is stored.
func (s *sim) apply(events []Entry, p *Part, st *simStore) {
	newest := map[byte]*Entry{}
	for i := range events {
		e := &events[i]
		if !p.Selects(e) || !names(e.Data, st) {
			continue
		}
		if o := newest[e.Data[0]]; o == nil || e.Seqno > o.Seqno {
			newest[e.Data[0]] = e
		}
	}
	for d, e := range newest {
		if r, ok := st.live.rows[int(d)]; ok && r.seqno >= e.Seqno && !s.noSeqCheck {
			continue
		}
		key := keyOf(st.index, int(e.Data[1]))
		if s.slice(st.index, int(d), key) != st.no {
			key = 0
		}
		if key != 0 || p.KeepTombstones {
			st.live.rows[int(d)] = simRow{e.Seqno, key}
		} else {
			delete(st.live.rows, int(d))
		}
	}
}

func names(data []byte, st *simStore) bool {
	for i := 2; i+1 < len(data); i += 2 {
		if index.ID(data[i]) == st.index && index.SliceID(data[i+1]) == st.no {
			return true
		}
	}
	return false
}

// restore: the newest older state that is valid for the vbucket, or nothing.
func (s *sim) restore(ni int, r Restore) {
	n := s.nodes[ni]
	st := n.stores[r.Copy]
	if st == nil {
		return
	}
	s.restores++
	held := s.heldStates(n, r.Copy, r.VBucket)
	i := Choose(held, r.Log)
	st.live.dropVB(r.VBucket)
	var h Held
	if i >= 0 && !s.off["useOlder"] {
		h = held[i]
		from := st.older[len(st.older)-1-i]
		for d, row := range from.rows {
			if d%simVBs == r.VBucket {
				st.live.rows[d] = row
			}
		}
	}
	st.live.pos[r.VBucket] = h.Position
	s.ofBatch(st.live)
	s.ev("n%d copy %d vb%d restores %+v of %d states", ni, r.Copy, r.VBucket, h.Position, len(held))
	kept, ckpts := st.older[:0:0], 0
	for k, o := range st.older {
		if p := o.pos[r.VBucket]; p.Content() <= o.logs[r.VBucket].Common(r.Log) {
			if kept = append(kept, o); k < st.ckpts {
				ckpts++
			}
		}
	}
	st.older, st.ckpts = kept, ckpts
	st.dur = st.live.clone()
	n.b.Restored(r, h.Position, h.Log)
	s.collect(n)
}

func (s *sim) heldStates(n *simNode, id index.CopyID, v int) []Held {
	var held []Held
	st := n.stores[id]
	for i := len(st.older) - 1; i >= 0; i-- {
		held = append(held, Held{Position: st.older[i].pos[v], Log: st.older[i].logs[v]})
	}
	return held
}

func (s *sim) compare(what string, ni int, id index.CopyID, st *simStore, at timestamp.Vector) {
	want := s.oracle(st.index, st.no, at)
	for d := range simDocs {
		if r := st.live.rows[d]; r.key != want[d] {
			s.fail("%s at %v: n%d copy %d (%d/%d) doc %d has %d@%d, oracle %d", what, at, ni, id, st.index, st.no, d, r.key,
				r.seqno, want[d])
		}
	}
}

func (s *sim) crash(ni int) {
	n := s.nodes[ni]
	n.up = false
	s.ev("CRASH n%d", ni)
	for p := range s.proj {
		s.breakConn(p, ni)
	}
	for id, st := range n.stores {
		s.lose(n, id, st)
	}
	n.ack = 0
	maps.DeleteFunc(s.owners(), func(k [3]uint64, _ index.ProjectorID) bool { return k[0] == uint64(ni) })
}

func (s *sim) start(ni int) {
	n := s.nodes[ni]
	n.up, n.full = true, false
	s.ev("RESTART n%d", ni)
	s.newBucket(n)
	n.absent = nil
	for _, id := range sortedKeys(n.stores) {
		if s.torn && s.tear.Intn(3) == 0 {
			st := n.stores[id]
			delete(n.common, id) // another folder has another name
			n.stores[id] = &simStore{index: st.index, no: st.no, live: (&simState{}).clone(), dur: (&simState{}).clone()}
			n.absent = append(n.absent, id)
			s.ev("n%d copy %d: its folder is gone", ni, id)
			continue
		}
		s.add(n, id, n.stores[id])
	}
	for p := range s.proj {
		s.rebegin(p, ni)
	}
}

// makeAbsent makes a copy anew whose folder was gone when its node started; by now the streams may have begun.
func (s *sim) makeAbsent(ni int) {
	n := s.nodes[ni]
	if len(n.absent) == 0 || s.tear.Intn(4) > 0 {
		return
	}
	id := n.absent[0]
	n.absent = n.absent[1:]
	s.ev("n%d copy %d is made anew", ni, id)
	s.add(n, id, n.stores[id])
	s.collect(n)
}

func (s *sim) add(n *simNode, id index.CopyID, st *simStore) {
	if err := n.b.Add(Copy{ID: id, Index: st.index, Slice: st.no, Ready: st.ready, Positions: st.live.pos[:],
		Logs: st.live.logs[:]}); err != nil {
		s.fail("%v", err)
	}
}

// reopen: one slice's files are torn; it comes back with what was durable.
func (s *sim) reopen(ni int) {
	n := s.nodes[ni]
	for _, id := range sortedKeys(n.stores) {
		st := n.stores[id]
		if s.r.Intn(2) == 0 || slices.Contains(n.absent, id) {
			continue
		}
		n.drop(id) // what was under way for it is gone
		s.lose(n, id, st)
		s.ev("n%d copy %d reopened at %+v", ni, id, st.live.pos)
		if err := n.b.Reopened(id, st.live.pos[:], st.live.logs[:]); err != nil {
			s.fail("%v", err)
		}
		break
	}
	s.collect(n)
}

// sideStep opens, feeds or ends one side stream of a node.
func (s *sim) sideStep(ni int) {
	n := s.nodes[ni]
	if s.r.Intn(3) == 0 || len(n.side) == 0 {
		for _, w := range n.b.Wants() {
			s.openSide(ni, w)
		}
		return
	}
	ids := sortedKeys(n.side)
	id := ids[s.r.Intn(len(ids))]
	s.feedSide(ni, id, n.side[id])
	s.collect(n)
}

func (s *sim) openSide(ni int, w Want) {
	n := s.nodes[ni]
	p := s.r.Intn(2)
	k := s.hosted(p, w.VBucket)
	if k == nil || !s.proj[p].up || !s.off["sideBranch"] && k.fl.Newest() != w.Branch || w.From > k.high() {
		return
	}
	s.sideID++
	id := s.sideID
	n.b.OpenSide(w, id)
	start := w.From
	if !k.admit(start, 0, timestamp.FailoverLog{{VBUUID: w.VBUUID}}) {
		n.b.SideRefused(w.VBucket, id, k.purge)
		s.collect(n)
		if !s.off["purgeSide"] {
			return
		}
		n.b.OpenSide(w, id)
	}
	s.ev("n%d side %d vb%d %d->%d from p%d for %v", ni, id, w.VBucket, w.From, w.To, p, w.Copies)
	n.side[id] = &simSide{p: p, v: w.VBucket, ks: simStream{branch: k, cur: start}, to: w.To, on: id%4 > 0,
		copies: w.Copies}
}

func (s *sim) feedSide(ni int, id uint64, x *simSide) {
	n, k := s.nodes[ni], &x.ks
	src := Source{Projector: projID(x.p), Connection: s.proj[x.p].conn[ni]}
	send := func(e keyversion.Event) Verdict {
		e.VBucket, e.Incarnation.Counter = uint16(x.v), id
		return n.b.AcceptSide(src, &e)
	}
	if !s.proj[x.p].up {
		n.b.SideFailed(x.v, id)
		delete(n.side, id)
		return
	}
	if !x.told {
		x.told, x.rest = true, nil
		if send(keyversion.Event{Kind: keyversion.StreamBegin, Begin: &keyversion.Begin{Start: k.cur, Log: k.branch.fl,
			Purge: k.branch.purge}}) != Taken {
			delete(n.side, id)
		}
		return
	}
	switch {
	case !k.mid && k.cur < x.to && k.cur < k.branch.high():
		k.marker(k.cur + 1 + uint64(s.r.Intn(int(k.branch.high()-k.cur))))
	case k.mid && len(k.items) > 0 && (x.on || k.items[0].seqno <= x.to):
		it := k.items[0]
		if len(x.rest) == 0 {
			x.rest = s.parts(s.event(ni, it, timestamp.Window{Start: k.window.Start, End: it.seqno}, x.copies))
		}
		e := x.rest[0]
		if x.rest = x.rest[1:]; len(x.rest) > 0 {
			if send(e) == NotOwner {
				delete(n.side, id)
			}
			return
		}
		k.items, k.cur, x.read, x.last = k.items[1:], it.seqno, max(x.read, k.window.End), it.seqno
		// as with a finite stream of KV, only the end says how far was read
		if send(e) == NotOwner {
			delete(n.side, id)
		}
	case k.mid:
		k.mid, k.items, k.cur, x.read = false, nil, k.window.End, k.window.End
		if (x.on || k.cur < x.to) && s.r.Intn(2) == 0 {
			send(keyversion.Event{Kind: keyversion.Sync, Seqno: k.cur})
		}
	case k.cur >= x.to:
		send(keyversion.Event{Kind: keyversion.StreamEnd, Seqno: max(x.to, x.last), Window: timestamp.Window{End: x.read}})
		delete(n.side, id)
		s.ev("n%d side %d vb%d ends, read %d", ni, id, x.v, x.read)
	default: // the branch is shorter than A: it can bring no more
		n.b.SideFailed(x.v, id)
		delete(n.side, id)
	}
}

func (s *sim) event(ni int, it simItem, w timestamp.Window, copies []index.CopyID) keyversion.Event {
	e := keyversion.Event{Kind: keyversion.Insert, Seqno: it.seqno, Window: w, DocID: []byte{byte(it.doc), byte(it.value)}}
	if it.value == 0 {
		e.Kind = keyversion.Delete
	}
	for _, id := range copies {
		c := s.copies[id]
		told := c.no == s.slice(c.index, it.doc, keyOf(c.index, it.value))
		if s.byKey[c.index] && (!s.off["upsertDeletion"] || it.value == 0) {
			told = true
		}
		if c.node == ni && told {
			e.Statements = append(e.Statements, keyversion.Statement{Index: c.index, Slice: c.no})
		}
	}
	return e
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
