package coordinator

import (
	"context"
	"fmt"
	"slices"

	"tidemark/errcode"
	"tidemark/expression"
	"tidemark/index"
	"tidemark/manager/coordinator/core"
	"tidemark/partition"
	"tidemark/rebalance"
	"tidemark/statecontext"
)

// AlterRequest requests another number of replicas of an index, or other indexers for it. It sets one of Replicas,
// Drop and Nodes, or Replicas with Nodes.
type AlterRequest struct {
	ID       index.ID
	Name     statecontext.IndexName // unless zero, instead of ID
	IfMatch  uint64                 // of the definition; 0: any
	Replicas *int                   // the wanted number, in addition to the first copy
	Drop     *int                   // number of the replica to drop
	Nodes    []string
	Request  *statecontext.Request // nil: not remembered
}

// AlterIndex changes replicas in one update: new copies are filled from KV while the present ones serve. New Nodes
// are recorded, and a rebalance that begins with the same update moves the copies that lie elsewhere. Errors wrap
// codes of package errcode, expression.ErrDefinition, ErrLastCopies, rebalance.ErrTooFewNodes or ErrUnknownNode,
// ErrNotLeading, ErrBusy, or come from the proposal.
func (c *Coordinator) AlterIndex(ctx context.Context, req AlterRequest) (Outcome, error) {
	l, err := c.leading()
	if err != nil {
		return Outcome{}, err
	}
	return replanned(ctx, func() (Outcome, error) { return c.alterOnce(ctx, l, &req) })
}

// alterOnce plans and proposes an alteration.
func (c *Coordinator) alterOnce(ctx context.Context, l *term, req *AlterRequest) (Outcome, error) {
	s, x, done, err := c.toAlter(ctx, req.ID, &req.Name, req.Request)
	if x == nil || err != nil {
		return done, err
	}
	body, err := c.planAlteration(ctx, l, s, x, req)
	if err != nil {
		return Outcome{}, err
	}
	if body == nil {
		return Outcome{ID: x.Definition.ID, Definition: x.Definition, CAS: s.CAS(), Existed: true}, nil
	}
	res, err := c.proposeRequest(ctx, req.Request, byName(body, req.Name))
	if err != nil {
		return Outcome{}, err
	}
	c.sayMoves(body.Start, &res)
	return altered(c.cfg.Consensus.State(), x.Definition, res)
}

// planAlteration returns the command for state s, nil if there is nothing to change.
func (c *Coordinator) planAlteration(ctx context.Context, l *term, s *statecontext.State, x *statecontext.Index,
	req *AlterRequest) (*statecontext.AlterIndex, error) {
	cluster, err := c.clusterNow(ctx, l)
	if err != nil {
		return nil, err
	}
	body, err := alteration(cluster, x, req)
	if body == nil || err != nil {
		return nil, err
	}
	if err := c.keeps(ctx, l, x, body); err != nil {
		return nil, err
	}
	if len(req.Nodes) > 0 {
		if err := noRebalance(s); err != nil {
			return nil, err
		}
		if err := c.moves(cluster, x, body); err != nil {
			return nil, err
		}
	}
	body.Statement, err = restated(x.Definition, body)
	return body, err
}

// restated returns the canonical statement of the altered index.
func restated(d index.Definition, body *statecontext.AlterIndex) (string, error) {
	d.Replicas, d.Nodes = body.Replicas, body.Nodes
	err := expression.Normalize(&d)
	return d.Statement, err
}

// isNew reports whether the proposal has changed something: it was neither a rehearsal nor a replay.
func (c *Coordinator) isNew(res *statecontext.Result) bool { return !res.Replayed && !c.rehearses }

// sayMoves logs the rebalance that an ALTER INDEX has begun; start is nil if there is none.
func (c *Coordinator) sayMoves(start *statecontext.StartRebalance, res *statecontext.Result) {
	if start != nil && c.isNew(res) {
		c.cfg.Logger.Info("rebalance starts", "rebalance", res.Number, "cause", start.Cause, "steps", len(start.Steps))
	}
}

