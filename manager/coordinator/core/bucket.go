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

// bucket is what the Leader keeps of one bucket.
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
	want    []uint64 // the highest seqnos that waiters need, by vbucket; nil: to be found out
	rolling *rolling // while it is being rolled back
	audit   *audit   // that is under way
	auditMS int64    // when the newest audit began
	suspect bool     // a scan needs a branch that is not known here: an audit is due
	due     bool     // something came in
	stuck   bool     // some vbucket has had no stream for long, and the log says so
}

// isOf reports whether streams are of this bucket, and not of another one of its name; also where that is not said.
func (b *bucket) isOf(s *wire.StreamStates) bool { return s.BucketUUID == "" || s.BucketUUID == b.uuid }

// promoted are a bucket's stability timestamps.
type promoted struct {
	stable   wire.BucketStability // newest committed
	first    wire.BucketStability // newest committed when this leader began
	stableMS int64                // state time of stable; 0: no promotion was seen since the bucket was
	sentMS   int64                // when the newest one was proposed
	nearly   bool                 // some build lacks nothing but a stability timestamp
}

// takers are those who get a bucket's streams.
type takers struct {
	wanted  bool           // it has an index that projectors evaluate
	hosts   []index.NodeID // have a copy of one of its indexes, ascending
	fed     []index.NodeID // have an allocated copy of an index that projectors evaluate, ascending
	members []index.NodeID // of fed, those that are not offline: as the ledger knows it
}

// drops say who is not sent some of a bucket's data.
type drops struct {
	dropping map[index.ProjectorID][]index.NodeID // by projector, as it told last; only those that drop anything
	leftOut  map[index.NodeID][]bool              // of which vbuckets the decider knows indexers to be left out
	// leftOut is as of droppedAt (Ledger.Changes), unless dropsDue: something else has changed that it is made of.
	droppedAt uint64
	dropsDue  bool
}

// ownership is how many streams each projector has.
type ownership struct {
	owned   map[index.ProjectorID]int // as of ownedAt; 0: it has none of those that it had
	ownedAt uint64                    // Ledger.Changes
}

// notFound is what projectors say against a bucket.
type notFound struct {
	// missing counts the answers in a row, of those that count (liveOwners), that it is gone or another one
	missing int
	doubted map[index.ProjectorID]bool // who said so last while it was streamed, and was not believed
}

// rolling is one step of a bucket's rollback (IM-23): what came in since it was entered. A new leader, or a new step,
// begins with nothing; asking again is idempotent.
type rolling struct {
	id      uint64
	step    statecontext.RollbackStep
	sinceMS int64
	// pausedMS is how long the leader has stood still itself since then: for that time nobody could answer it.
	pausedMS int64
	answers  rollback.Answers
	askedMS  map[string]int64
	reason   string
	waits    []string // names of the projectors and indexers whose answers are awaited
}

// audit is one comparison of a bucket's streams with what KV says.
type audit struct {
	number   uint64
	sinceMS  int64
	pausedMS int64 // as of rolling
	asked    int
	logs     map[index.ProjectorID][]streams.Log
	answers  int
}

// shown are the logs that an audit has shown of each vbucket.
type shown [][]timestamp.FailoverLog

// shown lists the logs by vbucket.
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

// lacks reports whether the vbucket was shown and no log of it has the branch.
func (s shown) lacks(v int, branch uint64) bool {
	return len(s[v]) > 0 && !slices.ContainsFunc(s[v], func(log timestamp.FailoverLog) bool { return knows(log, branch) })
}

// wait adds a scan that waits.
func (b *bucket) wait(w *Stabilize) {
	b.waiters = append(b.waiters, w)
	if b.want != nil {
		raise(b.want, w)
	}
}

// endWaits takes out the waiters of which over says so.
func (b *bucket) endWaits(over func(*Stabilize) bool) {
	was := len(b.waiters)
	if b.waiters = slices.DeleteFunc(b.waiters, over); len(b.waiters) < was {
		b.want = nil
	}
}

// wants are the highest seqnos that waiters need, by vbucket, until the next one comes.
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

// streamsOf counts the streams of each projector that has any, or had the last one of a vbucket.
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

// drop notes whom a projector drops what is meant for.
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

// dropped marks the vbuckets whose streams are of projectors that drop what is meant for an indexer, of each indexer
// with any.
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

// setProjectors tells the ledger who lives.
func (b *bucket) setProjectors(nowMS int64, alive []index.ProjectorID) {
	b.ledger.SetProjectors(nowMS, alive)
	b.due, b.dropsDue = true, true
}

// forgetProjector drops what was known of a projector that is no part of the cluster any more.
func (b *bucket) forgetProjector(id index.ProjectorID) {
	b.ledger.Forget(id)
	b.drop(id, nil)
	delete(b.doubted, id)
}

// forgetIndexer drops what was known of an indexer that is no part of the cluster any more, or hosts nothing of the
// bucket.
func (b *bucket) forgetIndexer(node index.NodeID) {
	b.stab.Forget(node)
	b.dropsDue = true
}

// ref names the bucket.
func (b *bucket) ref() BucketRef { return BucketRef{Name: b.name, Generation: b.generation} }

// owners hands changes of ownership from the ledger to the stability decider.
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

// takeCompletes hands the complete seqnos to the decider, after the ledger's changes of ownership.
func (b *bucket) takeCompletes(p index.ProjectorID, s *wire.StreamStates) {
	b.owners()
	for i := range s.Streams {
		if st := &s.Streams[i]; !st.Ended {
			b.stab.Complete(int(st.VBucket), p, st.Incarnation, st.Complete)
		}
	}
	b.due = true
}

// due reports whether somebody may be asked (again) now, and notes that it is.
func (r *rolling) due(nowMS int64, who string, again int64) bool {
	if at, asked := r.askedMS[who]; asked && nowMS-at < again {
		return false
	}
	r.askedMS[who] = nowMS
	return true
}

func knows(log timestamp.FailoverLog, branch uint64) bool {
	return slices.ContainsFunc(log, func(e timestamp.LogEntry) bool { return e.VBUUID == branch })
}
