package coordinator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/manager/coordinator/core"
	"tidemark/rebalance"
	"tidemark/statecontext"
	"tidemark/wire"
)

var (
	// ErrBalanced is wrapped when a requested rebalance has nothing to move.
	ErrBalanced = errors.New("no copy has to move")
	// ErrUnknownRebalance is wrapped when no rebalance has the id.
	ErrUnknownRebalance = errors.New("no such rebalance")
)

// RebalanceRequest requests that copies be spread over the present indexers (IM-18).
type RebalanceRequest struct {
	// Remove names indexers (by uuid, name or node number) that are to give up all copies; Keep names those for which
	// that is revoked. A Plan contains its own.
	Remove, Keep []string
	Options      rebalance.Options
	DryRun       bool            // only plan
	Plan         *rebalance.Plan // run this plan instead of a new one
	Cause        string
	Request      *statecontext.Request // nil: not remembered
}

// Rebalance makes a plan and begins it; id is 0 if it was only planned. For a request that has begun a rebalance
// before, it returns the id of that and no plan. Errors wrap ErrBalanced, ErrUnknownComponent, ErrAmbiguous,
// rebalance.ErrStale, ErrInput or ErrTooFewNodes, errcode.RebalanceRunning or StalePlan, ErrNotLeading, ErrBusy, or
// come from the proposal.
func (c *Coordinator) Rebalance(ctx context.Context, req RebalanceRequest) (p *rebalance.Plan, id uint64, err error) {
	l, err := c.leadingNow(ctx)
	if err != nil {
		return nil, 0, err
	}
	if res, known := recalled(c.cfg.Consensus.State(), req.Request); known && !req.DryRun {
		return nil, res.Number, res.Err()
	}
	if err := req.asPlanned(); err != nil {
		return nil, 0, err
	}
	marks, err := marked(c.cfg.Consensus.State(), &req)
	if err != nil {
		return nil, 0, err
	}
	cluster, err := c.clusterNow(ctx, l)
	if err != nil {
		return nil, 0, err
	}
	applyMarks(cluster, marks)
	var left []string
	if req.Plan == nil {
		left = leaveSplit(c.cfg.Consensus.State(), cluster)
	}
	req.Options.BytesPerSecond = cmp.Or(req.Options.BytesPerSecond, core.MovedPerSecond(c.cfg.Consensus.State()))
	if p, err = planned(cluster, &req); err != nil {
		return p, 0, err
	}
	if p.Left = append(p.Left, left...); req.DryRun {
		return p, 0, nil
	}
	id, err = c.begin(ctx, cluster, p, marks, &req)
	return p, id, err
}

// leaveSplit removes indexes that are being split from the input of a plan, and returns their names: their copies are
// dropped when the split ends. Indexes with copies on indexers that do not serve or are to leave stay in: the split
// may fail.
func leaveSplit(s *statecontext.State, cluster *rebalance.Cluster) (left []string) {
	serves := map[index.NodeID]bool{}
	for i := range cluster.Nodes {
		serves[cluster.Nodes[i].ID] = cluster.Nodes[i].Role == rebalance.Serving
	}
	cluster.Indexes = slices.DeleteFunc(cluster.Indexes, func(y rebalance.Index) bool {
		x := s.Index(y.ID)
		if x == nil || s.Successor(&x.Definition) == nil ||
			slices.ContainsFunc(y.Copies, func(o rebalance.Copy) bool { return !serves[o.Node] }) {
			return false
		}
		left = append(left, x.Definition.Keyspace().String()+"/"+x.Definition.Name)
		return true
	})
	return left
}

// asPlanned sets the indexers of a request with a plan to those that the plan was made with.
func (r *RebalanceRequest) asPlanned() error {
	p := r.Plan
	switch {
	case p == nil:
	case len(r.Remove) == 0 && len(r.Keep) == 0:
		r.Remove, r.Keep = p.Remove, p.Keep
	case !slices.Equal(r.Remove, p.Remove) || !slices.Equal(r.Keep, p.Keep):
		return fmt.Errorf("%w: the plan was made with remove %.200q and keep %.200q, but the request has %.200q and %.200q; "+
			"make a new plan with these", rebalance.ErrInput, p.Remove, p.Keep, r.Remove, r.Keep)
	}
	return nil
}

// applyMarks sets the roles of a cluster's indexers by the marks of a request.
func applyMarks(cluster *rebalance.Cluster, marks []*statecontext.SetIndexerGoing) {
	for i := range cluster.Nodes {
		n := &cluster.Nodes[i]
		for _, m := range marks {
			if m.Node == n.ID && n.Role != rebalance.Lost {
				n.Role = rebalance.Serving
				if m.Going {
					n.Role = rebalance.Going
				}
			}
		}
	}
}

