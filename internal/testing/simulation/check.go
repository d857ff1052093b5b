package simulation

import (
	"fmt"
	"slices"
	"strings"

	"tidemark/index"
	"tidemark/ingest"
	"tidemark/keyversion"
	"tidemark/partition"
	"tidemark/statecontext"
	"tidemark/streams"
	"tidemark/timestamp"
	"tidemark/wire"
)

// This file holds the invariants that are checked at every step, and at the end.

type refKey struct {
	bucket                       string
	generation, rollback, number uint64
}

type ownerKey struct {
	node   int
	bucket string
	v      int
	inc    index.Incarnation
}

type endKey struct {
	bucket string
	v      int
	branch uint64
	seqno  uint64
}

// noteEnd records that a DCP snapshot ended at a seqno.
func (s *Sim) noteEnd(b *kvBucket, v int, k *branch, seqno uint64) {
	for _, e := range k.fl { // on every branch that shares it
		if seqno <= k.fl.ValidUpTo(e.VBUUID) {
			s.ends[endKey{b.name, v, e.VBUUID, seqno}] = true
		}
	}
}

// checkCommit checks that CAS rises by one with every update, or by more where a recovery skips numbers, and that
// stability timestamps never go back except in a rollback, stand on snapshot ends, and have one vector per number.
func (s *Sim) checkCommit(old, next *statecontext.State, r statecontext.Result, body statecontext.Body) {
	if next.CAS() != casAfter(old, r, body) {
		s.fail("%T: cas went from %d to %d, changed %v", body, old.CAS(), next.CAS(), r.Changed)
	}
	for b := range next.Buckets() {
		if was := old.Bucket(b.Name); was != nil && was.Stability.Number != b.Stability.Number {
			s.checkPromotion(was, b)
		}
	}
	if next.Epoch() == old.Epoch() && next.Term() < old.Term() {
		s.fail("%T: the state goes back from term %d to %d", body, old.Term(), next.Term())
	}
	_, begins := body.(*statecontext.LeaderStarted)
	if begins || next.DefinitionsRevision() != old.DefinitionsRevision() {
		s.checkDDL(next)
		s.checkApart(next)
		s.checkDoubles(next)
	}
	if c, ok := body.(*statecontext.SetIndexState); ok && r.Changed {
		if c.To == index.Maintenance {
			s.checkReady(next.Index(c.ID))
		}
		s.checkName(old, next, c.ID)
	}
}

// casAfter returns the CAS that must follow a command.
func casAfter(old *statecontext.State, r statecontext.Result, body statecontext.Body) uint64 {
	want := old.CAS()
	if r.Changed {
		want++
	}
	if c, is := body.(*statecontext.RaiseEpoch); is && c.SkipNumbers {
		want += statecontext.SkippedUpdates
	}
	return want
}

// checkName checks that a name that changes from one ready index to another one changes to a ready index, so that
// scans by name continue.
func (s *Sim) checkName(old, next *statecontext.State, id index.ID) {
	x := next.Index(id)
	was, is := old.IndexByName(x.Definition.Bucket, x.Definition.Name), next.IndexByName(x.Definition.Bucket,
		x.Definition.Name)
	if was == nil || is == was || is != nil && is.Definition.ID == was.Definition.ID {
		return
	}
	if is == nil || is.Definition.State != index.Maintenance {
		s.fail("a scan of %s by name found index %v and finds %v", ddlName(x.Definition.Bucket, x.Definition.Name),
			was.Definition.ID, id)
		return
	}
	s.checkReady(is)
	s.checkSame(was, is)
	s.countSplit(was, old.Index(id))
}

