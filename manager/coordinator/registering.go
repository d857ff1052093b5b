package coordinator

import (
	"context"
	"errors"
	"fmt"

	"tidemark/errcode"
	"tidemark/manager/coordinator/core"
	"tidemark/statecontext"
	"tidemark/wire"
)

var (
	// ErrRegistration is wrapped when a registration is incomplete.
	ErrRegistration = errors.New("bad registration")
)

// RegisterIndexer registers an indexer and assigns its node number (IM-10). Errors wrap ErrNotLeading,
// ErrBootConflict, ErrRegistration, wire.ErrForeignCluster, errcode.NodeRemoved, or come from the proposal.
func (c *Coordinator) RegisterIndexer(ctx context.Context, req *wire.RegisterIndexer) (*wire.RegisterReply, error) {
	l, err := c.leading()
	if err != nil {
		return nil, err
	}
	e := &req.Endpoint
	if e.UUID == "" || e.BootID == "" || e.Admin == "" || e.Maintenance == "" {
		return nil, fmt.Errorf("%w: uuid, boot id, admin address and data addresses are required", ErrRegistration)
	}
	if len(e.Zone) > wire.MaxZone || e.Capacity > wire.MaxCapacity {
		return nil, fmt.Errorf("%w: a zone of %d bytes and a capacity of %d; the limits are %d and "+
			"%d", ErrRegistration, len(e.Zone),
			e.Capacity, wire.MaxZone, wire.MaxCapacity)
	}
	if err := l.admit(ctx, req.ClusterID, &core.Registering{UUID: e.UUID, Boot: e.BootID, Addr: e.Admin}); err != nil {
		return nil, err
	}
	res, err := c.proposeFor(ctx, &statecontext.RegisterIndexer{Indexer: statecontext.Indexer{UUID: e.UUID,
		BootID: e.BootID, Name: e.Name, Zone: e.Zone, Capacity: e.Capacity,
		Admin: e.Admin, Scan: e.Scan, Data: statecontext.DataAddrs{Maintenance: e.Maintenance, Backfill: e.Backfill,
			Catchup: e.Catchup}}})
	if err != nil {
		return nil, err
	}
	return l.registered(ctx, &core.Registered{IsNode: true, Node: res.Node, Boot: e.BootID})
}

// RegisterProjector registers a projector. Errors are those of RegisterIndexer.
func (c *Coordinator) RegisterProjector(ctx context.Context, req *wire.RegisterProjector) (*wire.RegisterReply, error) {
	l, err := c.leading()
	if err != nil {
		return nil, err
	}
	e := &req.Endpoint
	if e.ID == "" || e.BootID == "" || e.Admin == "" {
		return nil, fmt.Errorf("%w: id, boot id and admin address are required", ErrRegistration)
	}
	if err := l.admit(ctx, req.ClusterID, &core.Registering{Projector: e.ID, Boot: e.BootID, Addr: e.Admin}); err != nil {
		return nil, err
	}
	if _, err := c.proposeFor(ctx, &statecontext.RegisterProjector{Projector: statecontext.Projector{ID: e.ID,
		Admin: e.Admin, BootID: e.BootID}}); err != nil {
		return nil, err
	}
	return l.registered(ctx, &core.Registered{Projector: e.ID, Boot: e.BootID})
}

