package statecontext

import (
	"cmp"
	"fmt"
	"iter"
	"math"
	"slices"

	"github.com/tidwall/btree"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/partition"
)

// RebalancePhase is the phase of a rebalance.
type RebalancePhase uint8

// The phases. At most one of all rebalances is running or cancelling.
const (
	RebalanceRunning    RebalancePhase = iota + 1
	RebalanceCancelling                // steps that have not begun do not begin; those that have are undone
	RebalanceFinished                  // every step is done, except those of indexes that are gone
	RebalanceCancelled                 // it was cancelled before all steps were done
	RebalanceFailed                    // some step could not be carried out
)

// String returns the word used in the API.
func (p RebalancePhase) String() string {
	switch p {
	case RebalanceRunning:
		return "running"
	case RebalanceCancelling:
		return "cancelling"
	case RebalanceFinished:
		return "done"
	case RebalanceCancelled:
		return "cancelled"
	case RebalanceFailed:
		return "failed"
	}
	return fmt.Sprintf("rebalance phase(%d)", p)
}

// Over reports whether the rebalance has ended.
func (p RebalancePhase) Over() bool { return p > RebalanceCancelling }

// MarshalText encodes the phase as its word.
func (p RebalancePhase) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText decodes what MarshalText wrote.
func (p *RebalancePhase) UnmarshalText(b []byte) error {
	for c := RebalanceRunning; c <= RebalanceFailed; c++ {
		if c.String() == string(b) {
			*p = c
			return nil
		}
	}
	return fmt.Errorf("unknown phase of a rebalance %q", b)
}

// RebalanceJob is a set of slices that move to other nodes (IM-18), which users request and observe as one unit.
type RebalanceJob struct {
	ID         uint64         `json:"id"`
	Phase      RebalancePhase `json:"phase"`
	Cause      string         `json:"cause"` // user or mechanism that requested it
	StartedMS  int64          `json:"started_ms"`
	FinishedMS int64          `json:"finished_ms,omitempty"`
	// Sends and Receives bound how many copies one node sends, and receives, at the same time.
	Sends    uint8 `json:"sends"`
	Receives uint8 `json:"receives"`
	// Steps, Done, GivenUp, Bytes and DoneBytes are totals; they are kept when the steps themselves are forgotten.
	Steps     uint32 `json:"steps"`
	Done      uint32 `json:"done"`
	GivenUp   uint32 `json:"given_up"`
	Bytes     uint64 `json:"bytes"`
	DoneBytes uint64 `json:"done_bytes"`
	// Reason is why steps were given up: the reason of the first such step, or why the whole rebalance was cancelled.
	Reason      string `json:"reason,omitempty"`
	ModifiedCAS uint64 `json:"modified_cas"`
}

const (
	// MaxRebalanceSteps bounds the number of steps of one rebalance.
	MaxRebalanceSteps = 64 << 10
	// keptRebalances is the number of ended rebalances that are remembered.
	keptRebalances = 16
	// RepairCause is the cause of a rebalance that the leader starts by itself: it makes lost copies anew.
	RepairCause = "repair"
	// MaxCauseBytes bounds the length of a rebalance's cause.
	MaxCauseBytes = 200
)

// StartRebalance starts a rebalance. Each step is checked against the state; a plan made for another placement is
// rejected as a whole. A repair during a running repair adds its steps to that one, so that a step that waits for a
// bucket whose KV is unreachable does not keep other copies from being made. Rejections: RebalanceRunning,
// InvalidArgument, StalePlan.
type StartRebalance struct {
	Cause           string
	WallMS          int64
	Sends, Receives uint8
	Steps           []partition.Rebalance // Step, State, New, Timestamp and Reason are assigned by Apply
}

