package core

import (
	"fmt"
	"slices"
	"tidemark/index"
	"tidemark/liveness"
	"tidemark/partition"
	"tidemark/rebalance"
	"tidemark/statecontext"
	"tidemark/wire"
	"time"
)

// BucketGone reports whether the bucket of an index was deleted: hosts have nothing of it then, and fill nothing.
func BucketGone(s *statecontext.State, d *index.Definition) bool {
	b := s.Bucket(d.Bucket)
	return b != nil && b.Gone
}

// cluster is what a plan is made of. Of a copy that is changing its place, the old one counts. Indexes of buckets that
// were deleted stay where they are.
func (l *Leader) cluster() *rebalance.Cluster {
	s := l.now.newest
	r := &rebalance.Cluster{Revision: s.DefinitionsRevision()}
	for i := range s.Indexers() {
		r.Nodes = append(r.Nodes, rebalance.Node{ID: i.Node, UUID: i.UUID, Name: i.Name, Zone: i.Zone, Capacity: i.Capacity,
			Role: l.role(s, i.Node)})
	}
	for x := range s.Indexes() {
		if x.Definition.State != index.Dropping && !BucketGone(s, &x.Definition) {
			r.Indexes = append(r.Indexes, l.placedIndex(r.Nodes, x))
		}
	}
	return r
}

// role is what may be done with an indexer now.
func (l *Leader) role(s *statecontext.State, node index.NodeID) rebalance.Role {
	n := l.components.indexers[node]
	switch i := s.Indexer(node); {
	case n != nil && l.life(&n.component) == liveness.Offline, i != nil && i.Evicting: // the latter is being removed
		return rebalance.Lost
	case s.Going(node):
		return rebalance.Going
	}
	return rebalance.Serving
}

func (l *Leader) placedIndex(nodes []rebalance.Node, x *statecontext.Index) rebalance.Index {
	d := &x.Definition
	p := rebalance.Index{ID: d.ID, Bucket: d.Bucket, Name: d.Name, Slices: int(x.Topology.Layout.Partitions),
		Replicas: int(d.Replicas), Nodes: Named(nodes, d.Nodes)}
	for _, c := range x.Topology.Copies {
		if c.State == partition.Leaving || slices.ContainsFunc(p.Copies,
			func(o rebalance.Copy) bool { return o.Slice == c.Slice && o.Replica == c.Replica }) {
			continue
		}
		o := rebalance.Copy{ID: c.ID, Slice: c.Slice, Replica: c.Replica, Node: c.Node}
		if n := l.components.indexers[c.Node]; n != nil {
			o.Bytes = int64(n.copies[c.ID].Bytes)
		}
		p.Copies = append(p.Copies, o)
	}
	return p
}

// named returns the nodes of a list of names or uuids; none, which is all, where none of them is there any more.
func Named(nodes []rebalance.Node, wanted []string) (ids []index.NodeID) {
	for _, n := range nodes {
		if slices.Contains(wanted, n.Name) || slices.Contains(wanted, n.UUID) {
			ids = append(ids, n.ID)
		}
	}
	return ids
}

