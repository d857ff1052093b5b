package core

import (
	"errors"
	"fmt"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/liveness"
	"tidemark/partition"
	"tidemark/rebalance"
	"tidemark/statecontext"
)

// moves runs the steps of a rebalance, and begins repairs.
type moves struct {
	*scene
	atMS     int64
	failMS   int64 // the earliest time of the next repair plan
	planning bool  // a repair is being planned
	watch    rebalance.Watch
}

const (
	rebalanceEvery = 100 // ms
	// rebalanceRest is the pause after a repair that could not begin.
	rebalanceRest = 30_000 // ms
)

// step advances the running rebalance, if there is one, and begins a repair if copies have been lost for long.
func (l *moves) step() {
	if l.rests(l.atMS, max(rebalanceEvery, judgedEvery(l.indexes.copies))) {
		return
	}
	l.atMS = l.nowMS
	r := l.now.state.RebalanceUnderWay()
	if l.repair(r); r == nil {
		return
	}
	over := true
	for y := range l.now.state.RebalanceSteps() {
		over = over && y.State.Over()
	}
	if over {
		l.propose("rebalance", &statecontext.EndRebalance{ID: r.ID, WallMS: l.wallMS},
			func(_ statecontext.Result, err error) {
				if err == nil {
					l.log.Info("rebalance is over", "rebalance", r.ID)
				}
			})
		return
	}
	timeout := l.settings.BuildTimeout.Milliseconds()
	bounds := rebalance.Bounds{Sends: int(r.Sends), Receives: int(r.Receives), Patience: timeout, Unbegun: timeout,
		AtOnce: stepsAtOnce}
	if r.Cause == statecontext.RepairCause { // what is given up is planned anew, without that node
		bounds.Unbegun = l.settings.BuildAway.Milliseconds()
	}
	cancelled := ""
	if r.Phase == statecontext.RebalanceCancelling {
		cancelled = statecontext.Cancelled
	}
	for _, t := range rebalance.Advance(l.now.state.RebalanceSteps(), l.see, l.seeNode, bounds, cancelled) {
		l.propose(fmt.Sprintf("rebalance/%d", t.Step), &statecontext.StepRebalance{ID: r.ID, Step: t.Step, From: t.From,
			To: t.To, Reason: t.Reason}, nil)
	}
}

// stepsAtOnce limits the proposals of this duty, so that others have room.
const stepsAtOnce = MaxProposals / 2

// seeNode gathers the facts about a node that steps concern.
func (l *moves) seeNode(node index.NodeID) rebalance.SeenNode {
	i, away := l.now.state.Indexer(node), l.awayFor(node)
	return rebalance.SeenNode{Away: away, Lost: !stays(i) || away > 0}
}

// stays reports whether an indexer is registered and not being removed.
func stays(i *statecontext.Indexer) bool { return i != nil && !i.Evicting }

// see gathers the facts about a step.
func (l *moves) see(y *partition.Rebalance) (e rebalance.Seen) {
	x := l.now.state.Index(y.Index)
	switch {
	case x == nil || x.Definition.State == index.Dropping:
		e.Gone = "the index was dropped, or a split has replaced it"
		return e
	case BucketGone(l.now.state, &x.Definition):
		e.Gone = fmt.Sprintf("bucket %s was deleted", x.Definition.Bucket)
		return e
	case y.State == partition.RebalanceStart:
		e.Lacks = l.lacks(x, y)
		return e
	}
	at, is := x.Topology.Place(y.New)
	if !is || !stays(l.now.state.Indexer(y.Dst.Node)) {
		e.Gone = fmt.Sprintf("node %d, the target of the copy, was removed or is being removed", y.Dst.Node)
		return e
	}
	c := x.Topology.Copies[at]
	e.Allocated = c.State == partition.Allocated
	n, b := l.components.indexers[c.Node], l.now.state.Bucket(x.Definition.Bucket)
	e.Whole = l.whole(x, c) && l.life(&n.component) == liveness.Active && (b == nil || b.Rollback == nil)
	if !e.Whole && x.Definition.State.ToBeReady() {
		e.Gone = l.needless(y)
	}
	return e
}

// needless returns why a step of a repair is given up that builds a copy of an index that is not ready: the indexer of
// the old copy is back and continues its build, or that of the new one is away too, and the copy is to be placed again.
// Otherwise it returns "".
func (l *moves) needless(y *partition.Rebalance) string {
	src := l.components.indexers[y.Src.Node]
	switch r := l.now.state.RebalanceUnderWay(); {
	case r == nil || r.Cause != statecontext.RepairCause:
		return ""
	case stays(l.now.state.Indexer(y.Src.Node)) && src != nil && src.full && l.life(&src.component) == liveness.Active:
		return fmt.Sprintf("node %d is online again and continues its build", y.Src.Node)
	case l.awayFor(y.Dst.Node) >= l.settings.BuildAway.Milliseconds():
		return fmt.Sprintf("node %d, which was to build the copy, is offline", y.Dst.Node)
	}
	return ""
}

