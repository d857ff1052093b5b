package projector

import (
	"context"
	"time"

	"tidemark/wire"
)

// knowledge is what the coordinator knows of a bucket from the reports that it has answered: of its streams, by
// vbucket, and of what the KV node has.
type knowledge struct {
	streams []known
	hosted  *wire.Hosted
}

type known struct {
	stream   *stream
	complete uint64
	purge    uint64
	ended    bool
}

// report registers and then reports for ever: all that there is first, now and then, and whenever the coordinator asks
// for it or a report was lost; else what has changed.
func (p *Projector) report(ctx context.Context) error {
	if err := p.register(ctx); err != nil {
		return nil //nolint:nilerr // only the end of ctx
	}
	tick := time.NewTicker(ReportInterval)
	defer tick.Stop()
	t := reporter{p: p}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-p.wake:
		}
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

// reporter is what is remembered from report to report of what the coordinator knows.
type reporter struct {
	p          *Projector
	told       map[*bucket]*knowledge // nil: all is to be told
	base       uint64                 // sequence of the report by which it is known
	faults     uint64                 // changes of the faults that the coordinator knows of
	evaluation *wire.Evaluation       // that the coordinator knows of
	full       time.Time              // when all was told last
	silent     int                    // reports without an answer, one after the other
}

// send makes a report, sends it and takes the answer; its error is that of ctx.
func (t *reporter) send(ctx context.Context) error {
	p := t.p
	r, next := t.make()
	reply, err := p.managers.ReportProjector(ctx, r)
	if err == nil {
		t.base = r.Sequence
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		t.told = nil
		p.heard(err)
		if t.silent++; t.silent%50 == 1 {
			p.log.Warn("report failed, trying again", "error", err)
		}
	case !reply.Known:
		t.told = nil
		return p.register(ctx)
	case reply.Full:
		p.heard(nil)
		t.told, t.silent = nil, 0
	default:
		p.heard(nil)
		if t.told == nil {
			t.full = time.Now()
		}
		t.told, t.silent, t.faults, t.evaluation = next.told, 0, next.faults, next.evaluation
	}
	return nil
}

// make returns the next report, and what the coordinator knows when it has answered it.
func (t *reporter) make() (*wire.ProjectorReport, reporter) {
	if time.Since(t.full) > fullInterval {
		t.told = nil
	}
	next := *t
	var r *wire.ProjectorReport
	r, next.told = t.p.reportSince(t.told)
	next.faults, next.evaluation = t.p.faults.changes.Load(), r.Evaluation
	if t.told == nil || next.faults != t.faults {
		r.FaultsToo, r.Faults = true, t.p.faults.list()
	}
	if t.told != nil {
		r.Base = t.base
		if next.evaluation == t.evaluation {
			r.Evaluation = nil
		}
	}
	return r, next
}

// currentReport is the level state of one bucket, or of all.
func (p *Projector) currentReport(only string) *wire.ProjectorReport {
	r, _ := p.reportOf(func(name string) bool { return only == "" || only == name }, nil)
	return r
}

// reportSince is what has changed in all buckets since the coordinator was told; nil: everything.
func (p *Projector) reportSince(told map[*bucket]*knowledge) (*wire.ProjectorReport, map[*bucket]*knowledge) {
	return p.reportOf(func(string) bool { return true }, told)
}

func (p *Projector) reportOf(wanted func(string) bool, told map[*bucket]*knowledge) (*wire.ProjectorReport,
	map[*bucket]*knowledge) {
	p.reporting.Lock() // state and number belong together: a later number never shows an earlier state
	defer p.reporting.Unlock()
	p.sequence++
	p.mu.Lock()
	r := &wire.ProjectorReport{ID: p.cfg.ID, BootID: p.bootID, ClusterID: p.fence.ClusterID, Sequence: p.sequence,
		Counters: p.counters.all(), Evaluation: p.evaluation, KV: p.troubles.list(p.cfg.KV, time.Now())}
	if p.defs != nil && p.defs.Fence.Epoch == p.fence.Epoch { // revisions of another epoch mean nothing to the leader
		r.Revision = p.defs.Revision
	} else {
		r.Evaluation = nil
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
		r.Buckets = append(r.Buckets, states)
		telling[b] = now
	}
	return r, telling
}

// states is the level state of the streams that KV has consented to, or what of it is news, and what is known by it. A
// stream that has only moved takes a few bytes.
func (b *bucket) states(before *knowledge) (wire.StreamStates, *knowledge) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := wire.StreamStates{Bucket: b.name, BucketUUID: b.uuid, Full: before == nil, Dropping: b.topic.Dropping()}
	now := &knowledge{streams: make([]known, len(b.streams)), hosted: b.hosted.Load()}
	if before == nil || before.hosted != now.hosted {
		r.Hosted = now.hosted
	}
	for v, s := range b.streams {
		if s == nil {
			continue
		}
		was := known{}
		if before != nil {
			was = before.streams[v]
		}
		is := known{stream: s, complete: s.complete.Load(), purge: s.purge.Load(), ended: s.ended.Load()}
		now.streams[v] = is
		if is == was {
			continue
		}
		if was.stream == s && was.ended == is.ended && was.purge == is.purge {
			r.Move(s.vb, s.inc, is.complete)
			continue
		}
		log := s.log
		if was.stream == s {
			log = nil
		}
		r.VBuckets, r.Incarnations = append(r.VBuckets, s.vb), append(r.Incarnations, s.inc)
		r.VBUUIDs, r.Complete = append(r.VBUUIDs, s.log.Newest()), append(r.Complete, is.complete)
		r.Ended, r.Logs = append(r.Ended, is.ended), append(r.Logs, log)
		r.Purges, r.Revisions = append(r.Purges, is.purge), append(r.Revisions, s.revision)
	}
	return r, now
}
