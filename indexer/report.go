package indexer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/copies"
	"tidemark/indexer/core"
	"tidemark/internal/rpc"
	"tidemark/wire"
)

const (
	// reportEvery is the interval of reports to the leader while the state changes, restEvery the interval while it
	// does not. Three intervals of restEvery pass before the leader suspects the indexer (package liveness).
	reportEvery = 100 * time.Millisecond
	restEvery   = 400 * time.Millisecond
	// reportSpacing is the least time between two reports, however many events trigger one.
	reportSpacing = 5 * time.Millisecond
	// fullEvery is the interval of complete reports, sent whatever the leader is assumed to have received.
	fullEvery = 30 * time.Second
	// registerPause is the pause after a failed registration; it doubles up to registerMost.
	registerPause = 100 * time.Millisecond
	registerMost  = 2 * time.Second
)

// ErrRemoved is wrapped when this indexer was removed from its cluster, which never accepts its data folder again.
var ErrRemoved = errors.New("this indexer was removed from its cluster")

// reporter registers with the leader and reports the full state to it (docs/protocol.md, "To the leader, from
// components"). It finds the leader through package managerclient.
type reporter struct {
	x         *Indexer
	full      time.Time // when the next complete report is due; zero: now
	reporting wire.ReportSender
	calm      bool   // neither the newest report nor its answer contained anything that matters
	held      uint64 // hash of the list of held timestamps that is in force; 0: none
}

// Run registers and reports, and registers again when the leader does not know this indexer. It returns ErrRemoved
// when the indexer was removed from its cluster.
func (r *reporter) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := r.register(ctx); err != nil || ctx.Err() != nil {
			return err
		}
		r.full = time.Time{}
		if err := r.reports(ctx); err != nil {
			return err
		}
	}
	return nil
}

// register retries until it succeeds or ctx ends. Its error wraps ErrRemoved.
func (r *reporter) register(ctx context.Context) error {
	x := r.x
	for pause := registerPause; ; pause = min(2*pause, registerMost) {
		reply, err := x.managers.RegisterIndexer(ctx, &wire.RegisterIndexer{ClusterID: x.identity.get().ClusterID,
			Endpoint: x.Endpoint()})
		if err == nil {
			err = x.identity.registered(reply)
		}
		if err == nil {
			x.health.Set(healthRegistration, "")
			x.log.Info("registered", "cluster", reply.ClusterID, "node", reply.Node, "leader", reply.Leader.REST)
			return nil
		}
		if ctx.Err() != nil {
			return nil
		}
		var p *rpc.Problem
		if errors.As(err, &p) && p.Code == errcode.NodeRemoved {
			return fmt.Errorf("%w: %s", ErrRemoved, p.Detail)
		}
		if x.health.Set(healthRegistration, err.Error()) {
			x.log.Warn("cannot register; trying again", "error", err)
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil
		}
	}
}

// reports sends reports until the leader does not know this indexer or ctx ends: at once when something has happened
// that the leader waits for (Indexer.report), otherwise reportEvery after the last report, or restEvery if that one
// and its answer contained no news. So the answers' news about what other nodes hold arrives within reportEvery of an
// acknowledgement here.
func (r *reporter) reports(ctx context.Context) error {
	timer := time.NewTimer(reportEvery)
	defer timer.Stop()
	for {
		began := time.Now()
		known, err := r.send(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			if r.x.health.Set(healthManagers, err.Error()) {
				r.x.log.Warn("report to the leader failed; trying again", "error", err)
			}
			r.x.metrics.reports.WithLabelValues("error").Inc()
		case !known:
			return nil
		default:
			r.x.health.Set(healthManagers, "")
			r.x.metrics.reports.WithLabelValues("ok").Inc()
		}
		timer.Reset(reportSpacing)
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		pause := reportEvery
		if r.calm {
			pause = restEvery
		}
		timer.Reset(time.Until(began.Add(pause)))
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-r.x.report:
		}
	}
}

// send sends one report, complete or of what has changed, and processes the answer.
func (r *reporter) send(ctx context.Context) (known bool, err error) {
	x := r.x
	rep := x.numberedReport(ctx, r.reporting.WantsHW)
	rep.HeldHash = r.held
	acks := rep.LastAcks()
	// only a complete report can show that a copy is no longer reported
	full := !x.now().Before(r.full) || slices.ContainsFunc(x.places.wanted(), r.reporting.LeaderHas)
	news := r.reporting.Make(rep, full)
	r.calm = false
	reply, err := x.managers.ReportIndexer(ctx, rep)
	if err != nil {
		r.reporting.Lost()
		return false, err
	}
	r.reporting.Answered(reply)
	if full {
		r.full = x.now().Add(fullEvery)
	}
	if !reply.Known {
		return false, nil
	}
	if reply.Took() {
		x.tookAcks(ctx, acks)
	}
	r.calm = !news && !reply.Full && len(reply.HeldPacked) == 0 && len(reply.HW) == 0
	x.fills.SetRate(reply.TransferRate)
	return true, r.takeHeld(reply)
}

