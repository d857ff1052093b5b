package ingest

import (
	"tidemark/index"
	"tidemark/timestamp"
)

// The KV side of the simulation: branches, failover logs, DCP windows with de-duplication, purge, and the oracle.

const (
	simVBs   = 2
	simDocs  = 6 // document d lives in vbucket d%simVBs
	simIndex = 2 // index 0 exists from the start, index 1 comes and goes
)

// simItem is one mutation; value 0 is a deletion.
type simItem struct {
	seqno      uint64
	doc, value int
}

// simBranch is a whole history: log[i].seqno == i+1.
type simBranch struct {
	log   []simItem
	fl    timestamp.FailoverLog
	rev   timestamp.MapRevision
	purge uint64
}

func (k *simBranch) high() uint64 { return uint64(len(k.log)) }

type simVB struct {
	cur       *simBranch
	owner     int
	zombie    *simBranch // an old active that does not know that it was failed over
	zombOwner int
}

// simStream is one DCP stream.
type simStream struct {
	branch *simBranch
	cur    uint64
	window timestamp.Window
	items  []simItem
	mid    bool
}

// marker fixes the items of the next window: newest versions only, and no purged deletion.
func (k *simStream) marker(end uint64) {
	if k.cur < k.branch.purge {
		end = max(end, k.branch.purge) // a backfill from disk shows one state
	}
	k.window, k.mid, k.items = timestamp.Window{Start: k.cur, End: end}, true, nil
	last := map[int]uint64{}
	part := k.branch.log[k.cur:end]
	for _, it := range part {
		last[it.doc] = it.seqno
	}
	for _, it := range part {
		if last[it.doc] == it.seqno && (it.value != 0 || it.seqno > k.branch.purge || it.seqno == k.branch.high()) {
			k.items = append(k.items, it)
		}
	}
}

// admit is KV's answer to a stream request; false is ROLLBACK.
func (k *simBranch) admit(start, reach uint64, fl timestamp.FailoverLog) bool {
	switch {
	case start == 0:
		return true
	case start < k.purge, start > k.high():
		return false
	}
	return max(start, reach) <= fl.Common(k.fl)
}

// keyOf is the definition of an index applied to a value; 0 = no entry.
func keyOf(i index.ID, value int) int {
	if i == 1 {
		return value % 4 // value 4 has no key there
	}
	return value
}

// slice returns the one of two slices that holds a document's entry: by the document, or by the key, which moves it.
func (s *sim) slice(i index.ID, doc, key int) index.SliceID {
	if s.byKey[i] {
		return index.SliceID(key % 2)
	}
	return index.SliceID(doc / simVBs % 2)
}

// oracle returns the rows of a slice at a position per vbucket.
func (s *sim) oracle(i index.ID, no index.SliceID, at timestamp.Vector) map[int]int {
	want := map[int]int{}
	for v, seqno := range at.Seqnos {
		k := s.branches[at.VBUUIDs[v]]
		if k == nil || seqno == 0 {
			continue
		}
		if seqno > k.high() {
			s.fail("oracle: S %d beyond branch %d of vb%d (high %d)", seqno, at.VBUUIDs[v], v, k.high())
			return want
		}
		for _, it := range k.log[:seqno] {
			key := keyOf(i, it.value)
			if key != 0 && s.slice(i, it.doc, key) == no {
				want[it.doc] = key
			} else {
				delete(want, it.doc)
			}
		}
	}
	return want
}

func (s *sim) newBranch(v int, r uint64, keepTie bool) *simBranch {
	old := s.kv[v].cur
	s.uuid++
	n := &simBranch{rev: timestamp.MapRevision{Epoch: 1, Rev: s.uuid}}
	if old != nil {
		n.log = append([]simItem{}, old.log[:r]...)
		for _, e := range old.fl {
			if e.Seqno < r || e.Seqno == r && keepTie {
				n.fl = append(n.fl, e)
			}
		}
		n.purge = min(old.purge, r)
	}
	n.fl = append(timestamp.FailoverLog{{VBUUID: s.uuid, Seqno: r}}, n.fl...)
	s.branches[s.uuid] = n
	return n
}

func (s *sim) write(v int, zombie bool) {
	k := s.kv[v].cur
	if zombie {
		k = s.kv[v].zombie
	}
	if k == nil || len(k.log) > 60+s.more {
		return
	}
	d := v + simVBs*s.r.Intn(simDocs/simVBs)
	value := s.r.Intn(6) % 5
	k.log = append(k.log, simItem{k.high() + 1, d, value})
	s.ev("write vb%d zombie=%v d%d=%d @%d", v, zombie, d, value, k.high())
}

// failover: the tail is lost, a new branch begins; the old active may live on.
func (s *sim) failover(v int) {
	k := &s.kv[v]
	old, was := k.cur, k.owner
	lost := min(s.r.Intn(5), len(old.log))
	k.cur = s.newBranch(v, old.high()-uint64(lost), s.r.Intn(2) == 0)
	k.owner, k.zombie = s.r.Intn(2), nil
	if k.owner != was && s.r.Intn(2) == 0 {
		k.zombie, k.zombOwner = old, was
	} else {
		s.endStream(was, v, s.r.Intn(2) == 0)
	}
	s.ev("FAILOVER vb%d high %d -> %v owner p%d zombie %v", v, old.high(), k.cur.fl, k.owner, k.zombie != nil)
}

// takeover: a clean move.
func (s *sim) takeover(v int) {
	k := &s.kv[v]
	k.cur = s.newBranch(v, k.cur.high(), true)
	k.owner, k.zombie = 1-k.owner, nil
	s.ev("TAKEOVER vb%d %v owner p%d", v, k.cur.fl, k.owner)
}

// hosted: the branch that projector p's KV node serves for v as active.
func (s *sim) hosted(p, v int) *simBranch {
	if k := &s.kv[v]; k.owner == p {
		return k.cur
	} else if k.zombie != nil && k.zombOwner == p {
		return k.zombie
	}
	return nil
}

// purge: KV forgets deletions; streams that had not got so far end.
func (s *sim) purge(v int) {
	k := s.kv[v].cur
	if len(k.log) == 0 {
		return
	}
	k.purge = max(k.purge, 1+uint64(s.r.Intn(len(k.log))))
	s.ev("PURGE vb%d up to %d", v, k.purge)
	for p := range s.proj {
		if st := s.proj[p].st[v]; st != nil && st.ks.branch == k && st.ks.cur < k.purge {
			s.endStream(p, v, true)
		}
	}
	for _, n := range s.nodes {
		for id, x := range n.side {
			if x.v == v && x.ks.branch == k && x.ks.cur < k.purge {
				delete(n.side, id)
				n.b.SideFailed(v, id)
			}
		}
	}
}
