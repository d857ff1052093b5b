package core

import (
	"fmt"
	"slices"
	"strings"

	"tidemark/index"
	"tidemark/lifecycle"
	"tidemark/liveness"
	"tidemark/partition"
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
	Rebalance  RebalanceProgress
}

// RebalanceProgress is how far the rebalance is that is under way.
type RebalanceProgress struct {
	ID   uint64  // 0: none
	Part float64 // 0 to 1, by bytes
	// BytesDone is what has arrived of RebalanceJob.Bytes, Moving the same of each step that is filled now, by its number.
	BytesDone uint64
	Moving    map[uint32]uint64
	// Left is how long it still takes, as a multiple of what it has taken, once LeftKnown (rebalance.Left).
	Left      float64
	LeftKnown bool
}

// ProjectorStatus is a projector as the coordinator sees it.
type ProjectorStatus struct {
	ID       index.ProjectorID
	Admin    string
	BootID   string
	Life     liveness.Life
	AgeMS    int64 // since its last sign of life
	Streams  int   // vbuckets that it owns, over all buckets
	Revision uint64
	Hello    bool
	Counters wire.ProjectorCounters // since its process began
	KV       []wire.KVTrouble       // buckets about which it cannot ask its KV node
}

// IndexerStatus is an indexer as the coordinator sees it.
type IndexerStatus struct {
	Node   index.NodeID
	UUID   string
	Name   string
	Zone   string
	Going  bool   // it is to hold nothing in the end
	Bytes  uint64 // on disk, of its copies
	Weight uint32 // its capacity, at least 1
	Admin  string
	Scan   string
	BootID string
	Life   liveness.Life
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
	// Evicting says that it is being removed; Placed is how many copies have still their place on it, and Waits why it
	// does not go on.
	Evicting bool
	Placed   int
	Waits    string
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
	// RollbackSinceMS is when this leader saw the rollback's step begin, unix milliseconds, 0 without one; RollbackWaits
	// names the projectors and indexers whose answers the step waits for.
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
	// Availability says how much of it can be scanned, since SinceMS (unix milliseconds, of this leader's clock) and Why
	// not all; none unless it is ready.
	Availability lifecycle.Availability
	Why          string
	SinceMS      int64
	// Faults sums up what projectors and indexers tell of documents that have no entry because of an error; its sample is
	// one's.
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

// Offline reports what a picture says of an indexer; one that is not in it yet counts as alive.
func (s *Status) Offline(node index.NodeID) bool {
	if s == nil {
		return false
	}
	i := slices.IndexFunc(s.Indexers, func(n IndexerStatus) bool { return n.Node == node })
	return i >= 0 && s.Indexers[i].Life == liveness.Offline
}

// EvictionWaits returns why the removal of an indexer does not go on, as a picture has it.
func (s *Status) EvictionWaits(node index.NodeID) string {
	if s != nil {
		for i := range s.Indexers {
			if s.Indexers[i].Node == node {
				return s.Indexers[i].Waits
			}
		}
	}
	return ""
}

// show makes the picture anew, now and then.
func (l *Leader) show() {
	if l.nowMS-l.shown.atMS >= showEvery || l.nowMS < l.shown.atMS {
		l.draw()
	}
}

// draw makes the picture.
func (l *Leader) draw() {
	l.shown.atMS = l.nowMS
	s := &Status{Step: "hello", Term: l.self.Term, Proposals: len(l.proposals.flying), Progress: l.progress(),
		ExprRules: l.exprRules(), Rebalance: l.rebalanceProgress()}
	if l.active {
		s.Step = "active"
	}
	owned := map[index.ProjectorID]int{}
	for _, b := range l.buckets.ordered {
		for id, n := range b.ownership() {
			owned[id] += n
		}
		s.Buckets = append(s.Buckets, l.bucketStatus(b))
	}
	for p := range l.now.state.Projectors() {
		if c := l.components.projectors[p.ID]; c != nil {
			s.Projectors = append(s.Projectors, ProjectorStatus{ID: p.ID, Admin: p.Admin, BootID: p.BootID,
				Life:  l.life(&c.component),
				AgeMS: l.nowMS - c.seenMS, Streams: owned[p.ID], Revision: c.acked, Hello: c.hello, Counters: c.counters,
				KV: c.kv})
		}
	}
	for i := range l.now.state.Indexers() {
		if n := l.components.indexers[i.Node]; n != nil {
			s.Indexers = append(s.Indexers, l.indexerStatus(i, n))
		}
	}
	l.shown.newest = s
	l.do(Show{Status: s})
}

func (l *Leader) bucketStatus(b *bucket) BucketStatus {
	sum := b.ledger.Summary(l.nowMS)
	l.logStuck(b, &sum)
	w := BucketStatus{Name: b.name, UUID: b.uuid, VBuckets: b.ledger.Len(), Generation: b.generation, Wanted: b.wanted,
		Number: b.stable.Number,
		Hash:   b.stable.Hash, Streams: sum, Lagging: b.stab.Lagging(l.nowMS), Waiting: len(b.waiters)}
	if b.stableMS > 0 {
		w.AgeMS = new(max(l.nowMS-b.stableMS, 0))
	}
	for v := range b.ledger.Len() {
		w.Lag += max(b.stab.CompleteAt(v), b.stable.Vector.Seqnos[v]) - b.stable.Vector.Seqnos[v]
	}
	if x := l.now.state.Bucket(b.name); x != nil && x.Rollback != nil {
		l.rollbackStatus(&w, x.Rollback, b.rolling)
	} else if d, bad := b.ledger.Diverged(); bad {
		w.Rollback = fmt.Sprintf("needed: vbucket %d: %s", d.VBucket, d.Reason)
	}
	return w
}

// rollbackStatus tells the step, why it does not go on, and whom it waits for.
func (l *Leader) rollbackStatus(w *BucketStatus, c *statecontext.RollbackContext, r *rolling) {
	w.Rollback = c.Step.String()
	if r == nil {
		return
	}
	w.RollbackForMS, w.RollbackSinceMS, w.RollbackWaits = l.nowMS-r.sinceMS, r.sinceMS, slices.Clone(r.waits)
	if r.reason != "" {
		w.Rollback += ": " + r.reason
	}
	if len(r.waits) > 0 {
		w.Rollback += ": " + strings.Join(r.waits, ", ")
	}
}

// logStuck logs that vbuckets begin, or no longer are, without a stream for long.
func (l *Leader) logStuck(b *bucket, sum *streams.Summary) {
	stuck := len(sum.Stuck) > 0
	if stuck == b.stuck {
		return
	}
	if b.stuck = stuck; !stuck {
		l.log.Info("no vbucket is without a stream for long any more", "bucket", b.name)
		return
	}
	x := &sum.Stuck[0]
	l.log.Warn("vbuckets have no stream for long", "bucket", b.name, "how_many", sum.StuckCount, "vbucket", x.VBucket,
		"state", x.State,
		"reason", x.Reason, "for_ms", x.ForMS)
}

func (l *Leader) indexerStatus(i *statecontext.Indexer, n *indexer) IndexerStatus {
	s := IndexerStatus{Node: i.Node, UUID: i.UUID, Name: i.Name, Zone: i.Zone, Weight: max(i.Capacity, 1),
		Going: l.now.state.Going(i.Node), Admin: i.Admin, Scan: i.Scan, BootID: i.BootID,
		Life: l.life(&n.component), AgeMS: l.nowMS - n.seenMS, Copies: len(n.copies), Health: n.health, Revision: n.acked,
		Hello:   n.hello,
		Orphans: n.orphans, OrphanCount: n.orphanCount, Evicting: i.Evicting, Placed: l.now.state.Load(i.Node),
		Waits: l.evictions[i.Node].reason}
	for _, c := range n.copies {
		s.Bytes += c.Bytes
	}
	for _, b := range n.reports.Buckets {
		s.QueueBytes, s.QueueLimit = s.QueueBytes+b.Told.Heartbeat.MutationQueue, s.QueueLimit+b.Told.Heartbeat.QueueLimit
	}
	return s
}

// progress sums up what the indexers report of each index's copies.
func (l *Leader) progress() map[index.ID]Progress {
	all := make(map[index.ID]Progress, l.now.state.IndexCount())
	was := l.shown.newest
	for x := range l.now.state.Indexes() {
		p := l.progressOf(x)
		p.Availability, p.Why = l.availability(x)
		p.SinceMS = l.nowMS
		if was != nil {
			if before := was.Progress[x.Definition.ID]; before.Availability == p.Availability && before.SinceMS > 0 {
				p.SinceMS = before.SinceMS
			}
		}
		all[x.Definition.ID] = p
	}
	return all
}

// availability judges a ready index by what its indexers report and whether they live.
func (l *Leader) availability(x *statecontext.Index) (lifecycle.Availability, string) {
	d := &x.Definition
	if d.State != index.Maintenance || !l.active {
		return 0, ""
	}
	if b := l.now.state.Bucket(d.Bucket); b != nil && b.Rollback != nil {
		return lifecycle.Unavailable, "its bucket is being rolled back: " + b.Rollback.Step.String()
	}
	copies := make([]lifecycle.Serving, 0, len(x.Topology.Copies))
	for _, c := range x.Topology.Copies {
		if c.State != partition.Leaving {
			copies = append(copies, lifecycle.Serving{Slice: c.Slice, Fault: l.copyFault(c)})
		}
	}
	return lifecycle.Assess(int(x.Topology.Layout.Partitions), int(d.Replicas)+1, copies)
}

// copyFault says why scans cannot use a copy of a ready index, "" when they can.
func (l *Leader) copyFault(c partition.Copy) string {
	n := l.components.indexers[c.Node]
	if n == nil {
		return fmt.Sprintf("node %d is not known", c.Node)
	}
	r, has := n.copies[c.ID]
	switch life := l.life(&n.component); {
	case life != liveness.Active:
		return fmt.Sprintf("%s is %v", n.name, life)
	case !has:
		return n.name + " does not have it"
	case r.Error != "":
		return n.name + ": " + r.Error
	case !r.Ready:
		return n.name + " is filling it"
	}
	return ""
}

// addFaults adds what another component has counted.
func (p *Progress) addFaults(f wire.IndexFaults) {
	p.Faults.Expression, p.Faults.TooLong = p.Faults.Expression+f.Expression, p.Faults.TooLong+f.TooLong
	p.Faults.Index, p.Faults.Sample = f.Index, f.Sample
}

func (l *Leader) progressOf(x *statecontext.Index) (p Progress) {
	for q := range l.now.state.Projectors() { // in their order, so that the sample stays the same
		if c := l.components.projectors[q.ID]; c != nil {
			if f, has := c.faults[x.Definition.ID]; has {
				p.addFaults(f)
			}
		}
	}
	for q := range l.now.state.Indexers() {
		if n := l.components.indexers[q.Node]; n != nil {
			for _, f := range n.faults {
				if f.Index == x.Definition.ID {
					p.addFaults(f)
				}
			}
		}
	}
	p.Copies = len(x.Topology.Copies)
	for _, c := range x.Topology.Copies {
		n := l.components.indexers[c.Node]
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