// tookAcks makes buckets forget the acknowledgements that the leader has received; last holds the newest one of each
// bucket.
func (x *Indexer) tookAcks(ctx context.Context, last map[string]wire.StabilityRef) {
	all := slices.DeleteFunc(x.allBuckets(), func(k *copies.Bucket) bool {
		_, is := last[k.Name()]
		return !is
	})
	askEach(all, func(k *copies.Bucket) (struct{}, error) {
		return struct{}{}, k.Do(ctx, func(st *core.Bucket) { st.DropAcks(last[k.Name()]) })
	})
}

// takeHeld puts the leader's list of held timestamps in force if the answer contains a new one.
func (r *reporter) takeHeld(reply *wire.ReportReply) error {
	if len(reply.HeldPacked) == 0 {
		return nil
	}
	all, err := wire.UnpackHeld(reply.HeldPacked)
	if err != nil {
		return err
	}
	r.held = reply.HeldHash
	r.x.catalog.SetHeld(all)
	return nil
}

// numberedReport returns fullReport with a sequence number. The number is taken first, so that a report with a higher
// number never shows an older state than one with a lower number.
func (x *Indexer) numberedReport(ctx context.Context, wantsHW func(bucket string) bool) *wire.IndexerReport {
	number := x.reported.Add(1)
	rep := x.fullReport(ctx, wantsHW)
	rep.Sequence = number
	return rep
}

// fullReport returns the complete state. It leaves HW out of buckets for which wantsHW returns false.
func (x *Indexer) fullReport(ctx context.Context, wantsHW func(bucket string) bool) *wire.IndexerReport {
	id := x.identity.get()
	rep := &wire.IndexerReport{Node: id.Node, UUID: id.UUID, BootID: x.boot, ClusterID: id.ClusterID,
		Room:   x.room.Load(),
		Health: x.health.First(healthRegistration, healthManagers)} // the leader that gets this report was reached
	defs := x.present()
	if defs.Fence.Epoch == id.Fence.Epoch { // revisions of another epoch mean nothing to the leader
		rep.Revision = defs.Revision
	}
	unsettled := x.unsettled() // after defs, to match its copies
	rep.Orphans, rep.OrphanCount, _ = x.orphans.report()
	rep.Faults, rep.FaultsOmitted = x.unstorable.list(&defs)
	var compared map[index.CopyID]index.ID
	rep.Differing, rep.DifferingOmitted, compared = x.verify.Differing(&defs)
	unready := map[index.ID]index.State{}
	for i := range defs.Indexes {
		if d := &defs.Indexes[i]; d.State != index.Maintenance {
			unready[d.ID] = d.State
		}
	}
	type bucketReport struct {
		bucket wire.BucketReport
		copies []wire.CopyReport
	}
	for _, t := range askEach(x.allBuckets(), func(k *copies.Bucket) (t bucketReport, err error) {
		t.bucket, t.copies, err = k.Report(ctx, unready, wantsHW(k.Name()))
		return t, err
	}) {
		rep.Buckets = append(rep.Buckets, t.bucket)
		rep.Copies = append(rep.Copies, slices.DeleteFunc(t.copies, func(c wire.CopyReport) bool {
			return unsettled[c.Copy]
		})...)
	}
	for i := range rep.Copies {
		c := &rep.Copies[i]
		_, c.Compared = compared[c.Copy]
		c.Received, c.Expected = x.fills.UnderWay(c.Copy)
	}
	return rep
}

// unsettled returns the copies that reports leave out: while a copy has a reconciler, the bucket may still or already
// have it, but what the list in force wants is not reached. Copies that one list makes are reported together, once
// all of them are made.
func (x *Indexer) unsettled() map[index.CopyID]bool {
	all := x.places.busy()
	_, making := x.catalog.InForce()
	maps.Copy(all, making)
	return all
}

// measure refreshes figures that are too expensive to compute for every report.
func (x *Indexer) measure() {
	all := slices.DeleteFunc(x.store.Slices(), x.orphans.size)
	buckets := x.allBuckets()
	copies.Measure(all, buckets, x.now())
	copies.MendBroken(all, buckets)
	x.room.Store(x.store.Room())
}