// lacks returns why a step that has not begun never can, "" if it can.
func (l *moves) lacks(x *statecontext.Index, y *partition.Rebalance) string {
	at, is := x.Topology.Place(y.Old)
	switch i := l.now.state.Indexer(y.Dst.Node); {
	case i == nil:
		return fmt.Sprintf("node %d was removed", y.Dst.Node)
	case i.Evicting:
		return fmt.Sprintf("node %d is being removed", y.Dst.Node)
	case l.now.state.Going(y.Dst.Node):
		return fmt.Sprintf("node %d is to be emptied", y.Dst.Node)
	case !is || x.Topology.Copies[at].State == partition.Leaving:
		return fmt.Sprintf("copy %d no longer exists", y.Old)
	}
	for o := range x.Topology.Of(y.Slice) {
		if o.Node == y.Dst.Node && o.State != partition.Leaving {
			return fmt.Sprintf("node %d meanwhile has a copy of that slice", y.Dst.Node)
		}
	}
	return ""
}

// repair requests a plan if copies are lost: they are made anew elsewhere, and nothing else moves. If their indexer
// comes back, it drops the copies that were replaced meanwhile. r is the running rebalance, nil for none.
func (l *moves) repair(r *statecontext.RebalanceJob) {
	if l.planning || l.nowMS < l.failMS || r != nil && r.Phase != statecontext.RebalanceRunning ||
		!l.mayPropose("rebalance") {
		return
	}
	if lost := l.lost(r); len(lost.unserved) == 0 && (len(lost.away) == 0 || !l.lacking(lost.away)) {
		return
	}
	l.planning = true
	l.do(PlanRepair{Cluster: l.cluster(nil)})
}

// planned begins the planned steps that are not in progress yet: as a new rebalance or as more steps of the running
// repair. A rebalance of another kind, which may go on for hours, is cancelled first.
func (l *moves) planned(in *RepairPlanned) {
	l.planning = false
	r := l.now.newest.RebalanceUnderWay()
	lost := l.lost(r)
	if in.Err != nil {
		l.log.Error("lost copies cannot be placed again", "error", in.Err)
		l.failMS = l.nowMS + rebalanceRest
		return
	}
	start := &statecontext.StartRebalance{Cause: statecontext.RepairCause, WallMS: l.wallMS, Sends: repairReceives,
		Receives: repairReceives, Steps: l.lostSteps(in.Plan, lost)}
	if len(start.Steps) == 0 { // too few nodes are alive, or all steps are in progress
		l.failMS = l.nowMS + rebalanceRest
		return
	}
	failed := func(_ statecontext.Result, err error) {
		if err != nil && !errors.Is(err, errcode.StalePlan) { // a stale plan is made again at once
			l.failMS = l.nowMS + rebalanceRest
		}
	}
	away := l.settings.RepairAfter
	if r != nil && r.Cause != statecontext.RepairCause {
		l.log.Warn("rebalance cancelled, because lost copies have priority; start it again afterwards", "rebalance",
			r.ID, "cause", r.Cause, "copies", len(start.Steps), "after", away)
		l.propose("rebalance", &statecontext.CancelRebalance{ID: r.ID, Reason: "cancelled, because lost copies have " +
			"priority; start it again afterwards"}, failed)
		return
	}
	l.log.Warn("lost copies are being rebuilt", "indexers", len(lost.away), "after", away, "copies",
		len(start.Steps), "never_served", len(lost.unserved))
	l.logExcluded(in.Plan, start.Steps)
	l.propose("rebalance", start, failed)
}

// logExcluded logs which indexers a plan keeps copies from, and which of them the steps that begin give copies all the
// same. No operator sees the plan of a repair.
func (l *moves) logExcluded(p *rebalance.Plan, steps []partition.Rebalance) {
	gets := map[index.NodeID]int{}
	for i := range steps {
		gets[steps[i].Dst.Node]++
	}
	for _, n := range p.Excluded {
		if gets[n.Node] > 0 {
			l.log.Warn("an indexer gets copies of a repair that no other indexer can take", "indexer", n.Name, "copies",
				gets[n.Node], "although", n.Why)
		} else {
			l.log.Info("an indexer gets no copies of a repair", "indexer", n.Name, "because", n.Why)
		}
	}
}

