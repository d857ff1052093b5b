package coordinator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"tidemark/index"
	"tidemark/liveness"
	"tidemark/statecontext"
	"tidemark/streams"
	"tidemark/wire"
)

var (
	// ErrBootConflict is wrapped when a component registers whose former process is still alive.
	ErrBootConflict = errors.New("another process of that identity is alive")
	// ErrRegistration is wrapped when a registration lacks something.
	ErrRegistration = errors.New("bad registration")
)

// RegisterIndexer makes an indexer known and gives it its number (IM-10). Errors wrap ErrNotLeading, ErrBootConflict,
// ErrRegistration, wire.ErrForeignCluster, statecontext.NodeRemoved, or come from the proposal.
func (c *Coordinator) RegisterIndexer(ctx context.Context, req *wire.RegisterIndexer) (*wire.RegisterReply, error) {
	l, err := c.leading()
	if err != nil {
		return nil, err
	}
	e := &req.Endpoint
	if e.UUID == "" || e.BootID == "" || e.Admin == "" || e.Maintenance == "" {
		return nil, fmt.Errorf("%w: uuid, boot id, admin address and data addresses are needed", ErrRegistration)
	}
	if len(e.Zone) > wire.MaxZone || e.Capacity > wire.MaxCapacity {
		return nil, fmt.Errorf("%w: a zone of %d bytes and a capacity of %d; at most %d and %d", ErrRegistration, len(e.Zone),
			e.Capacity, wire.MaxZone, wire.MaxCapacity)
	}
	if err := l.admit(ctx, req.ClusterID, &bootCheck{uuid: e.UUID, boot: e.BootID, addr: e.Admin}); err != nil {
		return nil, err
	}
	res, err := c.proposeFor(ctx, &statecontext.RegisterIndexer{Indexer: statecontext.Indexer{UUID: e.UUID,
		BootID: e.BootID, Name: e.Name, Zone: e.Zone, Capacity: e.Capacity,
		Admin: e.Admin, Scan: e.Scan, Data: statecontext.DataAddrs{Maintenance: e.Maintenance, Backfill: e.Backfill,
			Catchup: e.Catchup}}})
	if err != nil {
		return nil, err
	}
	return l.registered(ctx, &registration{node: res.Node, boot: e.BootID, isNode: true})
}

// RegisterProjector makes a projector known. Errors as RegisterIndexer's.
func (c *Coordinator) RegisterProjector(ctx context.Context, req *wire.RegisterProjector) (*wire.RegisterReply, error) {
	l, err := c.leading()
	if err != nil {
		return nil, err
	}
	e := &req.Endpoint
	if e.ID == "" || e.BootID == "" || e.Admin == "" {
		return nil, fmt.Errorf("%w: id, boot id and admin address are needed", ErrRegistration)
	}
	if err := l.admit(ctx, req.ClusterID, &bootCheck{projector: e.ID, boot: e.BootID, addr: e.Admin}); err != nil {
		return nil, err
	}
	if _, err := c.proposeFor(ctx, &statecontext.RegisterProjector{Projector: statecontext.Projector{ID: e.ID,
		Admin: e.Admin, BootID: e.BootID}}); err != nil {
		return nil, err
	}
	return l.registered(ctx, &registration{projector: e.ID, boot: e.BootID})
}

// proposeFor proposes on behalf of a caller who waits.
func (c *Coordinator) proposeFor(ctx context.Context, body statecontext.Body) (statecontext.Result, error) {
	res, err := c.cfg.Consensus.Propose(ctx, statecontext.Command{Body: body})
	if err == nil {
		err = res.Err()
	}
	return res, err
}

// admit refuses foreign clusters and second live processes.
func (l *leader) admit(ctx context.Context, clusterID string, check *bootCheck) error {
	if own := l.cfg.Consensus.State().ClusterID(); clusterID != "" && clusterID != own {
		return fmt.Errorf("%w: it belongs to %q, this is %q", wire.ErrForeignCluster, clusterID, own)
	}
	check.reply = make(chan error, 1)
	if err := l.post(ctx, check); err != nil {
		return err
	}
	return await(ctx, l, check.reply)
}

