package indexer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/core"
	"tidemark/indexer/storage"
	"tidemark/ingest"
	"tidemark/internal/rpc"
	"tidemark/timestamp"
	"tidemark/wire"
)

const (
	// reportEvery is how often the leader is told the level state.
	reportEvery = 100 * time.Millisecond
	// reportSpacing is the least time between two reports, however much happens.
	reportSpacing = 5 * time.Millisecond
	// fullEvery is after how many reports everything is told again, whatever the leader is thought to know.
	fullEvery = 300
	// measureEvery is how often sizes and what is durable are looked at.
	measureEvery = time.Second
	// registerPause is the pause after a registration that failed; it doubles up to registerMost.
	registerPause = 100 * time.Millisecond
	registerMost  = 2 * time.Second
)

// ErrRemoved is wrapped when this indexer was removed from its cluster: its folder is never accepted again.
var ErrRemoved = errors.New("this indexer was removed from its cluster")

// reporter registers with the leader and tells it the level state (docs/protocol.md, "To the leader, from components").
// It follows the leader through package managerclient.
type reporter struct {
	x        *Indexer
	sequence uint64
	full     int // reports until the next full one
	told     wire.Reporting
	held     uint64 // hash of the list of held timestamps that was taken over, 0 none
}

// Run registers, reports, and registers again when the leader does not know us. It ends with ErrRemoved when that is
// for good.
func (r *reporter) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := r.register(ctx); err != nil || ctx.Err() != nil {
			return err
		}
		r.full = 0
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
			r.told.Brief(reply.Brief)
			x.health.set(healthRegistration, "")
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
		if x.health.set(healthRegistration, err.Error()) {
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

// reports sends reports until the leader does not know us or ctx ends.
func (r *reporter) reports(ctx context.Context) error {
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for {
		known, err := r.send(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			if r.x.health.set(healthManagers, err.Error()) {
				r.x.log.Warn("the leader cannot be told; trying again", "error", err)
			}
			r.x.metrics.reports.WithLabelValues("error").Inc()
		case !known:
			return nil
		default:
			r.x.health.set(healthManagers, "")
			r.x.metrics.reports.WithLabelValues("ok").Inc()
		}
		t := time.NewTimer(reportSpacing)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-t.C:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-r.x.report:
		}
	}
}

// send makes one report, of everything or of what has changed, and uses the answer.
func (r *reporter) send(ctx context.Context) (known bool, err error) {
	x := r.x
	rep := x.fullReport(ctx, r.told.WantsHW)
	r.sequence++
	rep.Sequence = r.sequence
	rep.Packed, rep.HeldHash = true, r.held
	counts := map[string]int{}
	for _, b := range rep.Buckets {
		counts[b.Heartbeat.Bucket] = len(b.Acks)
	}
	full := r.full <= 0
	r.told.Make(rep, full)
	reply, err := x.managers.ReportIndexer(ctx, rep)
	if err != nil {
		r.told.Lost()
		return false, err
	}
	r.told.Answered(reply)
	if r.full--; full {
		r.full = fullEvery
	}
	for _, k := range x.allBuckets() {
		if n := counts[k.name]; n > 0 {
			_ = k.do(ctx, func() { k.st.Told(n) })
		}
	}
	if !reply.Known {
		return false, nil
	}
	x.setTransferRate(reply.TransferRate)
	return true, r.takeHeld(reply)
}

// takeHeld takes over what the leader says of who holds what, unless it is the list that we have.
func (r *reporter) takeHeld(reply *wire.ReportReply) error {
	all := reply.Held // of a leader that does not pack
	switch {
	case reply.HeldHash == 0:
	case len(reply.HeldPacked) > 0:
		var err error
		if all, err = wire.UnpackHeld(reply.HeldPacked); err != nil {
			return err
		}
	default:
		return nil
	}
	r.held = reply.HeldHash
	r.x.catalog.SetHeld(all)
	return nil
}

// fullReport is the level state of everything; HW is left out of the buckets of which it is not wanted.
func (x *Indexer) fullReport(ctx context.Context, wantsHW func(bucket string) bool) *wire.IndexerReport {
	id := x.identity.get()
	rep := &wire.IndexerReport{Node: id.Node, UUID: id.UUID, BootID: x.boot, ClusterID: id.ClusterID, Full: true,
		Health: x.health.get()}
	defs := x.present()
	if defs.Fence.Epoch == id.Fence.Epoch { // revisions of another epoch mean nothing to the leader
		rep.Revision = defs.Revision
	}
	rep.Orphans, rep.OrphanCount, _ = x.toldOrphans()
	rep.Faults = x.unstorable.list(&defs)
	var compared map[index.CopyID]index.ID
	rep.Differing, compared = x.verify.Differing(&defs)
	unready := map[index.ID]index.State{}
	for i := range defs.Indexes {
		if d := &defs.Indexes[i]; d.State != index.Maintenance {
			unready[d.ID] = d.State
		}
	}
	for _, k := range x.allBuckets() {
		_ = k.do(ctx, func() { // a bucket that goes is not told of
			b, copies := k.report(unready, wantsHW(k.name))
			rep.Buckets = append(rep.Buckets, b)
			rep.Copies = append(rep.Copies, copies...)
		})
	}
	for i := range rep.Copies {
		_, rep.Copies[i].Compared = compared[rep.Copies[i].Copy]
	}
	return rep
}

