package coordinator

import (
	"fmt"
	"slices"
	"strings"

	"tidemark/index"
	"tidemark/statecontext"
	"tidemark/streams"
	"tidemark/wire"
)

// Status is the coordinator's picture of the cluster (for /v1/status, /v1/indexes and metrics), at most showEvery old.
type Status struct {
	Step       string // of the start sequence: "hello", then "active"
	Term       uint64
	Projectors []ProjectorStatus // ascending by id
	Indexers   []IndexerStatus   // ascending by node
	Buckets    []BucketStatus    // ascending by name
	Progress   map[index.ID]Progress
	Proposals  int // of the coordinator's own, in flight
	ExprRules  ExprRules
}

// ProjectorStatus is a projector as the coordinator sees it.
type ProjectorStatus struct {
	ID       index.ProjectorID
	Admin    string
	BootID   string
	Life     Life
	AgeMS    int64 // since its last sign of life
	Streams  int   // vbuckets that it owns, over all buckets
	Revision uint64
	Hello    bool
	Counters wire.ProjectorCounters // since its process began
}

// IndexerStatus is an indexer as the coordinator sees it.
type IndexerStatus struct {
	Node   index.NodeID
	UUID   string
	Name   string
	Admin  string
	Scan   string
	BootID string
	Life   Life
	AgeMS  int64
	Copies int // that it has
	// QueueBytes and QueueLimit are of its mutation queues, summed over the buckets.
	QueueBytes, QueueLimit uint64
	Health                 string
	Revision               uint64
	Hello                  bool
	// Orphans are copies that it has and that the state does not place on it: the oldest of OrphanCount.
	Orphans     []wire.Orphan
	OrphanCount int
}

// BucketStatus is a bucket as the coordinator sees it.
type BucketStatus struct {
	Name       string
	UUID       string
	VBuckets   int
	Generation uint64
	Wanted     bool
	Number     uint64 // of the newest stability timestamp
	Hash       uint64
	Streams    streams.Summary
	Lagging    []index.NodeID // indexers that promotion does not wait for
	Waiting    int            // scans that wait for a stability timestamp
	AgeMS      *int64         // of the newest stability timestamp; nil: none was promoted in this term
	Lag        uint64         // complete seqnos above it, over all vbuckets
	Rollback   string         // step, or why the bucket has to be rolled back; empty: all is well
	// RollbackSinceMS is when this leader saw the rollback's step begin, unix milliseconds, 0 without one; RollbackWaits names
	// the projectors and indexers whose answers the step waits for.
	RollbackSinceMS int64
	RollbackForMS   int64 // how long that is ago
	RollbackWaits   []string
}

// Progress of an index: of its build, and what its copies hold.
type Progress struct {
	Done, Total uint64 // seqnos of side streams, over all copies
	Items       uint64 // entries of the first replica of each slice
	Bytes       uint64 // on disk, of all copies
	Ready       int    // copies that are exact
	Copies      int
	Errors      []string // at most maxErrors, of its copies
	// Faults sums up what the projectors tell of documents that have no entry because of an error; its sample is one's.
	Faults wire.IndexFaults
}

const (
	showEvery = 100 // ms
	maxErrors = 4
)

// Percent of the build, 0 to 100; READY is 100, and nothing else is.
func (p Progress) Percent(state index.State) float64 {
	switch {
	case state == index.Maintenance:
		return 100
	case state != index.Backfill || p.Copies == 0:
		return 0
	case p.Total > 0:
		return 99 * float64(min(p.Done, p.Total)) / float64(p.Total)
	}
	return 99 * float64(p.Ready) / float64(p.Copies)
}

// Progress gives what the indexers report of each index; it is empty while this manager does not lead.
func (c *Coordinator) Progress() map[index.ID]Progress {
	s, ok := c.Status()
	if !ok {
		return nil
	}
	return s.Progress
}

// Status gives the newest picture; false while this manager does not lead.
func (c *Coordinator) Status() (Status, bool) {
	l, err := c.leading()
	if err != nil {
		return Status{}, false
	}
	if s := l.shown.Load(); s != nil {
		return *s, true
	}
	return Status{Step: "hello", Term: l.term}, true
}

// offline tells what the newest picture says of an indexer; one that is not in it yet counts as alive.
func (l *leader) offline(node index.NodeID) bool {
	s := l.shown.Load()
	if s == nil {
		return false
	}
	i := slices.IndexFunc(s.Indexers, func(n IndexerStatus) bool { return n.Node == node })
	return i >= 0 && s.Indexers[i].Life == Offline
}

// show makes the picture anew, now and then.
func (l *leader) show() {
	if l.nowMS-l.shownMS >= showEvery || l.nowMS < l.shownMS {
		l.picture()
	}
}