// StepRebalance advances one step of a rebalance. To determines which fields are used:
//   - RebalancePending places the new copy,
//   - RebalanceCatchup requires it to be allocated, at the definitions revision that its host reported,
//   - RebalanceDone removes the old copy from the topology. The coordinator ensures that the new copy is whole. It is
//     rejected where the new copy may not stay so: its node is being removed, or its bucket is being rolled back,
//   - RebalanceGivenUp forgets the new copy.
//
// Rejections: UnknownRebalance, StepMismatch, UnknownIndex, UnknownCopy, StateMismatch, and those of placements.
type StepRebalance struct {
	ID       uint64
	Step     uint32
	From, To partition.RebalanceState
	Reason   string // with RebalanceGivenUp
}

// CancelRebalance ends a rebalance early: steps that have not begun are given up with it, and the coordinator undoes
// those that have. After a repair is cancelled, the full delay before repairs starts again. Rejection:
// UnknownRebalance.
type CancelRebalance struct {
	ID     uint64
	Reason string // "" if a user cancelled it
}

// Cancelled is the reason of steps that are given up because a user cancelled their rebalance.
const Cancelled = "cancelled"

// EndRebalance ends a rebalance whose steps are all over. Rejections: UnknownRebalance, StepMismatch.
type EndRebalance struct {
	ID     uint64
	WallMS int64
}

// SetIndexerGoing sets whether an indexer is to be emptied. It moves no copies by itself. Rejection: UnknownNode.
type SetIndexerGoing struct {
	Node  index.NodeID
	UUID  string // guards against a node id that was reassigned meanwhile
	Going bool
}

func (*StartRebalance) kind() kind  { return kindStartRebalance }
func (*StepRebalance) kind() kind   { return kindStepRebalance }
func (*CancelRebalance) kind() kind { return kindCancelRebalance }
func (*EndRebalance) kind() kind    { return kindEndRebalance }
func (*SetIndexerGoing) kind() kind { return kindSetIndexerGoing }

func (c *StartRebalance) append(dst []byte) []byte {
	dst = append(appendInt(appendString(dst, c.Cause), c.WallMS), c.Sends, c.Receives)
	dst = appendUint(dst, uint64(len(c.Steps)))
	for i := range c.Steps {
		dst = appendStep(dst, &c.Steps[i])
	}
	return dst
}

func (c *StepRebalance) append(dst []byte) []byte {
	return appendString(append(appendUint(appendUint(dst, c.ID), uint64(c.Step)), byte(c.From), byte(c.To)), c.Reason)
}

func (c *CancelRebalance) append(dst []byte) []byte {
	return appendString(appendUint(dst, c.ID), c.Reason)
}

func (c *EndRebalance) append(dst []byte) []byte { return appendInt(appendUint(dst, c.ID), c.WallMS) }

func (c *SetIndexerGoing) append(dst []byte) []byte {
	return appendBool(appendString(append(dst, byte(c.Node)), c.UUID), c.Going)
}

func decodeStartRebalance(d *decoder) *StartRebalance {
	c := &StartRebalance{Cause: d.string(), WallMS: d.int(), Sends: d.byte(), Receives: d.byte()}
	for n := d.count(); n > 0 && d.err == nil; n-- {
		c.Steps = append(c.Steps, d.step())
	}
	return c
}

func decodeRebalanceBody(k kind, d *decoder) Body {
	switch k {
	case kindStartRebalance:
		return decodeStartRebalance(d)
	case kindStepRebalance:
		return &StepRebalance{ID: d.uint(), Step: d.uint32(), From: partition.RebalanceState(d.byte()),
			To: partition.RebalanceState(d.byte()), Reason: d.string()}
	case kindCancelRebalance:
		return &CancelRebalance{ID: d.uint(), Reason: d.string()}
	case kindEndRebalance:
		return &EndRebalance{ID: d.uint(), WallMS: d.int()}
	case kindAlterIndex:
		return decodeAlterIndex(d)
	case kindSplitIndex:
		return decodeSplitIndex(d)
	case kindCancelSplit:
		return &CancelSplit{ID: index.ID(d.uint())}
	case kindSetAutoSplit:
		return decodeSetAutoSplit(d)
	case kindByName:
		return decodeByName(d)
	case kindSetIndexerGoing:
		return &SetIndexerGoing{Node: index.NodeID(d.byte()), UUID: d.string(), Going: d.bool()}
	}
	return nil
}

