package api

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/manager/api/v1"
	"tidemark/manager/coordinator"
	"tidemark/manager/coordinator/core"
	"tidemark/partition"
	"tidemark/rebalance"
	"tidemark/statecontext"
)

// maxPlanBytes limits the size of a plan in a request.
const maxPlanBytes = 32 << 20

func (g rebalances) rebalanceRoutes() []route {
	return []route{
		{method: "POST", path: "/v1/rebalances", handle: g.startRebalance, role: RoleAdmin, leader: true,
			limit: v1.WriteTimeout,
			body:  maxPlanBytes, upload: true, doc: operation{
				id: "startRebalance", tag: tagCluster, summary: "Spread the copies of slices over the present indexers: " +
					"plan it, and start it",
				params:  []param{{name: paramDryRun, enum: []string{"true", "false"}, means: "true: only plan"}},
				headers: []string{HeaderKey}, body: v1.RebalanceRequest{},
				answers: []answer{{status: 202, means: "it has begun", body: v1.RebalanceReply{}},
					{status: 200, means: "the plan alone, or no copy has to move", body: v1.RebalanceReply{}}},
				codes: []errcode.Code{errcode.RebalanceRunning, errcode.StalePlan,
					errcode.UnknownNode, errcode.MemberConflict, errcode.PlacementImpossible,
					errcode.OutcomeUnknown}}},
		{method: "GET", path: "/v1/rebalances", handle: g.listRebalances, role: RoleRead, leader: true, limit: v1.ReadTimeout,
			doc: operation{
				id: "listRebalances", tag: tagCluster, summary: "The newest rebalances",
				answers: []answer{{status: 200, means: "at most the newest 17, by id, and the running splits",
					body: v1.RebalanceList{}}}}},
		{method: "GET", path: "/v1/rebalances/{id}", handle: g.getRebalance, role: RoleRead, leader: true,
			limit: v1.ReadTimeout,
			doc: operation{
				id: "getRebalance", tag: tagCluster, summary: "A rebalance: its progress, and each slice that changes its place",
				answers: []answer{{status: 200, means: "as it stands", body: v1.RebalanceInfo{}}},
				codes:   []errcode.Code{errcode.UnknownRebalance}}},
		{method: "DELETE", path: "/v1/rebalances/{id}", handle: g.cancelRebalance, role: RoleAdmin, leader: true,
			limit: v1.WriteTimeout, doc: operation{
				id: "cancelRebalance", tag: tagCluster, summary: "Cancel a rebalance: finished steps stay, those under " +
					"way are undone",
				answers: []answer{{status: 202, means: "it ends as soon as it can", body: v1.RebalanceInfo{}}},
				codes:   []errcode.Code{errcode.UnknownRebalance, errcode.OutcomeUnknown}}},
	}
}

func (g rebalances) startRebalance(w http.ResponseWriter, r *http.Request) error {
	dry, err := isTrue(r, paramDryRun)
	if err != nil {
		return err
	}
	var body v1.RebalanceRequest
	if err := rpc.Read(r, &body); err != nil {
		return err
	}
	req, err := bodyRequest(r, 0)
	if err != nil {
		return err
	}
	plan, id, err := g.cfg.Coordinator.Rebalance(r.Context(), coordinator.RebalanceRequest{Remove: body.Remove,
		Keep: body.Keep, DryRun: dry, Plan: body.Plan, Cause: "an operator",
		Options: rebalance.Options{Sends: body.Sends, Receives: body.Receives}, Request: req})
	if err != nil && !errors.Is(err, coordinator.ErrBalanced) {
		return err
	}
	status := http.StatusOK
	if id != 0 {
		status = http.StatusAccepted
	}
	rpc.Write(w, r, status, v1.RebalanceReply{ID: id, Plan: plan})
	return nil
}