// picture makes it.
func (l *leader) picture() {
	l.shownMS = l.nowMS
	s := &Status{Step: "hello", Term: l.term, Proposals: len(l.proposals), Progress: l.progress(), ExprRules: l.exprRules()}
	if l.active {
		s.Step = "active"
	}
	owned := map[index.ProjectorID]int{}
	for name, b := range l.buckets {
		sum := b.ledger.Summary(l.nowMS)
		for id, n := range b.ownership() {
			owned[id] += n
		}
		if stuck := len(sum.Stuck) > 0; stuck != b.stuck {
			if b.stuck = stuck; stuck {
				x := &sum.Stuck[0]
				l.log.Warn("vbuckets have no stream for long", "bucket", name, "how_many", sum.StuckCount, "vbucket", x.VBucket, "state", x.State,
					"reason", x.Reason, "for_ms", x.ForMS)
			} else {
				l.log.Info("no vbucket is without a stream for long any more", "bucket", name)
			}
		}
		w := BucketStatus{Name: name, UUID: b.uuid, VBuckets: b.ledger.Len(), Generation: b.generation, Wanted: b.wanted, Number: b.stable.Number,
			Hash: b.stable.Hash, Streams: sum, Lagging: b.stab.Lagging(l.nowMS), Waiting: len(b.waiters)}
		if b.stableMS > 0 {
			w.AgeMS = new(max(l.nowMS-b.stableMS, 0))
		}
		for v := range b.ledger.Len() {
			w.Lag += max(b.stab.CompleteAt(v), b.stable.Vector.Seqnos[v]) - b.stable.Vector.Seqnos[v]
		}
		if x := l.state.Bucket(name); x != nil && x.Rollback != nil {
			w.Rollback = x.Rollback.Step.String()
			if r := b.rolling; r != nil {
				w.RollbackForMS = l.nowMS - r.sinceMS
				if w.RollbackSinceMS, w.RollbackWaits = r.sinceMS, slices.Clone(r.waits); r.reason != "" {
					w.Rollback += ": " + r.reason
				}
				if len(r.waits) > 0 {
					w.Rollback += ": " + strings.Join(r.waits, ", ")
				}
			}
		} else if d, bad := b.ledger.Diverged(); bad {
			w.Rollback = fmt.Sprintf("needed: vbucket %d: %s", d.VBucket, d.Reason)
		}
		s.Buckets = append(s.Buckets, w)
	}
	for p := range l.state.Projectors() {
		c := l.projectors[p.ID]
		if c == nil {
			continue
		}
		s.Projectors = append(s.Projectors, ProjectorStatus{ID: p.ID, Admin: p.Admin, BootID: p.BootID, Life: l.life(&c.component),
			AgeMS: l.nowMS - c.seenMS, Streams: owned[p.ID], Revision: c.acked, Hello: c.hello, Counters: c.counters})
	}
	for i := range l.state.Indexers() {
		n := l.indexers[i.Node]
		if n == nil {
			continue
		}
		var queued, most uint64
		for _, b := range n.reports.Buckets {
			queued, most = queued+b.Told.Heartbeat.MutationQueue, most+b.Told.Heartbeat.QueueLimit
		}
		s.Indexers = append(s.Indexers, IndexerStatus{QueueBytes: queued, QueueLimit: most, Node: i.Node, UUID: i.UUID, Name: i.Name, Admin: i.Admin, Scan: i.Scan, BootID: i.BootID,
			Life: l.life(&n.component), AgeMS: l.nowMS - n.seenMS, Copies: len(n.copies), Health: n.health, Revision: n.acked, Hello: n.hello,
			Orphans: n.orphans, OrphanCount: n.orphanCount})
	}
	slices.SortFunc(s.Buckets, func(a, b BucketStatus) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	l.shown.Store(s)
}

// progress sums up what the indexers report of each index's copies.
func (l *leader) progress() map[index.ID]Progress {
	all := make(map[index.ID]Progress, l.state.IndexCount())
	for x := range l.state.Indexes() {
		all[x.Definition.ID] = l.progressOf(x)
	}
	return all
}

func (l *leader) progressOf(x *statecontext.Index) (p Progress) {
	for q := range l.state.Projectors() { // in their order, so that the sample stays the same
		if c := l.projectors[q.ID]; c != nil {
			if f, has := c.faults[x.Definition.ID]; has {
				p.Faults.Expression, p.Faults.TooLong = p.Faults.Expression+f.Expression, p.Faults.TooLong+f.TooLong
				p.Faults.Index, p.Faults.Sample = f.Index, f.Sample
			}
		}
	}
	p.Copies = len(x.Topology.Copies)
	for _, c := range x.Topology.Copies {
		n := l.indexers[c.Node]
		if n == nil {
			continue
		}
		r, has := n.copies[c.ID]
		if !has {
			continue
		}
		p.Done, p.Total, p.Bytes = p.Done+r.Done, p.Total+r.Total, p.Bytes+r.Bytes
		if c.Replica == 0 {
			p.Items += r.Items
		}
		if r.Ready {
			p.Ready++
		}
		if r.Error != "" && len(p.Errors) < maxErrors {
			p.Errors = append(p.Errors, fmt.Sprintf("copy %d on node %d: %s", c.ID, c.Node, r.Error))
		}
	}
	return p
}
