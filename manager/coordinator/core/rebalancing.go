package core

import (
	"fmt"
	"slices"

	"tidemark/index"
	"tidemark/liveness"
	"tidemark/partition"
	"tidemark/rebalance"
	"tidemark/statecontext"
)

// moves are the steps of the rebalance that is under way, and repairs.
type moves struct {
	*scene
	atMS   int64
	failMS int64 // before when no repair is planned anew
	come   come
}

// come is how much of copies that are being filled has come, at the most so far: what files bring and what is behind
// them are counted one after the other.
type come struct {
	of    uint64 // a rebalance
	parts map[uint32]float64
}

// most returns the most that was seen of a step of a rebalance, with this.
func (c *come) most(id uint64, step uint32, part float64) float64 {
	if c.of != id || c.parts == nil {
		c.of, c.parts = id, map[uint32]float64{}
	}
	c.parts[step] = max(c.parts[step], part)
	return c.parts[step]
}

const (
	rebalanceEvery = 100 // ms
	// rebalanceRest is how long a repair that could not be begun is left alone.
	rebalanceRest = 30_000 // ms
)

// step moves the rebalance on that is under way, if there is one, and begins one where copies have been lost
// for long.
func (l *moves) step() {
	if l.nowMS-l.atMS < rebalanceEvery && l.nowMS >= l.atMS {
		return
	}
	l.atMS = l.nowMS
	r := l.now.state.RebalanceUnderWay()
	if l.repair(r); r == nil {
		return
	}
	var seen []rebalance.Seen
	for y := range l.now.state.RebalanceSteps() {
		if !y.State.Over() {
			seen = append(seen, l.see(y))
		}
	}
	if len(seen) == 0 {
		l.propose("rebalance", &statecontext.EndRebalance{ID: r.ID, WallMS: l.wallMS},
			func(_ statecontext.Result, err error) {
				if err == nil {
					l.log.Info("the rebalance is over", "rebalance", r.ID)
				}
			})
		return
	}
	bounds := rebalance.Bounds{Sends: int(r.Sends), Receives: int(r.Receives),
		Patience: l.settings.BuildPatience.Milliseconds(), AtOnce: stepsAtOnce}
	for _, t := range rebalance.Advance(seen, bounds, r.Phase == statecontext.RebalanceCancelling) {
		l.propose(fmt.Sprintf("rebalance/%d", t.Step), &statecontext.StepRebalance{ID: r.ID, Step: t.Step, From: t.From,
			To: t.To, Reason: t.Reason}, nil)
	}
}

// stepsAtOnce bounds the proposals of the duty, so that others have room.
const stepsAtOnce = MaxProposals / 2

// see gathers what is known of a step.
func (l *moves) see(y *partition.Rebalance) rebalance.Seen {
	src := l.now.state.Indexer(y.Src.Node)
	e := rebalance.Seen{Rebalance: *y, Away: l.awayFor(y.Dst.Node), Lost: src == nil || src.Evicting ||
		l.awayFor(y.Src.Node) > 0}
	x := l.now.state.Index(y.Index)
	if x == nil || x.Definition.State == index.Dropping {
		return e
	}
	if y.State == partition.RebalanceStart {
		e.Wanted, e.Lacks = true, l.lacks(x, y)
		return e
	}
	at := slices.IndexFunc(x.Topology.Copies, func(o partition.Copy) bool { return o.ID == y.New })
	if i := l.now.state.Indexer(y.Dst.Node); at < 0 || i == nil || i.Evicting ||
		BucketGone(l.now.state, &x.Definition) {
		return e
	}
	c := x.Topology.Copies[at]
	e.Wanted, e.Allocated = true, c.State == partition.Allocated
	n, b := l.components.indexers[c.Node], l.now.state.Bucket(x.Definition.Bucket)
	e.Whole = l.whole(x, c) && l.life(&n.component) == liveness.Active && (b == nil || b.Rollback == nil)
	return e
}