// marked returns the marks for the indexers that a request names.
func marked(s *statecontext.State, req *RebalanceRequest) (marks []*statecontext.SetIndexerGoing, err error) {
	for i, names := range [][]string{req.Remove, req.Keep} {
		for _, name := range names {
			n, err := findIndexer(s, name)
			if err != nil {
				return nil, err
			}
			marks = append(marks, &statecontext.SetIndexerGoing{Node: n.Node, UUID: n.UUID, Going: i == 0})
		}
	}
	return marks, nil
}

// planned makes the plan of a request, or checks whether the plan that it contains is still valid.
func planned(cluster *rebalance.Cluster, req *RebalanceRequest) (p *rebalance.Plan, err error) {
	if p = req.Plan; p == nil {
		if p, err = rebalance.Make(cluster, req.Options); err == nil {
			p.Remove, p.Keep = req.Remove, req.Keep
		}
	} else if err = p.Options.Check(); err == nil {
		err = p.Stale(cluster)
	}
	return p, err
}

// begin proposes the steps of a plan that are not done yet, at most rebalance.MaxBegun of them. If another rebalance
// is running, nothing is marked.
func (c *Coordinator) begin(ctx context.Context, cluster *rebalance.Cluster, p *rebalance.Plan,
	marks []*statecontext.SetIndexerGoing, req *RebalanceRequest) (uint64, error) {
	s := c.cfg.Consensus.State()
	if r := s.RebalanceUnderWay(); r != nil && slices.ContainsFunc(marks,
		func(m *statecontext.SetIndexerGoing) bool { return s.Going(m.Node) != m.Going }) {
		return 0, &statecontext.Rejection{Code: errcode.RebalanceRunning, Message: fmt.Sprintf(
			"rebalance %d (%s) is %s; wait for its end, or cancel it", r.ID, r.Cause, r.Phase)}
	}
	for _, m := range marks {
		if _, err := c.proposeFor(ctx, m); err != nil {
			return 0, err
		}
	}
	start := c.starting(p, req.Cause)
	left := 0
	start.Steps, left = core.Begun(p, func(y *rebalance.Step) bool { return wanted(cluster, y) })
	if len(start.Steps) == 0 && len(p.Left) > 0 {
		return 0, fmt.Errorf("%w: the only copies that would are of indexes that are being split: "+
			"%.1000q", ErrBalanced, p.Left)
	}
	if len(start.Steps) == 0 {
		return 0, fmt.Errorf("%w: %.1000s", ErrBalanced, whyBalanced(p))
	}
	res, err := c.cfg.Consensus.Propose(ctx, statecontext.Command{Request: req.Request, Body: start})
	if err == nil {
		err = res.Err()
	}
	if err == nil {
		c.cfg.Logger.Info("rebalance starts", "rebalance", res.Number, "cause", req.Cause, "steps", len(start.Steps),
			"for_the_next", left)
	}
	return res.Number, err
}

// whyBalanced returns why a plan moves nothing.
func whyBalanced(p *rebalance.Plan) string {
	why := "the copies are balanced over all active indexers"
	if len(p.Excluded) > 0 {
		why = "the copies are balanced over all indexers that may get some"
	}
	for _, n := range p.Excluded {
		why += "; " + n.Name + " gets none: " + n.Why
	}
	return why
}

// starting returns the command that begins a plan, without its steps.
func (c *Coordinator) starting(p *rebalance.Plan, cause string) *statecontext.StartRebalance {
	return &statecontext.StartRebalance{Cause: wire.Cut(cause, statecontext.MaxCauseBytes),
		WallMS: c.cfg.Now().UnixMilli(),
		Sends:  uint8(max(p.Options.Sends, 1)), Receives: uint8(max(p.Options.Receives, 1))}
}

// wanted reports whether a step moves a copy and is not done.
func wanted(cluster *rebalance.Cluster, y *rebalance.Step) bool {
	done, err := y.Done(cluster)
	return err == nil && !done && y.Old != 0 && y.From != nil
}

// CancelRebalance makes the running rebalance end as soon as possible. Errors wrap ErrUnknownRebalance,
// ErrNotLeading, or come from the proposal.
func (c *Coordinator) CancelRebalance(ctx context.Context, id uint64) error {
	if _, err := c.leading(); err != nil {
		return err
	}
	_, err := c.proposeFor(ctx, &statecontext.CancelRebalance{ID: id})
	if errors.Is(err, errcode.UnknownRebalance) {
		return fmt.Errorf("%w: %w", ErrUnknownRebalance, err)
	}
	return err
}

// clusterNow returns the input for planning from the Leader, which has the indexers' reports.
func (c *Coordinator) clusterNow(ctx context.Context, t *term) (*rebalance.Cluster, error) {
	q := &core.ClusterQuery{Reply: make(chan *rebalance.Cluster, 1)}
	if c.rehearses {
		q.State = c.cfg.Consensus.State()
	}
	return query(ctx, t, "data of a plan", q, q.Reply)
}