func appendStep(dst []byte, y *partition.Rebalance) []byte {
	dst = append(appendUint(dst, uint64(y.Step)), byte(y.State))
	dst = append(appendUint(appendUint(dst, uint64(y.Index)), uint64(y.Slice)), byte(y.Replica))
	dst = append(appendUint(dst, uint64(y.Old)), byte(y.Src.Node), byte(y.Dst.Node))
	return appendString(appendUint(appendUint(appendUint(dst, uint64(y.New)), y.Timestamp), y.Bytes), y.Reason)
}

func (d *decoder) step() partition.Rebalance {
	return partition.Rebalance{Step: d.uint32(), State: partition.RebalanceState(d.byte()), Index: index.ID(d.uint()),
		Slice:   d.slice(),
		Replica: partition.Replica(d.byte()), Old: index.CopyID(d.uint()), Src: partition.Shard{Node: index.NodeID(d.byte())},
		Dst: partition.Shard{Node: index.NodeID(d.byte())}, New: index.CopyID(d.uint()), Timestamp: d.uint(), Bytes: d.uint(),
		Reason: d.string()}
}

func appendRebalance(dst []byte, r *RebalanceJob) []byte {
	dst = appendString(append(appendUint(dst, r.ID), byte(r.Phase)), r.Cause)
	dst = append(appendInt(appendInt(dst, r.StartedMS), r.FinishedMS), r.Sends, r.Receives)
	for _, n := range [...]uint64{uint64(r.Steps), uint64(r.Done), uint64(r.GivenUp), r.Bytes, r.DoneBytes} {
		dst = appendUint(dst, n)
	}
	return appendUint(appendString(dst, r.Reason), r.ModifiedCAS)
}

func (d *decoder) rebalance() *RebalanceJob {
	return &RebalanceJob{ID: d.uint(), Phase: RebalancePhase(d.byte()), Cause: d.string(), StartedMS: d.int(),
		FinishedMS: d.int(), Sends: d.byte(), Receives: d.byte(),
		Steps: d.uint32(), Done: d.uint32(), GivenUp: d.uint32(), Bytes: d.uint(), DoneBytes: d.uint(), Reason: d.string(),
		ModifiedCAS: d.uint()}
}

// rebalanceSet is the part of the state that describes rebalances.
type rebalanceSet struct {
	all   *btree.Map[uint64, *RebalanceJob]        // by id
	steps *btree.Map[uint64, *partition.Rebalance] // of the rebalance that is not over
	going [index.MaxNodeID + 1]bool
	next  uint64 // id of the next rebalance
}

func newRebalanceSet() rebalanceSet {
	return rebalanceSet{all: btree.NewMap[uint64, *RebalanceJob](0), steps: btree.NewMap[uint64, *partition.Rebalance](0),
		next: 1}
}

// Going reports whether an indexer is to be emptied.
func (s *State) Going(n index.NodeID) bool { return s.rebalances.going[n] }

// Rebalances returns the remembered rebalances in the order of their ids.
func (s *State) Rebalances() iter.Seq[*RebalanceJob] { return values(s.rebalances.all) }

// Rebalance returns a rebalance, or nil if there is none with that id.
func (s *State) Rebalance(id uint64) *RebalanceJob { r, _ := s.rebalances.all.Get(id); return r }

// RebalanceUnderWay returns the rebalance that is running or cancelling, or nil if there is none.
func (s *State) RebalanceUnderWay() *RebalanceJob {
	if _, r, ok := s.rebalances.all.Max(); ok && !r.Phase.Over() {
		return r
	}
	return nil
}

// RebalanceSteps returns the steps of the rebalance in progress, in the order of their numbers.
func (s *State) RebalanceSteps() iter.Seq[*partition.Rebalance] { return values(s.rebalances.steps) }

