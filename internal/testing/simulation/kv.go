package simulation

import (
	"fmt"
	"slices"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/timestamp"
)

// This file models KV: branches, failover logs, DCP windows with de-duplication, purges, and the oracle.

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

// branch is a complete history: log[i].seqno == i+1.
type branch struct {
	log   []item
	fl    timestamp.FailoverLog
	rev   timestamp.MapRevision
	purge uint64
	mute  bool // sends no END when a takeover leaves it
}

func (k *branch) high() uint64 { return uint64(len(k.log)) }

// vbucket names its current branch and its owner. A zombie is an old active that has not learned of its failover.
type vbucket struct {
	cur       *branch
	owner     int
	zombie    *branch
	zombOwner int
}

type kvBucket struct {
	name, uuid string
	vb         [vbuckets]vbucket
	// With early, the bucket is indexed while it is empty: streams begin at 0, and KV purges young deletions only
	// when a stream starts.
	early bool
	waits bool // with early: nothing is written before its streams run
}

// dcp is one DCP stream.
type dcp struct {
	branch *branch
	cur    uint64
	window timestamp.Window
	items  []item
	mid    bool

	silentMS int64 // nothing is sent before this time
}

// marker fixes the items of the next window: the newest version of each document, without purged deletions.
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

// admit returns KV's answer to a stream request after a seqno, in a window, on a branch; false means ROLLBACK. The
// purge seqno must not lie above the start of the stream, or of its window with byWindow.
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

// keyOf applies the definition of an index to a value; 0 means no entry.
func keyOf(kind, value int) int {
	if kind == 1 {
		return value % 4 // value 4 has no key in this kind
	}
	return value
}

// spread is the kind of an index and its number of slices. Kinds 0 and 1 are partitioned by document, kind 2 by key.
type spread struct{ kind, slices int }

// spreadOf returns the spread of a definition; its key names the kind. A successor has the kind of its first index.
func spreadOf(d *index.Definition) spread {
	return spread{kind: int(d.Keys[0].Expr[1] - '0'), slices: int(d.Partitions)}
}

// indexKinds is the number of kinds.
const indexKinds = 3

// keyed returns the key expression of an index of a kind.
func keyed(kind int) []index.KeyExpr { return []index.KeyExpr{{Expr: fmt.Sprintf("k%d", kind)}} }

// sliceOf returns the slice of the entry of a document with this key.
func (x spread) sliceOf(doc, key int) index.SliceID {
	if x.kind == 2 {
		return index.SliceID(key % x.slices)
	}
	return index.SliceID(doc / vbuckets % x.slices)
}

// oracle returns the rows of a slice at a vector: the definition applied to what KV held there.
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

// sparing reports whether to skip a write in a run that has few of them.
func (s *Sim) sparing() bool { return s.less == classes[fewWrites] && s.dice.load.Intn(8) > 0 }

// streamed reports whether all vbuckets of a bucket are streamed.
func (s *Sim) streamed(b *kvBucket) bool {
	for v := range vbuckets {
		if !slices.ContainsFunc(s.proj[:], func(pr *projector) bool { return pr.stream(b, v) != nil }) {
			return false
		}
	}
	return true
}

// failover loses the tail of a vbucket and begins a new branch; the old active may live on.
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

// flush deletes and recreates every vbucket, at seqno 0 on a branch of its own. Streams end now or at their next
// item.
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

// takeover moves a vbucket cleanly: the old stream drains and then sends END or not.
func (s *Sim) takeover(b *kvBucket, v int) {
	k := &b.vb[v]
	k.cur.mute = s.dice.kv.Intn(3) == 0
	k.cur = s.newBranch(k.cur, k.cur.high(), true)
	k.owner, k.zombie = 1-k.owner, nil
	s.ev("TAKEOVER %s/%d %v owner p%d", b.name, v, k.cur.fl, k.owner)
}

// hosted returns the branch that projector p's KV node serves as active, nil if there is none.
func (b *kvBucket) hosted(p, v int) *branch {
	if k := &b.vb[v]; k.owner == p {
		return k.cur
	} else if k.zombie != nil && k.zombOwner == p {
		return k.zombie
	}
	return nil
}

// lacks reports whether KV ends a stream because of a purge above its position. A stream from 0 that has not begun to
// read is not affected.
func (k *dcp) lacks() bool { return k.cur < k.branch.purge && (k.cur > 0 || k.mid) }

// purgeLate purges deletions between KV's consent to a stream from 0 and the stream's first snapshot.
func (s *Sim) purgeLate(b *kvBucket, v int, start uint64) {
	if start == 0 && s.chance(purges, 2) {
		s.purge(b, v)
	}
}

// purge purges deletions; streams below the purge seqno end.
func (s *Sim) purge(b *kvBucket, v int) {
	k := b.vb[v].cur
	if len(k.log) == 0 {
		return
	}
	k.purge = max(k.purge, 1+uint64(s.dice.kv.Intn(len(k.log))))
	if s.dice.kv.Intn(2) == 0 { // everything up to now
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

// layout returns the layout of every index of the simulation; how an index by key is sliced is its own.
func layout(slices int) partition.Layout {
	return partition.Layout{Scheme: partition.HashDocID, Partitions: uint16(slices)}
}
