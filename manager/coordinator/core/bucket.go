package core

import (
	"maps"
	"slices"

	"tidemark/index"
	"tidemark/rollback"
	"tidemark/stability"
	"tidemark/statecontext"
	"tidemark/streams"
	"tidemark/timestamp"
	"tidemark/wire"
)

// bucket is the Leader's state for one bucket.
type bucket struct {
	name, uuid string
	generation uint64
	ledger     *streams.Ledger
	stab       *stability.Bucket
	promoted
	takers
	drops
	ownership
	notFound
	waiters []*Stabilize
	want    []uint64 // the highest seqnos that waiters need, by vbucket; nil: not computed
	rolling *rolling // nil unless the bucket is being rolled back
	audit   *audit   // the audit in progress, nil for none
	auditMS int64    // when the newest audit began
	suspect bool     // a scan needs a branch that this leader does not know: an audit is due
	due     bool     // an input arrived that the bucket's step has not seen
	stuck   bool     // it has been logged that some vbucket lacks a stream for long
}

// isOf reports whether the streams belong to this bucket and not to another one of the same name. Streams that name
// no bucket UUID count as this bucket's.
func (b *bucket) isOf(s *wire.StreamStates) bool { return s.BucketUUID == "" || s.BucketUUID == b.uuid }

// promoted holds a bucket's stability timestamps.
type promoted struct {
	stable   wire.BucketStability // newest committed
	first    wire.BucketStability // newest committed when this leader began
	stableMS int64                // state time of stable; 0: no promotion since the bucket was created
	sentMS   int64                // when the newest promotion was proposed
	nearly   bool                 // some build lacks only a stability timestamp
}

// takers are the indexers that receive a bucket's streams.
type takers struct {
	wanted  bool           // the bucket has an index that projectors evaluate
	hosts   []index.NodeID // indexers with a copy of one of its indexes, ascending
	fed     []index.NodeID // indexers with an allocated copy of an index that projectors evaluate, ascending
	members []index.NodeID // those of fed that are not offline, as last passed to the ledger
}

// drops tracks which indexers are not sent some of a bucket's data.
type drops struct {
	dropping map[index.ProjectorID][]index.NodeID // by projector, as last reported; only projectors that drop data
	leftOut  map[index.NodeID][]bool              // vbuckets that an indexer does not get, as the decider has them
	// leftOut was computed at droppedAt (Ledger.Changes) and is current unless dropsDue is set: then another of its
	// inputs has changed.
	droppedAt uint64
	dropsDue  bool
}

// ownership caches how many streams each projector has.
type ownership struct {
	owned   map[index.ProjectorID]int // as of ownedAt; 0: the projector lost all its streams, and no other has begun them
	ownedAt uint64                    // Ledger.Changes
}

// notFound tracks projectors' answers that a bucket does not exist.
type notFound struct {
	// missing counts consecutive answers, from projectors that count (liveOwners), that the bucket is gone or another
	// one.
	missing int
	doubted map[index.ProjectorID]bool // projectors that reported so last while the bucket was streamed
}

// rolling tracks the answers to one step of a bucket's rollback (IM-23). A new leader, and each new step, starts
// empty; repeating the request is idempotent.
type rolling struct {
	id      uint64
	step    statecontext.RollbackStep
	sinceMS int64
	// pausedMS is how long the leader itself has stood still since sinceMS; no answer could reach it in that time.
	pausedMS int64
	answers  rollback.Answers
	sentMS   map[string]int64
	reason   string
	waits    []string // names of the projectors and indexers that have not answered
}

// audit is one comparison of a bucket's streams with KV's failover logs.
type audit struct {
	number   uint64
	sinceMS  int64
	pausedMS int64 // as in rolling
	sent     int
	logs     map[index.ProjectorID][]streams.Log
	answers  int
}

// shown holds the failover logs that an audit collected, by vbucket.
type shown [][]timestamp.FailoverLog

// shown returns the collected logs, by vbucket.
func (a *audit) shown(vbuckets int) shown {
	s := make(shown, vbuckets)
	for _, logs := range a.logs {
		for i := range logs {
			if v := int(logs[i].VBucket); v < vbuckets {
				s[v] = append(s[v], logs[i].Log)
			}
		}
	}
	return s
}

// lacks reports whether logs of the vbucket were collected and none of them contains the branch.
func (s shown) lacks(v int, branch uint64) bool {
	return len(s[v]) > 0 &&
		!slices.ContainsFunc(s[v], func(log timestamp.FailoverLog) bool { return hasBranch(log, branch) })
}

// wait adds a waiting scan.
func (b *bucket) wait(w *Stabilize) {
	b.waiters = append(b.waiters, w)
	if b.want != nil {
		raise(b.want, w)
	}
}

