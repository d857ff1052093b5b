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
	// reportEvery is how often the leader is told the level state while it changes, and restEvery while it does not: three
	// of those make nobody suspect (package liveness).
	reportEvery = 100 * time.Millisecond
	restEvery   = 400 * time.Millisecond
	// reportSpacing is the least time between two reports, however much happens.
	reportSpacing = 5 * time.Millisecond
	// fullEvery is how often everything is told again, whatever the leader is thought to know.
	fullEvery = 30 * time.Second
	// registerPause is the pause after a registration that failed; it doubles up to registerMost.
	registerPause = 100 * time.Millisecond
	registerMost  = 2 * time.Second
)

// ErrRemoved is wrapped when this indexer was removed from its cluster: its folder is never accepted again.
var ErrRemoved = errors.New("this indexer was removed from its cluster")

// reporter registers with the leader and tells it the level state (docs/protocol.md, "To the leader, from components").
// It follows the leader through package managerclient.
type reporter struct {
	x    *Indexer
	full time.Time // when everything is told next; zero: now
	told wire.ReportSender
	calm bool   // the newest report told nothing that matters, and nor did its answer
	held uint64 // hash of the list of held timestamps that was taken over, 0 none
}

// Run registers, reports, and registers again when the leader does not know us. It ends with ErrRemoved when that is
// for good.
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

// register tries until it is done or ctx ends. Its error wraps ErrRemoved.
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

// reports sends reports until the leader does not know us or ctx ends: at once when something has happened that it
// waits for (Indexer.report), else reportEvery after the last one, or restEvery when that one and its answer told
// nothing. So what others hold, which answers tell, comes within reportEvery of what was acknowledged here.
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
				r.x.log.Warn("the leader cannot be told; trying again", "error", err)
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

// send makes one report, of everything or of what has changed, and uses the answer.
func (r *reporter) send(ctx context.Context) (known bool, err error) {
	x := r.x
	rep := x.numberedReport(ctx, r.told.WantsHW)
	rep.HeldHash = r.held
	acks := rep.LastAcks()
	// that a copy is told of no more shows in a report of everything
	full := !x.now().Before(r.full) || slices.ContainsFunc(x.places.wanted(), r.told.LeaderHas)
	news := r.told.Make(rep, full)
	r.calm = false
	reply, err := x.managers.ReportIndexer(ctx, rep)
	if err != nil {
		r.told.Lost()
		return false, err
	}
	r.told.Answered(reply)
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

// tookAcks lets buckets forget what the leader has taken of their acknowledgements: the last one that it was told.
func (x *Indexer) tookAcks(ctx context.Context, last map[string]wire.StabilityRef) {
	all := slices.DeleteFunc(x.allBuckets(), func(k *copies.Bucket) bool {
		_, is := last[k.Name()]
		return !is
	})
	askEach(all, func(k *copies.Bucket) (struct{}, error) {
		return struct{}{}, k.Do(ctx, func(st *core.Bucket) { st.Told(last[k.Name()]) })
	})
}

// takeHeld takes over what the leader says of who holds what, unless it is the list that we have.
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

// numberedReport is fullReport with its place in the order of what the leader is told. The number is taken first: what
// has a higher one shows no older state than what was answered under a lower one.
func (x *Indexer) numberedReport(ctx context.Context, wantsHW func(bucket string) bool) *wire.IndexerReport {
	number := x.reported.Add(1)
	rep := x.fullReport(ctx, wantsHW)
	rep.Sequence = number
	return rep
}

// fullReport is the level state of everything; HW is left out of the buckets of which it is not wanted.
func (x *Indexer) fullReport(ctx context.Context, wantsHW func(bucket string) bool) *wire.IndexerReport {
	id := x.identity.get()
	rep := &wire.IndexerReport{Node: id.Node, UUID: id.UUID, BootID: x.boot, ClusterID: id.ClusterID,
		Health: x.health.First()}
	defs := x.present()
	if defs.Fence.Epoch == id.Fence.Epoch { // revisions of another epoch mean nothing to the leader
		rep.Revision = defs.Revision
	}
	unsettled := x.unsettled() // after the list: of its own copies
	rep.Orphans, rep.OrphanCount, _ = x.orphans.told()
	rep.Faults, rep.FaultsOmitted = x.unstorable.list(&defs)
	var compared map[index.CopyID]index.ID
	rep.Differing, rep.DifferingOmitted, compared = x.verify.Differing(&defs)
	unready := map[index.ID]index.State{}
	for i := range defs.Indexes {
		if d := &defs.Indexes[i]; d.State != index.Maintenance {
			unready[d.ID] = d.State
		}
	}
	type told struct {
		bucket wire.BucketReport
		copies []wire.CopyReport
	}
	for _, t := range askEach(x.allBuckets(), func(k *copies.Bucket) (t told, err error) {
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

// unsettled are the copies that are not told of: with one that is in a bucket still, or already, what the list in force
// wants is not done. Copies that are made for one list are told of together.
func (x *Indexer) unsettled() map[index.CopyID]bool {
	all := x.places.busy()
	_, making := x.catalog.InForce()
	maps.Copy(all, making)
	return all
}

// measure looks at what costs too much to look at for every report.
func (x *Indexer) measure() {
	all := slices.DeleteFunc(x.store.Slices(), x.orphans.size)
	buckets := x.allBuckets()
	copies.Measure(all, buckets, x.now())
	copies.MendBroken(all, buckets)
}