// RebalancesOf returns the steps not yet over that move slices of an index (IM-4).
func (s *State) RebalancesOf(id index.ID) (all []partition.Rebalance) {
	for y := range s.RebalanceSteps() {
		if y.Index == id && !y.State.Over() {
			all = append(all, *y)
		}
	}
	return all
}

func (t *tx) setRebalance(r RebalanceJob) {
	r.ModifiedCAS, t.changed = t.cas, true
	own(&t.s.rebalances.all, &t.owned.rebalances).Set(r.ID, &r)
	t.emit(Event{Kind: EventRebalance, Number: r.ID, Rebalance: &r})
}

func (t *tx) setStep(y partition.Rebalance) {
	t.changed = true
	own(&t.s.rebalances.steps, &t.owned.steps).Set(uint64(y.Step), &y)
}

// repairsMore reports whether the command adds its steps to the running repair u.
func (c *StartRebalance) repairsMore(u *RebalanceJob) bool {
	return u.Phase == RebalanceRunning && u.Cause == RepairCause && c.Cause == RepairCause
}

// check verifies the command's own fields; steps is the number of steps of the rebalance that it adds to.
func (c *StartRebalance) check(steps int) *Rejection {
	most := MaxRebalanceSteps - steps
	if len(c.Steps) == 0 || len(c.Steps) > most || c.Sends == 0 || c.Receives == 0 {
		return reject(errcode.InvalidArgument, "a rebalance of %d steps with %d sends and %d receives at a time; "+
			"want 1 to %d steps, and at least 1 of each", len(c.Steps), c.Sends, c.Receives, most)
	}
	return checkText("cause of a rebalance", c.Cause, MaxCauseBytes)
}

func (c *StartRebalance) apply(t *tx) *Rejection {
	r := RebalanceJob{ID: t.s.rebalances.next, Phase: RebalanceRunning, Cause: c.Cause, StartedMS: t.calendar(c.WallMS),
		Sends: c.Sends, Receives: c.Receives}
	u := t.s.RebalanceUnderWay()
	more := u != nil && c.repairsMore(u)
	switch {
	case more:
		r = *u
	case u != nil:
		return reject(errcode.RebalanceRunning, "rebalance %d (%s) is %s; wait for its end, or cancel it", u.ID, u.Cause,
			u.Phase)
	}
	if rejection := c.check(int(r.Steps)); rejection != nil {
		return rejection
	}
	taken := newTargets(&t.s, len(c.Steps))
	for i := range c.Steps {
		y := c.Steps[i]
		r.Steps++
		y.Step, y.State, y.New, y.Timestamp, y.Reason = r.Steps, partition.RebalanceStart, 0, 0, ""
		if rejection := taken.fits(&y); rejection != nil {
			return rejection
		}
		if !taken.take(&y) {
			return reject(errcode.InvalidArgument, "two steps place slice %d of index %d on node %d, or its replica %d",
				y.Slice, y.Index, y.Dst.Node, y.Replica)
		}
		r.Bytes += min(y.Bytes, math.MaxUint64-r.Bytes)
		t.setStep(y)
	}
	if !more {
		t.s.rebalances.next++
	}
	t.setRebalance(r)
	t.forgetRebalances()
	t.result.Number = r.ID
	return nil
}

// targets tracks the nodes and replicas that the steps of a rebalance use: per slice, each may be used once.
type targets struct {
	s      *State
	taken  map[target]bool
	copies map[index.ID][][]partition.Copy // of the indexes in the steps, by slice
}

type target struct {
	index index.ID
	slice index.SliceID
	other uint16 // a node, or a replica with bit 8 set
}

// newTargets returns the targets of the steps that are not over, with capacity for more.
func newTargets(s *State, more int) *targets {
	p := &targets{s: s, taken: make(map[target]bool, 2*more), copies: map[index.ID][][]partition.Copy{}}
	for y := range s.RebalanceSteps() {
		if !y.State.Over() {
			p.take(y)
		}
	}
	return p
}