// endWaits removes the waiters for which over returns true.
func (b *bucket) endWaits(over func(*Stabilize) bool) {
	was := len(b.waiters)
	if b.waiters = slices.DeleteFunc(b.waiters, over); len(b.waiters) < was {
		b.want = nil
	}
}

// wants returns the highest seqnos that waiters need, by vbucket. The result is valid until the waiters change.
func (b *bucket) wants() []uint64 {
	if b.want == nil {
		b.want = make([]uint64, b.stab.Len())
		for _, w := range b.waiters {
			raise(b.want, w)
		}
	}
	return b.want
}

func raise(want []uint64, w *Stabilize) {
	for v, s := range w.Need.Seqnos {
		want[v] = max(want[v], s)
	}
}

// streamsOf counts the streams of each projector that has any. A projector whose streams have ended, and which was
// the last owner of some vbucket, counts 0.
func (b *bucket) streamsOf() map[index.ProjectorID]int {
	if b.owned == nil || b.ownedAt != b.ledger.Changes() {
		b.owned, b.ownedAt = map[index.ProjectorID]int{}, b.ledger.Changes()
		for v := range b.ledger.Len() {
			switch e := b.ledger.At(v); {
			case e.State == streams.Begun:
				b.owned[e.Owner]++
			case e.Owner != "":
				b.owned[e.Owner] += 0
			}
		}
	}
	return b.owned
}

// drop records the indexers for which a projector drops data.
func (b *bucket) drop(id index.ProjectorID, nodes []index.NodeID) {
	if slices.Equal(b.dropping[id], nodes) {
		return
	}
	b.dropsDue = true
	if len(nodes) == 0 {
		delete(b.dropping, id)
	} else {
		b.dropping[id] = nodes
	}
}

// dropped returns, for each indexer for which a projector drops data, the vbuckets that this projector streams.
// Indexers without any such vbucket are left out.
func (b *bucket) dropped(alive []index.ProjectorID) map[index.NodeID][]bool {
	all, of := map[index.NodeID][]bool{}, map[index.ProjectorID][][]bool{}
	for _, id := range alive {
		for _, node := range b.dropping[id] {
			if all[node] == nil {
				all[node] = make([]bool, b.ledger.Len())
			}
			of[id] = append(of[id], all[node])
		}
	}
	for v := range b.ledger.Len() {
		if e := b.ledger.At(v); e.State == streams.Begun {
			for _, marks := range of[e.Owner] {
				marks[v] = true
			}
		}
	}
	maps.DeleteFunc(all, func(_ index.NodeID, marks []bool) bool { return !slices.Contains(marks, true) })
	return all
}

// setProjectors passes the live projectors to the ledger.
func (b *bucket) setProjectors(nowMS int64, alive []index.ProjectorID) {
	b.ledger.SetProjectors(nowMS, alive)
	b.due, b.dropsDue = true, true
}

// dropProjector drops the state kept for a projector that has left the cluster.
func (b *bucket) dropProjector(id index.ProjectorID) {
	b.ledger.Forget(id)
	b.drop(id, nil)
	delete(b.doubted, id)
}

// dropIndexer drops the state kept for an indexer that has left the cluster, or no longer hosts anything of the
// bucket.
func (b *bucket) dropIndexer(node index.NodeID) {
	b.stab.Forget(node)
	b.dropsDue = true
}

// ref returns the reference by which answers name the bucket.
func (b *bucket) ref() BucketRef { return BucketRef{Name: b.name, Generation: b.generation} }

// owners passes changes of ownership from the ledger to the stability decider.
func (b *bucket) owners() {
	for _, v := range b.ledger.Changed() {
		e := b.ledger.At(v)
		if e.State == streams.Begun {
			b.stab.Begin(v, stability.Stream{Projector: e.Owner, Incarnation: e.Incarnation, Log: e.Log, Revision: e.Revision})
		} else {
			b.stab.End(v, e.Incarnation)
		}
	}
}

// takeCompletes passes complete seqnos to the stability decider, after the ledger's changes of ownership.
func (b *bucket) takeCompletes(p index.ProjectorID, s *wire.StreamStates) {
	b.owners()
	for i := range s.Streams {
		if st := &s.Streams[i]; !st.Ended {
			b.stab.Complete(int(st.VBucket), p, st.Incarnation, st.Complete)
		}
	}
	b.due = true
}

// due reports whether a component may be queried (again) now, and if so records the time.
func (r *rolling) due(nowMS int64, who string, again int64) bool {
	if at, sent := r.sentMS[who]; sent && nowMS-at < again {
		return false
	}
	r.sentMS[who] = nowMS
	return true
}

// hasBranch reports whether a failover log contains a branch.
func hasBranch(log timestamp.FailoverLog, branch uint64) bool {
	return slices.ContainsFunc(log, func(e timestamp.LogEntry) bool { return e.VBUUID == branch })
}