// await waits for one answer of the loop.
func await[T any](ctx context.Context, l *leader, reply chan T) (v T) {
	select {
	case v = <-reply:
		return v
	case <-l.ended:
	case <-ctx.Done():
	}
	var failed any = &v
	if e, ok := failed.(*error); ok {
		*e = ErrNotLeading
		if ctx.Err() != nil {
			*e = ctx.Err()
		}
	}
	return v
}

// bootCheck asks whether a former process of this identity was heard lately and is still alive. One that listens at the
// former's address is its successor, however soon: two processes cannot listen there at once.
type bootCheck struct {
	uuid      string
	projector index.ProjectorID
	boot      string
	addr      string
	reply     chan error
}

func (b *bootCheck) apply(l *leader) {
	var c *component
	what := "indexer " + b.uuid
	if b.uuid == "" {
		what = "projector " + string(b.projector)
		if p := l.components.projectors[b.projector]; p != nil {
			c = &p.component
		}
	} else {
		for _, n := range l.components.indexers {
			if n.uuid == b.uuid {
				c = &n.component
			}
		}
	}
	if c != nil && c.boot != b.boot && c.addr != b.addr && c.heard && l.life(c) == liveness.Active {
		b.reply <- fmt.Errorf("%w: %s at %s (boot %s) was heard %d ms ago; stop it, or wait until it is silent",
			ErrBootConflict, what, c.addr,
			c.boot, l.nowMS-c.seenMS)
		return
	}
	b.reply <- nil
}

// registration asks the loop to take over what was registered, and for the answer.
type registration struct {
	isNode    bool
	node      index.NodeID
	projector index.ProjectorID
	boot      string
	reply     chan *wire.RegisterReply
}

func (r *registration) apply(l *leader) {
	l.sync()
	a := &wire.RegisterReply{ClusterID: l.now.state.ClusterID(), Node: r.node, Leader: l.self, Fence: l.fence(),
		Brief: true}
	if r.isNode {
		if n := l.components.indexers[r.node]; n != nil && n.boot == r.boot {
			n.seenMS, n.heard = l.nowMS, true
			a.Fence = n.fences.present()
		}
	} else if p := l.components.projectors[r.projector]; p != nil && p.boot == r.boot {
		p.seenMS, p.heard = l.nowMS, true
		a.Fence = p.fences.present()
	}
	r.reply <- a
}

func (l *leader) registered(ctx context.Context, r *registration) (*wire.RegisterReply, error) {
	r.reply = make(chan *wire.RegisterReply, 1)
	if err := l.post(ctx, r); err != nil {
		return nil, err
	}
	if a := await(ctx, l, r.reply); a != nil {
		return a, nil
	}
	return nil, ErrNotLeading
}

// HandleProjectorReport takes a projector's level state (SYNC included). Errors wrap ErrNotLeading, ErrBusy or
// wire.ErrForeignCluster.
func (c *Coordinator) HandleProjectorReport(ctx context.Context, r *wire.ProjectorReport) (*wire.ReportReply, error) {
	in := &projectorReport{r: r, reply: make(chan *wire.ReportReply, 1)}
	return c.handleReport(ctx, r.ClusterID, in, in.reply)
}

// HandleIndexerReport takes an indexer's level state. Errors as HandleProjectorReport's.
func (c *Coordinator) HandleIndexerReport(ctx context.Context, r *wire.IndexerReport) (*wire.ReportReply, error) {
	in := &indexerReport{r: r, reply: make(chan *wire.ReportReply, 1)}
	return c.handleReport(ctx, r.ClusterID, in, in.reply)
}

func (c *Coordinator) handleReport(ctx context.Context, clusterID string, in input,
	reply chan *wire.ReportReply) (*wire.ReportReply, error) {
	l, err := c.leading()
	if err != nil {
		return nil, err
	}
	if own := c.cfg.Consensus.State().ClusterID(); clusterID != "" && clusterID != own {
		return nil, fmt.Errorf("%w: the report is of %q, this is %q", wire.ErrForeignCluster, clusterID, own)
	}
	if err := l.post(ctx, in); err != nil {
		return nil, err
	}
	if a := await(ctx, l, reply); a != nil {
		return a, nil
	}
	return nil, ErrNotLeading
}

