package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"tidemark/errcode"
	"tidemark/expression"
	"tidemark/index"
	"tidemark/manager/coordinator/core"
	"tidemark/partition"
	"tidemark/rebalance"
	"tidemark/statecontext"
)

// SplitRequest requests another number of slices, or other ranges, for an index.
type SplitRequest struct {
	ID      index.ID
	Name    statecontext.IndexName // unless zero, instead of ID
	IfMatch uint64                 // of the definition; 0: any
	// At holds values at which to cut ranges, in addition to the present ones; with Merge, cuts to remove.
	At    []json.RawMessage
	Merge bool
	// Partitions is the wanted number of slices if At is nil; nil: twice the present number.
	Partitions *int
	Request    *statecontext.Request // nil: not remembered
	byItself   *core.BeginSplit      // nil: requested by a user
}

// SplitIndex begins to build a successor of an index. The index serves until the successor is READY and takes over
// its name. The outcome describes the successor, or, with Existed, the index itself: it has these slices already.
// Errors wrap expression.ErrDefinition, codes of package errcode, those of package rebalance, ErrNotLeading, ErrBusy,
// or come from Config.Quantiles or the proposal.
func (c *Coordinator) SplitIndex(ctx context.Context, req SplitRequest) (Outcome, error) {
	l, err := c.leading()
	if err != nil {
		return Outcome{}, err
	}
	return replanned(ctx, func() (Outcome, error) { return c.splitOnce(ctx, l, &req) })
}

// splitOnce plans and proposes a split.
func (c *Coordinator) splitOnce(ctx context.Context, l *term, req *SplitRequest) (Outcome, error) {
	s, x, done, err := c.toAlter(ctx, req.ID, &req.Name, req.Request)
	if x == nil || err != nil {
		return done, err
	}
	id := x.Definition.ID
	if rejection := s.MaySplit(&x.Definition); rejection != nil { // before any data is read
		return Outcome{}, rejection
	}
	d, err := c.splitted(ctx, x, req)
	if err != nil {
		return Outcome{}, err
	}
	if d.Partitions == x.Definition.Partitions && d.PartitionBy.Equal(&x.Definition.PartitionBy) {
		return Outcome{ID: id, Definition: x.Definition, CAS: s.CAS(), Existed: true}, nil
	}
	body, settle, err := c.successor(ctx, l, x, d)
	if err != nil {
		return Outcome{}, err
	}
	body.IfMatch = req.IfMatch
	if req.byItself != nil {
		body.Cause = req.byItself.Cause
	}
	build := c.trace(ctx, l, d.Bucket)
	res, err := c.proposeRequest(ctx, req.Request, byName(body, req.Name))
	settle(res, err)
	l.traced(ctx, build, c.cfg.Consensus.State(), err, res.Index)
	if err != nil {
		return Outcome{}, err
	}
	if c.isNew(&res) {
		c.cfg.Logger.Info("split starts", "index", id, "name", d.Name, "keyspace", d.Keyspace().String(),
			"successor", res.Index, "slices", d.Partitions, "before", x.Definition.Partitions, "by_itself", body.Cause)
	}
	return altered(c.cfg.Consensus.State(), *d, res)
}

// successor chooses places for a successor's copies. The caller must call settle with the outcome of the command, to
// release the reservation.
func (c *Coordinator) successor(ctx context.Context, l *term, x *statecontext.Index,
	d *index.Definition) (body *statecontext.SplitIndex, settle func(statecontext.Result, error), err error) {
	layout, err := partition.LayoutOf(d)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", expression.ErrDefinition, err)
	}
	placement, settle, err := c.place(ctx, l, d)
	if err != nil {
		return nil, nil, err
	}
	body = &statecontext.SplitIndex{ID: x.Definition.ID, IfPlanned: x.Definition.ModifiedCAS, Partitions: d.Partitions,
		Statement: d.Statement, Layout: layout, Placement: placement, Rules: c.newRules(),
		CreatedMS: c.cfg.Now().UnixMilli()}
	for _, v := range d.PartitionBy.Values {
		body.Values = append(body.Values, string(v))
	}
	return body, settle, nil
}