// toAlter finds the index that a statement changes, by id or name, in a linearizable state. If there is nothing to
// change, x is nil, and done and err are the statement's outcome: the request was answered before, or no index has
// that name.
func (c *Coordinator) toAlter(ctx context.Context, id index.ID, name *statecontext.IndexName,
	req *statecontext.Request) (s *statecontext.State, x *statecontext.Index, done Outcome, err error) {
	if err := c.cfg.Consensus.ReadBarrier(ctx); err != nil {
		return nil, nil, Outcome{}, err
	}
	s = c.cfg.Consensus.State()
	if res, known := recalled(s, req); known {
		done, err = altered(s, index.Definition{}, res)
		return s, nil, done, err
	}
	if x = target(s, id, name); x == nil && !name.IsZero() {
		done, err = c.absent(ctx, name, req)
		return s, nil, done, err
	}
	return s, x, Outcome{}, alterable(s, x, id)
}

// alterable returns why an index cannot be changed any more, nil if it can; id is that of the request.
func alterable(s *statecontext.State, x *statecontext.Index, id index.ID) error {
	if x == nil || x.Definition.State == index.Dropping {
		return &statecontext.Rejection{Code: errcode.UnknownIndex,
			Message: fmt.Sprintf("there is no index with id %d; it may have been dropped", id)}
	}
	if core.BucketGone(s, &x.Definition) {
		return &statecontext.Rejection{Code: errcode.BucketGone,
			Message: fmt.Sprintf("bucket %q of index %s was deleted", x.Definition.Bucket, x.Definition.Name)}
	}
	return nil
}

// noRebalance returns an error if a rebalance is running.
func noRebalance(s *statecontext.State) error {
	if r := s.RebalanceUnderWay(); r != nil {
		return &statecontext.Rejection{Code: errcode.RebalanceRunning,
			Message: fmt.Sprintf("rebalance %d (%s) is %s; wait for its end, or cancel it", r.ID, r.Cause, r.Phase)}
	}
	return nil
}

// moves plans the moves of an alteration; cluster already has the new nodes.
func (c *Coordinator) moves(cluster *rebalance.Cluster, x *statecontext.Index, body *statecontext.AlterIndex) error {
	d := &x.Definition
	for i := range cluster.Indexes {
		if y := &cluster.Indexes[i]; y.ID == d.ID {
			y.Replicas = int(body.Replicas)
			y.Copies = slices.DeleteFunc(y.Copies, func(o rebalance.Copy) bool { return slices.Contains(body.Drop, o.Replica) })
		}
	}
	p, err := rebalance.Make(cluster, rebalance.Options{})
	if err != nil {
		return err
	}
	start := c.starting(p, "ALTER INDEX "+d.Keyspace().String()+"/"+d.Name)
	left := 0
	start.Steps, left = core.Begun(p, func(y *rebalance.Step) bool { return y.Index == d.ID && wanted(cluster, y) })
	if left > 0 { // nothing would move them later
		return &statecontext.Rejection{Code: errcode.LimitExceeded, Message: fmt.Sprintf("ALTER INDEX %s/%s to these "+
			"indexers moves %d copies; one rebalance may move %d; name fewer new indexers, together with some that already "+
			"have copies, and the rest in a second statement; or lower num_replica first, and raise it afterwards",
			d.Keyspace(), d.Name, len(start.Steps)+left, rebalance.MaxBegun)}
	}
	if len(start.Steps) > 0 {
		body.Start = start
	}
	return nil
}

// altered returns the outcome of an AlterIndex; was is the definition before it.
func altered(s *statecontext.State, was index.Definition, res statecontext.Result) (Outcome, error) {
	if err := res.Err(); err != nil {
		return Outcome{}, err
	}
	o := Outcome{ID: res.Index, Definition: was, CAS: res.CAS, Replayed: res.Replayed}
	if now := s.Definition(res.Index); now != nil {
		o.Definition = *now
	}
	if o.Definition.ID = res.Index; o.Definition.State == 0 { // it was dropped meanwhile
		o.Definition.State = index.Dropping
	}
	return o, nil
}

// alteration makes the command; nil if there is nothing to change.
func alteration(cluster *rebalance.Cluster, x *statecontext.Index, req *AlterRequest) (*statecontext.AlterIndex,
	error) {
	d := &x.Definition
	c := &statecontext.AlterIndex{ID: d.ID, IfMatch: req.IfMatch, IfPlanned: d.ModifiedCAS,
		Replicas: d.Replicas, Nodes: d.Nodes}
	if req.Replicas != nil {
		c.Replicas = uint8(*req.Replicas)
	}
	if len(req.Nodes) > 0 {
		if err := onto(cluster, d, req.Nodes, c); err != nil {
			return nil, err
		}
	}
	switch {
	case req.Drop != nil:
		return c, without(d, *req.Drop, c)
	case c.Replicas == d.Replicas && len(req.Nodes) == 0:
		return nil, nil
	case c.Replicas == d.Replicas:
		return c, nil
	}
	for r := int(c.Replicas) + 1; r <= int(d.Replicas); r++ {
		c.Drop = append(c.Drop, partition.Replica(r))
	}
	if len(c.Drop) > 0 {
		return c, nil
	}
	return c, further(cluster, d, *req.Replicas, c)
}

