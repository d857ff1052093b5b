package core

import (
	"slices"
	"time"

	"tidemark/index"
	"tidemark/lifecycle"
	"tidemark/liveness"
	"tidemark/partition"
	"tidemark/statecontext"
	"tidemark/wire"
)

// lives moves indexes from state to state.
type lives struct {
	*scene
	picture    *picture
	lackMS     map[index.ID]int64 // since when a build lacks a host
	backfillMS int64              // time of the last stepBackfill
	backfilled string             // bucket of the last proposal
	steppedMS  int64              // time of the last stepIndexes
	copies     []lifecycle.Copy   // buffer for the copies of the last facts
}

// unsettled holds the indexes for which a duty has something to do.
type unsettled struct {
	ids    []index.ID
	has    map[index.ID]bool
	copies int // over all of ids
}

// judgedPerMS limits how often duties scan copies: 200 copies at most once per millisecond, which takes about a tenth
// of it.
const judgedPerMS = 200

// judgedEvery is how long the duties that scan so many copies rest between two scans, in milliseconds.
func judgedEvery(copies int) int64 { return int64(copies / judgedPerMS) }

// survey lists the indexes for which a duty has something to do.
func (l *lives) survey() {
	l.indexes = unsettled{ids: l.indexes.ids[:0], has: map[index.ID]bool{}}
	for x := range l.now.state.Indexes() {
		if isUnsettled(x) {
			l.indexes.ids = append(l.indexes.ids, x.Definition.ID)
			l.indexes.has[x.Definition.ID] = true
			l.indexes.copies += len(x.Topology.Copies)
		}
	}
	for id := range l.lackMS {
		if d := l.now.state.Definition(id); d == nil || !d.State.ToBeReady() {
			delete(l.lackMS, id)
		}
	}
}

func isUnsettled(x *statecontext.Index) bool {
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
	return slices.ContainsFunc(x.Topology.Copies, func(c partition.Copy) bool { return c.State != partition.Allocated })
}

// due reports whether stepIndexes is due. The more copies there are, the longer it rests, whatever inputs arrive.
func (l *lives) due() bool {
	return !l.rests(l.steppedMS, judgedEvery(l.indexes.copies))
}

// judge decides the next step of an index, and records for its bucket if a build lacks only a stability timestamp.
func (l *lives) judge(x *statecontext.Index, m *moving) lifecycle.Step {
	f := l.facts(x, m)
	s := lifecycle.Next(&f)
	if b := l.buckets.byName[x.Definition.Bucket]; b != nil && s.Nearly {
		b.nearly = true
	}
	return s
}

// stepIndexes moves each index on by one step if what the step waits for has been reported. Package lifecycle
// decides.
func (l *lives) stepIndexes() {
	l.steppedMS = l.nowMS
	for _, b := range l.buckets.ordered {
		b.nearly = false
	}
	var ready []readied
	var m *moving
	for _, id := range l.indexes.ids {
		x := l.now.state.Index(id)
		if x == nil || l.isFlying(indexKey(id)) {
			continue
		}
		if m == nil && x.Definition.State.ToBeReady() {
			m = l.moving() // once, and only if some index needs its hosts
		}
		s := l.judge(x, m)
		if s.Kind == lifecycle.MakeReady && l.mayPropose(indexKey(id)) {
			ready = append(ready, readied{&x.Definition, statecontext.Guard(s.Guard), x.TopologyCAS})
			continue
		}
		if l.carryOut(x, s); s.Kind == lifecycle.Wait {
			l.removeLeaving(x)
		}
	}
	l.finish(ready)
}

// carryOut proposes a step.
func (l *lives) carryOut(x *statecontext.Index, s lifecycle.Step) {
	d := &x.Definition
	move := &statecontext.SetIndexState{ID: d.ID, From: d.State, Guard: statecontext.Guard(s.Guard), Reason: s.Reason}
	key := indexKey(d.ID)
	switch s.Kind {
	case lifecycle.Allocate:
		l.propose(key, &statecontext.AllocateCopies{ID: d.ID, Revision: s.Revision, Copies: s.Copies}, nil)
	case lifecycle.Build:
		move.To = index.Backfill
		l.propose(key, move, l.logged("index is being built", d))
	case lifecycle.Fail:
		move.To = index.Error
		l.propose(key, move, nil)
	case lifecycle.Rebuild:
		move.To = index.Pending
		l.propose(key, move, l.logged("all projectors can evaluate the index again", d))
	case lifecycle.Forget:
		if l.propose(key, &statecontext.RemoveIndex{ID: d.ID}, nil) {
			l.dropCopies(x)
		}
	}
}

// dropCopies drops the reports of copies of an index that was removed.
func (l *lives) dropCopies(x *statecontext.Index) {
	for _, c := range x.Topology.Copies {
		if n := l.components.indexers[c.Node]; n != nil {
			delete(n.copies, c.ID)
			l.heldDirty = true
		}
	}
}

// moving holds the copies of rebalance steps for which an index does not wait.
type moving struct {
	// arriving holds new copies; true if the host of the old copy is alive. If the new host stays away the step is given
	// up, and nothing is lost.
	arriving map[index.CopyID]bool
	// replaced holds old copies; true if the host of the new copy is alive.
	replaced map[index.CopyID]bool
}