// splitted returns the definition of the successor, without the fields that Apply assigns.
func (c *Coordinator) splitted(ctx context.Context, x *statecontext.Index,
	req *SplitRequest) (*index.Definition, error) {
	d := x.Definition
	kind, _ := partition.KindBy(d.PartitionBy.Scheme)
	var err error
	switch {
	case !kind.Values && req.At != nil:
		return nil, &statecontext.Rejection{Code: errcode.InvalidArgument, Message: fmt.Sprintf("index %s is not "+
			"partitioned by ranges, so it has no split values; give the number of slices with num_partition", d.Name)}
	case req.byItself != nil && req.byItself.Joins != nil:
		d.PartitionBy.Values, err = partition.Joined(&d, req.byItself.Joins)
	case !kind.Values:
		if d.Partitions, err = twice(&d, req.Partitions); err != nil {
			return nil, err
		}
	default:
		d.PartitionBy.Values, err = c.cutAt(ctx, x, req)
	}
	if errors.Is(err, partition.ErrDefinition) {
		err = &statecontext.Rejection{Code: errcode.InvalidArgument, Message: fmt.Sprintf("index %s: %v", d.Name, err)}
	}
	if err != nil {
		return nil, err
	}
	if kind.Values {
		if len(d.PartitionBy.Values) >= partition.MaxPartitions {
			return nil, tooMany(&d, len(d.PartitionBy.Values)+1)
		}
		d.Partitions = uint16(len(d.PartitionBy.Values) + 1)
	}
	d.Deferred = false
	return &d, expression.Normalize(&d)
}

// cutAt returns the values at which the ranges of the successor are cut.
func (c *Coordinator) cutAt(ctx context.Context, x *statecontext.Index, req *SplitRequest) ([]json.RawMessage, error) {
	d := &x.Definition
	switch {
	case req.Merge:
		values, err := partition.Without(d.PartitionBy.Values, req.At)
		if err == nil && len(values) == 0 {
			err = fmt.Errorf("%w: ranges need at least one split value, and none would be left", partition.ErrDefinition)
		}
		return values, err
	case req.At != nil:
		return partition.With(d.PartitionBy.Values, req.At)
	case req.byItself != nil && req.byItself.Hot != nil:
		at, err := c.loads(ctx, x, req.byItself.Hot)
		if err != nil {
			return nil, err
		}
		return partition.With(d.PartitionBy.Values, at)
	}
	n, err := twice(d, req.Partitions)
	if err != nil {
		return nil, err
	}
	return c.quantiles(ctx, x, int(n), req.byItself)
}

// statementTime limits the search for cuts while a user waits.
const statementTime = 7 * time.Second

// quantiles returns values that cut the index into n slices of about equal size.
func (c *Coordinator) quantiles(ctx context.Context, x *statecontext.Index, n int,
	byItself *core.BeginSplit) ([]json.RawMessage, error) {
	if n < 2 {
		return nil, &statecontext.Rejection{Code: errcode.InvalidArgument,
			Message: fmt.Sprintf("index %s is partitioned by ranges: it needs at least two slices", x.Definition.Name)}
	}
	var cuts partition.Cuts
	within := statementTime
	if byItself != nil {
		within = core.SplitTime
	}
	if c.cfg.Quantiles != nil {
		var err error
		if cuts, err = c.cfg.Quantiles(ctx, x, n, within); err != nil {
			return nil, err
		}
	}
	c.cfg.Logger.Debug("sampling where a range may be "+
		"split", "index", x.Definition.ID, "into", len(cuts.Values)+1, "largest",
		cuts.Largest, "off", cuts.Error)
	if len(cuts.Values) == 0 {
		return nil, &statecontext.Rejection{Code: errcode.InvalidArgument, Message: fmt.Sprintf("index %s has no entries, "+
			`or all of one leading key: say where to cut it with "at"`, x.Definition.Name)}
	}
	if y := byItself; y != nil && cuts.Largest*float64(y.Total) > worthwhile*float64(y.Largest) {
		return nil, fmt.Errorf("%w: after the split, one slice of %d would have %.0f %% of the entries, because so many "+
			"have one leading key",
			errNoHelp, len(cuts.Values)+1, 100*cuts.Largest)
	}
	return cuts.Values, nil
}

// enoughLoad is the number of observed writes and reads from which cuts are trusted. With it, the chance that a cut
// is off by more than a fifth is below one in a million.
const enoughLoad = 200

// loads returns cuts for hot ranges; it leaves out ranges for which cutting does not help.
func (c *Coordinator) loads(ctx context.Context, x *statecontext.Index,
	hot []rebalance.Hot) (at []json.RawMessage, err error) {
	if c.cfg.Loads == nil {
		return nil, fmt.Errorf("%w: no indexer reports which keys are written and read", errNoHelp)
	}
	cuts, err := c.cfg.Loads(ctx, x, hot, core.SplitTime)
	if err != nil {
		return nil, err
	}
	var why error
	for i := range cuts {
		h, cut := &hot[i], &cuts[i]
		c.cfg.Logger.Debug("sampling where a hot range may be split", "index", x.Definition.ID, "slice", h.Slice, "into",
			len(cut.Values)+1, "largest", cut.Largest, "off", cut.Error, "entries_seen", cut.Of)
		switch {
		case cut.Of < enoughLoad:
			why = fmt.Errorf("%w: slice %d: %d entries were written and read during the sample, at least %d are needed",
				errNoHelp, h.Slice, cut.Of, enoughLoad)
		case len(cut.Values) == 0 || cut.Largest > worthwhile:
			why = fmt.Errorf("%w: slice %d: %.0f %% of the writes and reads have one leading key", errNoHelp, h.Slice,
				100*cut.Largest)
		default:
			at = append(at, cut.Values...)
		}
	}
	if len(at) == 0 {
		return nil, why
	}
	return at, nil
}