// lacks says why a step that has not begun never will.
func (l *moves) lacks(x *statecontext.Index, y *partition.Rebalance) string {
	switch old := slices.IndexFunc(x.Topology.Copies, func(o partition.Copy) bool {
		return o.ID == y.Old &&
			o.State != partition.Leaving
	}); {
	case l.now.state.Indexer(y.Dst.Node) == nil:
		return fmt.Sprintf("node %d was removed", y.Dst.Node)
	case l.now.state.Indexer(y.Dst.Node).Evicting:
		return fmt.Sprintf("node %d is being removed", y.Dst.Node)
	case l.now.state.Going(y.Dst.Node):
		return fmt.Sprintf("node %d is to leave", y.Dst.Node)
	case BucketGone(l.now.state, &x.Definition):
		return fmt.Sprintf("bucket %s was deleted", x.Definition.Bucket)
	case old < 0:
		return fmt.Sprintf("copy %d is gone", y.Old)
	case slices.ContainsFunc(x.Topology.Copies, func(o partition.Copy) bool {
		return o.Slice == y.Slice && o.Node == y.Dst.Node && o.State != partition.Leaving
	}):
		return fmt.Sprintf("node %d has a copy of that slice by now", y.Dst.Node)
	}
	return ""
}

// repair begins a rebalance where an indexer has been away for longer than it may: what it held is made anew elsewhere,
// and nothing else moves. When it comes back, what has been made anew meanwhile is dropped there. Another rebalance
// that is under way, r, is cancelled for that, unless it makes anew what was lost: it may go on for hours.
func (l *moves) repair(r *statecontext.RebalanceJob) {
	if l.nowMS < l.failMS || r != nil && (r.Cause == statecontext.RepairCause ||
		r.Phase != statecontext.RebalanceRunning) || !l.mayPropose("rebalance") {
		return
	}
	lost := l.lost()
	if len(lost) == 0 {
		return
	}
	start := &statecontext.StartRebalance{Cause: statecontext.RepairCause, WallMS: l.wallMS, Sends: repairReceives,
		Receives: repairReceives, Steps: l.lostSteps(lost)}
	if len(start.Steps) == 0 { // too few nodes live, or all of it is under way
		l.failMS = l.nowMS + rebalanceRest
		return
	}
	failed := func(_ statecontext.Result, err error) {
		if err != nil {
			l.failMS = l.nowMS + rebalanceRest
		}
	}
	away := l.settings.RepairAfter
	if r != nil {
		l.log.Warn("a rebalance is cancelled, as copies that were lost come first; begin it again afterwards", "rebalance",
			r.ID, "cause", r.Cause, "copies", len(start.Steps), "after", away)
		l.propose("rebalance", &statecontext.CancelRebalance{ID: r.ID}, failed)
		return
	}
	l.log.Warn("copies that were lost are made anew", "indexers", len(lost), "copies", len(start.Steps), "after", away)
	l.propose("rebalance", start, failed)
}

// lost are the indexers that have been away for longer than they may, and have copies.
func (l *moves) lost() map[index.NodeID]bool {
	lost := map[index.NodeID]bool{}
	for i := range l.now.state.Indexers() {
		if in, ok := l.repairIn(i); ok && in == 0 && l.awayFor(i.Node) > 0 {
			lost[i.Node] = true
		}
	}
	return lost
}

// lostSteps are what makes anew what indexers held, but for what the rebalance that is under way does already.
func (l *moves) lostSteps(lost map[index.NodeID]bool) []partition.Rebalance {
	p, err := rebalance.Make(l.cluster(nil), rebalance.Options{Receives: repairReceives, Sends: repairReceives})
	if err != nil {
		l.log.Error("copies that were lost cannot be placed anew", "error", err)
		return nil
	}
	moving := map[index.CopyID]bool{}
	for y := range l.now.state.RebalanceSteps() {
		moving[y.Old] = moving[y.Old] || !y.State.Over()
	}
	// What is left is begun with the next one, when this is over.
	steps, _ := Begun(p, func(y *rebalance.Step) bool {
		return y.Kind == rebalance.Repair && lost[*y.From] && !moving[y.Old]
	})
	return steps
}

// repairReceives is how many copies a node receives at a time when others were lost: side streams of one bucket share
// what they read.
const repairReceives = 8

// Begun returns the first steps of a plan that are wanted, as many as one command carries, and how many others are.
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
