package statecontext

import (
	"cmp"
	"encoding/json"
	"fmt"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/partition"
)

// SplitIndex begins to build a successor of an index that is READY. The successor has the same definition except for
// the distribution of its entries over slices, and no name refers to it. It is built like any index. The command that
// makes it READY (SetIndexState) also gives it the name and begins to drop the first index. If either fails or
// changes before that, the split ends: the successor is dropped, and the first index continues with the reason in
// SplitFailed, which changes its ModifiedCAS, unless it is being dropped itself (docs/decisions.md, "A split is a
// successor"). Result.Index is the successor. Rejections: UnknownIndex, CASMismatch, IndexChanged, StateMismatch,
// SplitRunning, RebalanceRunning, IndexInRollback, and those of CreateIndex.
type SplitIndex struct {
	ID index.ID
	// IfMatch, unless 0, must equal the definition's ModifiedCAS. It is the user's precondition.
	IfMatch uint64
	// IfPlanned, unless 0, is the ModifiedCAS of the definition for which the command was planned.
	IfPlanned uint64
	// The new distribution of the entries. The scheme and the partitioning expressions stay.
	Values     []string // PartitionBy.Values, if it is partitioned by ranges
	Partitions uint16
	Statement  string // as in AlterIndex
	Layout     partition.Layout
	Placement  []Placement
	Rules      uint32 // as in BuildIndexes
	CreatedMS  int64
	// Cause is why an automatic split begins, "" if a user requested it; at most MaxCauseBytes. An automatic split
	// begins only if there is no other split, no rebalance, and no rollback of the bucket (IndexInRollback).
	Cause string
}

func (*SplitIndex) kind() kind { return kindSplitIndex }

func (c *SplitIndex) append(dst []byte) []byte {
	dst = appendUint(appendUint(appendUint(dst, uint64(c.ID)), c.IfMatch), uint64(len(c.Values)))
	for _, v := range c.Values {
		dst = appendString(dst, v)
	}
	dst = appendString(appendUint(dst, uint64(c.Partitions)), c.Statement)
	dst = appendPlacements(appendLayout(dst, &c.Layout), c.Placement)
	dst = appendInt(appendUint(dst, uint64(c.Rules)), c.CreatedMS)
	return appendString(appendUint(dst, c.IfPlanned), c.Cause)
}

func decodeSplitIndex(d *decoder) *SplitIndex {
	c := &SplitIndex{ID: index.ID(d.uint()), IfMatch: d.uint()}
	for n := d.count(); n > 0 && d.err == nil; n-- {
		v := d.string()
		if !json.Valid([]byte(v)) { // a definition with it could not be read again
			d.fail("a split value is not JSON")
		}
		c.Values = append(c.Values, v)
	}
	c.Partitions, c.Statement = uint16(d.max(1<<16-1, "partitions")), d.string()
	c.Layout, c.Placement = d.layout(), d.placements()
	c.Rules, c.CreatedMS = d.uint32(), d.int()
	c.IfPlanned, c.Cause = d.uint(), d.string()
	return c
}

func (c *SplitIndex) apply(t *tx) *Rejection {
	p, rejection := t.index(c.ID)
	if rejection != nil {
		return rejection
	}
	first := *p
	f := first.Definition
	if rejection := c.admit(&t.s, &f); rejection != nil {
		return rejection
	}
	if rejection := c.recordAsked(&f); rejection != nil {
		return rejection
	}
	f.Replaces, f.Origin, f.SplitFailed, f.SplitCause = f.ID, f.First(), "", c.Cause
	f.PartitionBy.Values = nil
	for _, v := range c.Values {
		f.PartitionBy.Values = append(f.PartitionBy.Values, []byte(v))
	}
	f.Partitions, f.Statement, f.Rules, f.CreatedMS = c.Partitions, c.Statement, c.Rules, c.CreatedMS
	if rejection := t.checkNewDefinition(&f); rejection != nil {
		return rejection
	}
	if first.Definition.SplitFailed != "" {
		first.Definition.SplitFailed = ""
		t.setIndex(first, true, false)
	}
	return t.addIndex(f, c.Layout, c.Placement)
}