// take marks a step's node and replica as used and reports whether both were free.
func (p *targets) take(y *partition.Rebalance) bool {
	node, replica := target{y.Index, y.Slice, uint16(y.Dst.Node)}, target{y.Index, y.Slice, 0x100 | uint16(y.Replica)}
	free := !p.taken[node] && !p.taken[replica]
	p.taken[node], p.taken[replica] = true, true
	return free
}

// fits is State.fits with the copies of each index grouped by slice once, for many steps of one index.
func (p *targets) fits(y *partition.Rebalance) *Rejection {
	x := p.s.Index(y.Index)
	if x == nil {
		return p.s.fits(y, nil)
	}
	bySlice, has := p.copies[y.Index]
	if !has {
		bySlice = make([][]partition.Copy, x.Topology.Layout.Partitions)
		for _, o := range x.Topology.Copies {
			bySlice[o.Slice] = append(bySlice[o.Slice], o)
		}
		p.copies[y.Index] = bySlice
	}
	if int(y.Slice) >= len(bySlice) {
		return p.s.fits(y, nil)
	}
	return p.s.fits(y, bySlice[y.Slice])
}

// forgetRebalances drops the oldest rebalances beyond keptRebalances.
func (t *tx) forgetRebalances() {
	for all := own(&t.s.rebalances.all, &t.owned.rebalances); all.Len() > keptRebalances+1; {
		id, _, _ := all.Min()
		all.Delete(id)
	}
}

// fits rejects a step that cannot begin. Its old copy must be on the step's source and have no other copy beside it,
// and its target must have no copy of the slice. copies holds the copies of that slice.
func (s *State) fits(y *partition.Rebalance, copies []partition.Copy) *Rejection {
	x := s.Index(y.Index)
	switch {
	case x == nil || x.Definition.State == index.Dropping:
		return reject(errcode.StalePlan, "index %d no longer exists", y.Index)
	case y.Slice >= index.SliceID(x.Topology.Layout.Partitions) || uint8(y.Replica) > x.Definition.Replicas:
		return reject(errcode.StalePlan, "index %d (%s) has no slice %d of replica %d", y.Index, x.Definition.Name, y.Slice,
			y.Replica)
	case s.Indexer(y.Dst.Node) == nil:
		return reject(errcode.StalePlan, "node %d is not registered", y.Dst.Node)
	}
	var old *partition.Copy
	for i := range copies {
		o := &copies[i]
		if o.Slice != y.Slice || o.State == partition.Leaving {
			continue
		}
		switch {
		case o.Node == y.Dst.Node:
			return reject(errcode.StalePlan, "index %d (%s): node %d already has a copy of slice %d", y.Index,
				x.Definition.Name, o.Node, y.Slice)
		case o.ID == y.Old:
			old = o
		case o.Replica == y.Replica:
			return reject(errcode.StalePlan, "index %d (%s): replica %d of slice %d is copy %d on node %d", y.Index,
				x.Definition.Name, y.Replica, y.Slice, o.ID, o.Node)
		}
	}
	if old == nil || old.Node != y.Src.Node || old.Replica != y.Replica {
		return reject(errcode.StalePlan, "index %d (%s): copy %d of slice %d is no longer on node %d", y.Index,
			x.Definition.Name, y.Old, y.Slice, y.Src.Node)
	}
	return nil
}

// underWay returns a rebalance that is not over.
func (t *tx) underWay(id uint64) (*RebalanceJob, *Rejection) {
	if r := t.s.Rebalance(id); r != nil && !r.Phase.Over() {
		return r, nil
	}
	return nil, reject(errcode.UnknownRebalance, "rebalance %d is not running", id)
}

func (c *StepRebalance) apply(t *tx) *Rejection {
	r, rejection := t.underWay(c.ID)
	if rejection != nil {
		return rejection
	}
	p, ok := t.s.rebalances.steps.Get(uint64(c.Step))
	if !ok || p.State != c.From || p.State.Over() {
		return reject(errcode.StepMismatch, "step %d of rebalance %d is not in state %s", c.Step, c.ID, c.From)
	}
	y, sum := *p, *r
	if rejection := t.stepTo(c, &y); rejection != nil {
		return rejection
	}
	t.setStep(y)
	switch y.State {
	case partition.RebalanceDone:
		sum.Done, sum.DoneBytes = sum.Done+1, sum.DoneBytes+min(y.Bytes, math.MaxUint64-sum.DoneBytes)
	case partition.RebalanceGivenUp:
		if sum.GivenUp++; sum.Reason == "" {
			sum.Reason = y.Reason
		}
	default:
		t.emitStep(c.ID, y)
		return nil
	}
	t.emitStep(c.ID, y)
	t.setRebalance(sum)
	return nil
}

