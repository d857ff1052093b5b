package coordinator

import (
	"fmt"
	"slices"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/statecontext"
)

// survey lists the indexes that a duty has something to do for.
func (l *leader) survey() {
	l.unsettled = l.unsettled[:0]
	for x := range l.state.Indexes() {
		if unsettled(x) {
			l.unsettled = append(l.unsettled, x.Definition.ID)
		}
	}
	for id := range l.lackMS {
		if d := l.state.Definition(id); d == nil || d.State != index.Backfill && d.State != index.Pending {
			delete(l.lackMS, id)
		}
	}
}

func unsettled(x *statecontext.Index) bool {
	switch x.Definition.State {
	case index.Dropping, index.Backfill:
		return true
	case index.Pending:
		return !x.Waits()
	case index.Error:
		if x.Definition.CannotEvaluate() {
			return true
		}
	}
	return slices.ContainsFunc(x.Topology.Copies, func(c partition.Copy) bool { return c.State == partition.Placed })
}

// stepIndexes is the index state machine: it moves each index one step on when what the step waits for has been
// reported.
func (l *leader) stepIndexes() {
	l.nearlyReady = false
	var ready []readied
	for _, id := range l.unsettled {
		x := l.state.Index(id)
		if x == nil || l.proposals[indexKey(id)] {
			continue
		}
		gone := l.checkHosts(x)
		switch x.Definition.State {
		case index.Dropping:
			l.stepDropping(x)
		case index.Error:
			if !l.allocate(x) {
				l.revive(x)
			}
		case index.Pending:
			if !l.allocate(x) && l.allAllocated(x) {
				l.load(x)
			}
		case index.Backfill, index.Maintenance:
			if l.allocate(x) || x.Definition.State != index.Backfill {
				break
			}
			if g, done := l.finished(x); done && !gone && l.mayPropose(indexKey(id)) {
				ready = append(ready, readied{&x.Definition, g})
			}
		}
	}
	l.finish(ready)
}

// readied is an index whose build is done.
type readied struct {
	def   *index.Definition
	guard statecontext.Guard
}

// finish makes them ready. The picture is made anew before: whoever sees an index ready sees the entries that it has then.
func (l *leader) finish(all []readied) {
	if len(all) == 0 {
		return
	}
	l.picture()
	for _, r := range all {
		l.propose(indexKey(r.def.ID), &statecontext.SetIndexState{ID: r.def.ID, From: r.def.State, To: index.Maintenance, Guard: r.guard}, logged("index is ready", r.def))
	}
}

const indexPrefix = "index/"

func indexKey(id index.ID) string { return indexPrefix + id.String() }

// allocate tells the state which placed copies their hosts have; true when it has something to tell.
func (l *leader) allocate(x *statecontext.Index) bool {
	var changes []statecontext.CopyChange
	revision := uint64(0)
	for _, c := range x.Topology.Copies {
		n := l.indexers[c.Node]
		if c.State != partition.Placed || n == nil {
			continue
		}
		acked := n.acked
		if _, has := n.copies[c.ID]; !l.on(AllocateFirst) {
			acked = x.PlacedCAS
		} else if !has || acked < x.PlacedCAS {
			continue
		}
		if len(changes) == 0 || acked < revision {
			revision = acked
		}
		changes = append(changes, statecontext.CopyChange{Index: x.Definition.ID, Copy: c.ID, State: partition.Allocated})
	}
	if len(changes) == 0 {
		return false
	}
	l.propose(indexKey(x.Definition.ID), &statecontext.SetCopyStates{Revision: revision, Copies: changes}, nil)
	return true
}

func (l *leader) allAllocated(x *statecontext.Index) bool {
	return !slices.ContainsFunc(x.Topology.Copies, func(c partition.Copy) bool { return c.State != partition.Allocated })
}