func (l *lives) moving() *moving {
	m := &moving{map[index.CopyID]bool{}, map[index.CopyID]bool{}}
	for y := range l.now.state.RebalanceSteps() {
		if y.State.Over() {
			continue
		}
		m.replaced[y.Old] = l.isReachable(l.components.indexers[y.Dst.Node])
		if y.New != 0 { // otherwise the step waits for its turn
			m.arriving[y.New] = l.isReachable(l.components.indexers[y.Src.Node])
		}
	}
	return m
}

// facts gathers the input of lifecycle.Next for an index. Its Copies are valid until the next call.
func (l *lives) facts(x *statecontext.Index, m *moving) lifecycle.Facts {
	d := &x.Definition
	f := lifecycle.Facts{State: d.State, CannotEvaluate: d.CannotEvaluate(), Waits: x.Waits(), Modified: d.ModifiedCAS,
		PlacedAt: x.PlacedCAS, Copies: l.copies[:0], Enough: l.settings.BuildTimeout}
	for _, c := range x.Topology.Copies {
		// a copy that leaves an index which stays plays no part in its life
		if c.State != partition.Leaving || d.State == index.Dropping {
			f.Copies = append(f.Copies, l.copyFacts(x, c, m))
		}
	}
	l.copies = f.Copies
	if b := l.now.state.Bucket(d.Bucket); b != nil && !b.Gone && b.Rollback == nil && b.UUID == d.BucketUUID {
		f.Steady, f.Guard = true, lifecycle.Guard{Generation: b.Generation, RollbackID: b.Stability.RollbackID}
	}
	if f.CannotEvaluate {
		f.Projectors = l.evaluators(d)
	}
	f.Lacking = l.lacking(d.ID, lifecycle.Away(d.State, f.Copies) != "")
	return f
}

func (l *lives) copyFacts(x *statecontext.Index, c partition.Copy, m *moving) lifecycle.Copy {
	f := lifecycle.Copy{Copy: c}
	if m != nil {
		f.Moves, f.Replaced = m.arriving[c.ID], m.replaced[c.ID]
	}
	n := l.components.indexers[c.Node]
	if n == nil {
		return f
	}
	f.Host = lifecycle.Host{Known: true, Offline: l.isOffline(n), Name: n.name, Acked: n.acked}
	r, has := n.copies[c.ID]
	f.Made, f.Revision = has, n.acked
	f.Reported, f.Done, f.Total = has, r.Done, r.Total
	f.Exact, f.At = r.Ready, lifecycle.Guard{Generation: r.Held.Generation, RollbackID: r.Held.RollbackID}
	return f
}

// evaluators returns the live projectors, and whether each can evaluate an index.
func (l *lives) evaluators(d *index.Definition) (all []lifecycle.Projector) {
	for q := range l.now.state.Projectors() {
		p := l.components.projectors[q.ID]
		if p == nil || l.life(&p.component) == liveness.Offline {
			continue
		}
		e := p.evaluation
		knows := e != nil && !e.More && e.Revision >= d.ModifiedCAS
		all = append(all, lifecycle.Projector{Reported: knows,
			Cannot: knows && slices.ContainsFunc(e.Indexes, func(u wire.Unevaluated) bool { return u.Index == d.ID })})
	}
	return all
}

// pause shifts the clocks of builds that lack a host by ms milliseconds in which the leader itself stood still.
func (l *lives) pause(ms int64) {
	if ms == 0 {
		return
	}
	for id := range l.lackMS {
		l.lackMS[id] += ms
	}
}

// lacking returns for how long a build has lacked a host.
func (l *lives) lacking(id index.ID, away bool) time.Duration {
	if !away {
		delete(l.lackMS, id)
		return 0
	}
	if l.lackMS[id] == 0 {
		l.lackMS[id] = max(l.nowMS, 1)
	}
	return time.Duration(l.nowMS-l.lackMS[id]) * time.Millisecond
}

// readied is an index whose build is complete.
type readied struct {
	def      *index.Definition
	guard    statecontext.Guard
	topology uint64 // TopologyCAS of the copies that are whole
}

// finish makes the indexes ready. It refreshes their part of the picture first, so that a user who sees an index
// ready sees its entries, too.
func (l *lives) finish(all []readied) {
	if len(all) == 0 {
		return
	}
	l.picture.refresh(all)
	for _, r := range all {
		l.propose(indexKey(r.def.ID), &statecontext.SetIndexState{ID: r.def.ID, From: r.def.State, To: index.Maintenance,
			Guard: r.guard, IfTopology: r.topology}, l.logged("index is ready", r.def))
	}
}

// mayHold reports whether a reachable host does not know yet which copies of an index have left it.
func (l *lives) mayHold(node index.NodeID, x *statecontext.Index) bool {
	n := l.components.indexers[node]
	return l.isReachable(n) && n.acked < x.TopologyCAS
}

// removeLeaving removes leaving copies that their hosts have released, or whose host is away: that host finds out
// when it comes back.
func (l *lives) removeLeaving(x *statecontext.Index) {
	if x.Definition.State == index.Dropping {
		return
	}
	var gone []index.CopyID
	for _, c := range x.Topology.Copies {
		if c.State == partition.Leaving && !l.mayHold(c.Node, x) {
			gone = append(gone, c.ID)
		}
	}
	if len(gone) == 0 || !l.propose(indexKey(x.Definition.ID), &statecontext.ForgetCopies{ID: x.Definition.ID,
		IfTopology: x.TopologyCAS, Copies: gone}, nil) {
		return
	}
	for _, c := range x.Topology.Copies {
		if n := l.components.indexers[c.Node]; n != nil && slices.Contains(gone, c.ID) {
			delete(n.copies, c.ID)
			l.heldDirty = true
		}
	}
}