func (t *tx) emitStep(id uint64, y partition.Rebalance) {
	t.emit(Event{Kind: EventRebalance, Number: id, Index: y.Index, RebalanceStep: &y})
}

// stepTo carries out the transition and updates y.
func (t *tx) stepTo(c *StepRebalance, y *partition.Rebalance) *Rejection {
	if c.To == partition.RebalanceGivenUp {
		return t.giveUp(y, c.Reason)
	}
	type move struct{ from, to partition.RebalanceState }
	switch (move{c.From, c.To}) {
	case move{partition.RebalanceStart, partition.RebalancePending}:
		return t.stepPending(c.ID, y)
	case move{partition.RebalancePending, partition.RebalanceCatchup},
		move{partition.RebalanceCatchup, partition.RebalanceDone}:
	default:
		return reject(errcode.IllegalTransition, "step %d of rebalance %d: from %s to %s", c.Step, c.ID, c.From, c.To)
	}
	x, at, rejection := t.newCopy(y)
	if rejection != nil {
		return rejection
	}
	if s := x.Topology.Copies[at].State; s != partition.Allocated {
		return reject(errcode.StateMismatch, "copy %d of step %d is %s", y.New, c.Step, s)
	}
	y.State = c.To
	if c.To == partition.RebalanceDone {
		if rejection := t.s.lasts(x, y); rejection != nil {
			return rejection
		}
		return t.takeOut(x, y)
	}
	return nil
}

// lasts rejects a transition that relies on a new copy that may not stay whole.
func (s *State) lasts(x *Index, y *partition.Rebalance) *Rejection {
	if i := s.Indexer(y.Dst.Node); i == nil || i.Evicting {
		return reject(errcode.StateMismatch, "node %d is being removed", y.Dst.Node)
	}
	if b := s.Bucket(x.Definition.Bucket); b != nil && b.Rollback != nil {
		return reject(errcode.RollbackMismatch, "bucket %q is being rolled back", b.Name)
	}
	return nil
}

// newCopy returns the index of a step and the position of the copy that the step has placed.
func (t *tx) newCopy(y *partition.Rebalance) (*Index, int, *Rejection) {
	x, rejection := t.index(y.Index)
	if rejection != nil {
		return nil, 0, rejection
	}
	at, is := x.Topology.Place(y.New)
	if !is || x.Topology.Copies[at].State == partition.Leaving {
		return nil, 0, reject(errcode.UnknownCopy, "index %d (%s) no longer has a copy %d", x.Definition.ID,
			x.Definition.Name, y.New)
	}
	return x, at, nil
}