// load starts the build.
func (l *leader) load(x *statecontext.Index) {
	if g, ok := l.guard(x); ok {
		d := &x.Definition
		l.propose(indexKey(d.ID), &statecontext.SetIndexState{ID: d.ID, From: d.State, To: index.Backfill, Guard: g}, logged("index is being built", d))
	}
}

// logged logs a step of an index when it is committed.
func logged(what string, d *index.Definition) func(*leader, statecontext.Result, error) {
	return func(l *leader, _ statecontext.Result, err error) {
		if err == nil {
			l.log.Info(what, "index", d.Name, "bucket", d.Bucket, "id", d.ID)
		}
	}
}

// guard is what the coordinator believes of the index's bucket; false when nothing may move now.
func (l *leader) guard(x *statecontext.Index) (statecontext.Guard, bool) {
	b := l.state.Bucket(x.Definition.Bucket)
	if b == nil || b.Gone || b.Rollback != nil || b.UUID != x.Definition.BucketUUID {
		return statecontext.Guard{}, false
	}
	return statecontext.Guard{Generation: b.Generation, RollbackID: b.Stability.RollbackID}, true
}

// finished tells whether a build is ready, everywhere or nowhere (IX-5): all copies of all slices have been exact at a
// stability timestamp of the bucket's present generation and rollback id.
func (l *leader) finished(x *statecontext.Index) (g statecontext.Guard, done bool) {
	g, ok := l.guard(x)
	if !ok || !l.allAllocated(x) {
		return g, false
	}
	waits := false
	for _, c := range x.Topology.Copies {
		n := l.indexers[c.Node]
		if n == nil {
			return g, false
		}
		r, has := n.copies[c.ID]
		switch {
		case !has || r.Done < r.Total:
			return g, false
		case !r.Ready || r.Held.Generation != g.Generation || r.Held.RollbackID != g.RollbackID:
			waits = true
		}
	}
	if waits {
		l.nearlyReady = true
	}
	return g, !waits
}

// stepDropping forgets an index when every host works under a definitions revision in which its copies are leaving. A
// host that is away is told when it comes back: the newest definitions do not have the index, and its copy ids are never
// used again.
func (l *leader) stepDropping(x *statecontext.Index) {
	for _, c := range x.Topology.Copies {
		n := l.indexers[c.Node]
		if n != nil && n.acked < x.Definition.ModifiedCAS && l.life(&n.component) != Offline {
			return
		}
	}
	if !l.propose(indexKey(x.Definition.ID), &statecontext.RemoveIndex{ID: x.Definition.ID}, nil) {
		return
	}
	for _, c := range x.Topology.Copies {
		if n := l.indexers[c.Node]; n != nil {
			delete(n.copies, c.ID)
			l.heldDirty = true
		}
	}
}

// checkHosts puts a build into error whose host has been away for too long; it tells whether one has. That goes before
// whatever else could be done for it.
func (l *leader) checkHosts(x *statecontext.Index) bool {
	d := &x.Definition
	if d.State != index.Backfill && d.State != index.Pending {
		return false
	}
	away := ""
	for _, c := range x.Topology.Copies {
		if n := l.indexers[c.Node]; n == nil || l.life(&n.component) == Offline {
			away = fmt.Sprintf("node %d", c.Node)
			if n != nil && n.name != "" {
				away = n.name
			}
		}
	}
	if away == "" {
		delete(l.lackMS, d.ID)
		return false
	}
	if l.lackMS[d.ID] == 0 {
		l.lackMS[d.ID] = max(l.nowMS, 1)
	}
	if l.nowMS-l.lackMS[d.ID] < l.cfg.Settings.BuildPatience.Milliseconds() {
		return false
	}
	l.propose(indexKey(d.ID), &statecontext.SetIndexState{ID: d.ID, From: d.State, To: index.Error, Reason: fmt.Sprintf(
		"HOST_AWAY: indexer %s has been away for %v; bring it back and BUILD INDEX, or drop the index", away, l.cfg.Settings.BuildPatience)}, nil)
	return true
}