type projectorReport struct {
	r     *wire.ProjectorReport
	reply chan *wire.ReportReply
}

func (in *projectorReport) apply(l *leader) {
	p := l.components.projectors[in.r.ID]
	a := &wire.ReportReply{Leader: l.self, Revision: l.now.revision, Fence: l.fence(), Brief: true}
	if p != nil && p.boot == in.r.BootID {
		a.Known, a.Fence = true, p.fences.present()
		a.Full = !l.takeProjectorReport(p, in.r, false)
	}
	in.reply <- a
}

// takeProjectorReport is false when a full report is wanted next: the first one in this term, or one was lost.
func (l *leader) takeProjectorReport(p *projector, r *wire.ProjectorReport, hello bool) bool {
	p.seenMS, p.heard, p.refused = l.nowMS, true, false
	if r.Sequence <= p.sequence && p.sequence > 0 && !hello {
		return p.full // overtaken: a later one was taken already
	}
	lost := p.sequence > 0 && !r.Follows(p.sequence) && !hello
	p.sequence = max(p.sequence, r.Sequence)
	p.counters, p.kv = r.Counters, r.KV
	if r.FaultsToo {
		p.faults = make(map[index.ID]wire.IndexFaults, len(r.Faults))
		for _, f := range r.Faults {
			p.faults[f.Index] = f
		}
	}
	if r.Evaluation != nil {
		p.evaluation, l.duties.due = r.Evaluation, true
	}
	full := hello || slices.ContainsFunc(r.Buckets, func(s wire.StreamStates) bool { return s.Full })
	p.full = full || p.full && !lost
	if p.hello { // before its hello it may speak of another epoch's
		p.acked = max(p.acked, min(r.Revision, l.now.revision))
	}
	for i := range r.Buckets {
		s := &r.Buckets[i]
		b := l.buckets.byName[s.Bucket]
		if b == nil || s.BucketUUID != "" && s.BucketUUID != b.uuid {
			continue
		}
		s.Full = s.Full || hello
		l.takeStreamStates(p, b, s)
	}
	return p.full
}

// takeStreamStates takes what a projector says of its streams of one bucket; p.full tells whether everything is known.
func (l *leader) takeStreamStates(p *projector, b *bucket, s *wire.StreamStates) {
	if err := s.Expand(); err != nil {
		l.log.Warn("report", "projector", p.id, "bucket", s.Bucket, "error", err)
		p.full = false
	}
	if !b.ledger.Projector(l.nowMS, p.id, streamReport(s)) {
		p.full = false
	}
	l.takeCompletes(b, p.id, s)
	if h := s.Hosted; h != nil {
		b.ledger.Hosted(l.nowMS, p.id, streams.Hosted{Node: h.Node, Revision: h.Revision, VBuckets: h.VBuckets})
	}
	if len(s.Dropping) > 0 {
		b.dropping[p.id] = s.Dropping
	} else {
		delete(b.dropping, p.id)
	}
}

// takeCompletes hands the complete seqnos to the decider, after the ledger's changes of ownership.
func (l *leader) takeCompletes(b *bucket, p index.ProjectorID, s *wire.StreamStates) {
	l.owners(b)
	for i, v := range s.VBuckets {
		if i < len(s.Complete) && i < len(s.Incarnations) && (i >= len(s.Ended) || !s.Ended[i]) {
			b.stab.Complete(int(v), p, s.Incarnations[i], s.Complete[i])
		}
	}
	b.due = true
}

// streamReport reads the parallel slices; what is cut short is left out.
func streamReport(s *wire.StreamStates) streams.Report {
	r := streams.Report{Full: s.Full, Streams: make([]streams.Running, 0, len(s.VBuckets))}
	for i, v := range s.VBuckets {
		if i >= len(s.Incarnations) {
			break
		}
		run := streams.Running{VBucket: v, Incarnation: s.Incarnations[i]}
		if i < len(s.Logs) && len(s.Logs[i]) > 0 {
			run.Log = s.Logs[i]
		}
		if i < len(s.Purges) {
			run.Purge = s.Purges[i]
		}
		if i < len(s.Revisions) {
			run.Revision = s.Revisions[i]
		}
		run.Ended = i < len(s.Ended) && s.Ended[i]
		r.Streams = append(r.Streams, run)
	}
	return r
}

