package projector

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"tidemark/projector/core"
	"tidemark/wire"
)

// knowledge is the state of a bucket that the coordinator has acknowledged: its streams, by vbucket, and what the KV
// node hosts.
type knowledge struct {
	streams []core.Known[*stream]
	hosted  *wire.Hosted
}

// report registers and then reports until ctx ends. The first report, one now and then, and those after the
// coordinator's request or a lost report are full; the others contain changes. A report is sent at once after notify,
// ReportInterval after the last one if there is news (stir) or the last one was not acknowledged, and otherwise after
// restInterval: that one is a sign of life and carries what no event announces (counters, troubles with KV, which
// indexers cannot be reached, or lose data).
func (p *Projector) report(ctx context.Context) error {
	if err := p.register(ctx); err != nil {
		return nil //nolint:nilerr // only the end of ctx
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	t := reporter{p: p}
	for {
		if err := p.await(ctx, timer, &t); err != nil {
			return nil //nolint:nilerr // only the end of ctx
		}
		p.reporting.stirred.Store(false) // before the state is read, so that no later change is missed
		t.sent = time.Now()
		if err := t.send(ctx); err != nil {
			return nil //nolint:nilerr // only the end of ctx
		}
		select { // events that come in a burst share a report
		case <-ctx.Done():
			return nil
		case <-time.After(reportSpacing):
		}
	}
}

// await waits until the next report is due; its error is that of ctx.
func (p *Projector) await(ctx context.Context, timer *time.Timer, t *reporter) error {
	for {
		pause := ReportInterval
		if t.calm && !p.reporting.stirred.Load() {
			pause = restInterval
		}
		timer.Reset(time.Until(t.sent.Add(pause)))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return nil
		case <-p.reporting.wake:
			return nil
		case <-p.reporting.more: // the report is due earlier now
		}
	}
}

// reporting is the schedule of reports.
type reporting struct {
	wake    chan struct{} // report at once
	more    chan struct{} // stirred has become true
	stirred atomic.Bool   // streams have moved since the last report

	taking   sync.Mutex // state and number belong together: a later number never goes with an earlier state
	sequence uint64

	unreached unreached
}

func newReporting() reporting {
	return reporting{wake: make(chan struct{}, 1), more: make(chan struct{}, 1)}
}

// notify requests a report at once.
func (p *Projector) notify() {
	select {
	case p.reporting.wake <- struct{}{}:
	default: // one is pending already
	}
}

// stir records that there is news for the next regular report.
func (p *Projector) stir() {
	if p.reporting.stirred.Load() || p.reporting.stirred.Swap(true) {
		return
	}
	select {
	case p.reporting.more <- struct{}{}:
	default: // the previous signal has not been received yet
	}
}

// acked is the state that the coordinator has once it acknowledges a report.
type acked struct {
	buckets    map[*bucket]*knowledge
	faults     uint64 // changes of the faults
	evaluation *wire.Evaluation
}

// reporter sends reports, one after the other.
type reporter struct {
	p      *Projector
	acked  wire.Acked[acked]
	full   time.Time // when the last full report was acknowledged
	sent   time.Time // when the newest report was sent
	calm   bool      // it was acknowledged, and nothing is requested
	silent int       // consecutive reports without a reply
}

// send sends a report and processes the reply; its error is that of ctx.
func (t *reporter) send(ctx context.Context) error {
	p := t.p
	r, now := t.make()
	reply, err := p.managers.ReportProjector(ctx, r)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	t.calm = err == nil && reply.Known && !reply.Full
	if err != nil {
		t.acked.Lost()
		p.noteLeader(err)
		if t.silent++; t.silent%50 == 1 {
			p.log.Warn("report failed, trying again", "error", err)
		}
		return nil
	}
	t.acked.Answered(r.Sequence, now, reply)
	if !reply.Known {
		return p.register(ctx)
	}
	p.noteLeader(nil)
	t.silent = 0
	if _, base := t.acked.Known(); base > 0 && r.Base == 0 {
		t.full = time.Now()
	}
	return nil
}

// make returns the next report, and the state that the coordinator has once it acknowledges it.
func (t *reporter) make() (*wire.ProjectorReport, acked) {
	if time.Since(t.full) > fullInterval {
		t.acked.Lost()
	}
	before, base := t.acked.Known()
	r, now := t.p.reportOf(func(string) bool { return true }, before.buckets)
	next := acked{buckets: now, faults: t.p.faults.changes.Load(), evaluation: r.Evaluation}
	if base == 0 || next.faults != before.faults {
		r.FaultsToo = true
		r.Faults, r.FaultsOmitted = t.p.faults.list()
	}
	if r.Base = base; base > 0 && next.evaluation == before.evaluation {
		r.Evaluation = nil
	}
	return r, next
}

// currentReport returns the full state of one bucket, or of all if only is empty.
func (p *Projector) currentReport(only string) *wire.ProjectorReport {
	r, _ := p.reportOf(func(name string) bool { return only == "" || only == name }, nil)
	return r
}

// reportOf returns the state of some buckets, or what has changed since before, and the state that the coordinator has
// once it acknowledges this.
func (p *Projector) reportOf(wanted func(string) bool, before map[*bucket]*knowledge) (*wire.ProjectorReport,
	map[*bucket]*knowledge) {
	p.reporting.taking.Lock()
	defer p.reporting.taking.Unlock()
	p.reporting.sequence++
	ports := p.router.Unreached() // before the lock is taken: sorting may take long
	p.mu.Lock()
	r := &wire.ProjectorReport{ID: p.cfg.ID, BootID: p.bootID, ClusterID: p.authority.Fence.ClusterID,
		Sequence: p.reporting.sequence, Counters: p.counters.all(), KV: p.troubles.list(p.cfg.KV, time.Now())}
	ports = p.portsOf(ports)
	r.Unreached = reportedPorts(ports)
	var known bool
	if r.Revision, known = core.Revision(p.defs.newest, p.authority.Fence); known {
		r.Evaluation = p.defs.evaluation
	}
	all := make([]*bucket, 0, len(p.buckets))
	for name, b := range p.buckets {
		if wanted(name) {
			all = append(all, b)
		}
	}
	p.mu.Unlock()
	p.reporting.unreached.log(p.log, ports)
	next := make(map[*bucket]*knowledge, len(all))
	for _, b := range all {
		r.Revision = min(r.Revision, b.applied())
		states, now := b.states(before[b])
		b.topic.Urge() // what the report declares complete must be on its way to the indexers
		r.Buckets = append(r.Buckets, states)
		next[b] = now
	}
	return r, next
}

// states returns the bucket's streams that KV has granted, or what has changed since before, and the state to
// acknowledge.
func (b *bucket) states(before *knowledge) (wire.StreamStates, *knowledge) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := wire.StreamStates{Bucket: b.name, BucketUUID: b.uuid, Full: before == nil, Dropping: b.topic.Dropping()}
	now := &knowledge{hosted: b.hosted.Load()}
	var known []core.Known[*stream]
	if before != nil {
		known = before.streams
	}
	if before == nil || before.hosted != now.hosted {
		r.Hosted = now.hosted
	}
	now.streams = b.streams.Report(&r, known)
	return r, now
}
