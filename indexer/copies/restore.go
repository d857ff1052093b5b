package copies

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"tidemark/index"
	"tidemark/indexer/health"
	"tidemark/indexer/storage"
	"tidemark/ingest"
	"tidemark/timestamp"
)

// restoreEach is by how much longer a restore may take for each vbucket until the node's health says so.
const restoreEach = 100 * time.Millisecond

// restorePatience is what so many vbuckets of a copy may take to be put back.
func restorePatience(vbuckets int) time.Duration {
	return health.Hangs + time.Duration(vbuckets)*restoreEach
}

// restored is what became of a vbucket of a copy that was to be put back.
type restored struct {
	what     ingest.Restore
	position ingest.Position
	log      timestamp.FailoverLog
}

// putBack is vbuckets of copies that are being put back.
type putBack struct {
	what   []ingest.Restore
	slices map[index.CopyID]*storage.Slice
	lanes  map[index.CopyID]*lane
	done   []restored
	again  []*lane
	shut   []*lane       // of copies that could not be put back, nor opened again; see revive
	ended  chan struct{} // closed when the loop has heard of it
}

// backs are the restores of a bucket.
type backs struct {
	under   *putBack               // nil: none is under way
	changed chan struct{}          // closed when something was put back
	shut    map[index.CopyID]*lane // of copies that are away until they can be opened
}

// handRestores lets vbuckets be put back. Nothing else is under way, or begun meanwhile.
func (k *Bucket) handRestores(ctx context.Context, what []ingest.Restore) {
	p := &putBack{what: what, slices: maps.Clone(k.slices), ended: make(chan struct{})}
	p.lanes = map[index.CopyID]*lane{}
	for _, r := range what {
		p.lanes[r.Copy] = k.lane(r.Copy)
	}
	k.backs.under = p
	k.lanes.all.Add(1)
	go func() {
		defer k.lanes.all.Done()
		if k.restore(ctx, p); ctx.Err() == nil {
			k.result(ctx, result{back: p})
		}
	}()
}

// restored takes over what was put back.
func (k *Bucket) restored(p *putBack) {
	k.backs.under = nil
	k.work.Restored()
	close(p.ended)
	for _, n := range p.shut {
		k.leaveShut(n)
	}
	k.tellBack(p.done)
	for _, n := range p.again {
		if k.slices[n.copy] == n.slice {
			k.wentBack(n)
		}
	}
}

// leaveShut lets a copy go until it is open: no rollback waits for it.
func (k *Bucket) leaveShut(n *lane) {
	if k.lanes.of[n.copy] != n {
		return // it is open by now, or was let go
	}
	k.fellBack(n.copy, RowsAt{})
	k.remove(n.copy)
	k.away[n.copy], k.backs.shut[n.copy] = n.slice, n
}

// reopened takes over that a copy was opened again.
func (k *Bucket) reopened(n *lane) {
	switch {
	case k.lanes.of[n.copy] == n:
		k.wentBack(n)
	case k.backs.shut[n.copy] == n: // else it was let go for good
		delete(k.backs.shut, n.copy)
		delete(k.away, n.copy)
		if err := k.add(n.slice, false); err != nil {
			k.log.Error("a recovered copy cannot be used", "copy", n.copy, "error", err)
		}
		k.node.Sides()
	}
}