// LeaveProjector unregisters a projector that has ended for good, if it is still the registered process. Errors wrap
// ErrNotLeading, ErrRegistration or wire.ErrForeignCluster, or come from the proposal.
func (c *Coordinator) LeaveProjector(ctx context.Context, req *wire.LeaveProjector) error {
	if _, err := c.leading(); err != nil {
		return err
	}
	if req.ID == "" || req.BootID == "" {
		return fmt.Errorf("%w: id and boot id are required", ErrRegistration)
	}
	if err := c.cfg.Consensus.ReadBarrier(ctx); err != nil {
		return err
	}
	s := c.cfg.Consensus.State()
	if own := s.ClusterID(); req.ClusterID != own {
		return fmt.Errorf("%w: the component belongs to cluster %q, this is %q", wire.ErrForeignCluster, req.ClusterID, own)
	}
	if p := s.Projector(req.ID); p == nil || p.BootID != req.BootID {
		return nil // without a command: such requests may repeat
	}
	_, err := c.proposeFor(ctx, &statecontext.RemoveProjector{ID: req.ID, BootID: req.BootID})
	if errors.Is(err, errcode.UnknownNode) || errors.Is(err, errcode.NodeAlive) { // removed or replaced meanwhile
		return nil
	}
	return err
}

// proposeFor proposes for a waiting caller.
func (c *Coordinator) proposeFor(ctx context.Context, body statecontext.Body) (statecontext.Result, error) {
	return c.proposeUnder(ctx, nil, body)
}

// proposeUnder proposes under a request, whose outcome is stored; nil: under none.
func (c *Coordinator) proposeUnder(ctx context.Context, req *statecontext.Request,
	body statecontext.Body) (statecontext.Result, error) {
	res, err := c.cfg.Consensus.Propose(ctx, statecontext.Command{Request: req, Body: body})
	if err == nil {
		err = res.Err()
	}
	return res, err
}

// admit rejects foreign clusters and second live processes.
func (t *term) admit(ctx context.Context, clusterID string, check *core.Registering) error {
	if own := t.cfg.Consensus.State().ClusterID(); clusterID != "" && clusterID != own {
		return fmt.Errorf("%w: the component belongs to cluster %q, this is %q", wire.ErrForeignCluster, clusterID, own)
	}
	check.Reply = make(chan error, 1)
	conflict, err := query(ctx, t, "checking whether its former process is running", core.Input(check), check.Reply)
	if err != nil {
		return err
	}
	return conflict
}

func (t *term) registered(ctx context.Context, r *core.Registered) (*wire.RegisterReply, error) {
	r.Reply = make(chan *wire.RegisterReply, 1)
	if err := t.post(ctx, r); err != nil {
		return nil, err
	}
	if a, err := await(ctx, t, "the registration", r.Reply); err == nil {
		return a, nil
	}
	return nil, ErrNotLeading
}

// HandleProjectorReport takes a projector's report (SYNC included). Errors wrap ErrNotLeading, ErrBusy or
// wire.ErrForeignCluster.
func (c *Coordinator) HandleProjectorReport(ctx context.Context, r *wire.ProjectorReport) (*wire.ReportReply, error) {
	in := &core.ProjectorReported{Report: r, Reply: make(chan *wire.ReportReply, 1)}
	return c.handleReport(ctx, r.ClusterID, in, in.Reply)
}

// HandleIndexerReport takes an indexer's report. Errors are those of HandleProjectorReport.
func (c *Coordinator) HandleIndexerReport(ctx context.Context, r *wire.IndexerReport) (*wire.ReportReply, error) {
	in := &core.IndexerReported{Report: r, Reply: make(chan *wire.ReportReply, 1)}
	return c.handleReport(ctx, r.ClusterID, in, in.Reply)
}

func (c *Coordinator) handleReport(ctx context.Context, clusterID string, in core.Input,
	reply chan *wire.ReportReply) (*wire.ReportReply, error) {
	l, err := c.leading()
	if err != nil {
		return nil, err
	}
	if own := c.cfg.Consensus.State().ClusterID(); clusterID != "" && clusterID != own {
		return nil, fmt.Errorf("%w: the report is for cluster %q, this is %q", wire.ErrForeignCluster, clusterID, own)
	}
	if err := l.post(ctx, in); err != nil {
		return nil, err
	}
	if a, err := await(ctx, l, "the answer to a report", reply); err == nil {
		return a, nil
	}
	return nil, ErrNotLeading
}
