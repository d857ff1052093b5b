package copies

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"tidemark/index"
	"tidemark/indexer/health"
	"tidemark/indexer/storage"
	"tidemark/ingest"
	"tidemark/timestamp"
)

// restoreEach is the additional time per vbucket that a restore may take before the node's health reports it.
const restoreEach = 100 * time.Millisecond

// restorePatience returns how long the restore of a number of vbuckets of a copy may take.
func restorePatience(vbuckets int) time.Duration {
	return health.Hangs + time.Duration(vbuckets)*restoreEach
}

// restored is the result of restoring a vbucket of a copy.
type restored struct {
	what     ingest.Restore
	position ingest.Position
	log      timestamp.FailoverLog
}

// putBack is a group of vbuckets of copies that are restored together.
type putBack struct {
	order []*copyBack
	of    map[index.CopyID]*copyBack
}

// copyBack is the part of one copy. The goroutine that restores the copy owns done and outcome until ended is closed.
type copyBack struct {
	lane    *lane
	what    []ingest.Restore
	done    []restored
	outcome outcome
	gone    <-chan struct{}    // closed when the copy was removed, or its restore has ended
	leave   context.CancelFunc // ends the wait for a place, and the wait of others for this copy
	ended   chan struct{}      // closed when nothing more is written to the copy
}

// newPutBack groups vbuckets by copy.
func newPutBack(what []ingest.Restore, of func(index.CopyID) *lane) *putBack {
	p := &putBack{of: map[index.CopyID]*copyBack{}}
	for _, r := range what {
		c := p.of[r.Copy]
		if c == nil {
			c = &copyBack{lane: of(r.Copy), ended: make(chan struct{})}
			p.of[r.Copy], p.order = c, append(p.order, c)
		}
		c.what = append(c.what, r)
	}
	return p
}

// backs tracks the restores of a bucket.
type backs struct {
	current *putBack               // nil: none is in progress
	changed chan struct{}          // closed when a vbucket was restored
	shut    map[index.CopyID]*lane // copies in away until they can be reopened
	// leaving holds the copies that were removed during their restore. The channel is closed when the restore has
	// ended.
	leaving map[index.CopyID]<-chan struct{}
	open    func(*lane) // starts reopening a shut copy
}

// handRestores starts the restore of vbuckets. Nothing else is in flight, and nothing else is started meanwhile.
func (k *Bucket) handRestores(ctx context.Context, what []ingest.Restore) {
	p := newPutBack(what, k.lane)
	k.backs.current = p
	maps.DeleteFunc(k.backs.leaving, func(_ index.CopyID, ended <-chan struct{}) bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	})
	r := k.node.Restores
	if r == nil {
		r = NewRestores(k.node.processors())
	}
	turn := r.turn()
	for _, c := range p.order {
		waiting, leave := context.WithCancel(ctx)
		c.gone, c.leave = waiting.Done(), leave
		k.lanes.all.Go(func() {
			defer close(c.ended)
			defer leave()
			k.inTurn(ctx, waiting, turn, c)
		})
	}
	k.lanes.all.Go(func() {
		for _, c := range p.order {
			<-c.gone
		}
		turn.end()
		k.result(ctx, result{back: p})
	})
}

// inTurn restores a copy when it gets a place, unless the copy is removed before.
func (k *Bucket) inTurn(ctx, waiting context.Context, turn *turn, c *copyBack) {
	if c.lane.slice == nil {
		return // the copy was removed
	}
	patience := restorePatience(len(c.what))
	leave, err := k.place(waiting, turn, c.lane.copy, patience)
	if err != nil {
		return // the copy or the bucket is being removed
	}
	defer leave()
	k.restoreCopy(ctx, c, patience)
	if c.outcome.shut && !c.lane.lost.Swap(true) {
		k.revive(ctx, c.lane)
	}
}