// rebalancing is what the duty remembers between two steps.
type rebalancing struct {
	atMS   int64
	awayMS map[index.NodeID]int64 // since when an indexer is offline, as this leader has seen it
	restMS map[index.NodeID]int64 // before when an indexer is not repaired, as that was cancelled
	failMS int64                  // before when no repair is planned anew
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

// stepRebalance moves the rebalance on that is under way, if there is one, and begins one where copies have been lost
// for long.
func (l *Leader) stepRebalance() {
	if l.nowMS-l.moves.atMS < rebalanceEvery && l.nowMS >= l.moves.atMS {
		return
	}
	l.moves.atMS = l.nowMS
	l.noteAway()
	r := l.now.state.RebalanceUnderWay()
	if l.repair(r); r == nil {
		return
	}
	var seen []rebalance.Seen
	for y := range l.now.state.RebalanceSteps() {
		if r.Phase == statecontext.RebalanceCancelling && r.Cause == repairCause { // it is not begun again at once
			l.moves.restMS[y.Src.Node] = l.nowMS + l.settings.RepairAfter.Milliseconds()
		}
		if !y.State.Over() {
			seen = append(seen, l.see(y))
		}
	}
	if len(seen) == 0 {
		l.propose("rebalance", &statecontext.EndRebalance{ID: r.ID, WallMS: l.wallMS},
			func(l *Leader, _ statecontext.Result, err error) {
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
func (l *Leader) see(y *partition.Rebalance) rebalance.Seen {
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
func (l *Leader) lacks(x *statecontext.Index, y *partition.Rebalance) string {
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

// whole reports whether a copy could serve alone.
func (l *Leader) whole(x *statecontext.Index, c partition.Copy) bool {
	whole, _ := l.wholeness(x, c)
	return whole
}

// wholeness is whole, and whether it is known: a leader that has just begun has not heard of every indexer yet, and of
// the copies of a bucket that is rolled back nobody knows before it is over and they have said that they are back.
func (l *Leader) wholeness(x *statecontext.Index, c partition.Copy) (whole, known bool) {
	n := l.components.indexers[c.Node]
	if n == nil {
		return false, false
	}
	r, has := n.copies[c.ID]
	if !has && !n.full {
		return false, l.life(&n.component) == liveness.Offline
	}
	if s := x.Definition.State; s != index.Maintenance && s != index.Backfill {
		return has, true // nothing is built
	}
	b := l.now.state.Bucket(x.Definition.Bucket)
	switch {
	case b == nil || b.Gone || !has || b.Rollback == nil && !r.Ready:
		return false, true
	case b.Rollback != nil || r.Held.Generation != b.Generation || r.Held.RollbackID != b.Stability.RollbackID:
		return false, false
	}
	return true, true
}

// noteAway keeps since when indexers are offline.
func (l *Leader) noteAway() {
	if l.moves.awayMS == nil {
		l.moves.awayMS, l.moves.restMS = map[index.NodeID]int64{}, map[index.NodeID]int64{}
	}
	for node, n := range l.components.indexers {
		if l.life(&n.component) != liveness.Offline {
			delete(l.moves.awayMS, node)
			delete(l.moves.restMS, node)
		} else if l.moves.awayMS[node] == 0 {
			l.moves.awayMS[node] = max(l.nowMS, 1)
		}
	}
	for node := range l.moves.awayMS {
		if l.components.indexers[node] == nil {
			delete(l.moves.awayMS, node)
			delete(l.moves.restMS, node)
		}
	}
}

// awayFor is for how long an indexer has been offline, 0 when it is not.
func (l *Leader) awayFor(node index.NodeID) int64 {
	since := l.moves.awayMS[node]
	if since == 0 {
		return 0
	}
	return max(l.nowMS-since, 1)
}

// repair begins a rebalance where an indexer has been away for longer than it may: what it held is made anew elsewhere,
// and nothing else moves. When it comes back, what has been made anew meanwhile is dropped there. Another rebalance
// that is under way, r, is cancelled for that, unless it makes anew what was lost: it may go on for hours.
func (l *Leader) repair(r *statecontext.RebalanceJob) {
	after := l.settings.RepairAfter.Milliseconds()
	if after <= 0 || l.nowMS < l.moves.failMS || l.now.state.FormatLevel() < statecontext.RebalanceFormat() ||
		r != nil && (r.Cause == repairCause || r.Phase != statecontext.RebalanceRunning) || !l.mayPropose("rebalance") {
		return
	}
	lost := l.lost(after)
	if len(lost) == 0 {
		return
	}
	start := &statecontext.StartRebalance{Cause: repairCause, WallMS: l.wallMS, Sends: repairReceives,
		Receives: repairReceives, Steps: l.lostSteps(lost)}
	if len(start.Steps) == 0 { // too few nodes live, or all of it is under way
		l.moves.failMS = l.nowMS + rebalanceRest
		return
	}
	failed := func(l *Leader, _ statecontext.Result, err error) {
		if err != nil {
			l.moves.failMS = l.nowMS + rebalanceRest
		}
	}
	away := time.Duration(after) * time.Millisecond
	if r != nil {
		l.log.Warn("a rebalance is cancelled, as copies that were lost come first; begin it again afterwards", "rebalance",
			r.ID, "cause", r.Cause, "copies", len(start.Steps), "after", away)
		l.propose("rebalance", &statecontext.CancelRebalance{ID: r.ID}, failed)
		return
	}
	l.log.Warn("copies that were lost are made anew", "indexers", len(lost), "copies", len(start.Steps), "after", away)
	l.propose("rebalance", start, failed)
}

// lost are the indexers that have been away for so long, in milliseconds, and have copies.
func (l *Leader) lost(after int64) map[index.NodeID]bool {
	lost := map[index.NodeID]bool{}
	for i := range l.now.state.Indexers() {
		if l.awayFor(i.Node) >= after && l.role(l.now.state, i.Node) == rebalance.Lost && l.nowMS >= l.moves.restMS[i.Node] &&
			l.now.state.Load(i.Node) > 0 && !i.Evicting {
			lost[i.Node] = true
		}
	}
	return lost
}

// lostSteps are what makes anew what indexers held, but for what the rebalance that is under way does already.
func (l *Leader) lostSteps(lost map[index.NodeID]bool) []partition.Rebalance {
	p, err := rebalance.Make(l.cluster(), rebalance.Options{Receives: repairReceives, Sends: repairReceives})
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

// repairCause is the cause of a rebalance that nobody asked for.
const repairCause = "repair"

// repairReceives is how many copies a node receives at a time when others were lost: side streams of one bucket share
// what they read.
const repairReceives = 8

// forgetLeaving forgets copies that their hosts have let go of, or never will: a host that is away learns it when it
// comes back.
func (l *Leader) forgetLeaving(x *statecontext.Index) {
	if x.Definition.State == index.Dropping {
		return
	}
	var gone []index.CopyID
	for _, c := range x.Topology.Copies {
		n := l.components.indexers[c.Node]
		if c.State == partition.Leaving && (n == nil || n.acked >= x.TopologyCAS ||
			l.life(&n.component) == liveness.Offline) {
			gone = append(gone, c.ID)
		}
	}
	if len(gone) == 0 || !l.propose(indexKey(x.Definition.ID), &statecontext.PlaceCopies{ID: x.Definition.ID,
		IfTopology: x.TopologyCAS, Remove: gone}, nil) {
		return
	}
	for _, c := range x.Topology.Copies {
		if n := l.components.indexers[c.Node]; n != nil && slices.Contains(gone, c.ID) {
			delete(n.copies, c.ID)
			l.held.dirty = true
		}
	}
}

// stepWeight is what a step counts in a rebalance's progress beside its bytes.
const stepWeight = 1 << 20

const (
	// presumedRate is how many bytes a second come where no rate is set for the cluster.
	presumedRate = 64 << 20
	// stepSeconds is what a step takes beside its bytes: its copy is made, joins, and is exact at a timestamp.
	stepSeconds = 0.5
	// filesPart is how much of a step is done when its files are here: they are checked, and streams are caught up with.
	filesPart = 0.8
)

// rebalanceProgress weighs what is done against what there is to do.
func (l *Leader) rebalanceProgress() (p RebalanceProgress) {
	r := l.now.state.RebalanceUnderWay()
	if r == nil {
		return p
	}
	p.ID, p.Moving = r.ID, map[uint32]uint64{}
	var done, all float64
	var steps []rebalance.Work
	for y := range l.now.state.RebalanceSteps() {
		w := rebalance.Work{Src: y.Src.Node, Dst: y.Dst.Node, Bytes: float64(y.Bytes), Lost: l.awayFor(y.Src.Node) > 0,
			Begun: y.State != partition.RebalanceStart, Skipped: y.State == partition.RebalanceGivenUp}
		weight := float64(y.Bytes) + stepWeight
		all += weight
		switch n := l.components.indexers[y.Dst.Node]; {
		case y.State == partition.RebalanceDone:
			done += weight
			p.BytesDone += y.Bytes
			w.Part = 1
		case y.State.Over():
			done += weight
		case y.State == partition.RebalanceCatchup && n != nil:
			part := l.moves.come.most(r.ID, y.Step, filled(n.copies[y.New]))
			w.Part = filesPart * part
			done += filesPart * weight * part
			p.Moving[y.Step] = uint64(part * float64(y.Bytes))
			p.BytesDone += p.Moving[y.Step]
		}
		steps = append(steps, w)
	}
	p.Part = done / max(all, 1)
	rate := l.now.state.Limits().TransferRate
	if rate == 0 {
		rate = presumedRate
	}
	p.Left, p.LeftKnown = rebalance.Left(steps, rebalance.Bounds{Sends: int(r.Sends), Receives: int(r.Receives)},
		stepSeconds*float64(rate))
	return p
}

// filled is how much of a copy is here, 0 to 1: of the files that another indexer sends, or else of what side streams
// are to bring.
func filled(c wire.CopyReport) float64 {
	switch {
	case c.Expected > 0:
		return float64(min(c.Received, c.Expected)) / float64(c.Expected)
	case c.Total > 0:
		return float64(min(c.Done, c.Total)) / float64(c.Total)
	}
	return 0
}

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