type indexerReport struct {
	r     *wire.IndexerReport
	reply chan *wire.ReportReply
}

func (in *indexerReport) apply(l *leader) {
	n := l.components.indexers[in.r.Node]
	a := &wire.ReportReply{Leader: l.self, Revision: l.now.revision, Fence: l.fence(), Brief: true}
	if n != nil && n.uuid == in.r.UUID && n.boot == in.r.BootID {
		a.Known, a.Fence = true, n.fences.present()
		a.Full, a.HW = !l.takeIndexerReport(n, in.r), l.promotion.hwWanted
		l.packHeld()
		switch {
		case !in.r.Packed:
			a.Held = l.held.list
		case in.r.HeldHash != l.held.hash:
			a.HeldPacked = l.held.packed
			fallthrough
		default:
			a.HeldHash = l.held.hash
		}
	}
	in.reply <- a
}

// takeIndexerReport is false when a full report is wanted next.
func (l *leader) takeIndexerReport(n *indexer, r *wire.IndexerReport) bool {
	n.seenMS, n.heard = l.nowMS, true
	if r.Sequence <= n.sequence && n.sequence > 0 && !r.Full {
		return n.full
	}
	taken, ok := n.reports.Take(r)
	n.sequence, n.full = max(n.sequence, r.Sequence), ok
	n.health = r.Health
	n.faults = r.Faults[:min(len(r.Faults), wire.MaxIndexFaults)]
	n.differing = differing{copies: r.Differing[:min(len(r.Differing), wire.MaxDifferingCopies)], rounds: r.Rounds}
	n.orphans, n.orphanCount = r.Orphans[:min(len(r.Orphans), wire.MaxOrphans)], r.OrphanCount
	if a := min(r.Revision, l.now.revision); n.hello && a > n.acked { // before its hello it may speak of another epoch's
		n.acked = a
		l.duties.due = true
	}
	l.takeCopies(n, r)
	for i := range taken {
		l.takeBucketReport(n, &taken[i])
	}
	for name, told := range n.reports.Buckets { // what is left out is as it was, and it lives
		b := l.buckets.byName[name]
		if b == nil || told.Told.Generation != b.generation {
			continue
		}
		nb := n.bucket(name)
		l.reportStability(b, n, nb, &told.Told)
		// so full it applies ahead to have room
		if h := &told.Told.Heartbeat; h.QueueLimit > 0 && h.MutationQueue*4 > h.QueueLimit*3 {
			b.ledger.Full(l.nowMS, n.node)
		}
		l.judgeLate(b, n, nb, told)
	}
	return n.full
}

// takeCopies takes what an indexer says of its copies, and notes whose work that makes.
func (l *leader) takeCopies(n *indexer, r *wire.IndexerReport) {
	if r.Full {
		clear(n.copies)
		l.held.dirty, l.duties.due = true, true
	}
	for _, c := range r.Copies {
		old, had := n.copies[c.Copy]
		if !had || old.Ready != c.Ready || old.Held != c.Held {
			l.held.dirty = true
		}
		if !had || old.Ready != c.Ready || c.Ready && old.Held != c.Held {
			l.duties.due = true
		}
		n.copies[c.Copy] = c
	}
}

func (l *leader) takeBucketReport(n *indexer, t *wire.Taken) {
	r := &t.Bucket.Told
	b := l.buckets.byName[r.Heartbeat.Bucket]
	if b == nil || r.Generation != b.generation {
		return
	}
	nb := n.bucket(b.name)
	for _, a := range r.Acks {
		if a.Generation == b.generation && a.Compare(nb.acked) > 0 {
			nb.acked = a.StabilityRef
		}
	}
	b.due = b.due || t.Whole
	nb.absent.take(&t.Accepted, r.Generation, b.stab.Len())
	if len(t.Accepted.VBuckets) > 0 {
		nb.settled = l.judge(b, n, &t.Accepted) && nb.settled
	}
}

