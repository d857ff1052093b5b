package core

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/liveness"
	"tidemark/partition"
	"tidemark/rebalance"
	"tidemark/statecontext"
)

// splits begin splits of indexes that nobody has asked for: of those that have had a slice with too many bytes, or
// which is written and read too often, for long enough; and merges of what is small and cold again. Package rebalance
// decides (Growing). What was looked at is this leader's: the next one begins anew.
type splits struct {
	*scene
	atMS    int64
	growing rebalance.Growing
	trying  index.ID            // of which a split is being begun; 0: none
	under   map[index.ID]bool   // that were being split when it was looked last
	restMS  map[index.ID]int64  // before when an index is left alone, as a split of it came to nothing
	refused map[index.ID]string // why the newest try came to nothing
	waits   map[index.ID]string // why an index that has a slice above its bounds is not split
	merges  map[index.ID]string // why an index of which slices could be merged is left as it is
}

const (
	// looks is how often it is looked in the time for which a slice has to be above its bounds.
	looks = 10
	// splitRests is how many times that an index is left alone after it was split, and slices have to be small and cold
	// that are merged.
	splitRests = 6
)

// SplitPatience bounds how long it may take to find out where a range is to be cut when nobody waits for the answer.
const SplitPatience = time.Minute

// step looks, now and then.
func (l *splits) step() {
	after := l.settings.SplitAfter.Milliseconds()
	every := min(max(after/looks, rebalanceEvery), 10_000)
	if l.settings.SplitAbove <= 0 && l.settings.SplitAboveRate <= 0 || l.rests(l.atMS, every) {
		return
	}
	l.atMS = l.nowMS
	if l.restMS == nil {
		l.restMS, l.refused = map[index.ID]int64{}, map[index.ID]string{}
	}
	bounds := rebalance.GrowthBounds{Above: uint64(max(l.settings.SplitAbove, 0)),
		Rate: uint64(max(l.settings.SplitAboveRate, 0)), After: after, Rest: splitRests * after,
		Calm: splitRests * after}
	l.note(bounds.Rest)
	sizes, busy := l.sizes(&bounds), l.busy()
	next, waits := l.growing.Look(l.nowMS, bounds, sizes, busy)
	l.tell(waits)
	if next != nil {
		busy = fmt.Sprintf("index %d is to be split", next.Index)
	}
	merge, waits := l.growing.Shrink(l.nowMS, bounds, sizes, busy)
	if l.merges = waits; merge != nil {
		next = merge
	}
	if next == nil || l.trying != 0 {
		return
	}
	l.trying = next.Index
	l.log.Info("an index is to have other slices by itself", "index", next.Index, "why", next.Cause, "slices",
		next.Partitions)
	l.do(BeginSplit{Split: *next, IfModified: l.now.state.Definition(next.Index).ModifiedCAS})
}

// note remembers which indexes are being split, and lets those rest of which a split came to nothing: it failed, or
// somebody cancelled it.
func (l *splits) note(rest int64) {
	under := map[index.ID]bool{}
	for x := range l.now.state.Indexes() {
		d := &x.Definition
		if d.State != index.Maintenance {
			continue
		}
		_, rests := l.restMS[d.ID]
		switch under[d.ID] = l.now.state.Successor(d) != nil; {
		case under[d.ID]:
		case l.under[d.ID], d.SplitFailed != "" && !rests: // the latter: before this leader's term
			l.restMS[d.ID] = l.nowMS + rest
		}
	}
	for id := range l.restMS {
		if _, ready := under[id]; !ready {
			delete(l.restMS, id)
			delete(l.refused, id)
		}
	}
	l.under = under
}

// busy says what goes on beside which nothing is split by itself, "" when nothing does.
func (l *splits) busy() string {
	if l.trying != 0 {
		return fmt.Sprintf("index %d is about to get other slices", l.trying)
	}
	if r := l.now.state.RebalanceUnderWay(); r != nil {
		return fmt.Sprintf("rebalance %d (%s) is %s", r.ID, r.Cause, r.Phase)
	}
	if l.now.state.Staging() != nil {
		return "the cluster is being restored"
	}
	for x := range l.now.state.Indexes() {
		if x.Definition.Replaces != 0 && x.Definition.State != index.Dropping {
			return fmt.Sprintf("index %d (%s) is being split or merged", x.Definition.Replaces, x.Definition.Name)
		}
	}
	return ""
}