// restore puts vbuckets of copies back to their newest valid states, or to nothing; several copies side by side.
func (k *Bucket) restore(ctx context.Context, p *putBack) {
	copies := map[index.CopyID][]ingest.Restore{}
	var order []index.CopyID
	for _, r := range p.what {
		if copies[r.Copy] == nil {
			order = append(order, r.Copy)
		}
		copies[r.Copy] = append(copies[r.Copy], r)
	}
	outcomes, backs := make([]outcome, len(order)), make([][]restored, len(order))
	g := errgroup.Group{}
	g.SetLimit(max(2, k.node.processors()))
	for i, id := range order {
		s := p.slices[id]
		if s == nil {
			continue // nobody waits for it any more
		}
		g.Go(func() error {
			patience := restorePatience(len(copies[id]))
			leave, err := k.node.Restores.enter(ctx, patience)
			if err != nil {
				return nil //nolint:nilerr // the bucket goes: nobody hears of it
			}
			defer leave()
			backs[i], outcomes[i] = k.restoreCopy(ctx, s, copies[id], patience)
			return nil
		})
	}
	_ = g.Wait() // the functions give no errors
	for i, o := range outcomes {
		switch n := p.lanes[order[i]]; {
		case o.again != nil:
			p.again = append(p.again, &lane{copy: order[i], slice: o.again})
		case !o.missing:
			p.done = append(p.done, backs[i]...)
		case o.shut && n != nil:
			p.shut = append(p.shut, n)
			if !n.lost.Swap(true) {
				k.revive(ctx, n)
			}
		}
	}
}

// restoreCopy puts vbuckets of one copy back, those that go back to the same state together.
func (k *Bucket) restoreCopy(ctx context.Context, s *storage.Slice, what []ingest.Restore,
	patience time.Duration) (done []restored, o outcome) {
	id := s.Meta().Copy
	var count map[string]int
	o = k.persistentlyWithin(ctx, s, patience, func() (err error) {
		k.node.Snapshots.Part(id, what, s.Logs())
		done, count, err = k.restoreOnce(ctx, s, what)
		for errors.Is(err, storage.ErrNotFound) && ctx.Err() == nil { // a checkpoint that was chosen is no more
			done, count, err = k.restoreOnce(ctx, s, what)
		}
		return err
	})
	if o != (outcome{}) || ctx.Err() != nil {
		return nil, o
	}
	for to, n := range count {
		k.node.Metrics.restores.WithLabelValues(to).Add(float64(n))
	}
	k.log.Warn("vbuckets left their branch and were put back", "copy", id, "vbuckets", len(what), "first", what[0].VBucket,
		"to_snapshot", count["snapshot"], "to_checkpoint", count["checkpoint"], "to_nothing", count["nothing"])
	return done, o
}

// restoreOnce puts vbuckets of one copy back to the newest valid states that there are now. count is how many went
// where.
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

// chooseStates returns what each vbucket will hold, and the vbuckets by state: those of the last group go back to
// nothing.
func chooseStates(states []past, what []ingest.Restore) (done []restored, groups [][]uint16) {
	done, groups = make([]restored, len(what)), make([][]uint16, len(states)+1)
	for n, r := range what {
		held := heldStates(states, r.VBucket)
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

// empty gives positions of vbuckets that hold nothing.
func empty(vbs []uint16) []storage.VBPosition {
	all := make([]storage.VBPosition, len(vbs))
	for i, vb := range vbs {
		all[i].VBucket = vb
	}
	return all
}

// past is a state that a copy can go back to: a snapshot in memory, or else a checkpoint.
type past struct {
	batch      uint64
	snap       *storage.Snapshot
	checkpoint storage.CheckpointInfo
}

// pasts lists them, newest first. The snapshots among them stay until release is called.
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

// at is what the state holds of a vbucket.
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

// heldStates lists what states hold of a vbucket.
func heldStates(all []past, vb int) []ingest.Held {
	held := make([]ingest.Held, len(all))
	for i := range all {
		held[i] = all[i].at(vb)
	}
	return held
}

// pastsOfCopies returns a function that lists what a copy could go back to in a vbucket. It looks each copy up once.
// What it holds stays until release is called.
func (k *Bucket) pastsOfCopies() (states func(index.CopyID, int) []ingest.Held, release func()) {
	known := map[index.CopyID][]past{}
	var releases []func()
	states = func(id index.CopyID, vb int) []ingest.Held {
		all, ok := known[id]
		if s := k.slices[id]; !ok && s != nil {
			var free func()
			all, free = k.node.pasts(s)
			known[id], releases = all, append(releases, free)
		}
		return heldStates(all, vb)
	}
	return states, func() {
		for _, free := range releases {
			free()
		}
	}
}
