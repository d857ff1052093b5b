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

// splits begins automatic splits of indexes with a slice that has been too large, or written and read too often, for
// long enough, and automatic merges of slices that are small and cold again. Package rebalance decides (Growing).
// Observations are not replicated: a new leader starts over.
type splits struct {
	*scene
	atMS    int64
	growing rebalance.Growing
	trying  index.ID            // the index whose split is being requested; 0: none
	under   map[index.ID]bool   // indexes that were being split at the last look
	restMS  map[index.ID]int64  // when an index may be split again after a failed split
	refused map[index.ID]string // why the newest attempt failed
	waits   map[index.ID]string // why an index with a slice above its limits is not split
	merges  map[index.ID]string // why an index whose slices could be merged is not merged
}

const (
	// looks is the number of looks within SplitAfter.
	looks = 10
	// splitRests times SplitAfter is how long an index rests after a split, and how long slices must be small and cold
	// before they are merged.
	splitRests = 6
)

// SplitTime limits the search for split points of an automatic split, for which no caller waits.
const SplitTime = time.Minute

// step looks for splits and merges at intervals.
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
	l.setWaits(waits)
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
	l.log.Info("index gets another number of slices automatically", "index", next.Index, "why", next.Cause, "slices",
		next.Partitions)
	l.do(BeginSplit{Split: *next, IfModified: l.now.state.Definition(next.Index).ModifiedCAS})
}

// note records which indexes are being split, and makes an index rest if its split failed or was cancelled.
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
		case l.under[d.ID], d.SplitFailed != "" && !rests: // the latter: before this term
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

// busy returns the operation that precludes automatic splits, "" if there is none.
func (l *splits) busy() string {
	if l.trying != 0 {
		return fmt.Sprintf("index %d is about to be split or merged", l.trying)
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

// sizes returns the reported sizes of ready indexes that are not being split.
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

// slicesOf returns the bytes and the read and write rate of each slice, and whether they are known. For bytes, the
// smallest of several copies counts, because a disk may hold more than the entries for a while. For rates, the
// largest counts: all copies are written, but scans may prefer one of them.
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

// blocked returns why an index may not be split now, apart from other operations. During a rollback of its bucket, or
// after the bucket was deleted, no copy is whole, so that slice sizes are unknown and nothing is judged.
func (l *splits) blocked(x *statecontext.Index) string {
	d := &x.Definition
	switch rejection := l.now.state.MaySplit(d); {
	case d.AutoSplitOff:
		return "its auto_split is false: its number of slices changes only on request"
	case rejection != nil:
		return rejection.Message
	case l.exprRules().Outdated(d) != "":
		return "it is outdated: other slices would have other keys; create it again, or split it manually"
	}
	for _, c := range x.Topology.Copies {
		if n := l.components.indexers[c.Node]; n == nil || l.life(&n.component) != liveness.Active || !l.whole(x, c) {
			return fmt.Sprintf("its copy %d on node %d is not complete, or the indexer does not answer", c.ID, c.Node)
		}
	}
	return ""
}

// setWaits stores why indexes wait, and logs those that begin to wait: the reason may change with each look.
func (l *splits) setWaits(waits map[index.ID]string) {
	for _, id := range slices.Sorted(maps.Keys(waits)) {
		if l.waits[id] == "" {
			l.log.Info("index has a slice above its bounds, but is not split now", "index", id, "why", waits[id])
		}
	}
	l.waits = waits
}

// other reports whether a split was refused because of another operation rather than the index itself: it may begin
// once that is over.
func other(err error) bool {
	for _, code := range []errcode.Code{errcode.RebalanceRunning, errcode.SplitRunning, errcode.IndexInRollback,
		errcode.IndexChanged, errcode.CASMismatch, errcode.Busy, errcode.Restoring} {
		if errors.Is(err, code) {
			return true
		}
	}
	return false
}

// tried takes the outcome of a requested split.
func (l *splits) tried(in *SplitTried) {
	l.trying = 0
	switch {
	case in.Err == nil:
		delete(l.refused, in.Index)
		if l.now.stale = true; l.under != nil {
			l.under[in.Index] = true // it may be cancelled before the next look
		}
		return
	case errors.Is(in.Err, ErrTermOver):
		return
	}
	rest := splitRests * l.settings.SplitAfter
	if other(in.Err) {
		rest = l.settings.SplitAfter
	}
	l.log.Warn("automatic split or merge of an index failed", "index", in.Index, "error", in.Err, "next_try_after", rest)
	l.restMS[in.Index] = l.nowMS + rest.Milliseconds()
	l.refused[in.Index] = fmt.Sprintf("its automatic split or merge failed, the next attempt is in %v: %v", rest, in.Err)
}
