package core

import (
	"fmt"
	"iter"
	"maps"
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

// picture builds the Status that observers see.
type picture struct {
	*scene
	evictions *evictions
	moves     *moves
	splits    *splits
	newest    *Status
	atMS      int64
	up        map[index.NodeID]up // the indexers that are active
}

// up is the process of an active indexer, and since when it is active.
type up struct {
	boot    string
	sinceMS int64
}

// show rebuilds the picture at intervals, more rarely with many copies.
func (l *picture) show() {
	copies := 0
	for _, n := range l.components.indexers {
		copies += len(n.copies)
	}
	if !l.rests(l.atMS, max(showEvery, judgedEvery(copies))) {
		l.draw()
	}
}

// refresh updates the picture of some indexes.
func (l *picture) refresh(some []readied) {
	if l.newest == nil {
		l.draw()
		return
	}
	s, faults := *l.newest, l.faults()
	s.Progress = maps.Clone(s.Progress)
	for _, r := range some {
		if x := l.now.state.Index(r.def.ID); x != nil {
			s.Progress[r.def.ID] = l.progressOf(x, faults)
		}
	}
	l.newest = &s
	l.do(Show{Status: l.newest})
}

// draw builds the picture.
func (l *picture) draw() {
	l.atMS = l.nowMS
	s := &Status{Step: "hello", Term: l.self.Term, Proposals: len(l.proposals.flying), Progress: l.progress(),
		ExprRules: l.exprRules(), Rebalance: l.moves.progress()}
	if l.active {
		s.Step = StepActive
	}
	owned := map[index.ProjectorID]int{} // 0: it was the last to own a stream
	for _, b := range l.buckets.ordered {
		for id, n := range b.streamsOf() {
			owned[id] += n
		}
		s.Buckets = append(s.Buckets, l.bucketStatus(b))
	}
	for p := range l.now.state.Projectors() {
		if c := l.components.projectors[p.ID]; c != nil {
			n, streamed := owned[p.ID]
			s.Projectors = append(s.Projectors, ProjectorStatus{ID: p.ID, Admin: p.Admin, BootID: p.BootID,
				Life:  l.life(&c.component),
				AgeMS: l.nowMS - c.seenMS, Streams: n, Streamed: streamed, Here: len(c.hosts) > 0,
				Revision: c.acked, Hello: c.hello, Unreachable: l.whyUnreachable(&c.component),
				Counters: c.counters, KV: c.kv})
		}
	}
	for i := range l.now.state.Indexers() {
		if n := l.components.indexers[i.Node]; n != nil {
			s.Indexers = append(s.Indexers, l.indexerStatus(i, n))
		}
	}
	l.seeUp(s)
	for i := range s.Projectors {
		p := &s.Projectors[i]
		p.Unreached = l.unreachedPorts(s, l.components.projectors[p.ID].unreached)
	}
	l.newest = s
	l.do(Show{Status: s})
}

// seeUp records which indexers are active, and drops the others.
func (l *picture) seeUp(s *Status) {
	now := make(map[index.NodeID]up, len(s.Indexers))
	for i := range s.Indexers {
		n := &s.Indexers[i]
		if n.Seen() != liveness.Active {
			continue
		}
		was, ok := l.up[n.Node]
		if !ok || was.boot != n.BootID {
			was = up{boot: n.BootID, sinceMS: l.nowMS}
		}
		now[n.Node] = was
	}
	l.up = now
}

// unreachedPorts returns those of the reported ports that are an indexer's that has been up for unreachableAfter: one
// that is away is shown as such, and one may have left, or have moved. What was reported of one that has just returned
// is from the time when it was away.
func (l *picture) unreachedPorts(s *Status, reported []wire.Unreached) (all []UnreachedPort) {
	for _, u := range reported {
		at := slices.IndexFunc(s.Indexers, func(n IndexerStatus) bool { return n.Node == u.Node })
		if at < 0 {
			continue
		}
		if x, ok := l.up[u.Node]; !ok || l.nowMS-x.sinceMS <= unreachableAfter {
			continue
		}
		port := UnreachedPort{Unreached: u, Indexer: s.Indexers[at].Name}
		switch data := l.now.state.Indexer(u.Node).Data; u.Address {
		case data.Maintenance:
			port.Port = "maintenance"
		case data.Backfill:
			port.Port = "backfill"
		case data.Catchup:
			port.Port = "catchup"
		default:
			continue
		}
		all = append(all, port)
	}
	return all
}

// stableAge returns the age of the newest stability timestamp, in milliseconds of state time; nil if there is none.
func (l *scene) stableAge(b *bucket) *int64 {
	if b.stableMS == 0 {
		return nil
	}
	return new(max(l.stateMS-b.stableMS, 0))
}

func (l *picture) bucketStatus(b *bucket) BucketStatus {
	sum := b.ledger.Summary(l.nowMS)
	l.logStuck(b, &sum)
	w := BucketStatus{Name: b.name, UUID: b.uuid, VBuckets: b.ledger.Len(), Generation: b.generation, Wanted: b.wanted,
		Number: b.stable.Number,
		Hash:   b.stable.Hash, Streams: sum, Lagging: b.stab.Lagging(l.nowMS), Waiting: len(b.waiters)}
	w.AgeMS = l.stableAge(b)
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

// rollbackStatus fills in the step, why it is stuck, and the components that it waits for.
func (l *picture) rollbackStatus(w *BucketStatus, c *statecontext.RollbackContext, r *rolling) {
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

// logStuck logs when vbuckets lack a stream for long, and when none does any more.
func (l *picture) logStuck(b *bucket, sum *streams.Summary) {
	stuck := len(sum.Stuck) > 0
	if stuck == b.stuck {
		return
	}
	if b.stuck = stuck; !stuck {
		l.log.Info("all vbuckets have streams again", "bucket", b.name)
		return
	}
	x := &sum.Stuck[0]
	l.log.Warn("vbuckets have had no stream for long", "bucket", b.name, "how_many", sum.StuckCount, "vbucket", x.VBucket,
		"state", x.State,
		"reason", x.Reason, "for_ms", x.ForMS)
}

func (l *picture) indexerStatus(i *statecontext.Indexer, n *indexer) IndexerStatus {
	s := IndexerStatus{Node: i.Node, UUID: i.UUID, Name: i.Name, Zone: i.Zone, Weight: max(i.Capacity, 1),
		Going: l.now.state.Going(i.Node), Admin: i.Admin, Scan: i.Scan, BootID: i.BootID,
		Life: l.life(&n.component), AgeMS: l.nowMS - n.seenMS, Copies: len(n.copies), Health: n.health, Revision: n.acked,
		Hello: n.hello, Unreachable: l.whyUnreachable(&n.component),
		Orphans: n.orphans, OrphanCount: n.orphanCount, Differing: len(n.differing) + n.differingOmitted,
		DifferingOmitted: n.differingOmitted, Evicting: i.Evicting, Placed: l.now.state.Load(i.Node),
		Waits: l.evictions.stuck[i.Node].reason}
	for _, c := range n.copies {
		s.Bytes += c.Bytes
	}
	if a := i.Offline; a != nil {
		s.OfflineSinceMS, s.OfflineForMS = a.SinceMS, l.since(a.StateMS)
	}
	if in, ok := l.repairIn(i); ok {
		s.RepairInMS = &in
	}
	for _, b := range n.reports.Buckets {
		s.QueueBytes, s.QueueLimit = s.QueueBytes+b.Report.Heartbeat.MutationQueue, s.QueueLimit+b.Report.Heartbeat.QueueLimit
	}
	return s
}

// progress sums up the indexers' reports of each index's copies.
func (l *picture) progress() map[index.ID]Progress {
	all := make(map[index.ID]Progress, l.now.state.IndexCount())
	faults := l.faults()
	for x := range l.now.state.Indexes() {
		all[x.Definition.ID] = l.progressOf(x, faults)
	}
	return all
}

// progressOf returns the progress of one index.
func (l *picture) progressOf(x *statecontext.Index, faults *faultSums) Progress {
	p := l.copiesOf(x)
	p.Faults, p.FaultsIncomplete = faults.of[x.Definition.ID], faults.incomplete(x)
	p.Availability, p.Why = l.availability(x)
	p.SplitWaits, p.MergeWaits = l.splits.waits[x.Definition.ID], l.splits.merges[x.Definition.ID]
	p.SinceMS = l.nowMS
	if was := l.newest; was != nil {
		if before := was.Progress[x.Definition.ID]; before.Availability == p.Availability && before.SinceMS > 0 {
			p.SinceMS = before.SinceMS
		}
	}
	p.ForMS = l.nowMS - p.SinceMS
	return p
}

// availability judges a ready index by its indexers' reports and whether they are alive.
func (l *picture) availability(x *statecontext.Index) (lifecycle.Availability, string) {
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

// copyFault returns why scans cannot use a copy of a ready index, "" if they can.
func (l *picture) copyFault(c partition.Copy) string {
	n := l.components.indexers[c.Node]
	if n == nil {
		return fmt.Sprintf("node %d is not registered", c.Node)
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

// faults sums up the components' counts by index.
func (l *picture) faults() *faultSums {
	sums := &faultSums{of: map[index.ID]wire.IndexFaults{}, listing: map[index.ID]int{},
		indexers: map[index.NodeID]map[index.ID]bool{}}
	for q := range l.now.state.Projectors() { // in a fixed order, so that the sample stays the same
		if c := l.components.projectors[q.ID]; c != nil {
			sums.add(maps.Values(c.faults))
			if c.faultsOmitted > 0 {
				sums.projectors++
				for id := range c.faults {
					sums.listing[id]++
				}
			}
		}
	}
	for q := range l.now.state.Indexers() {
		if n := l.components.indexers[q.Node]; n != nil {
			sums.add(slices.Values(n.faults))
			if n.faultsOmitted > 0 {
				sums.indexers[n.node] = make(map[index.ID]bool, len(n.faults))
				for _, f := range n.faults {
					sums.indexers[n.node][f.Index] = true
				}
			}
		}
	}
	return sums
}

// faultSums holds the reported faults by index.
type faultSums struct {
	of map[index.ID]wire.IndexFaults
	// projectors counts the projectors that omit indexes; listing counts, by index, those of them that list it.
	projectors int
	listing    map[index.ID]int
	// indexers holds the indexers that omit indexes of which they have copies, with the indexes that they list.
	indexers map[index.NodeID]map[index.ID]bool
}

func (s *faultSums) add(listed iter.Seq[wire.IndexFaults]) {
	for f := range listed {
		sum := s.of[f.Index]
		f.Expression, f.TooLong = sum.Expression+f.Expression, sum.TooLong+f.TooLong
		s.of[f.Index] = f
	}
}

// incomplete reports whether a component may have counted faults of an index without listing it.
func (s *faultSums) incomplete(x *statecontext.Index) bool {
	id := x.Definition.ID
	return s.listing[id] < s.projectors || len(s.indexers) > 0 &&
		slices.ContainsFunc(x.Topology.Copies, func(c partition.Copy) bool {
			listed, omits := s.indexers[c.Node]
			return omits && !listed[id]
		})
}

// copiesOf sums up the reports of an index's copies.
func (l *picture) copiesOf(x *statecontext.Index) (p Progress) {
	p.Copies = len(x.Topology.Copies)
	items := make(map[index.SliceID]uint64, x.Topology.Layout.Partitions) // a slice that is moving has one more copy
	failing := 0
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
		items[c.Slice] = max(items[c.Slice], r.Items)
		if r.Ready {
			p.Ready++
		}
		if r.Error == "" {
			continue
		}
		if failing++; failing <= maxErrors {
			p.Errors = append(p.Errors, fmt.Sprintf("copy %d on node %d: %s", c.ID, c.Node, r.Error))
		}
	}
	if more := failing - maxErrors; more > 0 {
		p.Errors = append(p.Errors, fmt.Sprintf("and errors of %d more copies", more))
	}
	for _, n := range items {
		p.Items += n
		p.Slices++
	}
	return p
}