// checkPromotion checks one bucket's new stability timestamp.
func (s *Sim) checkPromotion(was, b *statecontext.Bucket) {
	key := refKey{b.Name, b.Generation, b.Stability.RollbackID, b.Stability.Number}
	s.oneVector(key, b.Stability.Vector)
	s.stable[key] = b.Stability.Vector
	s.Report.Promotions++
	if was.Rollback != nil && b.Rollback == nil {
		s.Report.Rollbacks++
		return
	}
	for v, seqno := range b.Stability.Vector.Seqnos {
		before := was.Stability.Vector.Seqnos[v]
		if seqno < before {
			s.fail("stability of %s/%d goes back from %d to %d", b.Name, v, before, seqno)
		}
		if of, to := was.Stability.Vector.VBUUIDs[v], b.Stability.Vector.VBUUIDs[v]; before > 0 && of != to &&
			!s.share(of, to, before) {
			s.fail("stability of %s/%d goes over from branch %d at %d to branch %d, which has left it below, without a "+
				"rollback", b.Name, v, of, before, to)
		}
		if seqno > before && !s.ended(b, v, seqno) {
			s.fail("stability of %s/%d: %d ends no snapshot of %v", b.Name, v, seqno, b.Stability.Logs[v])
		}
	}
}

// share reports whether two branches have the same history up to a seqno.
func (s *Sim) share(a, c uint64, seqno uint64) bool {
	x, y := s.branches[a], s.branches[c]
	return x != nil && y != nil && x.fl.Common(y.fl) >= seqno
}

// ddlState is the state of an index as its user knows it.
type ddlState uint8

const (
	created ddlState = iota // CREATE was acknowledged
	open                    // DROP was requested
	dropped                 // DROP was acknowledged
)

// checkDDL checks that acknowledged commands are not lost.
func (s *Sim) checkDDL(now *statecontext.State) {
	for _, name := range sortedKeys(s.acked) {
		bucket, short, _ := strings.Cut(name, "/")
		there := now.IndexByName(bucket, short) != nil // the name of an index that is being dropped is free
		switch is := s.acked[name]; {
		case is == created && !there:
			s.fail("index %s was created, as acknowledged, and is not there", name)
		case is == dropped && there:
			s.fail("index %s was dropped, as acknowledged, and is there", name)
		}
	}
}

func ddlName(bucket, name string) string { return bucket + "/" + name }

// checkApart checks that no node has two copies of one slice, so that the loss of a node costs at most one replica.
func (s *Sim) checkApart(now *statecontext.State) {
	type place struct {
		slice index.SliceID
		node  index.NodeID
	}
	for x := range now.Indexes() {
		on := map[place]index.CopyID{}
		for _, c := range x.Topology.Copies {
			if c.State == partition.Leaving {
				continue
			}
			at := place{c.Slice, c.Node}
			if other, twice := on[at]; twice {
				s.fail("copies %d and %d of index %v slice %d are both on node %d", other, c.ID, x.Definition.ID, c.Slice, c.Node)
			}
			on[at] = c.ID
		}
	}
}

// checkObeyed checks that a component that has obeyed a term never obeys a lower one, across restarts too.
func (s *Sim) checkObeyed(who string, f wire.Fence) {
	f.Counter = 0
	if was := s.obeyed[who]; f.Less(was) {
		s.fail("%s obeys epoch %d term %d after epoch %d term %d", who, f.Epoch, f.Term, was.Epoch, was.Term)
	}
	s.obeyed[who] = f
}

func (s *Sim) ended(b *statecontext.Bucket, v int, seqno uint64) bool {
	log := b.Stability.Logs[v]
	return slices.ContainsFunc(log, func(e timestamp.LogEntry) bool {
		return seqno <= log.ValidUpTo(e.VBUUID) && s.ends[endKey{b.Name, v, e.VBUUID, seqno}]
	})
}

// oneVector checks that a number always stands for the same vector, in every component and at any time.
func (s *Sim) oneVector(key refKey, t timestamp.Vector) {
	if was, ok := s.vectors[key]; ok && !was.Equal(t) {
		s.fail("two stability timestamps under one name %+v: %v and %v", key, was.Seqnos, t.Seqnos)
	}
	s.vectors[key] = t
}