// admit rejects a split that may not begin now.
func (c *SplitIndex) admit(s *State, f *index.Definition) *Rejection {
	if rejection := matches(f, c.IfMatch); rejection != nil {
		return rejection
	}
	if rejection := s.MaySplit(f); rejection != nil {
		return rejection
	}
	if rejection := checkPlanned(f, c.IfPlanned); rejection != nil || c.Cause == "" {
		return rejection
	}
	if rejection := checkText("cause of a split", c.Cause, MaxCauseBytes); rejection != nil {
		return rejection
	}
	return s.MaySplitByItself(f)
}

// recordAsked records the number of slices that the user requested. Automatic merges never leave fewer than that.
func (c *SplitIndex) recordAsked(f *index.Definition) *Rejection {
	least := f.LeastPartitions()
	switch {
	case c.Cause == "" || c.Partitions == least:
		f.RequestedPartitions = 0
	case c.Partitions < least:
		return reject(errcode.InvalidArgument, "index %d (%s): %d slices were requested, so it does not get %d "+
			"automatically", f.ID,
			f.Name, least, c.Partitions)
	default:
		f.RequestedPartitions = least
	}
	return nil
}

// SetAutoSplit sets whether an index is split and merged automatically. If nothing changes, it is not an update. It
// is allowed while slices move, but not during a split: the successor's definition would not have the change.
// Rejections: UnknownIndex, CASMismatch, IndexChanged, StateMismatch, SplitRunning.
type SetAutoSplit struct {
	ID index.ID
	// IfMatch and IfPlanned are as in SplitIndex.
	IfMatch, IfPlanned uint64
	Off                bool
	Statement          string // as in AlterIndex
}

func (*SetAutoSplit) kind() kind { return kindSetAutoSplit }

func (c *SetAutoSplit) append(dst []byte) []byte {
	dst = appendUint(appendUint(appendUint(dst, uint64(c.ID)), c.IfMatch), c.IfPlanned)
	return appendString(appendBool(dst, c.Off), c.Statement)
}

func decodeSetAutoSplit(d *decoder) *SetAutoSplit {
	return &SetAutoSplit{ID: index.ID(d.uint()), IfMatch: d.uint(), IfPlanned: d.uint(), Off: d.bool(),
		Statement: d.string()}
}

func (c *SetAutoSplit) apply(t *tx) *Rejection {
	p, rejection := t.index(c.ID)
	if rejection != nil {
		return rejection
	}
	x := *p
	f := &x.Definition
	if rejection := matches(f, c.IfMatch); rejection != nil {
		return rejection
	}
	switch {
	case f.State == index.Dropping:
		return reject(errcode.StateMismatch, "index %d (%s) is being dropped", f.ID, f.Name)
	case f.Replaces != 0 || t.s.Successor(f) != nil:
		return splitting(f)
	}
	if rejection := checkPlanned(f, c.IfPlanned); rejection != nil {
		return rejection
	}
	t.result.Index = f.ID
	if f.AutoSplitOff == c.Off {
		return nil
	}
	f.AutoSplitOff, f.Statement = c.Off, c.Statement
	if rejection := t.checkDefinition(f); rejection != nil {
		return rejection
	}
	t.setIndex(x, true, false)
	return nil
}

// Values of SplitFailed for splits that ended although no index failed.
const (
	SplitCancelled = "it was cancelled" // or the successor was dropped by its id
	SplitBuiltAnew = "the index is being built anew"
)

// CancelSplit drops the successor of an index and records that in SplitFailed, so that no later leader at once begins
// again what a user has just cancelled. An index that has already taken over the name is no longer a successor.
// Result.Index is the dropped index. Rejections: UnknownIndex, StateMismatch if there is no successor.
type CancelSplit struct{ ID index.ID }

func (*CancelSplit) kind() kind { return kindCancelSplit }

func (c *CancelSplit) append(dst []byte) []byte { return appendUint(dst, uint64(c.ID)) }

func (c *CancelSplit) apply(t *tx) *Rejection {
	x, rejection := t.index(c.ID)
	if rejection != nil {
		return rejection
	}
	next := t.s.Successor(&x.Definition)
	if next == nil {
		return reject(errcode.StateMismatch, "index %d (%s) is not being split", x.Definition.ID, x.Definition.Name)
	}
	t.result.Index = next.Definition.ID
	t.endSplit(*next, SplitCancelled)
	return nil
}