// place waits for a place. If that takes long, the node's health reports it, and which copies occupy the places.
func (k *Bucket) place(ctx context.Context, turn *turn, id index.CopyID, patience time.Duration) (leave func(),
	err error) {
	source, since, said := CopySource+id.String(), k.node.Now(), false
	health.Late(health.Hangs, func() {
		said = true
		why := fmt.Sprintf("it waits since %s to be restored to its state before a rollback, after %s",
			since.UTC().Format(time.RFC3339), turn.ahead())
		if k.node.Health.Set(source, why) {
			k.log.Warn("copy waits to be restored after a rollback", "copy", id, "behind", turn.ahead())
			k.node.Report()
		}
	}, func() { leave, err = turn.enter(ctx, k.name, id, k.node.Now(), patience) })
	if said && k.node.Health.Set(source, "") {
		k.node.Report()
	}
	return leave, err
}

// restored passes on the results of copies that were not removed meanwhile.
func (k *Bucket) restored(p *putBack) {
	k.backs.current = nil
	k.work.Restored()
	var done []restored
	for _, c := range p.order {
		switch {
		case k.lanes.of[c.lane.copy] != c.lane:
		case c.outcome.shut:
			k.leaveShut(c.lane)
		case c.outcome == (outcome{}):
			done = append(done, c.done...)
		}
	}
	k.noteRestored(done)
	for _, c := range p.order {
		// the outcome of a removed copy still belongs to the goroutine that restores it
		if k.lanes.of[c.lane.copy] == c.lane && c.outcome.again != nil {
			k.wentBack(c.lane)
		}
	}
}

// leaveShut removes a copy until it has been reopened, so that a rollback does not wait for it. The reopening
// continues.
func (k *Bucket) leaveShut(n *lane) {
	k.fellBack(n.copy, RowsAt{})
	delete(k.lanes.of, n.copy) // it has no task: nothing else is in flight during restores
	k.remove(n.copy)
	k.shut(n)
}

// shut records that a removed copy returns when it has been reopened, unless it is removed for good before.
func (k *Bucket) shut(n *lane) {
	k.away[n.copy], k.backs.shut[n.copy] = n.slice, n
	k.lanes.leaving[n.copy] = append(k.lanes.leaving[n.copy], n)
}

// reopened records that a copy was reopened.
func (k *Bucket) reopened(n *lane) {
	switch {
	case k.lanes.of[n.copy] == n:
		k.wentBack(n)
	case k.backs.shut[n.copy] == n: // otherwise it was removed for good
		delete(k.backs.shut, n.copy)
		delete(k.away, n.copy)
		if err := k.add(n.slice, false); err != nil {
			k.log.Error("recovered copy cannot be used", "copy", n.copy, "error", err)
		}
		k.node.Sides()
	}
}

// restoreCopy restores vbuckets of one copy to their newest valid states, or empties them. Vbuckets that go to the
// same state are restored together.
func (k *Bucket) restoreCopy(ctx context.Context, c *copyBack, patience time.Duration) {
	n, s, what := c.lane, c.lane.slice, c.what
	if n.lost.Load() { // it was removed, or is being reopened
		c.outcome = outcome{missing: true, shut: !s.Ended()}
		return
	}
	var done []restored
	var count map[string]int
	c.outcome = k.toLane(ctx, n, patience, func() (err error) {
		k.node.Snapshots.Part(n.copy, what, s.Logs())
		done, count, err = k.restoreOnce(ctx, s, what)
		for errors.Is(err, storage.ErrNotFound) && ctx.Err() == nil { // a chosen checkpoint has been deleted
			done, count, err = k.restoreOnce(ctx, s, what)
		}
		return err
	})
	if c.outcome != (outcome{}) || ctx.Err() != nil {
		return
	}
	c.done = done
	for to, n := range count {
		k.node.Metrics.restores.WithLabelValues(to).Add(float64(n))
	}
	k.log.Warn("vbuckets that left KV's branch were restored", "copy", n.copy, "vbuckets", len(what),
		"first", what[0].VBucket, "to_snapshot", count["snapshot"], "to_checkpoint", count["checkpoint"],
		"to_nothing", count["nothing"])
}