// observe checks a leader's view after each action that may change it.
func (s *Sim) observe(l *leader) {
	for _, b := range s.kv {
		s.checkOneOwner(l, b.name)
		s.checkPaced(l, b.name)
	}
}

// checkOneOwner checks that a leader's ledger never has two owners of a vbucket under one incarnation.
func (s *Sim) checkOneOwner(l *leader, bucket string) {
	for v, e := range l.step.leader.Entries(bucket) {
		if e.State != streams.Begun {
			continue
		}
		k := ownerKey{int(l.term), bucket, v, e.Incarnation}
		if was, ok := s.ledger[k]; ok && was != e.Owner {
			s.fail("the ledger of term %d has two owners of %s/%d under %v: %s and %s", l.term, bucket, v, e.Incarnation, was,
				e.Owner)
		}
		s.ledger[k] = e.Owner
	}
}

// owedKey names an indexer in a leader's view.
type owedKey struct {
	leader *leader
	bucket string
	node   index.NodeID
}

// checkPaced checks that a participant owes at most the bound, or what it owed already when it came back, plus the
// promotion in progress at that time.
func (s *Sim) checkPaced(l *leader, bucket string) {
	for _, p := range l.step.leader.Participants(bucket) {
		k := owedKey{l, bucket, p.Node}
		most, known := s.owed[k]
		if now := max(p.Behind, uint64(s.outstanding)) + 1; !known || p.Ignored != "" || now < most {
			s.owed[k] = now
		} else if p.Behind > most {
			s.fail("promotion of %s in term %d does not wait for indexer %d, which owes %d of at most %d", bucket, l.term,
				p.Node, p.Behind, s.outstanding)
		}
	}
}

func (s *Sim) checkPublished(t *wire.BucketStability) {
	s.oneVector(refKey{t.Bucket, t.Generation, t.RollbackID, t.Number}, t.Vector)
}

// checkReady checks that an index becomes ready only when all its copies have been exact.
func (s *Sim) checkReady(x *statecontext.Index) {
	for _, c := range x.Topology.Copies {
		if c.State != partition.Leaving && !s.wasExact(c.Node, c.ID) {
			s.fail("index %v is made ready, and its copy %d on node %d has never been exact", x.Definition.ID, c.ID, c.Node)
		}
	}
}

// wasExact reports whether a copy has ever been exact. A copy whose folder was lost counts as exact: it is rebuilt.
func (s *Sim) wasExact(node index.NodeID, id index.CopyID) bool {
	st := s.nodes[s.nodeAt(node)].stores[id]
	return s.lost[id] || st != nil && st.ready
}

// checkOwner checks that a node accepts data of a vbucket under one incarnation from one projector only.
func (s *Sim) checkOwner(to int, b *kvBucket, e *keyversion.Event, src ingest.Source, verdict ingest.Verdict) {
	if verdict != ingest.Taken || !e.Kind.Data() {
		return
	}
	k := ownerKey{to, b.name, int(e.VBucket), e.Incarnation}
	if o, ok := s.owners[k]; ok && o != src.Projector {
		s.fail("n%d accepts %s/%d %v from %s and %s", to, b.name, e.VBucket, e.Incarnation, o, src.Projector)
	}
	s.owners[k] = src.Projector
}

// checkFlushed checks that an exact snapshot equals what KV held at its timestamp.
func (s *Sim) checkFlushed(n *node, id index.CopyID, st *store, t *ingest.Batch) {
	s.oneVector(refKey{st.bucket, t.Ref.Generation, t.Ref.RollbackID, t.Ref.Number}, t.Vector)
	s.compare("snapshot", n, id, st, st.live, t.Vector)
}