// stepPending places the new copy. An index that waits for BUILD INDEX has no data to copy, so its step is done at
// once.
func (t *tx) stepPending(id uint64, y *partition.Rebalance) *Rejection {
	if r := t.s.Rebalance(id); r.Phase != RebalanceRunning {
		return reject(errcode.StateMismatch, "rebalance %d is %s", id, r.Phase)
	}
	if t.s.rebalances.going[y.Dst.Node] {
		return reject(errcode.StalePlan, "node %d is to be emptied", y.Dst.Node)
	}
	var copies []partition.Copy
	if x := t.s.Index(y.Index); x != nil {
		copies = slices.Collect(x.Topology.Of(y.Slice))
	}
	if rejection := t.s.fits(y, copies); rejection != nil {
		return rejection
	}
	if rejection := t.s.checkNew([]Placement{{Slice: y.Slice, Replica: y.Replica, Node: y.Dst.Node}}); rejection != nil {
		return rejection
	}
	x := *t.s.Index(y.Index)
	kept := x.Topology.Copies
	y.New, y.State = t.s.nextCopyID, partition.RebalancePending
	if x.Waits() {
		kept = slices.DeleteFunc(slices.Clone(kept), func(o partition.Copy) bool { return o.ID == y.Old })
		y.State = partition.RebalanceDone
	}
	if b := t.s.Bucket(x.Definition.Bucket); b != nil {
		y.Timestamp = b.Stability.Number
	}
	x.Topology.Copies = t.placeCopies(kept, []Placement{{Slice: y.Slice, Replica: y.Replica, Node: y.Dst.Node}})
	if rejection := t.s.checkPlacement(x.Topology.Layout, x.Definition.Replicas, x.Topology.Copies); rejection != nil {
		return rejection
	}
	x.PlacedCAS = t.cas
	t.setIndex(x, false, true)
	return nil
}

// takeOut marks the old copy as leaving.
func (t *tx) takeOut(p *Index, y *partition.Rebalance) *Rejection {
	x := *p
	at, is := x.Topology.Place(y.Old)
	if !is || x.Topology.Copies[at].State == partition.Leaving {
		return nil // its node was removed
	}
	x.Topology.Copies = slices.Clone(x.Topology.Copies)
	x.Topology.Copies[at].State = partition.Leaving
	if rejection := t.s.checkPlacement(x.Topology.Layout, x.Definition.Replicas, x.Topology.Copies); rejection != nil {
		return rejection
	}
	t.setIndex(x, false, true)
	return nil
}

// giveUp forgets the new copy. If the old copy has gone meanwhile, the new copy is the only one and stays.
func (t *tx) giveUp(y *partition.Rebalance, reason string) *Rejection {
	y.State, y.Reason = partition.RebalanceGivenUp, cutReason(reason)
	p, at, rejection := t.newCopy(y)
	if rejection != nil {
		return nil // it was not placed yet, or it is gone
	}
	x := *p
	own := x.Topology.Copies[at]
	if x.Definition.State == index.Dropping || !slices.ContainsFunc(x.Topology.Copies, func(o partition.Copy) bool {
		return o.ID != own.ID && o.Slice == own.Slice && o.Replica == own.Replica && o.State != partition.Leaving
	}) {
		return nil
	}
	x.Topology.Copies = slices.Delete(slices.Clone(x.Topology.Copies), at, at+1)
	t.setIndex(x, false, true)
	return nil
}

func (c *CancelRebalance) apply(t *tx) *Rejection {
	r, rejection := t.underWay(c.ID)
	if rejection != nil {
		return rejection
	}
	if r.Phase == RebalanceCancelling {
		return nil
	}
	if r.Cause == RepairCause {
		t.restRepairs()
	}
	next, reason := *r, cutReason(cmp.Or(c.Reason, Cancelled))
	next.Phase, next.Reason = RebalanceCancelling, cutReason(cmp.Or(c.Reason, next.Reason, Cancelled))
	for _, y := range slices.Collect(t.s.RebalanceSteps()) {
		if y.State == partition.RebalanceStart {
			gone := *y
			gone.State, gone.Reason = partition.RebalanceGivenUp, reason
			next.GivenUp++
			t.setStep(gone)
		}
	}
	t.setRebalance(next)
	return nil
}

func (c *EndRebalance) apply(t *tx) *Rejection {
	r, rejection := t.underWay(c.ID)
	if rejection != nil {
		return rejection
	}
	idle := uint32(0) // given up because there was nothing left to move
	for y := range t.s.RebalanceSteps() {
		if !y.State.Over() {
			return reject(errcode.StepMismatch, "step %d of rebalance %d is in state %s", y.Step, r.ID, y.State)
		}
		if y.State == partition.RebalanceGivenUp && t.s.nothingToMove(y.Index) {
			idle++
		}
	}
	next := *r
	next.FinishedMS = t.calendar(c.WallMS)
	switch {
	case next.GivenUp == 0, next.GivenUp == idle && next.Phase == RebalanceRunning:
		next.Phase = RebalanceFinished
	case next.Phase == RebalanceCancelling:
		next.Phase = RebalanceCancelled
	default:
		next.Phase = RebalanceFailed
	}
	t.s.rebalances.steps = btree.NewMap[uint64, *partition.Rebalance](0)
	t.owned.steps = true
	t.setRebalance(next)
	return nil
}