// restoreOnce restores vbuckets of one copy to the newest valid states that exist now. count is the number of
// vbuckets by kind of state.
func (k *Bucket) restoreOnce(ctx context.Context, s *storage.Slice, what []ingest.Restore) (done []restored,
	count map[string]int, err error) {
	states, release := k.node.pasts(s)
	defer release()
	done, groups := chooseStates(states, what)
	count = map[string]int{}
	for i, vbs := range groups {
		if len(vbs) == 0 {
			continue
		}
		to := "nothing"
		switch {
		case i == len(states):
			err = s.DeleteVBuckets(ctx, empty(vbs)...)
		case states[i].snap != nil:
			to, err = "snapshot", s.RestoreVBucketsFrom(ctx, vbs, states[i].snap)
		default:
			to, err = "checkpoint", s.RestoreVBucketsTo(ctx, vbs, states[i].checkpoint)
		}
		if err != nil {
			return nil, nil, err
		}
		count[to] += len(vbs)
	}
	return done, count, nil
}

// chooseStates returns what each vbucket will hold, and the vbuckets grouped by state. Those of the last group are
// emptied.
func chooseStates(states []past, what []ingest.Restore) (done []restored, groups [][]uint16) {
	done, groups = make([]restored, len(what)), make([][]uint16, len(states)+1)
	var held []ingest.Held
	for n, r := range what {
		held = heldStates(held[:0], states, r.VBucket)
		i := ingest.Choose(held, r.Log)
		if done[n].what = r; i < 0 {
			i = len(states)
		} else {
			done[n].position, done[n].log = held[i].Position, held[i].Log
		}
		groups[i] = append(groups[i], uint16(r.VBucket))
	}
	return done, groups
}

// empty returns the positions of empty vbuckets.
func empty(vbs []uint16) []storage.VBPosition {
	all := make([]storage.VBPosition, len(vbs))
	for i, vb := range vbs {
		all[i].VBucket = vb
	}
	return all
}

// past is a state that a copy can be restored to: a snapshot in memory, or a checkpoint.
type past struct {
	batch      uint64
	snap       *storage.Snapshot
	checkpoint storage.CheckpointInfo
}

// pasts returns the states of a copy, newest first. The snapshots stay open until release is called.
func (n *Node) pasts(s *storage.Slice) (all []past, release func()) {
	snaps := n.Snapshots.Retain(s.Meta().Copy)
	for _, snap := range snaps {
		all = append(all, past{batch: snap.Batch(), snap: snap})
	}
	for _, c := range s.Pasts() {
		all = append(all, past{batch: c.Batch, checkpoint: c})
	}
	slices.SortStableFunc(all, func(a, b past) int { return cmp.Compare(b.batch, a.batch) })
	return all, func() {
		for _, snap := range snaps {
			if err := snap.Close(); err != nil {
				n.Log.Warn("closing a snapshot", "error", err)
			}
		}
	}
}

// at returns what the state holds of a vbucket.
func (p *past) at(vb int) ingest.Held {
	var h ingest.Held
	if p.snap != nil {
		h.Position, h.Log = p.snap.At(uint16(vb))
	} else {
		h.Position = p.checkpoint.Positions[vb]
		if vb < len(p.checkpoint.Logs) {
			h.Log = p.checkpoint.Logs[vb]
		}
	}
	h.Log = ingest.History(h.Position.VBUUID, h.Log)
	return h
}

// heldStates appends what the states hold of a vbucket.
func heldStates(held []ingest.Held, all []past, vb int) []ingest.Held {
	for i := range all {
		held = append(held, all[i].at(vb))
	}
	return held
}

// pastsOfCopies returns a function that lists the states that a copy could be restored to in a vbucket. It looks each
// copy up once. The list is valid until the next call; the states stay available until release is called.
func (k *Bucket) pastsOfCopies() (states func(index.CopyID, int) []ingest.Held, release func()) {
	known := map[index.CopyID][]past{}
	var releases []func()
	var held []ingest.Held
	states = func(id index.CopyID, vb int) []ingest.Held {
		all, ok := known[id]
		if s := k.slices[id]; !ok && s != nil {
			var free func()
			all, free = k.node.pasts(s)
			known[id], releases = all, append(releases, free)
		}
		held = heldStates(held[:0], all, vb)
		return held
	}
	return states, func() {
		for _, free := range releases {
			free()
		}
	}
}