// endSplit begins to drop a successor and records the reason in the first index, unless that is being dropped too.
func (t *tx) endSplit(next Index, why string) {
	t.beginDrop(next)
	if p := t.s.Index(next.Definition.Replaces); p != nil && p.Definition.State != index.Dropping {
		first := *p
		first.Definition.SplitFailed = why
		t.setIndex(first, true, false)
	}
}

// checkValues verifies the values at which a definition is partitioned: each must be JSON, and ranges have one value
// less than slices, other schemes none.
func checkValues(f *index.Definition) error {
	for i, v := range f.PartitionBy.Values {
		if !json.Valid(v) {
			return fmt.Errorf("partition value %d of %d bytes is not JSON", i+1, len(v))
		}
	}
	values := len(f.PartitionBy.Values)
	switch kind, _ := partition.KindBy(f.PartitionBy.Scheme); {
	case kind.Values && values+1 != int(f.Partitions):
		return fmt.Errorf("%d partitions with %d split values; want one value less than partitions", f.Partitions, values)
	case !kind.Values && values > 0:
		return fmt.Errorf("%d split values, but partitions by %q have none", values, f.PartitionBy.Scheme)
	}
	return nil
}

// MaySplit returns nil if an index may have a successor, else a rejection.
func (s *State) MaySplit(f *index.Definition) *Rejection {
	switch {
	case f.Replaces != 0 || s.Successor(f) != nil:
		return splitting(f)
	case f.State != index.Maintenance:
		return reject(errcode.StateMismatch, "index %d (%s) is in state %s; wait until it is ready", f.ID, f.Name, f.State)
	case len(s.RebalancesOf(f.ID)) > 0:
		return reject(errcode.RebalanceRunning, "slices of index %d (%s) are being moved; wait for the end "+
			"of that, or cancel it", f.ID, f.Name)
	}
	return nil
}

// MaySplitByItself returns nil if an automatic split or merge of an index that passes MaySplit may begin, else a
// rejection.
func (s *State) MaySplitByItself(f *index.Definition) *Rejection {
	if f.AutoSplitOff {
		return reject(errcode.IndexChanged, "auto_split of index %d (%s) is false", f.ID, f.Name)
	}
	if r := s.RebalanceUnderWay(); r != nil {
		return reject(errcode.RebalanceRunning, "rebalance %d (%s) is %s", r.ID, r.Cause, r.Phase)
	}
	if b := s.Bucket(f.Bucket); b == nil || b.Gone || b.Rollback != nil {
		return reject(errcode.IndexInRollback, "bucket %s is being rolled back, or was deleted", f.Bucket)
	}
	for x := range s.Indexes() {
		if x.Definition.Replaces != 0 && x.Definition.State != index.Dropping {
			return splitting(&x.Definition)
		}
	}
	return nil
}

// splitting returns the rejection for commands on an index that is being split, or on its successor.
func splitting(f *index.Definition) *Rejection {
	return reject(errcode.SplitRunning, "index %d (%s) is being split; wait for the end of the split, or cancel it", f.ID,
		f.Name)
}

// succeed gives a successor that has become READY the name of the index that it replaces, and begins to drop that
// index. The event of the drop comes first, so that watchers never see the name removed after it was given to the
// successor.
func (t *tx) succeed(x Index) *Rejection {
	first, rejection := t.index(x.Definition.Replaces)
	if rejection != nil {
		return rejection
	}
	names := own(&t.s.names, &t.owned.names)
	names.Delete(x.key())
	t.beginDrop(*first)
	x.Definition.Replaces, x.Definition.SplitCause = 0, ""
	names.Set(x.key(), x.Definition.ID)
	t.setIndex(x, true, false)
	return nil
}

// endSplits drops each successor that has failed, or whose first index is no longer READY.
func (t *tx) endSplits() {
	for i := 0; i < len(t.touched); i++ { // the loop itself appends to touched
		x := t.s.Index(t.touched[i])
		if x == nil {
			continue
		}
		f := &x.Definition
		switch {
		case f.Replaces != 0 && f.State == index.Error:
			t.endSplit(*x, f.Reason)
		case f.Replaces == 0 && f.State != index.Maintenance:
			if next := t.s.Successor(f); next != nil {
				t.endSplit(*next, cmp.Or(f.Reason, SplitBuiltAnew))
			}
		}
	}
}