// worthwhile is the largest acceptable share of the largest slice, relative to the present one, in an automatic
// split.
const worthwhile = 0.75

// errNoHelp is wrapped when a split would not improve what it is meant for.
var errNoHelp = errors.New("a split does not help")

// splitByItself begins an automatic split or merge.
func (c *Coordinator) splitByItself(ctx context.Context, l *term, e *core.BeginSplit) *core.SplitTried {
	n := int(e.Partitions)
	o, err := c.splitOnce(ctx, l, &SplitRequest{ID: e.Index, IfMatch: e.IfModified, Partitions: &n, byItself: e})
	switch {
	case err != nil && ctx.Err() != nil:
		err = core.ErrTermOver
	case err == nil && o.Existed:
		err = fmt.Errorf("%w: it already has these split values", errNoHelp)
	}
	return &core.SplitTried{Index: e.Index, Err: err}
}

// twice returns the number of slices of the successor: the requested one, or twice the present one.
func twice(d *index.Definition, partitions *int) (uint16, error) {
	wanted := 2 * int(d.Partitions)
	if partitions != nil {
		wanted = *partitions
	}
	if wanted > partition.MaxPartitions {
		return 0, tooMany(d, wanted)
	}
	return uint16(wanted), nil
}

func tooMany(d *index.Definition, n int) error {
	return &statecontext.Rejection{Code: errcode.LimitExceeded, Message: fmt.Sprintf("index %s would have %d slices; at "+
		"most %d", d.Name, n, partition.MaxPartitions)}
}

// SetAutoSplit sets whether an index is split and merged automatically; of the request, only the fields that identify
// the index are used. Errors wrap expression.ErrDefinition, codes of package errcode, ErrNotLeading, or come from the
// proposal.
func (c *Coordinator) SetAutoSplit(ctx context.Context, req SplitRequest, on bool) (Outcome, error) {
	if _, err := c.leading(); err != nil {
		return Outcome{}, err
	}
	return replanned(ctx, func() (Outcome, error) { return c.setAutoSplitOnce(ctx, &req, on) })
}

func (c *Coordinator) setAutoSplitOnce(ctx context.Context, req *SplitRequest, on bool) (Outcome, error) {
	s, x, done, err := c.toAlter(ctx, req.ID, &req.Name, req.Request)
	if x == nil || err != nil {
		return done, err
	}
	d := x.Definition
	if d.AutoSplitOff == !on {
		return Outcome{ID: d.ID, Definition: d, CAS: s.CAS(), Existed: true}, nil
	}
	d.AutoSplitOff = !on
	if err := expression.Normalize(&d); err != nil {
		return Outcome{}, err
	}
	res, err := c.proposeRequest(ctx, req.Request, byName(&statecontext.SetAutoSplit{ID: d.ID, IfMatch: req.IfMatch,
		IfPlanned: x.Definition.ModifiedCAS, Off: !on, Statement: d.Statement}, req.Name))
	if err != nil {
		return Outcome{}, err
	}
	return altered(c.cfg.Consensus.State(), d, res)
}

// CancelSplit drops the successor of an index; of the request, only the fields that identify the index are used.
// Errors wrap codes of package errcode, ErrNotLeading, or come from the proposal.
func (c *Coordinator) CancelSplit(ctx context.Context, req SplitRequest) (Outcome, error) {
	if _, err := c.leading(); err != nil {
		return Outcome{}, err
	}
	var was index.Definition
	s := c.cfg.Consensus.State()
	if x := target(s, req.ID, &req.Name); x != nil {
		if next := s.Successor(&x.Definition); next != nil {
			was = next.Definition
		}
	}
	res, err := c.proposeRequest(ctx, req.Request, byName(&statecontext.CancelSplit{ID: req.ID}, req.Name))
	if err != nil {
		return Outcome{}, err
	}
	if res.Index != was.ID {
		was = index.Definition{}
	}
	return altered(c.cfg.Consensus.State(), was, res)
}