// losses holds the copies to make anew elsewhere.
type losses struct {
	away map[index.NodeID]bool // indexers that have been away for longer than RepairAfter: all their copies
	// unserved holds copies on indexers that have been away for less. Nothing is lost with them, and an index that
	// should become ready would wait for them: copies that were never made, and copies that were being built.
	unserved map[index.CopyID]bool
}

// lost returns the copies to make anew. A rebalance that an operator has begun, r, is not cancelled for copies that
// never served; and if a repair was cancelled, they wait with all others of their indexer.
func (l *moves) lost(r *statecontext.RebalanceJob) losses {
	lost, away := losses{away: map[index.NodeID]bool{}}, map[index.NodeID]int64{}
	for i := range l.now.state.Indexers() {
		in, ok := l.repairIn(i)
		switch ms := l.awayFor(i.Node); {
		case !ok, ms == 0:
		case in == 0:
			lost.away[i.Node] = true
		case i.Offline.RepairMS == i.Offline.StateMS:
			away[i.Node] = ms
		}
	}
	if len(away) > 0 && (r == nil || r.Cause == statecontext.RepairCause) {
		lost.unserved = l.unserved(away)
	}
	return lost
}

// unserved returns the copies of absent indexers with which nothing is lost, except those that steps in progress
// already move or create.
func (l *moves) unserved(awayMS map[index.NodeID]int64) map[index.CopyID]bool {
	unserved, timeout := map[index.CopyID]bool{}, l.settings.BuildAway.Milliseconds()
	for _, id := range l.indexes.ids {
		x := l.now.newest.Index(id)
		if x == nil || x.Definition.State == index.Dropping || BucketGone(l.now.newest, &x.Definition) {
			continue
		}
		for _, c := range x.Topology.Copies {
			ms := awayMS[c.Node]
			if c.State == partition.Placed && ms > 0 ||
				c.State == partition.Allocated && x.Definition.State == index.Backfill && ms >= timeout {
				unserved[c.ID] = true
			}
		}
	}
	if len(unserved) > 0 {
		for y := range l.now.newest.RebalanceSteps() {
			if !y.State.Over() {
				delete(unserved, y.Old)
				delete(unserved, y.New)
			}
		}
	}
	return unserved
}

// lacking reports whether some copy of a lost indexer is not being made anew.
func (l *moves) lacking(lost map[index.NodeID]bool) bool {
	u := l.underWay()
	for x := range l.now.newest.Indexes() {
		if x.Definition.State == index.Dropping || BucketGone(l.now.newest, &x.Definition) {
			continue
		}
		for _, c := range x.Topology.Copies {
			if lost[c.Node] && c.State != partition.Leaving && !u.moving[c.ID] {
				return true
			}
		}
	}
	return false
}

// taken holds what the unfinished steps occupy.
type taken struct {
	moving  map[index.CopyID]bool // copies that leave their place
	targets map[slicePlace]bool
}

type slicePlace struct {
	index index.ID
	slice index.SliceID
	node  index.NodeID
}

func (l *moves) underWay() taken {
	u := taken{map[index.CopyID]bool{}, map[slicePlace]bool{}}
	for y := range l.now.newest.RebalanceSteps() {
		if !y.State.Over() {
			u.moving[y.Old], u.targets[slicePlace{y.Index, y.Slice, y.Dst.Node}] = true, true
		}
	}
	return u
}

// lostSteps returns the steps of a plan that replace lost copies, except what the running rebalance does already. The
// plan does not know the targets of running steps: a node that would get two copies of a slice is left out until the
// first has arrived.
func (l *moves) lostSteps(p *rebalance.Plan, lost losses) []partition.Rebalance {
	u := l.underWay()
	// Steps beyond the limit are begun when there is room.
	steps, _ := Begun(p, func(y *rebalance.Step) bool {
		return y.Kind == rebalance.Repair && (lost.away[*y.From] || lost.unserved[y.Old]) && !u.moving[y.Old] &&
			!u.targets[slicePlace{y.Index, y.Slice, y.To}]
	})
	return steps
}

// repairReceives is how many copies a node receives at a time in a repair: side streams of one bucket share their
// reads.
const repairReceives = 8

// Begun returns the first wanted steps of a plan, as many as one command carries, and the number of those left.
func Begun(p *rebalance.Plan, wanted func(*rebalance.Step) bool) (steps []partition.Rebalance, left int) {
	for i := range p.Steps {
		y := &p.Steps[i]
		switch {
		case !wanted(y):
		case len(steps) == rebalance.MaxBegun:
			left++
		default:
			steps = append(steps, partition.Rebalance{Index: y.Index, Slice: y.Slice, Replica: y.Replica, Old: y.Old,
				Src: partition.Shard{Node: *y.From}, Dst: partition.Shard{Node: y.To}, Bytes: uint64(max(y.Bytes, 0))})
		}
	}
	return steps, left
}