// judge tells the ledger which streams an indexer accepts. It is false when the ledger is to be told again as time
// passes.
func (l *leader) judge(b *bucket, n *indexer, a *wire.Accepted) bool {
	accepts := make([]streams.Acceptance, 0, len(a.VBuckets))
	for i, v := range a.VBuckets {
		if i >= len(a.Incarnations) || i >= len(a.Projectors) || i >= len(a.Open) {
			break
		}
		one := streams.Acceptance{VBucket: v, Incarnation: a.Incarnations[i], Projector: a.Projectors[i], Open: a.Open[i]}
		accepts = append(accepts, one)
		if !one.Open && int(v) < b.ledger.Len() && refusesStream(b.ledger.At(int(v)), &one) {
			l.doubt(b.name, one.Projector)
		}
	}
	b.due = true
	return b.ledger.Indexer(l.nowMS, n.node, accepts)
}

// judgePart is which part of the ledger's patience with an indexer passes until it is told again what has not changed.
const judgePart = 10

// judgeLate tells the ledger all streams that an indexer accepts, where it has changed since, or waits for the indexer.
func (l *leader) judgeLate(b *bucket, n *indexer, nb *nodeBucket, told *wire.ReportedBucket) {
	if nb.judgedBy == b.ledger {
		if nb.settled && nb.judgedAt == b.ledger.Changes() {
			return
		}
		if rest := l.cfg.Settings.Streams.MismatchWait.Milliseconds() / judgePart; l.nowMS-nb.judgedMS < rest &&
			l.nowMS >= nb.judgedMS {
			return
		}
	}
	nb.judgedBy, nb.judgedAt, nb.judgedMS = b.ledger, b.ledger.Changes(), l.nowMS
	a := told.Accepted()
	nb.settled = l.judge(b, n, &a)
}

// absences are the vbuckets of a bucket for which an indexer is in recovery: no stream is accepted there, so that what
// it has received stands still until the next BEGIN, whatever KV does.
type absences struct {
	generation uint64
	marks      []bool
	count      int
}

// take takes over what is accepted; what is left out is as it was, and nothing was at first.
func (s *absences) take(a *wire.Accepted, generation uint64, vbuckets int) {
	if s.generation != generation || len(s.marks) != vbuckets {
		*s = absences{generation: generation, marks: make([]bool, vbuckets), count: vbuckets}
		for v := range s.marks {
			s.marks[v] = true
		}
	}
	for i, v := range a.VBuckets {
		if int(v) >= vbuckets || i >= len(a.Open) || s.marks[v] != a.Open[i] {
			continue
		}
		if s.marks[v] = !a.Open[i]; s.marks[v] {
			s.count++
		} else {
			s.count--
		}
	}
}

// vbuckets marks them; nil without any.
func (s *absences) vbuckets() []bool {
	if s.count == 0 {
		return nil
	}
	return s.marks
}

func (n *indexer) bucket(name string) *nodeBucket {
	nb := n.buckets[name]
	if nb == nil {
		nb = &nodeBucket{}
		n.buckets[name] = nb
	}
	return nb
}

// packHeld lists which copies hold which stability timestamp, for scans. With many copies there are always some that
// have moved on: the list is then made anew now and then only.
func (l *leader) packHeld() {
	copies := 0
	for _, n := range l.components.indexers {
		copies += len(n.copies)
	}
	if l.held.packed != nil && (!l.held.dirty || l.nowMS-l.held.madeMS < int64(copies/copiesPerMS) &&
		l.nowMS >= l.held.madeMS) {
		return
	}
	l.held.dirty, l.held.madeMS = false, l.nowMS
	l.held.list = make([]wire.Held, 0, copies) // the old one may still be on its way to somebody
	for _, n := range l.components.indexers {
		ok := !n.offline && n.heard
		for _, c := range n.copies {
			if c.Held.Number > 0 {
				l.held.list = append(l.held.list, wire.Held{Copy: c.Copy, Node: n.node, Ref: c.Held, OK: ok})
			}
		}
	}
	slices.SortFunc(l.held.list, func(a, b wire.Held) int {
		return cmp.Or(cmp.Compare(a.Copy, b.Copy),
			cmp.Compare(a.Node, b.Node))
	})
	l.held.packed = wire.PackHeld(l.held.list)
	l.held.hash = wire.HeldHash(l.held.packed)
}

// copiesPerMS: a list of so many copies is made anew once in a millisecond at most.
const copiesPerMS = 8
