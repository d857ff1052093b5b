package simulation

import (
	"fmt"
	"slices"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/timestamp"
)

// The KV side: branches, failover logs, DCP windows with de-duplication, purge, and the oracle.

const (
	young      = 16
	vbuckets   = 2
	docs       = 6 // document d of a bucket lives in vbucket d % vbuckets
	partitions = 2 // of a new index
	values     = 5 // 0 is a deletion
)

// item is one mutation; value 0 is a deletion.
type item struct {
	seqno      uint64
	doc, value int
}

// branch is a whole history: log[i].seqno == i+1.
type branch struct {
	log   []item
	fl    timestamp.FailoverLog
	rev   timestamp.MapRevision
	purge uint64
	mute  bool // it says no END when it is left
}

func (k *branch) high() uint64 { return uint64(len(k.log)) }

// vbucket is who serves it. A zombie is an old active that does not know that it was failed over.
type vbucket struct {
	cur       *branch
	owner     int
	zombie    *branch
	zombOwner int
}

type kvBucket struct {
	name, uuid string
	vb         [vbuckets]vbucket
	// it is indexed while it is empty: streams begin at 0, and KV purges nothing that is young but when one starts
	early bool
	waits bool // of early: nothing is written before its streams run
}

// dcp is one DCP stream.
type dcp struct {
	branch *branch
	cur    uint64
	window timestamp.Window
	items  []item
	mid    bool

	silentMS int64 // nothing is sent before
}

// marker fixes the items of the next window: newest versions only, and no purged deletion.
func (k *dcp) marker(end uint64) {
	if k.cur < k.branch.purge {
		end = max(end, k.branch.purge) // a backfill from disk shows one state
	}
	k.window, k.mid, k.items = timestamp.Window{Start: k.cur, End: end}, true, nil
	part := k.branch.log[k.cur:end]
	var last [docs]uint64
	for _, it := range part {
		last[it.doc] = it.seqno
	}
	for _, it := range part {
		if last[it.doc] == it.seqno && (it.value != 0 || it.seqno > k.branch.purge || it.seqno == k.branch.high()) {
			k.items = append(k.items, it)
		}
	}
}

// admit is KV's answer to a request for a stream after a seqno, in a window, of a branch; false is ROLLBACK. What is
// purged must not lie above the start: of the stream, or of its window.
func (k *branch) admit(start uint64, window timestamp.Window, vbuuid uint64, byWindow bool) bool {
	from := start
	if byWindow && start != window.End {
		from = window.Start
	}
	switch {
	case start == 0:
		return true
	case from < k.purge, start > k.high():
		return false
	}
	return max(start, window.End) <= k.fl.ValidUpTo(vbuuid)
}

// keyOf is the definition of an index applied to a value; 0 is no entry.
func keyOf(kind, value int) int {
	if kind == 1 {
		return value % 4 // value 4 has no key there
	}
	return value
}

// spread is what an index is of, and into how many slices it is cut. Of kinds 0 and 1 it is by document, of 2 by key.
type spread struct{ kind, slices int }

// spreadOf reads it from a definition, of which the key says the kind. A successor has that of its first.
func spreadOf(d *index.Definition) spread {
	return spread{kind: int(d.Keys[0].Expr[1] - '0'), slices: int(d.Partitions)}
}

// indexKinds is how many kinds there are.
const indexKinds = 3

// keyed is the key of an index of a kind.
func keyed(kind int) []index.KeyExpr { return []index.KeyExpr{{Expr: fmt.Sprintf("k%d", kind)}} }

// sliceOf is where the entry of a document with this key lives.
func (x spread) sliceOf(doc, key int) index.SliceID {
	if x.kind == 2 {
		return index.SliceID(key % x.slices)
	}
	return index.SliceID(doc / vbuckets % x.slices)
}

// oracle gives the rows of a slice at a vector: the definition applied to what KV held there.
func (s *Sim) oracle(x spread, no index.SliceID, at timestamp.Vector) (want [docs]int) {
	for v, seqno := range at.Seqnos {
		k := s.branches[at.VBUUIDs[v]]
		if k == nil || seqno == 0 {
			continue
		}
		if seqno > k.high() {
			s.fail("oracle: %d lies beyond branch %d of vb%d (high %d)", seqno, at.VBUUIDs[v], v, k.high())
			return want
		}
		for _, it := range k.log[:seqno] {
			if key := keyOf(x.kind, it.value); key != 0 && x.sliceOf(it.doc, key) == no {
				want[it.doc] = key
			} else {
				want[it.doc] = 0
			}
		}
	}
	return want
}