func (g rebalances) listRebalances(w http.ResponseWriter, r *http.Request) error {
	s, err := g.read(w, r)
	if err != nil {
		return err
	}
	list := v1.RebalanceList{Rebalances: []v1.RebalanceInfo{}}
	for x := range s.Rebalances() {
		list.Rebalances = append(list.Rebalances, g.rebalanceInfo(x))
	}
	list.Splits, list.MoreSplits = runningSplits(s, g.coordination())
	rpc.Write(w, r, http.StatusOK, list)
	return nil
}

// mostSplits limits the splits listed beside the rebalances.
const mostSplits = 100

// runningSplits returns the running splits, and the number of those beyond mostSplits.
func runningSplits(s *statecontext.State, now *core.Status) (all []v1.RunningSplit, more int) {
	for x := range s.Indexes() {
		d := &x.Definition
		split := splitOf(s, d, now)
		switch {
		case split == nil:
		case len(all) == mostSplits:
			more++
		default:
			all = append(all, v1.RunningSplit{ID: d.ID, Bucket: d.Bucket, Scope: d.Member.Scope,
				Collection: d.Member.Collection, Name: d.Name, Split: *split})
		}
	}
	return all, more
}

func (g rebalances) getRebalance(w http.ResponseWriter, r *http.Request) error {
	s, err := g.read(w, r)
	if err != nil {
		return err
	}
	return g.writeRebalance(w, r, http.StatusOK, s)
}

// writeRebalance answers with the rebalance of the path.
func (g rebalances) writeRebalance(w http.ResponseWriter, r *http.Request, status int, s *statecontext.State) error {
	id, err := rebalanceID(r)
	if err != nil {
		return err
	}
	x := s.Rebalance(id)
	if x == nil {
		return rpc.Refuse(errcode.UnknownRebalance, "there is no rebalance %d, or it is too old to be remembered", id)
	}
	info := g.rebalanceInfo(x)
	if !x.Phase.Over() {
		info.Moves = []v1.RebalanceMove{}
		c, _ := g.cfg.Coordinator.Status()
		for y := range s.RebalanceSteps() {
			m := v1.RebalanceMove{Rebalance: *y, BytesDone: y.Bytes}
			if y.State != partition.RebalanceDone {
				m.BytesDone = c.Rebalance.Moving[y.Step]
			}
			info.Moves = append(info.Moves, m)
		}
	}
	rpc.Write(w, r, status, info)
	return nil
}

func rebalanceID(r *http.Request) (uint64, error) {
	text := r.PathValue("id")
	id, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, rpc.Refuse(errcode.UnknownRebalance, "there is no rebalance %q: want a number", text)
	}
	return id, nil
}

// rebalanceInfo adds the progress of a rebalance.
func (g rebalances) rebalanceInfo(x *statecontext.RebalanceJob) v1.RebalanceInfo {
	info := v1.RebalanceInfo{RebalanceJob: *x}
	if x.Phase.Over() {
		switch {
		case x.Phase == statecontext.RebalanceFinished:
			info.Percent = 100
		case x.Steps > 0:
			info.Percent = 100 * float64(x.Done) / float64(x.Steps)
		}
		return info
	}
	if c, leads := g.cfg.Coordinator.Status(); leads && c.Rebalance.ID == x.ID {
		info.Percent, info.BytesDone = 100*c.Rebalance.Part, c.Rebalance.BytesDone
		if elapsed := g.now().UnixMilli() - x.StartedMS; c.Rebalance.LeftKnown && elapsed > 0 {
			info.RemainingMS = new(int64(float64(elapsed) * c.Rebalance.Left))
		}
	}
	return info
}

func (g rebalances) cancelRebalance(w http.ResponseWriter, r *http.Request) error {
	id, err := rebalanceID(r)
	if err != nil {
		return err
	}
	if err := g.cfg.Coordinator.CancelRebalance(r.Context(), id); err != nil {
		return fmt.Errorf("rebalance %d: %w", id, err)
	}
	return g.writeRebalance(w, r, http.StatusAccepted, g.cfg.Raft.State())
}