func (s *Sim) compare(what string, n *node, id index.CopyID, st *store, c *content, at timestamp.Vector) {
	want := s.oracle(st.spread, st.no, at)
	for d := range want {
		if r := c.rows[d]; r.key != want[d] {
			s.fail("%s of %s at %v: n%d copy %d (index %v slice %d) document %d has %d@%d, the oracle %d", what, st.bucket, at,
				n.num, id, st.index, st.no, d, r.key, r.seqno, want[d])
		}
	}
}

// checkScoped checks that a rollback restores only vbuckets that have left their branch.
func (s *Sim) checkScoped(n *node, h *hosted, st *store, r ingest.Restore) {
	held := ingest.History(st.live.pos[r.VBucket].VBUUID, st.live.logs[r.VBucket])
	if p, _ := h.st.Position(r.Copy, r.VBucket); p.Content() > 0 && p.WindowEnd != timestamp.Infinity &&
		p.Content() <= held.Common(r.Log) {
		s.fail("n%d puts back %s/%d of copy %d at %v, which is on the branch of %v", n.num, st.bucket, r.VBucket, r.Copy,
			p, r.Log)
	}
}

// checkDrop checks that a placed copy is never dropped.
func (s *Sim) checkDrop(n *node, id index.CopyID) {
	for x := range s.state.Indexes() {
		for _, c := range x.Topology.Copies {
			if c.ID == id && int(c.Node) == n.id && c.State != partition.Leaving && x.Definition.State != index.Dropping {
				s.fail("n%d drops copy %d of index %v, which is placed there", n.num, id, x.Definition.ID)
			}
		}
	}
}

// eventMost is the most memory that one event of the simulation takes.
const eventMost = 256

// checkQueues checks that queues stay within their configured bound. A queue that is not full yet takes one more
// event.
func (s *Sim) checkQueues(n *node) {
	for _, h := range n.buckets {
		if s.bound > 0 && h.st.Queued() > s.bound+eventMost {
			s.fail("n%d queues %d bytes of %s, bound %d", n.num, h.st.Queued(), h.name, s.bound)
		}
	}
}

// scan reads a ready index at a timestamp that one replica of each slice holds.
func (s *Sim) scan() {
	for x := range s.state.Indexes() {
		if x.Definition.State != index.Maintenance || s.dice.look.Intn(2) == 0 {
			continue
		}
		for ref, have := range s.heldBy(x) {
			at, ok := s.stable[refKey{x.Definition.Bucket, ref.Generation, ref.RollbackID, ref.Number}]
			if len(have) < int(x.Topology.Layout.Partitions) {
				continue
			}
			if !ok {
				s.fail("index %v is exact at %+v, which was never committed", x.Definition.ID, ref)
				return
			}
			s.Report.Scans++
			for _, h := range have {
				s.compare("scan", h.n, h.id, h.st, h.c, at)
			}
		}
	}
}

type holder struct {
	n  *node
	id index.CopyID
	st *store
	c  *content
}

// heldBy returns, by stability timestamp, a holder of each slice.
func (s *Sim) heldBy(x *statecontext.Index) map[timestamp.Ref]map[index.SliceID]holder {
	all := map[timestamp.Ref]map[index.SliceID]holder{}
	for _, c := range x.Topology.Copies {
		n := s.nodes[s.nodeAt(c.Node)]
		st := n.stores[c.ID]
		if !n.up || st == nil || c.State == partition.Leaving {
			continue
		}
		for _, snap := range st.snaps {
			if !snap.exact || snap.parted {
				continue
			}
			if all[snap.ref] == nil {
				all[snap.ref] = map[index.SliceID]holder{}
			}
			all[snap.ref][c.Slice] = holder{n, c.ID, st, snap}
		}
	}
	return all
}