// nothingToMove reports whether nothing of an index is left to move: it was dropped, its split has ended, or its bucket
// was deleted.
func (s *State) nothingToMove(id index.ID) bool {
	x := s.Index(id)
	if x == nil || x.Definition.State == index.Dropping {
		return true
	}
	b := s.Bucket(x.Definition.Bucket)
	return b != nil && b.Gone
}

func (c *SetIndexerGoing) apply(t *tx) *Rejection {
	i := t.s.Indexer(c.Node)
	if i == nil || i.UUID != c.UUID {
		return reject(errcode.UnknownNode, "there is no indexer %d with uuid %q", c.Node, c.UUID)
	}
	if t.s.rebalances.going[c.Node] == c.Going {
		return nil
	}
	t.s.rebalances.going[c.Node], t.changed = c.Going, true
	t.emitIndexer(i)
	return nil
}

func (rw *recordWriter) rebalances(s *State, p []byte) []byte {
	for r := range s.Rebalances() {
		p = appendRebalance(p[:0], r)
		rw.write(recordRebalance, p)
	}
	for y := range s.RebalanceSteps() {
		p = appendStep(p[:0], y)
		rw.write(recordStep, p)
	}
	for n, going := range s.rebalances.going {
		if going {
			rw.write(recordGoing, []byte{byte(n)})
		}
	}
	return p
}

// loadRebalance loads a record that rebalances has written; it returns false for other records.
func (s *State) loadRebalance(kind byte, d *decoder) bool {
	switch kind {
	case recordRebalance:
		r := d.rebalance()
		s.rebalances.all.Set(r.ID, r)
	case recordStep:
		y := d.step()
		s.rebalances.steps.Set(uint64(y.Step), &y)
	case recordGoing:
		s.rebalances.going[d.byte()] = true
	default:
		return false
	}
	return true
}

func checkRebalances(s *State) error {
	r, last := s.RebalanceUnderWay(), uint64(0)
	for x := range s.Rebalances() {
		last = x.ID
		if !x.sound(s) || !x.Phase.Over() && x != r {
			return broken("rebalance %d, next is %d: phase %d, %d and %d of %d steps", x.ID, s.rebalances.next, x.Phase, x.Done,
				x.GivenUp, x.Steps)
		}
	}
	if (r == nil) != (s.rebalances.steps.Len() == 0) || r != nil &&
		(r.ID != last || int(r.Steps) != s.rebalances.steps.Len()) {
		return broken("%d steps of the rebalance that is under way", s.rebalances.steps.Len())
	}
	for n, going := range s.rebalances.going {
		if going && s.Indexer(index.NodeID(n)) == nil {
			return broken("node %d is to leave and is not known", n)
		}
	}
	return checkRebalanceSteps(s)
}

// sound reports whether the numbers of a rebalance are ones that Apply can produce.
func (x *RebalanceJob) sound(s *State) bool {
	return x.ID < s.rebalances.next && x.ModifiedCAS <= s.cas && x.Phase >= RebalanceRunning &&
		x.Phase <= RebalanceFailed && x.Sends > 0 && x.Receives > 0 && x.Done+x.GivenUp <= x.Steps
}

func checkRebalanceSteps(s *State) error {
	step := uint32(0)
	for y := range s.RebalanceSteps() {
		if step++; y.Step != step || y.State < partition.RebalanceStart || y.State > partition.RebalanceGivenUp ||
			y.New >= s.nextCopyID {
			return broken("step %d of the rebalance: number %d, state %d, copy %d", step, y.Step, y.State, y.New)
		}
	}
	return nil
}
