package projector

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"tidemark/projector/core"
	"tidemark/wire"
)

// knowledge is what the coordinator knows of a bucket from the reports that it has answered: of its streams, by
// vbucket, and of what the KV node has.
type knowledge struct {
	streams []core.Known[*stream]
	hosted  *wire.Hosted
}

// report registers and then reports for ever: all that there is first, now and then, and whenever the coordinator asks
// for it or a report was lost; else what has changed. It reports at once when it is asked to (notify), ReportInterval
// after the last one when there is news (stir) or the last one was not answered well, and else after restInterval: that
// is a sign of life, and tells what nobody announces (counters, troubles with KV, who is not sent everything).
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
		p.reporting.stirred.Store(false) // before the state is read
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
		case <-p.reporting.more: // it is due earlier now
		}
	}
}

// reporting says whether there is something to report.
type reporting struct {
	wake    chan struct{} // report at once
	more    chan struct{} // stirred has become true
	stirred atomic.Bool   // streams have moved since the last report

	taking   sync.Mutex // state and number belong together: a later number never shows an earlier state
	sequence uint64
}

func newReporting() reporting {
	return reporting{wake: make(chan struct{}, 1), more: make(chan struct{}, 1)}
}

// notify asks for a report at once.
func (p *Projector) notify() {
	select {
	case p.reporting.wake <- struct{}{}:
	default: // one is asked for already
	}
}

// stir notes that there is news that a report may bring in its turn.
func (p *Projector) stir() {
	if p.reporting.stirred.Load() || p.reporting.stirred.Swap(true) {
		return
	}
	select {
	case p.reporting.more <- struct{}{}:
	default: // the last one has not been seen yet
	}
}

// told is what the coordinator knows by a report.
type told struct {
	buckets    map[*bucket]*knowledge
	faults     uint64 // changes of the faults
	evaluation *wire.Evaluation
}

// reporter sends reports, one after the other.
type reporter struct {
	p      *Projector
	told   wire.Acked[told]
	full   time.Time // when all was told last
	sent   time.Time // when the newest one was
	calm   bool      // it was answered, and nothing is asked for
	silent int       // reports without an answer, one after the other
}

// send makes a report, sends it and takes the answer; its error is that of ctx.
func (t *reporter) send(ctx context.Context) error {
	p := t.p
	r, now := t.make()
	reply, err := p.managers.ReportProjector(ctx, r)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	t.calm = err == nil && reply.Known && !reply.Full
	if err != nil {
		t.told.Lost()
		p.heard(err)
		if t.silent++; t.silent%50 == 1 {
			p.log.Warn("report failed, trying again", "error", err)
		}
		return nil
	}
	t.told.Answered(r.Sequence, now, reply)
	if !reply.Known {
		return p.register(ctx)
	}
	p.heard(nil)
	t.silent = 0
	if _, base := t.told.Known(); base > 0 && r.Base == 0 {
		t.full = time.Now()
	}
	return nil
}

// make returns the next report, and what the coordinator knows when it has answered it.
func (t *reporter) make() (*wire.ProjectorReport, told) {
	if time.Since(t.full) > fullInterval {
		t.told.Lost()
	}
	before, base := t.told.Known()
	r, now := t.p.reportOf(func(string) bool { return true }, before.buckets)
	next := told{buckets: now, faults: t.p.faults.changes.Load(), evaluation: r.Evaluation}
	if base == 0 || next.faults != before.faults {
		r.FaultsToo = true
		r.Faults, r.FaultsOmitted = t.p.faults.list()
	}
	if r.Base = base; base > 0 && next.evaluation == before.evaluation {
		r.Evaluation = nil
	}
	return r, next
}

// currentReport is the level state of one bucket, or of all.
func (p *Projector) currentReport(only string) *wire.ProjectorReport {
	r, _ := p.reportOf(func(name string) bool { return only == "" || only == name }, nil)
	return r
}

// reportOf is the level state of some buckets, or what of it is news after what the coordinator was told, and what it
// knows by this.
func (p *Projector) reportOf(wanted func(string) bool, told map[*bucket]*knowledge) (*wire.ProjectorReport,
	map[*bucket]*knowledge) {
	p.reporting.taking.Lock()
	defer p.reporting.taking.Unlock()
	p.reporting.sequence++
	p.mu.Lock()
	r := &wire.ProjectorReport{ID: p.cfg.ID, BootID: p.bootID, ClusterID: p.authority.Fence.ClusterID,
		Sequence: p.reporting.sequence, Counters: p.counters.all(), KV: p.troubles.list(p.cfg.KV, time.Now())}
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
	telling := make(map[*bucket]*knowledge, len(all))
	for _, b := range all {
		r.Revision = min(r.Revision, b.applied())
		states, now := b.states(told[b])
		b.topic.Urge() // what is told to be complete is on its way
		r.Buckets = append(r.Buckets, states)
		telling[b] = now
	}
	return r, telling
}

// states is the level state of the streams that KV has consented to, or what of it is news, and what is known by it.
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