// settled returns what is still missing, with explain's account of the bucket, or "" when every index equals the
// oracle at KV's present.
func (s *Sim) settled(explain func(b *kvBucket) string) string {
	if s.lead == nil || !s.lead.step.leader.Active() {
		return "no leader is active"
	}
	for _, n := range s.nodes {
		if !n.up || !n.registered {
			return fmt.Sprintf("n%d is down", n.num)
		}
	}
	for _, b := range s.kv {
		k := s.state.Bucket(b.name)
		if k.Rollback != nil {
			return fmt.Sprintf("%s is in rollback %d, step %v", b.name, k.Rollback.ID, k.Rollback.Step)
		}
		if at := b.present(); !(k.Stability.Vector.Reaches(at) && at.Reaches(k.Stability.Vector)) && s.indexed(b) {
			return fmt.Sprintf("S%d of %s is %v, KV is at %v; %s", k.Stability.Number, b.name, k.Stability.Vector, at,
				explain(b))
		}
	}
	if r := s.state.RebalanceUnderWay(); r != nil {
		return fmt.Sprintf("rebalance %d is %s", r.ID, r.Phase)
	}
	if i := s.evicting(); i != nil {
		return fmt.Sprintf("%s is not removed yet", i.Name)
	}
	for x := range s.state.Indexes() {
		if x.Definition.State != index.Maintenance {
			return fmt.Sprintf("index %v is in state %v; %s", x.Definition.ID, x.Definition.State,
				explain(s.bucket(x.Definition.Bucket)))
		}
		if why := s.settledIndex(x, explain); why != "" {
			return why
		}
	}
	return ""
}

func (s *Sim) indexed(b *kvBucket) bool {
	for range s.state.IndexesOf(b.name) {
		return true
	}
	return false
}

func (s *Sim) settledIndex(x *statecontext.Index, explain func(b *kvBucket) string) string {
	k := s.state.Bucket(x.Definition.Bucket)
	for _, c := range x.Topology.Copies {
		if c.State == partition.Leaving {
			return fmt.Sprintf("copy %d of index %v is on the move", c.ID, x.Definition.ID)
		}
		n := s.nodes[s.nodeAt(c.Node)]
		st, h := n.stores[c.ID], n.buckets[x.Definition.Bucket]
		if st == nil || !st.open || h == nil {
			return fmt.Sprintf("n%d does not have copy %d", n.num, c.ID)
		}
		held := slices.ContainsFunc(h.st.States(), func(f ingest.CopyState) bool {
			return f.ID == c.ID && f.Held.Number == k.Stability.Number && f.Held.RollbackID == k.Stability.RollbackID &&
				f.Catching == 0 // while it takes a vbucket again it still holds S
		})
		if !held {
			return fmt.Sprintf("n%d copy %d does not hold S%d: %+v", n.num, c.ID, k.Stability.Number,
				explain(s.bucket(k.Name)))
		}
		s.compare("convergence", n, c.ID, st, st.live, k.Stability.Vector)
	}
	return ""
}

// explain describes the state of a bucket in all components.
func (s *Sim) explain(b *kvBucket) string {
	t := ""
	if s.lead != nil {
		if v := s.lead.step.leader.View(b.name); v != nil {
			for i, e := range v.Entries {
				t += fmt.Sprintf("\n  ledger %d: %v %v of %s (%s) log %v", i, e.State, e.Incarnation, e.Owner, e.Reason, e.Log)
			}
			t += fmt.Sprintf("\n  current %v, participants %+v, diverged %q", v.Current.Seqnos, v.Participants, v.Diverged)
		}
	}
	for p, pr := range s.proj {
		for _, st := range pr.st[b.name].Newest() {
			t += fmt.Sprintf("\n  p%d streams %d %v at %d complete %d, ended %v, drops %v, up %v", p, st.VBucket(),
				st.Incarnation, st.ks.cur, st.Complete, st.ended, st.drop, pr.up)
		}
	}
	for _, n := range s.nodes {
		if h := n.buckets[b.name]; h != nil {
			t += fmt.Sprintf("\n  n%d (up %v, %d to put back, list %d): %v", n.num, n.up, len(h.backs),
				n.lists.InForce.Revision, h.st.Bucket)
		}
	}
	return t
}