// report runs in the bucket's loop; unready are the states of the indexes that are not ready.
func (k *bucket) report(unready map[index.ID]index.State, wantsHW bool) (wire.BucketReport, []wire.CopyReport) {
	m := k.measured.Load()
	asked := core.Asked{HW: wantsHW, QueueLimit: uint64(k.x.queueShare()),
		Building: func(id index.ID) bool { return unready[id] == index.Backfill }}
	if m != nil {
		asked.Durable = m.persistent
	}
	b, copies := k.st.Report(asked)
	filling, received, expected := k.x.fills.underWay()
	for i := range copies {
		c := &copies[i]
		if c.Copy == filling {
			c.Received, c.Expected = received, expected
		}
		_, changes := unready[c.Index]
		z := k.sizeOf(c.Copy, m, changes)
		c.Items, c.Bytes, c.Error = z.items, z.bytes, z.err
	}
	return b, copies
}

// sizeOf returns a copy's size as it was measured last. Until its index is ready its entries are counted anew for every
// report, so that what the leader knows is true at the moment in which the index becomes ready; a measurement that is
// older than such a look does not take its place, nor one of another slice that was here before.
func (k *bucket) sizeOf(id index.CopyID, m *measurement, unready bool) (z copySize) {
	if m != nil {
		z = m.copies[id]
	}
	s := k.slices[id]
	if s == nil {
		return z
	}
	if z.of != s {
		z = copySize{of: s}
	}
	seen, had := k.sizes[id]
	switch {
	case unready || z.rows == (rowsAt{}) && !had:
		items, generation, batch, err := s.Counted()
		if err != nil {
			z.err = err.Error()
		}
		z.items, z.rows = uint64(max(items, 0)), rowsAt{generation, batch}
		k.sizes[id] = z
	case had && z.rows.before(seen.rows):
		return seen
	case had:
		delete(k.sizes, id)
	}
	return z
}

// measurement is what costs too much to look at for every report.
type measurement struct {
	persistent timestamp.Vector
	durable    [][]ingest.Position // of each copy, as persistent is made of them
	copies     map[index.CopyID]copySize
}

type copySize struct {
	of           *storage.Slice
	rows         rowsAt // that were counted
	items, bytes uint64
	err          string
}

func sizeOf(s *storage.Slice) copySize {
	st := s.Stats()
	z := copySize{of: s, rows: rowsAt{st.Generation, st.Batch}, items: uint64(max(st.Items, 0)),
		bytes: uint64(max(st.DiskBytes+st.MemoryBytes, 0))}
	if st.Failing != nil {
		z.err = fmt.Sprint(st.Failing)
	}
	return z
}

// measure looks at the store's sizes and at what would survive a crash.
func (x *Indexer) measure() {
	byBucket := map[string]*measurement{}
	for _, s := range x.store.Slices() {
		if x.sizeOrphan(s) {
			continue
		}
		m := s.Meta()
		d, err := s.Durable()
		if err != nil {
			continue
		}
		b := byBucket[m.Bucket]
		if b == nil {
			b = &measurement{copies: map[index.CopyID]copySize{}}
			byBucket[m.Bucket] = b
		}
		b.durable = append(b.durable, d.Positions)
		b.copies[m.Copy] = sizeOf(s)
	}
	for _, k := range x.allBuckets() {
		m := byBucket[k.name]
		if m != nil && !m.persist(k.measured.Load(), k.vbuckets) {
			m = nil
		}
		k.measured.Store(m)
	}
}

// persist sets what would survive a crash: where the copy stands that has least; false when no copy is of a bucket of
// so many vbuckets. What the copies hold is as before most often.
func (m *measurement) persist(before *measurement, vbuckets int) bool {
	m.durable = slices.DeleteFunc(m.durable, func(p []ingest.Position) bool { return len(p) != vbuckets })
	// they are replaced, not changed
	same := func(a, b []ingest.Position) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }
	if before != nil && slices.EqualFunc(m.durable, before.durable, same) {
		m.persistent = before.persistent
		return len(m.durable) > 0
	}
	for i, positions := range m.durable {
		switch {
		case i == 0:
			m.persistent = durableVector(positions)
		case !same(positions, m.durable[i-1]): // copies that stand together have one list
			_ = m.persistent.Min(durableVector(positions)) // of equal length
		}
	}
	return len(m.durable) > 0
}

func durableVector(positions []ingest.Position) timestamp.Vector {
	v := timestamp.New(len(positions))
	for i, p := range positions {
		if p.Main > 0 {
			v.Set(i, timestamp.Position{VBUUID: p.VBUUID, Seqno: p.Main})
		}
	}
	return v
}