func (s *Sim) newBranch(old *branch, r uint64, keepTie bool) *branch {
	s.uuid++
	n := &branch{rev: timestamp.MapRevision{Epoch: 1, Rev: s.uuid}}
	if old != nil {
		n.log = append([]item{}, old.log[:r]...)
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

func (s *Sim) write(b *kvBucket, v int, zombie bool) {
	k := b.vb[v].cur
	if zombie {
		k = b.vb[v].zombie
	}
	if k == nil || len(k.log) > s.most || b.waits && !s.streamed(b) || s.sparing() {
		return
	}
	b.waits = false
	d := v + vbuckets*s.dice.load.Intn(docs/vbuckets)
	value := s.dice.load.Intn(values+1) % values
	k.log = append(k.log, item{k.high() + 1, d, value})
	s.ev("write %s/%d zombie=%v d%d=%d @%d", b.name, v, zombie, d, value, k.high())
}

// sparing reports whether a write is left out of a run that has few of them.
func (s *Sim) sparing() bool { return s.less == classes[fewWrites] && s.dice.load.Intn(8) > 0 }

// streamed tells whether all vbuckets of a bucket are streamed.
func (s *Sim) streamed(b *kvBucket) bool {
	for v := range vbuckets {
		if !slices.ContainsFunc(s.proj[:], func(pr *projector) bool { return pr.stream(b, v) != nil }) {
			return false
		}
	}
	return true
}

// failover: the tail is lost, a new branch begins; the old active may live on.
func (s *Sim) failover(b *kvBucket, v int) {
	k := &b.vb[v]
	old, was := k.cur, k.owner
	lost := s.loses(old)
	k.cur = s.newBranch(old, old.high()-uint64(lost), s.dice.kv.Intn(2) == 0)
	k.owner, k.zombie = s.dice.kv.Intn(projectors), nil
	if k.owner != was && s.dice.kv.Intn(2) == 0 {
		k.zombie, k.zombOwner = old, was
	} else {
		s.endStream(was, b, v, s.dice.kv.Intn(2) == 0)
	}
	s.ev("FAILOVER %s/%d high %d -> %v owner p%d zombie %v", b.name, v, old.high(), k.cur.fl, k.owner, k.zombie != nil)
}

// flush: every vbucket is deleted and made again, at seqno 0 on a branch of its own. Streams end, now or when their
// turn comes.
func (s *Sim) flush(b *kvBucket) {
	s.ev("FLUSH %s", b.name)
	for v := range b.vb {
		k := &b.vb[v]
		k.cur, k.zombie = s.newBranch(nil, 0, true), nil
		if s.dice.kv.Intn(2) == 0 {
			s.endStream(k.owner, b, v, true)
		}
	}
}

// takeover: a clean move; the old stream drains, and then may or may not say END.
func (s *Sim) takeover(b *kvBucket, v int) {
	k := &b.vb[v]
	k.cur.mute = s.dice.kv.Intn(3) == 0
	k.cur = s.newBranch(k.cur, k.cur.high(), true)
	k.owner, k.zombie = 1-k.owner, nil
	s.ev("TAKEOVER %s/%d %v owner p%d", b.name, v, k.cur.fl, k.owner)
}

// hosted is the branch that projector p's KV node serves as active.
func (b *kvBucket) hosted(p, v int) *branch {
	if k := &b.vb[v]; k.owner == p {
		return k.cur
	} else if k.zombie != nil && k.zombOwner == p {
		return k.zombie
	}
	return nil
}

// lacks tells whether KV ends a stream because of a purge: it had not got so far. One from 0 that has not begun to read
// goes on with what there is then.
func (k *dcp) lacks() bool { return k.cur < k.branch.purge && (k.cur > 0 || k.mid) }

// purgeLate: KV forgets deletions between its consent to a stream from 0 and the stream's first snapshot.
func (s *Sim) purgeLate(b *kvBucket, v int, start uint64) {
	if start == 0 && s.chance(purges, 2) {
		s.purge(b, v)
	}
}

// purge: KV forgets deletions; streams that had not got so far end.
func (s *Sim) purge(b *kvBucket, v int) {
	k := b.vb[v].cur
	if len(k.log) == 0 {
		return
	}
	k.purge = max(k.purge, 1+uint64(s.dice.kv.Intn(len(k.log))))
	if s.dice.kv.Intn(2) == 0 { // all that there are
		k.purge = k.high()
	}
	s.ev("PURGE %s/%d up to %d", b.name, v, k.purge)
	for p := range s.proj {
		if st := s.proj[p].stream(b, v); st != nil && st.ks.branch == k && st.ks.lacks() {
			s.endStream(p, b, v, true)
		}
	}
	for _, n := range s.nodes {
		if h := n.buckets[b.name]; h != nil && n.up {
			for _, id := range sortedKeys(h.sides) {
				if x := h.sides[id]; x.v == v && x.ks.branch == k && x.ks.lacks() {
					delete(h.sides, id)
					h.st.SideFailed(v, x.id)
				}
			}
		}
	}
}

// layout is that of every index here; slices of indexes by key are the simulation's own.
func layout(slices int) partition.Layout {
	return partition.Layout{Scheme: partition.HashDocID, Partitions: uint16(slices)}
}