// without sets the command to drop one replica.
func without(d *index.Definition, replica int, c *statecontext.AlterIndex) error {
	if replica > int(d.Replicas) || replica < 0 || d.Replicas == 0 {
		return &statecontext.Rejection{Code: errcode.InvalidArgument, Message: fmt.Sprintf(
			"index %s has num_replica %d, so its copies are the replicas 0 to %d; replica %d cannot be dropped, nor the only "+
				"one: use DROP INDEX for that", d.Name, d.Replicas, d.Replicas, replica)}
	}
	c.Drop, c.Replicas = []partition.Replica{partition.Replica(replica)}, d.Replicas-1
	return nil
}

// keeps returns an error unless the remaining replicas have a whole copy of each slice on live indexers.
func (c *Coordinator) keeps(ctx context.Context, l *term, x *statecontext.Index,
	body *statecontext.AlterIndex) error {
	if len(body.Drop) == 0 || x.Waits() {
		return nil
	}
	return c.untilKnown(ctx, func(bool) error {
		q := &core.LackingQuery{Index: x, Drop: body.Drop, Reply: make(chan core.Lacking, 1)}
		lacks, err := query(ctx, l, "copies of the other replicas", q, q.Reply)
		if err != nil {
			return err
		}
		return refusal(&lacks, &x.Definition)
	})
}

// refusal returns why replicas may not be dropped, nil if they may.
func refusal(a *core.Lacking, d *index.Definition) error {
	switch {
	case len(a.Slices) > 0:
		return fmt.Errorf("%w: without the copies to be dropped, no running indexer has a complete copy of slice %d of "+
			"index %s/%s (%d such slices); wait until the other replicas are filled, or restart their indexers",
			ErrLastCopies, a.Slices[0], d.Keyspace(), d.Name, len(a.Slices))
	case len(a.Unsure) > 0:
		return fmt.Errorf("%w: whether a remaining indexer has a complete copy of slice %d of index %s/%s (%d such slices)",
			ErrNotKnown, a.Unsure[0], d.Keyspace(), d.Name, len(a.Unsure))
	}
	return nil
}

// onto sets the indexers on which the index is to lie.
func onto(cluster *rebalance.Cluster, d *index.Definition, nodes []string, c *statecontext.AlterIndex) error {
	serving := slices.DeleteFunc(slices.Clone(cluster.Nodes),
		func(n rebalance.Node) bool { return n.Role != rebalance.Serving })
	allowed, err := rebalance.Allowed(serving, nodes)
	if err == nil && len(allowed) <= int(c.Replicas) {
		err = fmt.Errorf("%w: num_replica %d needs %d indexers, the statement names %d", rebalance.ErrTooFewNodes, c.Replicas,
			c.Replicas+1, len(allowed))
	}
	c.Nodes = nodes
	for i := range cluster.Indexes {
		if x := &cluster.Indexes[i]; x.ID == d.ID {
			x.Nodes = core.Named(cluster.Nodes, nodes)
		}
	}
	return err
}

// further adds placements for more replicas.
func further(cluster *rebalance.Cluster, d *index.Definition, replicas int, c *statecontext.AlterIndex) error {
	at := slices.IndexFunc(cluster.Indexes, func(x rebalance.Index) bool { return x.ID == d.ID })
	if at < 0 {
		return fmt.Errorf("%w: index %d", rebalance.ErrInput, d.ID)
	}
	cluster.Indexes[at].Replicas = replicas
	p, err := rebalance.Make(cluster, rebalance.Options{})
	if err != nil {
		return err
	}
	for i := range p.Steps {
		if y := &p.Steps[i]; y.Index == d.ID && y.Kind == rebalance.Add {
			c.Add = append(c.Add, statecontext.Placement{Slice: y.Slice, Replica: y.Replica, Node: y.To})
		}
	}
	if want := cluster.Indexes[at].Slices * (replicas - int(d.Replicas)); len(c.Add) != want {
		return fmt.Errorf("%w: num_replica %d needs %d running indexers that may hold index %s; lower num_replica or add "+
			"indexers",
			rebalance.ErrTooFewNodes, replicas, replicas+1, d.Name)
	}
	return nil
}