// sizes are what indexers have told of indexes that serve, and are not being split.
func (l *splits) sizes(bounds *rebalance.GrowthBounds) (all []rebalance.Sizes) {
	for x := range l.now.state.Indexes() {
		d := &x.Definition
		if d.State != index.Maintenance || l.now.state.Successor(d) != nil {
			continue
		}
		kind, _ := partition.KindBy(d.PartitionBy.Scheme)
		s := rebalance.Sizes{Index: d.ID, Ranges: kind.Values, Folds: kind.Folds, Least: d.LeastPartitions(),
			AgeMS: l.wallMS - d.CreatedMS, Rests: l.nowMS < l.restMS[d.ID]}
		s.Bytes, s.Rates, s.Known = l.slicesOf(x)
		bytes, rate := bounds.Over(&s)
		if s.Known && (max(bytes, rate) > 1 || len(s.Bytes) > int(s.Least)) {
			if s.Blocked = l.blocked(x); s.Rests && l.refused[d.ID] != "" && s.Blocked == "" {
				s.Blocked = l.refused[d.ID]
			}
		}
		all = append(all, s)
	}
	return all
}

// slicesOf is how much each slice has and is written and read, and whether that is known. Of the bytes of several
// copies the smallest number counts, as disks have more than entries for a while; of how often they are written and
// read the largest: all are written, but who reads may like one of them.
func (l *splits) slicesOf(x *statecontext.Index) (bytes, rates []uint64, known bool) {
	bytes, rates = make([]uint64, x.Topology.Layout.Partitions), make([]uint64, x.Topology.Layout.Partitions)
	for i := range bytes {
		bytes[i] = math.MaxUint64
	}
	for _, c := range x.Topology.Copies {
		n := l.components.indexers[c.Node]
		if c.State != partition.Allocated || int(c.Slice) >= len(bytes) || n == nil ||
			l.life(&n.component) != liveness.Active || !l.whole(x, c) {
			continue
		}
		r := n.copies[c.ID]
		bytes[c.Slice] = min(bytes[c.Slice], r.Bytes)
		rates[c.Slice] = max(rates[c.Slice], r.WriteRate+r.ReadRate)
	}
	for _, b := range bytes {
		if b == math.MaxUint64 {
			return nil, nil, false
		}
	}
	return bytes, rates, len(bytes) > 0
}

// blocked says why an index may not be split now, whatever else goes on. Of a bucket that is rolled back or was deleted
// no copy is whole: nobody knows how large the slices of its indexes are then, and nothing is judged.
func (l *splits) blocked(x *statecontext.Index) string {
	d := &x.Definition
	switch rejection := l.now.state.MaySplit(d); {
	case d.AutoSplitOff:
		return "its auto_split is false: it gets more and fewer slices only when somebody asks for them"
	case rejection != nil:
		return rejection.Message
	case l.exprRules().Outdated(d) != "":
		return "it is outdated: other slices would have other keys; create it anew, or give it other slices by hand"
	}
	for _, c := range x.Topology.Copies {
		if n := l.components.indexers[c.Node]; n == nil || l.life(&n.component) != liveness.Active || !l.whole(x, c) {
			return fmt.Sprintf("copy %d of it, on node %d, is not whole, or its indexer does not answer", c.ID, c.Node)
		}
	}
	return ""
}

// tell keeps why indexes wait, and logs which have begun to: the reason may be another one with each look.
func (l *splits) tell(waits map[index.ID]string) {
	for _, id := range slices.Sorted(maps.Keys(waits)) {
		if l.waits[id] == "" {
			l.log.Info("an index has a slice above its bounds, and is not split now", "index", id, "why", waits[id])
		}
	}
	l.waits = waits
}

// other reports whether a split was refused for what went on beside it, and not for what the index is: it may begin
// when that is over.
func other(err error) bool {
	for _, code := range []errcode.Code{errcode.RebalanceRunning, errcode.SplitRunning, errcode.IndexInRollback,
		errcode.IndexChanged, errcode.CASMismatch, errcode.Busy, errcode.Restoring} {
		if errors.Is(err, code) {
			return true
		}
	}
	return false
}

// tried takes what came of a split that was to begin.
func (l *splits) tried(in *SplitTried) {
	l.trying = 0
	switch {
	case in.Err == nil:
		delete(l.refused, in.Index)
		if l.now.stale = true; l.under != nil {
			l.under[in.Index] = true // it may be cancelled before it is looked again
		}
		return
	case errors.Is(in.Err, ErrTermOver):
		return
	}
	rest := splitRests * l.settings.SplitAfter
	if other(in.Err) {
		rest = l.settings.SplitAfter
	}
	l.log.Warn("an index could not get other slices by itself", "index", in.Index, "error", in.Err, "next_try_after", rest)
	l.restMS[in.Index] = l.nowMS + rest.Milliseconds()
	l.refused[in.Index] = fmt.Sprintf("it could not get other slices, and is not tried again for %v: %v", rest, in.Err)
}
